"""The runner of one partition: what it is built of, and how it ends.

A mode takes entries from the intake, reports its calls to the activity, and hands results to the commits;
the runner gives it those three, halts, drains and stops.

After a crash, this worker or another handles everything since the last commit again: at least once for
the function, exactly once for the acked log.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

import anyio
import anyio.abc
import anyio.lowlevel
from structlog.stdlib import BoundLogger

from streamworker.context import OwnedPartition
from streamworker.core.data.entries import EntryId
from streamworker.core.data.load import Counters
from streamworker.core.events import StartRunner
from streamworker.core.ownership.tries import Tries
from streamworker.declaring.specs import ExpirySpec, FunctionMode, ProcessorSpec
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.data.state import TIMERS
from streamworker.redisio.keys import EVENT_TIME
from streamworker.runtime.clock import monotonic_ms, monotonic_s
from streamworker.runtime.forward.moving import OwnedOutbox
from streamworker.runtime.forward.routing import Routes
from streamworker.runtime.observing import Observer
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.run.activity import Activity
from streamworker.runtime.run.commits import Commits
from streamworker.runtime.run.committer import Committer
from streamworker.runtime.run.intake import Intake
from streamworker.runtime.run.invoke import Invoker, SetAside
from streamworker.runtime.run.modes.batch import BatchMode
from streamworker.runtime.run.modes.keyed import KeyedMode
from streamworker.runtime.run.modes.metadata import MetadataInvoker
from streamworker.runtime.run.modes.modes import Mode
from streamworker.runtime.run.modes.record import RecordMode
from streamworker.runtime.run.modes.stream import StreamMode
from streamworker.runtime.run.state import NoState, PartitionState, StateWithTables, TableCache
from streamworker.runtime.run.timed.closing import Closing
from streamworker.runtime.run.timed.expiring import Expiry
from streamworker.runtime.run.timed.timers import PlannedCall, TimedCall, Timers
from streamworker.runtime.signals import Gate
from streamworker.runtime.tracing.asking import traced
from streamworker.settings import Settings


class StopReason(Enum):
    """Why a runner ended."""

    DRAINED = "drained"
    FENCED = "fenced"
    """A commit was refused: this worker does not hold the lock, or the lock differs from what it expects."""
    HALTED = "halted"
    """The error policy stopped the partition before it was drained."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a runner ended."""

    reason: StopReason
    detail: str = ""


class Ending:
    """How the run of one partition ends: what happens first decides."""

    def __init__(self, buffer: PartitionBuffer) -> None:
        self._buffer = buffer
        self.tasks: anyio.abc.TaskGroup | None = None
        """The tasks of the run; None before it begins."""
        self.stopped: Stopped | None = None
        self.drains = False
        """Whether the runner was asked to drain."""

    @property
    def halted(self) -> str:
        """Why the error policy has stopped the partition; empty if it has not."""
        stopped = self.stopped
        return stopped.detail if stopped is not None and stopped.reason is StopReason.HALTED else ""

    def abandon(self, detail: str, reason: StopReason = StopReason.FENCED) -> None:
        """Stop at once: the current batch could not be committed."""
        if self.tasks is not None and not self.halted:
            self.stopped = Stopped(reason, detail)
            self._buffer.close()
            self.tasks.cancel_scope.cancel()

    def refused(self, code: CommitCode, detail: str) -> None:
        """A commit was refused. With ``GAP`` this worker holds the lock, and gives it back if it drains."""
        is_released = code is CommitCode.GAP and self.drains
        self.abandon(detail, StopReason.DRAINED if is_released else StopReason.FENCED)

    def full(self) -> None:
        """Leave a batch to the next owner if the acked log has no room for it: that may take days."""
        if self.drains:
            self.abandon("the acked log is full", StopReason.DRAINED)


