"""The clock of all local decisions."""

import time


def monotonic_s() -> float:
    """Return this machine's monotonic clock in seconds."""
    return time.monotonic()


def monotonic_ms() -> int:
    """Return this machine's monotonic clock in milliseconds; times shared by machines come from Redis."""
    return time.monotonic_ns() // 1_000_000
