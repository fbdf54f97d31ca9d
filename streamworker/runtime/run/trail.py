"""Logs the result of each commit and each lock, one line each, in a worker's log at level debug.

These lines help to investigate incidents: they show which owner committed what, at which try, and when.
Each line has ``at_ms`` by the monotonic clock, which all processes of a machine share, so that the logs of
several workers can be compared:

    commit_sent      partition, owner, epoch, previous, new, entries, rows, dead, tries
    commit_answered  the same, and code
    lock_acquired    partition, owner, epoch, generation, checkpoint
    lock_released    partition, owner

The standard library's logger decides whether the lines are enabled, and caches the answer: for a worker
that does not log them, each costs one dictionary lookup.
"""

import logging

from streamworker.core.events import AcquireLocks, Effect, Event, LocksAnswered, LocksReleased
from streamworker.core.ownership.locks import Acquired
from streamworker.log import get_logger
from streamworker.redisio.data.commit import CommitRequest
from streamworker.runtime.clock import monotonic_ms

_NAME = "streamworker.trail"
asked = logging.getLogger(_NAME)
"""Tells whether the lines of commits are wanted: who calls :func:`commit` asks it first."""
_log = get_logger(_NAME)


def commit(event: str, request: CommitRequest, **details: object) -> None:
    """Log a commit that is sent now, or its answer; the code ``UNKNOWN`` means that there was none."""
    _log.debug(
        event,
        at_ms=monotonic_ms(),
        partition=request.partition,
        owner=request.owner,
        epoch=request.epoch,
        previous=str(request.previous),
        new=str(request.new),
        entries=request.entries,
        rows=0 if request.batch is None else request.batch.rows,
        dead=len(request.dead),
        **details,
    )


def locks_answered(effect: Effect, event: Event) -> None:
    """Log locks that were acquired or released."""
    if not asked.isEnabledFor(logging.DEBUG):
        return
    at_ms = monotonic_ms()
    if isinstance(event, LocksAnswered) and isinstance(effect, AcquireLocks):
        for partition, reply in event.replies.items():
            if isinstance(reply, Acquired):
                _log.debug(
                    "lock_acquired",
                    at_ms=at_ms,
                    partition=partition,
                    owner=event.owner,
                    epoch=reply.epoch,
                    generation=effect.generation,
                    checkpoint=str(reply.checkpoint),
                )
    elif isinstance(event, LocksReleased):
        for partition in sorted(event.released):
            _log.debug("lock_released", at_ms=at_ms, partition=partition, owner=event.owner)
