"""RUNS: tasks, threads and signals; passes events to the core and performs its effects.

``worker`` runs one ``group`` for each processor. A group hands the core what heartbeats, control messages
and runners report, and performs what the core returns: calls of Redis as tasks, and runners through
``partitions``. Nothing here decides about ownership. The rooms follow a record: ``send``, ``read``, ``run``,
``forward``; ``watch`` sees whether they move.
"""
