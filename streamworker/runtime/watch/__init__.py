"""What notices that a worker or a partition makes no progress.

``keeper`` sends the heartbeats from a thread of its own, so that no handler delays them; while they do not
get through, no call starts. ``watchdog`` looks at counters that runners keep anyway, and says what each
partition waits for. ``stages`` ends a worker that does not end by itself.
"""
