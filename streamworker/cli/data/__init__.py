"""Commands about what is stored: records, dead letters, checkpoints, types and tables.

Each reads through ``redisio`` and prints; those that change something show it first and ask. A list goes to
the terminal as a table, and with ``--json`` to a program.
"""
