"""The commits of one partition: one in flight at a time, each from the checkpoint of the one before.

Overlap
-------
While the commit of batch k is in flight, the mode handles batch k+1. The commit of batch k+1 is submitted
when the reply to k has arrived. So a partition does not wait for Redis as long as its handler takes longer
than a round trip, and at most two batches are handled and not known to be committed.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread
import pyarrow as pa
from structlog.stdlib import BoundLogger

from streamworker.core.data.entries import EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.core.pauses import Pauses
from streamworker.redisio.data.ackedlog import AckedBatch, encode_batch
from streamworker.redisio.data.commit import CommitCode, CommitReply, CommitRequest
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.run.activity import Activity
from streamworker.runtime.run.committer import Committer, Ticket
from streamworker.runtime.run.rollback import Committed
from streamworker.runtime.run.trims import Trims
from streamworker.runtime.run.work import Work
from streamworker.runtime.signals import Signal
from streamworker.settings import Settings

ENCODE_IN_THREAD_BYTES = 512 * 1024
"""Record batches above this size are encoded in a thread, where compression releases the GIL. Encoding
takes 2 to 4 ms a MB, and switching to a thread and back 0.1 ms (measured). Smaller batches are encoded
faster on the event loop, and block it for a millisecond or two at most."""

HANDOVER_YIELDS = 4
"""Turns of the event loop from the start of a commit until its bytes are on the socket. The next handler
may compute without awaiting, so the commit should be sent before it starts. If no entries wait, no
handler starts before then, and the partition does not yield."""


@dataclass(kw_only=True, eq=False)
class Commits:
    """The commits of one partition while one runner has it."""

    partition: int
    owner: str
    lock: Acquired
    buffer: PartitionBuffer
    """The buffer that the entries came from."""
    committer: Committer
    """The processor's committer; its ``run()`` must be running."""
    settings: Settings
    rng: random.Random
    activity: Activity
    """Is told what holds a commit up."""
    spawn: Callable[..., None]
    """Runs a coroutine function with arguments in a task that ends with the runner."""
    abandon: Callable[[str], None]
    """Stops the partition at once: a commit was refused, for the reason that it is given."""
    log: BoundLogger

    def __post_init__(self) -> None:
        self.epoch = self.lock.epoch
        self.records_done = 0
        """Entries committed by this runner."""
        self.is_committing = False
        """Whether a commit is in flight."""
        self.trims = Trims(self.settings.trim_interval_ms)
        self._previous = self.lock.checkpoint
        self._committed = (self.lock.checkpoint, self.lock.rows)
        """Checkpoint and rows after the last confirmed commit."""
        self._landed = Signal()
        self._ticket: Ticket | None = None
        """The last commit that was handed in."""
        self._pauses = Pauses(self.rng.random, max_ms=1_000)
        """The pauses between the tries of a commit that is held up."""

    @property
    def committed(self) -> Committed:
        """The partition's checkpoint and counts after the last confirmed commit."""
        lock, (checkpoint, rows) = self.lock, self._committed
        return Committed(lock.epoch, checkpoint, lock.entries + self.records_done, rows, lock.log)

    async def submit(self, work: Work) -> None:
        """Start a commit after the previous one is done."""
        batch = work.packed
        if batch is None and work.rows is not None:
            batch = await self._encoded(work.rows, work.first)
        await self.flush()
        last = work.last
        request = CommitRequest(
            partition=self.partition,
            owner=self.owner,
            epoch=self.epoch,
            previous=self._previous,
            new=last,
            entries=len(work.entries),
            batch=batch,
            reads=self.buffer.reads_up_to(last),
            state=work.state,
            dead=work.dead,
            trim=self.trims.with_commit(),
            acked_limit=self.settings.acked_entries_max,
            acked_trim_rows=self.trims.acked_rows,
        )
        self._previous = last
        self.is_committing = True
        self._hand_in(request, work)
        if self.buffer.waiting:
            for _ in range(HANDOVER_YIELDS):
                await asyncio.sleep(0)

    async def flush(self) -> None:
        """Wait until no commit is in flight."""
        while self.is_committing:
            await self._landed.wait()

    def withdraw(self) -> None:
        """Hear no more of the commit in flight: its outcome is unknown."""
        if self._ticket is not None:
            self._ticket.withdraw()

    async def _encoded(self, rows: pa.RecordBatch, first: EntryId) -> AckedBatch:
        if rows.nbytes < ENCODE_IN_THREAD_BYTES:
            return encode_batch(rows, first)
        return await anyio.to_thread.run_sync(encode_batch, rows, first)

    def _hand_in(self, request: CommitRequest, work: Work) -> None:
        self._ticket = self.committer.hand_in(request, partial(self._answered, request, work), self._hinder)

    def _answered(self, request: CommitRequest, work: Work, reply: CommitReply) -> None:
        if reply.code in _DONE:
            self._committed = (request.new, reply.rows)
            self._land(work)
        elif reply.code in _HELD_UP:
            self.spawn(self._commit_later, request, work, reply)
        else:
            detail = _refusal(request, reply)
            self.log.warning("commit_refused", code=reply.code.name, detail=detail)
            self.abandon(detail)

    def _land(self, work: Work) -> None:
        count, size = len(work.entries), work.size
        self.buffer.release(count, size)
        self.records_done += count
        self.trims.committed(count, size)
        self.is_committing = False
        self._landed.fire()
        self._pauses.reset()
        if self.activity.is_commit_held_up:
            self._hinder("")

    async def _commit_later(self, request: CommitRequest, work: Work, reply: CommitReply) -> None:
        """Try a commit that is held up again after a pause."""
        reason = _held_up(request, reply)
        if not self.activity.is_commit_held_up:
            full = reply.code is CommitCode.FULL
            self.log.warning("acked_log_full" if full else "commit_held_up", reason=reason)
        self._hinder(reason)
        await anyio.sleep(self._pauses.next_ms() / 1000)
        self._hand_in(request, work)

    def _hinder(self, reason: str) -> None:
        self.activity.hinder("commit", reason)


_DONE = frozenset({CommitCode.OK, CommitCode.DUP})

_HELD_UP = frozenset({CommitCode.FULL, CommitCode.BADTYPE, CommitCode.AHEAD})
"""The commit is not done, and is retried: this worker still holds the lock, and somebody else
must act first. Handling the batch again would not help, and would repeat the handler's side effects each
time."""


def _held_up(request: CommitRequest, reply: CommitReply) -> str:
    if reply.error is not None:
        return str(reply.error)
    return (
        f"acked log full ({request.acked_limit} entries): no reader has taken the oldest; "
        "start its pipeline or forget the reader"
    )


def _refusal(request: CommitRequest, reply: CommitReply) -> str:
    match reply.code:
        case CommitCode.FENCED:
            return f"epoch {request.epoch} was overtaken by {reply.epoch}; the commit was not done"
        case CommitCode.UNKNOWN:
            return (
                f"epoch {request.epoch} was overtaken while a commit had no answer; "
                f"entries up to {request.new} are committed, by us or by the next owner"
            )
        case CommitCode.GAP:
            if reply.checkpoint == request.previous:
                return f"the server does not hold what was read up to {request.new} any more"
            return f"the checkpoint is {reply.checkpoint}, and we had committed up to {request.previous}"
        case _:
            return f"the commit was refused: {reply.code.name}"
