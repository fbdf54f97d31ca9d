"""The rebalance protocols, each in a folder of its own; ``registry`` is the only module that names all.

A protocol decides which worker should own which partition, and notices the workers that died. It takes
events (what the server answered, what peers wrote, which deadline has passed) and returns effects. Its
decisions may be late or disputed and yet do no harm, since each partition's lock fences whoever is wrong.
The protocols know nothing of each other, and all end in ``core.ownership``.
"""
