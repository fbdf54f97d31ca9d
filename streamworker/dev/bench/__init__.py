"""``streamworker bench``: measures sending and handling on the user's machine and Redis.

Each measured program is its own process, started as a user would start it. ``benchmarks/`` in the repository
runs the same programs in turn with those of other libraries.
"""
