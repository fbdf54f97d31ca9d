"""What one worker owns: the life of its partitions, their locks, and the pulse that it gives.

A protocol says which partitions a worker should own. This room decides how it comes to own them: it asks
for locks, starts runners once it has them, and drains runners before it gives locks back. ``lifecycle`` is
the table of the states, and nothing else changes a state. No runner starts without a lock, and no lock is
given back while its runner may still commit.
"""
