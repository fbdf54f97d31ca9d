"""Programs of streamworker that are measured, the server's keys that they use, and the figures of their runs.

Each measured program is a process of its own, started as a user would start it.
"""
