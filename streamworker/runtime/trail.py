"""What became of each commit and each lock, a line each, in a worker's log at level debug.

Who looks into an incident wants to know which owner committed what, at which try, and when. Lines carry
``at_ms`` by the monotonic clock, which all processes of a machine share, so that the logs of several
workers can be laid side by side:

    commit_sent      partition, owner, epoch, previous, new, entries, rows, dead, tries
    commit_answered  the same, and code
    lock_acquired    partition, owner, epoch, generation, checkpoint
    lock_released    partition, owner

Whether they are wanted is asked of the standard library's logger, which remembers the answer: a worker
that does not log them pays for a look into a dictionary a round trip.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamworker.core.events import AcquireLocks, Effect, Event, LocksAnswered, LocksReleased
from streamworker.core.locks import Acquired
from streamworker.log import get_logger
from streamworker.redisio.commit import CommitReply, CommitRequest
from streamworker.runtime.clock import monotonic_ms

if TYPE_CHECKING:
    from streamworker.runtime.committer import Ticket

_NAME = "streamworker.trail"
_asked = logging.getLogger(_NAME)
_log = get_logger(_NAME)


def commits_sent(tickets: "Sequence[Ticket]") -> None:
    """Tell of commits that go to Redis now."""
    if not _asked.isEnabledFor(logging.DEBUG):
        return
    at_ms = monotonic_ms()
    for ticket in tickets:
        _log.debug("commit_sent", at_ms=at_ms, tries=ticket.tries, **_commit(ticket.request))


def commits_answered(tickets: "Sequence[Ticket]", replies: Sequence[CommitReply]) -> None:
    """Tell of answers to commits; ``UNKNOWN`` is one that did not come."""
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
    """Tell of locks that were taken or given back."""
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
