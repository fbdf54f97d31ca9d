"""Logs the result of each commit and each lock, one line each, in a worker's log at level debug.

These lines help to investigate incidents: they show which owner committed what, at which try, and when.
Each line has ``at_ms`` by the monotonic clock, which all processes of a machine share, so that the logs of
several workers can be compared:

    commit_sent      partition, owner, epoch, previous, new, entries, rows, dead, tries
    commit_answered  the same, and code
    lock_acquired    partition, owner, epoch, generation, checkpoint
    lock_released    partition, owner

The standard library's logger decides whether the lines are enabled, and caches the answer: for a worker
that does not log them, they cost one dictionary lookup for each round trip.
"""

import logging
from collections.abc import Sequence

from streamworker.core.events import AcquireLocks, Effect, Event, LocksAnswered, LocksReleased
from streamworker.core.ownership.locks import Acquired
from streamworker.log import get_logger
from streamworker.redisio.data.commit import CommitReply, CommitRequest
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.run.tickets import Ticket

_NAME = "streamworker.trail"
_asked = logging.getLogger(_NAME)
_log = get_logger(_NAME)


def commits_sent(tickets: Sequence[Ticket]) -> None:
    """Log commits that are sent to Redis now."""
    if not _asked.isEnabledFor(logging.DEBUG):
        return
    at_ms = monotonic_ms()
    for ticket in tickets:
        _log.debug("commit_sent", at_ms=at_ms, tries=ticket.tries, **_commit(ticket.request))


def commits_answered(tickets: Sequence[Ticket], replies: Sequence[CommitReply]) -> None:
    """Log answers to commits; ``UNKNOWN`` means that there was none."""
    if not _asked.isEnabledFor(logging.DEBUG):
        return
    at_ms = monotonic_ms()
    for ticket, reply in zip(tickets, replies, strict=True):
        _log.debug(
            "commit_answered",
            at_ms=at_ms,
            code=reply.code.value,
            tries=ticket.tries,
            **_commit(ticket.request),
        )


def locks_answered(effect: Effect, event: Event) -> None:
    """Log locks that were acquired or released."""
    if not _asked.isEnabledFor(logging.DEBUG):
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


def _commit(request: CommitRequest) -> dict[str, object]:
    return {
        "partition": request.partition,
        "owner": request.owner,
        "epoch": request.epoch,
        "previous": str(request.previous),
        "new": str(request.new),
        "entries": request.entries,
        "rows": 0 if request.batch is None else request.batch.rows,
        "dead": len(request.dead),
    }
