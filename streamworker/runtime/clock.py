"""The clock of all local decisions. Times that machines compare come from Redis."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Clock:
    """What tells the time; ``streamworker.testing`` may put a virtual clock in its place."""

    now_ns: Callable[[], int] = time.monotonic_ns
    wall_s: Callable[[], float] = time.time
    is_virtual: bool = False


CLOCK = Clock()
"""The clock of this process."""


def monotonic_s() -> float:
    """Return the monotonic clock in seconds."""
    return CLOCK.now_ns() / 1e9


def monotonic_ms() -> int:
    """Return the monotonic clock in milliseconds."""
    return CLOCK.now_ns() // 1_000_000
