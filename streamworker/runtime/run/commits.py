"""The commits of one partition: one in flight at a time, each from the checkpoint of the one before.

Overlap
-------
While the commit of batch k is in flight, the mode handles batch k+1. The commit of batch k+1 is submitted
when the reply to k has arrived. So a partition does not wait for Redis as long as its handler takes longer
than a round trip, and at most two batches are handled and not known to be committed.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import anyio.to_thread
import pyarrow as pa
from structlog.stdlib import BoundLogger

from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.core.pauses import Pauses
from streamworker.redisio.data.ackedlog import AckedBatch, encode_batch
from streamworker.redisio.data.commit import CommitCode, CommitReply, CommitRequest
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.run.activity import Activity
from streamworker.runtime.run.committer import Committer
from streamworker.runtime.run.rollback import Committed
from streamworker.runtime.run.tickets import Ticket
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


class Commits:
    """The commits of one partition while one runner has it.

    Parameters
    ----------
    partition, owner, lock
        The acquired partition, its owner and its lock.
    buffer
        The buffer that the entries came from.
    committer
        The processor's committer; its ``run()`` must be running.
    settings, rng
        The application's settings, and the source of jitter.
    activity
        Is told what holds a commit up.
    spawn
        Runs a coroutine function with arguments in a task that ends with the runner.
    abandon
        Called with the reason when a commit was refused: the partition must stop at once.
    log
        The partition's logger.
    """

    def __init__(
        self,
        *,
        partition: int,
        owner: str,
        lock: Acquired,
        buffer: PartitionBuffer,
        committer: Committer,
        settings: Settings,
        rng: random.Random,
        activity: Activity,
        spawn: Callable[..., None],
        abandon: Callable[[str], None],
        log: BoundLogger,
    ) -> None:
        self._partition = partition
        self._owner = owner
        self._lock = lock
        self._buffer = buffer
        self._committer = committer
        self._settings = settings
        self._rng = rng
        self._activity = activity
        self._spawn = spawn
        self._abandon = abandon
        self._log = log
        self.epoch = lock.epoch
        self.records_done = 0
        """Entries committed by this runner."""
        self.trims = Trims(settings.trim_interval_ms)
        self._previous = lock.checkpoint
        self._committed = (lock.checkpoint, lock.rows)
        """Checkpoint and rows after the last confirmed commit."""
        self._in_flight = False
        self._landed = Signal()
        self._ticket: Ticket | None = None
        """The last commit that was submitted."""

    @property
    def is_committing(self) -> bool:
        """Whether a commit is in flight."""
        return self._in_flight

    @property
    def committed(self) -> Committed:
        """The partition's checkpoint and counts after the last confirmed commit."""
        lock, (checkpoint, rows) = self._lock, self._committed
        return Committed(lock.epoch, checkpoint, lock.entries + self.records_done, rows, lock.log)

    async def submit(self, work: Work) -> None:
        """Start a commit after the previous one is done."""
        batch = work.packed
        if batch is None and work.rows is not None:
            batch = await self._encoded(work.rows, work.first)
        if self._in_flight:
            await self.flush()
        last = work.last
        request = CommitRequest(
            partition=self._partition,
            owner=self._owner,
            epoch=self.epoch,
            previous=self._previous,
            new=last,
            entries=len(work.entries),
            batch=batch,
            reads=self._buffer.reads_up_to(last),
            state=work.state,
            dead=work.dead,
            trim=self.trims.with_commit(),
            acked_limit=self._settings.acked_entries_max,
            acked_trim_rows=self.trims.acked_rows,
        )
        self._previous = last
        self._in_flight = True
        self._ticket = self._committer.hand_in(request, partial(self._answered, request, work), self._hinder)
        if self._buffer.waiting:
            for _ in range(HANDOVER_YIELDS):
                await asyncio.sleep(0)

    async def flush(self) -> None:
        """Wait until no commit is in flight."""
        while self._in_flight:
            await self._landed.wait()

    def withdraw(self) -> None:
        """Hear no more of the commit in flight: its outcome is unknown."""
        if self._ticket is not None:
            self._ticket.withdraw()

    async def holds(self, entries: Sequence[Entry]) -> bool:
        """Return whether the stream still has these entries; True if Redis does not answer."""
        return await self._committer.holds(self._partition, entries)

    async def _encoded(self, rows: pa.RecordBatch, first: EntryId) -> AckedBatch:
        if rows.nbytes < ENCODE_IN_THREAD_BYTES:
            return encode_batch(rows, first)
        return await anyio.to_thread.run_sync(encode_batch, rows, first)

    def _answered(self, request: CommitRequest, work: Work, reply: CommitReply) -> None:
        if reply.code in _DONE:
            self._committed = (request.new, reply.rows)
            self._land(work)
        elif reply.code in _HELD_UP:
            self._spawn(self._commit_later, request, work, reply)
        else:
            detail = _refusal(request, reply)
            self._log.warning("commit_refused", code=reply.code.name, detail=detail)
            self._abandon(detail)

    def _land(self, work: Work) -> None:
        count, size = len(work.entries), work.size
        self._buffer.release(count, size)
        self.records_done += count
        self.trims.committed(count, size)
        self._in_flight = False
        self._landed.fire()
        if self._activity.is_commit_held_up:
            self._hinder("")

    async def _commit_later(self, request: CommitRequest, work: Work, reply: CommitReply) -> None:
        """Retry a commit that is held up until it is done or refused for good."""
        pauses = Pauses(self._rng.random, max_ms=1_000)
        while reply.code in _HELD_UP:
            reason = _held_up(request, reply)
            if not self._activity.is_commit_held_up:
                full = reply.code is CommitCode.FULL
                self._log.warning("acked_log_full" if full else "commit_held_up", reason=reason)
            self._hinder(reason)
            await anyio.sleep(pauses.next_ms() / 1000)
            reply = await self._committer.submit(request, on_trouble=self._hinder)
        self._answered(request, work, reply)

    def _hinder(self, reason: str) -> None:
        self._activity.hinder("commit", reason)


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
