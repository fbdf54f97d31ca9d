"""The runner of one partition: builds what its mode works with, and decides how it ends.

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
from structlog.stdlib import BoundLogger

from streamworker.context import OwnedPartition
from streamworker.core.events import StartRunner
from streamworker.core.ownership.tries import Tries
from streamworker.declaring.specs import FunctionMode, ProcessorSpec
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.data.state import TIMERS
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.forward.outgoing import OutboxWriter
from streamworker.runtime.forward.routing import Routes
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.run.activity import Activity
from streamworker.runtime.run.commits import Commits
from streamworker.runtime.run.committer import Committer
from streamworker.runtime.run.intake import Intake
from streamworker.runtime.run.invoke import Invoker, SetAside
from streamworker.runtime.run.modes.batch import BatchMode
from streamworker.runtime.run.modes.keyed import KeyedMode
from streamworker.runtime.run.modes.modes import Mode
from streamworker.runtime.run.modes.record import RecordMode
from streamworker.runtime.run.modes.stream import StreamMode
from streamworker.runtime.run.state import NoState, PartitionState
from streamworker.runtime.run.statetables import StateWithTables, TableCache
from streamworker.runtime.run.timers import Timers
from streamworker.runtime.signals import Gate
from streamworker.settings import Settings


def _ways_of(spec: ProcessorSpec) -> tuple[type[Invoker], type[Mode]]:
    if not spec.uses_columns:
        if spec.mode is FunctionMode.RECORD:
            return Invoker, KeyedMode if spec.concurrency > 1 else RecordMode
        return Invoker, BatchMode if spec.mode is FunctionMode.BATCH else StreamMode
    # Importing pyarrow's functions costs 9 MB and 0.1 s, which other processors do not need.
    from streamworker.runtime.run.modes.columns import ColumnsInvoker, RowsMode

    return ColumnsInvoker, RowsMode if spec.stream.codec == "arrow" else BatchMode


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


@dataclass(kw_only=True, eq=False)
class PartitionRunner:
    """Runs one processor over one partition while this worker has its lock."""

    spec: ProcessorSpec
    start: StartRunner
    state: Mapping[str, bytes]
    """The partition's stored state at the time of the acquire, encoded."""
    buffer: PartitionBuffer
    """The buffer that the fetcher fills. The runner closes it when it ends."""
    committer: Committer
    """The processor's committer; its ``run()`` must be running."""
    settings: Settings
    rng: random.Random
    gate: Gate
    on_halted: Callable[[str], None]
    """Called once with the reason when the error policy stops the partition."""
    on_state: Callable[[str, tuple[int, ...]], None]
    """Called with what holds the partition up; see ``Activity``."""
    log: BoundLogger
    cache: TableCache
    """Values of the tables, for all partitions of this worker."""
    outbox: OutboxWriter | None = None
    """Where messages for other streams go, if the function can send any."""

    def __post_init__(self) -> None:
        spec, app = self.spec, self.spec.stream.app
        partition, epoch, owner = self.start.partition, self.start.lock.epoch, self.start.owner
        self.log = self.log.bind(app=app, processor=spec.name, partition=partition, epoch=epoch)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stopped: Stopped | None = None
        self.activity = Activity(f"{app}:{spec.name}:{partition}:{owner}", self.on_state)
        kept = self._kept_state()
        self.commits = Commits(
            start=self.start,
            buffer=self.buffer,
            committer=self.committer,
            settings=self.settings,
            activity=self.activity,
            refused=self._refused,
            on_full=self._leave_if_full,
            log=self.log,
            tables=kept if isinstance(kept, StateWithTables) else None,
            outbox=self.outbox,
        )
        owned = OwnedPartition(
            app=app,
            processor=spec.name,
            partition=partition,
            epoch=epoch,
            owner=owner,
            log=self.log,
            now=monotonic_s,
            key_of=spec.stream.key if spec.takes == "records" else None,
        )
        invoker, mode = _ways_of(spec)
        routes = self.outbox.routes if self.outbox else Routes(spec.into, self.settings.entry_bytes_max)
        threads = self.settings.handler_threads
        self.invoker = invoker(spec, owned, kept, threads, routes)
        orders = self.start.lock.aside
        self.invoker.aside = {record: SetAside(f"Set aside {why}") for record, why in orders.items()}
        timers = Timers(
            calls=[
                (timer, Invoker(timer.call, owned, kept, threads, routes.also(timer.call.into)))
                for timer in spec.timers
            ],
            stored=self.state,
            commits=self.commits,
            server_ms=partial(self.committer.backend.time_ms, self.committer.keys.lock(partition)),
            wake=self.buffer.wake,
            on_trouble=partial(self.activity.hinder, "timer"),
            by=self.start.owner,
            rng=self.rng,
            log=self.log,
        )
        tries = Tries(self.start.lock, spec.errors, max(spec.batch, 2 * spec.concurrency))
        self.intake = Intake(
            self.buffer, self.gate, self.activity, self.commits, timers, tries, self.invoker.aside
        )
        self.mode = mode(self.invoker, self.intake, self.activity, self.commits, self.rng)
        self.buffer.use(spec.batch)

    def _kept_state(self) -> PartitionState:
        spec, committer = self.spec, self.committer
        own = {name: value for name, value in self.state.items() if not name.startswith(TIMERS)}
        if spec.concurrency > 1:
            return NoState(spec.name, spec.concurrency)
        if not spec.tables:
            return PartitionState(own)
        return StateWithTables(
            own,
            specs=spec.tables,
            partition=self.start.partition,
            backend=committer.backend,
            keys=committer.keys,
            cache=self.cache,
            rng=self.rng,
        )

    async def run(self) -> Stopped:
        """Handle records until drained, fenced or cancelled.

        A cancel acks nothing: commits stay, and the next owner handles all other records again. A function
        in a thread cannot be interrupted. The runner abandons it, and its results are discarded.
        """
        task = asyncio.current_task()
        assert task is not None
        task.set_name(self.activity.name)
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                if self.spec.timers:
                    tasks.start_soon(self.intake.timers.watch)
                halted = await self.mode.run()
                await self.commits.flush()
                if halted:
                    await self._stay_halted(halted)
                if self.spec.timers:
                    tasks.cancel_scope.cancel()
        finally:
            self.activity.hide_trouble()
            self.activity.stops()
            self.commits.withdraw()
            self.intake.end()
        return self._stopped or Stopped(StopReason.DRAINED)

    @property
    def halted(self) -> str:
        """Why the error policy has stopped the partition; empty if it has not."""
        stopped = self._stopped
        return stopped.detail if stopped is not None and stopped.reason is StopReason.HALTED else ""

    def drain(self) -> None:
        """Let no other call start; the running one is finished and committed, and the runner ends."""
        self.intake.drain()
        self._leave_if_full()

    def abandon(self, detail: str, reason: StopReason = StopReason.FENCED) -> None:
        """Stop at once: the current batch could not be committed."""
        if self._tasks is not None and not self.halted:
            self._stopped = Stopped(reason, detail)
            self.buffer.close()
            self._tasks.cancel_scope.cancel()

    def _refused(self, code: CommitCode, detail: str) -> None:
        """A commit was refused. With ``GAP`` this worker holds the lock, and gives it back if it drains."""
        is_released = code is CommitCode.GAP and self.intake.draining
        self.abandon(detail, StopReason.DRAINED if is_released else StopReason.FENCED)

    def _leave_if_full(self) -> None:
        """Leave a batch to the next owner if the acked log has no room for it: that may take days."""
        if self.intake.draining and self.commits.is_full:
            self.abandon("the acked log is full", StopReason.DRAINED)

    async def _stay_halted(self, reason: str) -> None:
        self.log.error("partition_halted", reason=reason)
        self._stopped = Stopped(StopReason.HALTED, reason)
        self.activity.hide_trouble()
        self.activity.stops()
        self.activity.rests()
        self.buffer.close()
        self.intake.end_turn()
        self.on_halted(reason)
        intake, at = self.intake, self.mode.halted_at
        while not intake.draining and (not at or await self.committer.holds(self.start.partition, at)):
            await intake.wait_draining(self.settings.trim_interval_ms / 1000)
        if not intake.draining:
            self.on_state("", ())
            self._stopped = Stopped(StopReason.FENCED, "somebody deleted what it had halted at")
