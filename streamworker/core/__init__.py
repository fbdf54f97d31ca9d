"""DECIDES: pure values in, values out; no I/O, clock, randomness, logging or async.

Events come in with the time, and effects come out: what a worker does next is a list of values that others
perform. So the simulator drives the same code as a worker, on virtual time, and a seed repeats each run.
Records never come here: a worker may handle a million of them between two events.
"""
