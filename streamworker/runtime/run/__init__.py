"""How one partition runs: calls of the user's function, commits, and what is rolled back.

A mode takes entries from the ``intake``, calls the function by the ``invoker``, and hands results to the
``commits``, one in flight at a time. The ``committer`` sends those of all partitions together. A record
counts as done only when its commit is confirmed: after a crash all others are handled again. A refused
commit ends the runner at once.
"""
