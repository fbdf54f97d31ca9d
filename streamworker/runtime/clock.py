"""The clock of all local decisions."""

import time


def monotonic_ms() -> int:
    """Return this machine's monotonic clock in milliseconds; what other machines compare comes from Redis.

    Examples
    --------
    >>> monotonic_ms() <= monotonic_ms()
    True
    """
    return time.monotonic_ns() // 1_000_000
