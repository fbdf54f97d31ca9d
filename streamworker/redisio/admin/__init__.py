"""What operators need: the server's health, repairs of keys, and rights of roles.

``health`` and ``outboxes`` read and do not block the server. ``repair`` reads the facts of a group and
changes its keys, and ``steps`` does what a plan of the CLI chose. Each change compares first and is left
undone if the keys have changed since they were read, so it may be repeated, also beside a live group.
"""