@dataclass(eq=False)
class PartitionRunner:
    """Runs one processor over one partition while this worker has its lock; see :func:`build_runner`."""

    activity: Activity
    commits: Commits
    invoker: Invoker
    intake: Intake
    mode: Mode
    ending: Ending
    on_halted: Callable[[str], None]
    on_state: Callable[[str, tuple[int, ...]], None]

    async def run(self) -> Stopped:
        """Handle records until drained, fenced or cancelled.

        A cancel acks nothing: commits stay, and the next owner handles all other records again. A function
        in a thread cannot be interrupted. The runner abandons it, and its results are discarded.

        A cancel of one of its tasks by code of the user ends the others, too, and is raised from here.
        """
        task = asyncio.current_task()
        assert task is not None
        task.set_name(self.activity.name)
        try:
            async with anyio.create_task_group() as tasks:
                self.ending.tasks = tasks
                if self.intake.timers.calls:
                    tasks.start_soon(self.intake.timers.watch)
                halted = await self.mode.run()
                await self.commits.flush()
                if halted:
                    await self._stay_halted(halted)
                if self.intake.timers.calls:
                    tasks.cancel_scope.cancel()
        finally:
            self.activity.hide_trouble()
            self.activity.stops()
            self.commits.withdraw()
            drains = self.intake.draining
            self.intake.end()
        if self.ending.stopped is None and not drains:
            # The task group has taken the cancel for its own; the worker's comes again here.
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise asyncio.CancelledError
        return self.ending.stopped or Stopped(StopReason.DRAINED)

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left to do here, as far as known, in a partition that takes nothing more."""
        # The call of a timer is done before its commit is, and nothing else shows that one is left.
        if self.commits.is_submitting or self.commits.is_committing or self.intake.buffer.waiting:
            return False
        return self.intake.timers.are_through

    def drain(self) -> None:
        """Let no other call start; the running one is finished and committed, and the runner ends."""
        self.intake.drain()
        self.ending.drains = True
        if self.commits.is_full:
            self.ending.full()

    def counters(self, lag: int | None) -> Counters:
        """Return what the partition has done until now; ``lag`` is the number of entries that wait."""
        at_ms, done = monotonic_ms(), self.commits.records_done
        return Counters(self.commits.epoch, at_ms, self.activity.worked_ms(at_ms), done, lag)

    async def _stay_halted(self, reason: str) -> None:
        self.commits.log.error("partition_halted", reason=reason)
        self.ending.stopped = Stopped(StopReason.HALTED, reason)
        self.activity.hide_trouble()
        self.activity.stops()
        self.activity.rests()
        self.intake.buffer.close()
        self.intake.end_turn()
        self.on_halted(reason)
        intake, commits, at = self.intake, self.commits, self.mode.halted_at
        while not intake.draining and (not at or await commits.committer.holds(commits.start.partition, at)):
            await intake.wait_draining(commits.settings.trim_interval_ms / 1000)
        if not intake.draining:
            self.on_state("", ())
            self.ending.stopped = Stopped(StopReason.FENCED, "somebody deleted what it had halted at")


def build_runner(
    *,
    spec: ProcessorSpec,
    start: StartRunner,
    state: Mapping[str, bytes],
    buffer: PartitionBuffer,
    committer: Committer,
    settings: Settings,
    rng: random.Random,
    gate: Gate,
    on_halted: Callable[[str], None],
    on_state: Callable[[str, tuple[int, ...]], None],
    log: BoundLogger,
    cache: TableCache,
    ends_ms: Callable[[], int | None] = lambda: None,
    outbox: OwnedOutbox | None = None,
    observer: Observer | None = None,
    names_layers: bool = False,
) -> PartitionRunner:
    """Return the runner of a partition with all that it works with.

    ``state`` is the partition's stored state at the time of the acquire, encoded. The fetcher fills
    ``buffer``, which the runner closes when it ends; the committer's ``run()`` must be running. ``on_halted``
    is called once with the reason when the error policy stops the partition, and ``on_state`` with what
    holds it up. ``cache`` has this worker's values of tables. ``ends_ms`` says when the timers of a sealed
    partition end. ``outbox`` takes messages. With ``names_layers`` the first record names the middleware.
    """
    app, partition, epoch, owner = spec.stream.app, start.partition, start.lock.epoch, start.owner
    log = log.bind(app=app, processor=spec.name, partition=partition, epoch=epoch)
    invoker_type, mode_type = _types_for(spec)
    tries = Tries(start.lock, spec.options.policies, mode_type.in_work_max(spec), names_layers)
    spec, spans = traced(spec, partition, settings)  # Its layer is no middleware of the user.
    own = {name: value for name, value in state.items() if not name.startswith(TIMERS)}
    if spec.window and EVENT_TIME in state:
        own[EVENT_TIME] = state[EVENT_TIME]
    kept = PartitionState(own)
    if spec.options.concurrency > 1:
        kept = NoState(spec.name, spec.options.concurrency)
    elif spec.tables:
        kept = StateWithTables(own, spec.tables, partition, committer.backend, committer.keys, cache, rng)
    ending = Ending(buffer)
    on_called = None if observer is None else partial(observer.called, spec)
    activity = Activity(f"{app}:{spec.name}:{partition}:{owner}", on_state, on_called)
    commits = Commits(
        spec=spec,
        start=start,
        buffer=buffer,
        committer=committer,
        settings=settings,
        activity=activity,
        refused=ending.refused,
        on_full=ending.full,
        log=log,
        state=kept,
        outbox=outbox,
        observer=observer,
        spans=spans,
    )
    owned = OwnedPartition(
        app=app,
        processor=spec.name,
        partition=partition,
        epoch=epoch,
        owner=owner,
        log=log,
        now=monotonic_s,
        key_of=spec.stream.key if spec.takes == "records" else None,
    )
    routes = outbox.routes if outbox else Routes(spec.into, settings.entry_bytes_max)
    aside: dict[EntryId, Exception] = {}
    aside.update({record: SetAside(f"Set aside {why}") for record, why in start.lock.aside.items()})
    where = owned, kept, settings.handler_threads
    invoker = invoker_type(spec, *where, routes, aside)
    timers = Timers(_timed_calls(spec, where, routes, commits, state, rng), commits, rng, ends_ms)
    intake = Intake(buffer, gate, activity, commits, timers, tries, aside)
    buffer.use(spec.batch)
    mode = mode_type(invoker, intake, rng)
    return PartitionRunner(activity, commits, invoker, intake, mode, ending, on_halted, on_state)


def _timed_calls(
    spec: ProcessorSpec,
    where: tuple[OwnedPartition, PartitionState, int],
    routes: Routes,
    commits: Commits,
    stored: Mapping[str, bytes],
    rng: random.Random,
) -> list[TimedCall]:
    calls: list[TimedCall] = []
    for each in spec.by_time:
        invoker = Invoker(each.call, *where, routes.also(each.call.into), {})
        if not isinstance(each, ExpirySpec):
            calls.append(PlannedCall(each, invoker, stored, rng))
        elif each.window is not None:
            calls.append(Closing(each, each.window, invoker, stored, rng, commits))
        else:
            calls.append(Expiry(each, invoker, stored, rng, commits))
    return calls


def _types_for(spec: ProcessorSpec) -> tuple[type[Invoker], type[Mode]]:
    if spec.mode is FunctionMode.ARCHIVE:
        from streamworker.runtime.run.modes.archive import ArchiveMode

        return Invoker, ArchiveMode
    if not spec.uses_columns:
        if spec.mode is FunctionMode.RECORD:
            invoker = MetadataInvoker if spec.options.log_metadata else Invoker
            return invoker, KeyedMode if spec.options.concurrency > 1 else RecordMode
        return Invoker, BatchMode if spec.mode is FunctionMode.BATCH else StreamMode
    # Importing pyarrow's functions costs 9 MB and 0.1 s, which other processors do not need.
    from streamworker.runtime.run.modes.columns import ColumnsInvoker, RowsMode

    return ColumnsInvoker, RowsMode if spec.stream.codec == "arrow" else BatchMode
