"""One partition at work: takes entries, has them handled in order, commits, and stops cleanly.

The runner owns what all modes share: when a batch may start, one commit under way at a time,
what becomes of a commit that is refused, halting and draining. How the function is called, and
what is done about its errors, is in ``modes``.

Overlap
-------
The commit of batch k is under way while batch k+1 is handled; batch k+1 is handed in when the
reply to k is there. So a partition costs no waiting on Redis as long as its handler takes longer
than a round trip, and at most two batches are handled and not known to be committed.

After a crash everything since the last commit is handled again, by this worker or another: at
least once for the function, exactly once for the acked log.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Literal

import anyio
import anyio.abc
import pyarrow as pa
from structlog.stdlib import BoundLogger

from streamworker.context import Place
from streamworker.core.batching import BatchLimits
from streamworker.core.entries import Entry, EntryId
from streamworker.core.locks import Acquired
from streamworker.processors import Mode as ModeName
from streamworker.processors import ProcessorSpec
from streamworker.redisio.ackedlog import AckedBatch, encode_batch
from streamworker.redisio.commit import CommitCode, CommitReply, CommitRequest
from streamworker.runtime.batch_mode import BatchMode
from streamworker.runtime.buffer import PartitionBuffer
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.committer import Committer, Ticket
from streamworker.runtime.invoke import Invoker
from streamworker.runtime.keyed_mode import KeyedMode
from streamworker.runtime.modes import Mode
from streamworker.runtime.pauses import Pauses
from streamworker.runtime.record_mode import RecordMode
from streamworker.runtime.rollback import Committed
from streamworker.runtime.signals import Gate, Signal
from streamworker.runtime.state import NoState, PartitionState
from streamworker.runtime.stream_mode import StreamMode
from streamworker.runtime.trims import Trims
from streamworker.runtime.work import Work
from streamworker.settings import Settings

ENCODE_IN_THREAD_BYTES = 512 * 1024
"""Record batches above this are encoded in a thread, where compression lets go of the GIL. Encoding
takes 2 to 4 ms a MB and the way to a thread and back 0.1 ms (measured): smaller batches are done
sooner where they are, and hold the event loop for a millisecond or two at most."""

HANDOVER_YIELDS = 4
"""Turns of the event loop from the start of a commit until its bytes are on the socket. The
handler that comes next may compute without ever waiting; the commit should be on its way. Where
no entries wait, the next handler does not come before they do."""


_MODES: dict[ModeName, type[Mode]] = {
    ModeName.BATCH: BatchMode,
    ModeName.RECORD: RecordMode,
    ModeName.STREAM: StreamMode,
}


def _ways_of(spec: ProcessorSpec) -> tuple[type[Invoker], type[Mode]]:
    """Return what calls a processor's function, and with what at a time."""
    if not spec.uses_columns:
        return Invoker, KeyedMode if spec.concurrency > 1 else _MODES[spec.mode]
    # pyarrow's functions are 9 MB and 0.1 s, which the others need not pay.
    from streamworker.runtime.columns import ColumnsInvoker, RowsMode

    return ColumnsInvoker, RowsMode if spec.stream.codec == "arrow" else BatchMode


Trouble = Literal["reads", "commit"]
"""What of a partition may be held up. Either goes on by itself, so each has a reason of its own."""


class StopReason(Enum):
    """Why a runner ended."""

    DRAINED = "drained"
    FENCED = "fenced"
    """A commit was refused: the lock is not ours, or not as we believed."""
    HALTED = "halted"
    """The error policy had stopped it before it was drained."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a runner ended."""

    reason: StopReason
    detail: str = ""


