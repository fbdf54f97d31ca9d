"""What is told in one place: calls that fail while Redis is away, without filling the log; and losses.

What Redis has confirmed and lost is told by ``tell_lost`` alone, which also counts it: whoever is called by
alerts reads no log.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from streamworker.errors import BackendUnavailable, StreamworkerError
from streamworker.runtime.clock import monotonic_s

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger  # It imports rich; see streamworker.log.

TELL_EVERY_S = 60.0
"""How often a kind of call is told again that goes on failing."""

CountLost = Callable[[str, int], None]
"""Counts lost records by the event that is logged; None if nobody measures."""

_told_s: dict[str, float] = {}


def warn(
    log: "BoundLogger", event: str, error: StreamworkerError, level: str = "warning", **fields: object
) -> None:
    """Log a failed call. One without an answer stands for all of its kind: each partition makes them."""
    if isinstance(error, BackendUnavailable):
        now_s = monotonic_s()
        if event in _told_s and 0 <= now_s - _told_s[event] < TELL_EVERY_S:  # A test's clock may go back.
            return
        _told_s[event] = now_s
    getattr(log, level)(event, error=str(error), **fields)


def tell_lost(
    log: "BoundLogger", event: str, count: CountLost | None, lost: int, /, **fields: object
) -> None:
    """Log that confirmed data is lost, and count it: as one record, if nobody knows how many."""
    log.error(event, **fields)
    if count is not None:
        count(event, max(lost, 1))
