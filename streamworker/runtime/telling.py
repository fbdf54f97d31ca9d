"""Tells of calls that fail while Redis is away, without filling the log."""

from typing import TYPE_CHECKING

from streamworker.errors import BackendUnavailable, StreamworkerError
from streamworker.runtime.clock import monotonic_s

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger  # It imports rich; see streamworker.log.

TELL_EVERY_S = 60.0
"""How often a kind of call is told again that goes on failing."""

_told_s: dict[str, float] = {}


def warn(log: "BoundLogger", event: str, error: StreamworkerError, **fields: object) -> None:
    """Log a failed call. One without an answer stands for all of its kind: each partition makes them."""
    if isinstance(error, BackendUnavailable):
        now_s = monotonic_s()
        if event in _told_s and 0 <= now_s - _told_s[event] < TELL_EVERY_S:  # A test's clock may go back.
            return
        _told_s[event] = now_s
    log.warning(event, error=str(error), **fields)