class PartitionRunner:
    """Runs one processor over one partition while this worker has its lock.

    Parameters
    ----------
    spec
        The processor.
    app_name
        For the context.
    partition, owner, lock
        What was acquired, by whom.
    state
        The partition's stored state at the acquire, encoded.
    buffer
        Where the fetcher puts entries. The runner closes it at its end.
    committer
        The processor's committer; its ``run()`` must be running.
    settings
        The application's settings.
    rng
        For jitter.
    gate
        Closed while no batch may start.
    on_halted
        Called once with partition and reason when the error policy stops the partition.
    on_state
        Called with partition and reason when something holds the partition up, and with an empty
        reason when it goes on.
    log
        A logger; partition and processor are bound to it.
    """

    def __init__(
        self,
        *,
        spec: ProcessorSpec,
        app_name: str,
        partition: int,
        owner: str,
        lock: Acquired,
        state: Mapping[str, bytes],
        buffer: PartitionBuffer,
        committer: Committer,
        settings: Settings,
        rng: random.Random,
        gate: Gate,
        on_halted: Callable[[int, str], None],
        log: BoundLogger,
        on_state: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        self.spec = spec
        self.partition = partition
        self.rng = rng
        self.log = log.bind(app=app_name, processor=spec.name, partition=partition, epoch=lock.epoch)
        self.busy_since_ms: int | None = None
        """When the call that is running began, by the monotonic clock."""
        self.records_done = 0
        """Entries committed by this runner."""
        self.epoch = lock.epoch
        self._began_ms = monotonic_ms()
        self._rested_ms = 0
        self._resting_since_ms: int | None = None
        self.acked_trim_rows = 0
        """Rows of the acked log that every reader is past; set from outside, 0 to trim nothing."""
        overlaps = spec.concurrency > 1
        self.state = NoState(spec.name, spec.concurrency) if overlaps else PartitionState(state)
        self.place = Place(
            app=app_name, processor=spec.name, partition=partition, epoch=lock.epoch, log=self.log
        )
        invoker, mode = _ways_of(spec)
        self.invoker = invoker(spec, self.place, self.state, settings.handler_threads)
        self.buffer = buffer
        self.owner = owner
        self._lock = lock
        self._committer = committer
        self._settings = settings
        self._gate = gate
        self._on_halted = on_halted
        self._on_state = on_state
        self._previous = lock.checkpoint
        self._committed = (lock.checkpoint, lock.rows)
        """Checkpoint and rows after the last commit that was confirmed."""
        self.trims = Trims(settings.trim_interval_ms)
        self._draining = False
        self._drain = Signal()
        self._in_flight = False
        self._landed = Signal()
        self._ticket: Ticket | None = None
        """The commit that was handed in last."""
        self._troubles: dict[Trouble, str] = {"reads": "", "commit": ""}
        self.shows_trouble = True
        """Whether the lock says what holds the partition up: not once it says why it is halted."""
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stopped: Stopped | None = None
        self._mode = mode(self)
        buffer.use(spec.batch)

    # -- life ------------------------------------------------------------------------------

    async def run(self) -> Stopped:
        """Handle records until drained, fenced or cancelled.

        A cancel acks nothing: what was committed stays, and all else is handled again by the
        next owner. A function in a thread cannot be interrupted; it is left behind, and what it
        still does has no effect on the partition.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                halted = await self._mode.run()
                await self.flush()
                if halted:
                    await self._stay_halted(halted)
        finally:
            # A thread that was left behind sees it and handles no further record.
            self._draining = True
            self.shows_trouble = False
            self.busy_since_ms = None
            if self._ticket is not None:
                self._ticket.withdraw()
            self.buffer.close()
        return self._stopped or Stopped(StopReason.DRAINED)

    def drain(self) -> None:
        """Finish the call in hand, commit, start no more; ``run()`` returns then."""
        self._draining = True
        self._drain.fire()
        self.buffer.wake()

    @property
    def draining(self) -> bool:
        """Whether :meth:`drain` was called."""
        return self._draining

    @property
    def may_start(self) -> bool:
        """Whether the next call may start."""
        return not self._draining and self._gate.is_open

    @property
    def gate_is_open(self) -> bool:
        """Whether the worker's heartbeats get through."""
        return self._gate.is_open

    @property
    def is_committing(self) -> bool:
        """Whether a commit is under way."""
        return self._in_flight

    @property
    def halted(self) -> str:
        """Why the error policy has stopped the partition, if it has."""
        stopped = self._stopped
        return stopped.detail if stopped is not None and stopped.reason is StopReason.HALTED else ""

    @property
    def committed(self) -> Committed:
        """Where the partition stood after the last commit that was confirmed."""
        lock, (checkpoint, rows) = self._lock, self._committed
        return Committed(lock.epoch, checkpoint, lock.entries + self.records_done, rows, lock.log)

    @property
    def oldest(self) -> str:
        """Id of the entry whose call has been running for longest, where several run at a time."""
        return self._mode.oldest

    async def wait_draining(self) -> None:
        """Wait until the partition is to be drained."""
        while not self._draining:
            await self._drain.wait()

    async def wait_may_start(self) -> bool:
        """Wait until a call may start; False if none may any more."""
        while not self._draining and not self._gate.is_open:
            self.rests()
            async with anyio.create_task_group() as either:
                either.start_soon(_first, self._gate.wait, either.cancel_scope)
                either.start_soon(_first, self._drain.wait, either.cancel_scope)
            self.works()
        return not self._draining

    async def pause(self, pause_ms: int) -> bool:
        """Pause before another attempt; False if the partition is to be drained meanwhile."""
        if not self._draining:
            self.rests()
            await self._drain.wait(pause_ms / 1000)
            self.works()
        return await self.wait_may_start()

    async def _stay_halted(self, reason: str) -> None:
        self.log.error("partition_halted", reason=reason)
        self._stopped = Stopped(StopReason.HALTED, reason)
        self.shows_trouble = False
        self.busy_since_ms = None
        self.rests()
        self.buffer.close()
        self._on_halted(self.partition, reason)
        await self.wait_draining()

    # -- entries in ------------------------------------------------------------------------

    async def next_entries(
        self, limits: BatchLimits, interrupted: Callable[[], bool] = lambda: False
    ) -> Sequence[Entry]:
        """Wait for the next batch and take it; empty when draining, or when ``interrupted``.

        Who makes ``interrupted`` true calls the buffer's ``wake``.
        """
        buffer = self.buffer
        while await self.wait_may_start() and not interrupted():
            if buffer.closed:
                # Nothing comes any more: the partition is lost, or is no longer fetched.
                self.rests()
                await self._drain.wait()
                continue
            if buffer.is_ready(limits):
                self.works()
                return buffer.take(limits.records, limits.bytes)
            self.rests()
            await buffer.wait_ready(limits)
        self.works()
        return []

    def begins(self) -> None:
        """Note that a call begins."""
        self.busy_since_ms = monotonic_ms()

    def ends(self) -> None:
        """Note that a call ended."""
        self.busy_since_ms = None

    def worked_ms(self, at_ms: int) -> int:
        """Return how long this runner has been at work: all its time but the waiting for entries.

        It is counted where it waits, which is only when there is nothing to do, so that records
        cost nothing by it.
        """
        resting_ms = 0 if self._resting_since_ms is None else at_ms - self._resting_since_ms
        return at_ms - self._began_ms - self._rested_ms - resting_ms

    def rests(self) -> None:
        """Note that there is nothing to do; ignored while calls run beside what waits."""
        if self._resting_since_ms is None and not self._mode.is_busy:
            self._resting_since_ms = monotonic_ms()

    def works(self) -> None:
        """Note that there is something to do again."""
        if self._resting_since_ms is not None:
            self._rested_ms += monotonic_ms() - self._resting_since_ms
            self._resting_since_ms = None

    # -- commits out -----------------------------------------------------------------------

    async def submit(self, work: Work) -> None:
        """Start a commit, once the one before has landed."""
        batch = work.packed
        if batch is None and work.rows is not None:
            batch = await self._encoded(work.rows, work.first)
        if self._in_flight:
            await self.flush()
        last = work.last
        request = CommitRequest(
            partition=self.partition,
            owner=self.owner,
            epoch=self._lock.epoch,
            previous=self._previous,
            new=last,
            entries=len(work.entries),
            batch=batch,
            reads=self.buffer.reads_up_to(last),
            state=work.state,
            dead=work.dead,
            trim=self.trims.with_commit(),
            acked_limit=self._settings.acked_entries_max,
            acked_trim_rows=self.acked_trim_rows,
        )
        self._previous = last
        self._in_flight = True
        self._ticket = self._committer.hand_in(
            request, partial(self._answered, request, work), self._hinder_commit
        )
        if self.buffer.waiting:
            for _ in range(HANDOVER_YIELDS):
                await asyncio.sleep(0)

    async def flush(self) -> None:
        """Wait until no commit is under way."""
        while self._in_flight:
            await self._landed.wait()

    async def _encoded(self, rows: pa.RecordBatch, first: EntryId) -> AckedBatch:
        if rows.nbytes < ENCODE_IN_THREAD_BYTES:
            return encode_batch(rows, first=first)[1]
        _, batch = await anyio.to_thread.run_sync(lambda: encode_batch(rows, first=first))
        return batch

    def _answered(self, request: CommitRequest, work: Work, reply: CommitReply) -> None:
        if reply.code in _DONE:
            self._committed = (request.new, reply.rows)
            self._land(work)
        elif reply.code in _HELD_UP:
            assert self._tasks is not None
            self._tasks.start_soon(self._commit_later, request, work, reply)
        else:
            self._lost(request, reply)

    def _land(self, work: Work) -> None:
        count, size = len(work.entries), work.size
        self.buffer.release(count, size)
        self.records_done += count
        self.trims.committed(count, size)
        self._in_flight = False
        self._landed.fire()
        if self._troubles["commit"]:
            self._hinder_commit("")

    async def _commit_later(self, request: CommitRequest, work: Work, reply: CommitReply) -> None:
        """Send a commit that is held up again and again, until it is not."""
        pauses = Pauses(self.rng, max_ms=1_000)
        while reply.code in _HELD_UP:
            reason = _held_up(request, reply)
            if not self._troubles["commit"]:
                full = reply.code is CommitCode.FULL
                self.log.warning("acked_log_full" if full else "commit_held_up", reason=reason)
            self._hinder_commit(reason)
            await anyio.sleep(pauses.next_ms() / 1000)
            reply = await self._committer.submit(request, on_trouble=self._hinder_commit)
        self._answered(request, work, reply)

    @property
    def trouble(self) -> str:
        """What holds the reads or the commit that is under way up, if anything does."""
        return self._troubles["reads"] or self._troubles["commit"]

    def hinder(self, what: Trouble, reason: str) -> None:
        """Show what holds the reads or a commit up, or with an empty reason that this one goes on."""
        self._troubles[what] = reason
        if self.shows_trouble:
            self._on_state(self.partition, self.trouble)

    def _hinder_commit(self, reason: str) -> None:
        self.hinder("commit", reason)

    def _lost(self, request: CommitRequest, reply: CommitReply) -> None:
        detail = _refusal(request, reply)
        self.log.warning("commit_refused", code=reply.code.name, detail=detail)
        self.abandon(detail)

    def abandon(self, detail: str) -> None:
        """Stop at once, as one that is fenced: what is in hand could not be committed."""
        if self._tasks is not None and not self.halted:
            self._stopped = Stopped(StopReason.FENCED, detail)
            self.buffer.close()
            self._tasks.cancel_scope.cancel()


_DONE = frozenset({CommitCode.OK, CommitCode.DUP})

_HELD_UP = frozenset({CommitCode.FULL, CommitCode.BADTYPE})
"""Not done, and to be sent again: the partition is still ours, and somebody else has to do something.
To handle the batch again would do it no good, and whatever its handler does besides would happen
once more each time."""


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


async def _first(wait: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
    await wait()
    scope.cancel()
