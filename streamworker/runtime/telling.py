"""What is told in one place: calls that fail while Redis is away, without filling the log; and losses.

What Redis has confirmed and lost is told by ``tell_lost`` alone, which also counts it: whoever is called by
alerts reads no log.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from streamworker.errors import BackendError, BackendUnavailable, ProcessDied
from streamworker.runtime.clock import monotonic_s

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger  # It imports rich; see streamworker.log.

TELL_EVERY_S = 60.0
"""How often a kind of call is told again that goes on failing."""

CountLost = Callable[[str, int], None]
"""Counts lost records by the event that is logged; None if nobody measures."""

TOLD_MAX = 1_000
"""Most kinds of calls and causes that are remembered."""

_told_s: dict[tuple[str, str], float] = {}
"""When a kind of call was told, and for a refusal its cause."""


def warn(log: "BoundLogger", event: str, error: Exception, level: str = "warning", **fields: object) -> None:
    """Log a failed call. One without an answer stands for all of its kind: each partition makes them.

    So does one that is refused, or held back, for all with its cause: it is asked again until somebody mends
    that.
    """
    if isinstance(error, BackendError | ProcessDied):
        what, now_s = (event, "" if isinstance(error, BackendUnavailable) else str(error)), monotonic_s()
        if what in _told_s and 0 <= now_s - _told_s[what] < TELL_EVERY_S:  # A test's clock may go back.
            return
        if len(_told_s) >= TOLD_MAX:
            _told_s.clear()
        _told_s[what] = now_s
    getattr(log, level)(event, error=str(error), **fields)


def tell_lost(
    log: "BoundLogger", event: str, count: CountLost | None, lost: int, /, **fields: object
) -> None:
    """Log that confirmed data is lost, and count it: as one record, if nobody knows how many."""
    log.error(event, **fields)
    if count is not None:
        count(event, max(lost, 1))
