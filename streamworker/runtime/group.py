"""One processor at one worker: drives its core, and does what the core says.

Events come in from the keeper, the listener, the runners and from answered calls; they are
handled one after the other. Effects go out in order: those on runners are done at once, those on
Redis become tasks whose answers are events again. Nothing is decided here.
"""

import logging
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from structlog.stdlib import BoundLogger

from streamworker.core.control import GroupChanged
from streamworker.core.events import (
    CancelRunner,
    ControlReceived,
    DeadlinePassed,
    DrainRunner,
    DropRunner,
    Effect,
    Event,
    Finished,
    HeartbeatDone,
    MarkLock,
    Note,
    PauseBatches,
    PostControl,
    ReportLoad,
    ResumeBatches,
    RunnerFenced,
    RunnerHalted,
    RunnerStopped,
    SendHeartbeat,
    Started,
    StartHeartbeat,
    StartRunner,
    StopHeartbeat,
    StopRequested,
)
from streamworker.core.merging import merged
from streamworker.core.protocols import Coordinator
from streamworker.core.transcript import is_news, step_in_words
from streamworker.errors import BackendError, InternalError, StreamworkerError
from streamworker.log import get_logger
from streamworker.processors import ProcessorSpec
from streamworker.redisio import readers, state, streams
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.operation import Access, Operation
from streamworker.redisio.operations import OPERATIONS, mark, post
from streamworker.runtime import trail
from streamworker.runtime.buffer import ByteBudget
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.committer import Committer
from streamworker.runtime.declaring import declare
from streamworker.runtime.fetcher import Fetcher
from streamworker.runtime.keeper import Keeper
from streamworker.runtime.measuring import measure
from streamworker.runtime.pauses import Pauses
from streamworker.runtime.rollback import Witness
from streamworker.runtime.runner import PartitionRunner, Stopped, StopReason
from streamworker.runtime.signals import Gate
from streamworker.settings import Settings

STATE_READS_MAX = 2
"""Partitions whose state is read at a time. A worker may start a thousand at once: a call that waits
for its turn here does so before its deadline begins, and leaves connections for the other calls."""


@dataclass(slots=True)
class _Running:
    """A partition's runner and the task around it."""

    epoch: int
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    runner: PartitionRunner | None = None
    drained: anyio.Event = field(default_factory=anyio.Event)
    dropped: bool = False
    alarmed_ms: int | None = None


class Group:
    """One processor's group as seen by one worker.

    Parameters
    ----------
    spec
        The processor.
    core
        The protocol.
    backend
        Connection for short calls.
    keeper
        Sends the heartbeats.
    settings, rng
        Times and limits; jitter.
    name
        The worker's name.
    """

    def __init__(
        self,
        spec: ProcessorSpec,
        core: Coordinator,
        backend: Backend,
        keeper: Keeper,
        settings: Settings,
        rng: random.Random,
        *,
        name: str,
    ) -> None:
        stream = spec.stream
        self._name = name
        self.spec = spec
        self.keys = GroupKeys(stream.app, stream.name, spec.name)
        self._core = core
        self._backend = backend
        self._keeper = keeper
        self._access = Access(backend, self.keys, settings.drain_deadline_ms)
        self._settings = settings
        self._rng = rng
        self._log = get_logger("streamworker.group").bind(processor=spec.name)
        self._events: deque[Event] = deque()
        self._arrived = anyio.Event()
        self._running: dict[int, _Running] = {}
        self._gate = Gate()
        self._state_reads = anyio.Semaphore(STATE_READS_MAX)
        self._measuring = anyio.CancelScope()
        self._committer = Committer(backend, self.keys, settings, rng)
        self._witness = Witness(backend, self.keys, self.runners, rng, self._log)
        self._fetcher = Fetcher(
            backend,
            StreamKeys(stream.app, stream.name),
            settings,
            ByteBudget(settings.prefetch_bytes),
            rng=rng,
            on_regressed=self._regressed,
            on_unreadable=self._unreadable,
            on_back=lambda: self._spawn(self._witness.compare),
        )
        self._finished = False
        self._has_joined = False
        self._failure: StreamworkerError | None = None
        self._tasks: TaskGroup | None = None

    # -- from outside --------------------------------------------------------------------------

    def deliver(self, event: Event) -> None:
        """Bring an event. Call it in the worker's event loop."""
        self._events.append(event)
        self._arrived.set()

    def control_received(self, event: ControlReceived) -> None:
        """Bring messages of the control stream."""
        for message in event.messages:
            if isinstance(message, GroupChanged):
                self._log.info(
                    "rebalance",
                    generation=message.generation,
                    cause=message.cause,
                    member=message.member,
                    moved=list(message.moved),
                )
        self.deliver(event)

    def stop(self) -> None:
        """Drain, release and leave; ``run`` then returns."""
        self.deliver(StopRequested())

    @property
    def owned(self) -> tuple[int, ...]:
        """Partitions that have a runner."""
        return tuple(sorted(self._running))

    def runners(self) -> dict[int, PartitionRunner | None]:
        """Return the runners by partition; None while its state is read. Call it from any thread."""
        return {partition: running.runner for partition, running in list(self._running.items())}

    async def run(self) -> None:
        """Take part in the group until stopped.

        Raises
        ------
        ConfigurationError
            If the group runs with another number of partitions.
        """
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._fetcher.run)
            tasks.start_soon(self._committer.run)
            tasks.start_soon(self._maintain)
            self.deliver(Started())
            try:
                while not self._finished:
                    await self._next_event()
                    calls: list[Effect] = []
                    while self._events and not self._finished:
                        calls += self._step(self._events.popleft())
                    self._call(calls)
            finally:
                self._finished = True
                self._keeper.forget(self.keys)
            tasks.cancel_scope.cancel()

    async def _next_event(self) -> None:
        """Wait for an event; make one when the core's deadline passes first."""
        if self._events:
            return
        self._arrived = anyio.Event()
        deadline_ms = self._core.next_deadline_ms()
        wait_s = math.inf if deadline_ms is None else max(0.0, (deadline_ms - monotonic_ms()) / 1000)
        with anyio.move_on_after(wait_s):
            await self._arrived.wait()
            return
        self._events.append(DeadlinePassed())

    def _step(self, event: Event) -> list[Effect]:
        """Let the core take an event; do what concerns this process, and return what concerns Redis."""
        effects = self._core.handle(event, monotonic_ms())
        self._trace(event, effects)
        calls: list[Effect] = []
        for effect in effects:
            if isinstance(effect, MarkLock | PostControl) or type(effect) in OPERATIONS:
                calls.append(effect)
            else:
                self._perform(effect)
        return calls

    def _call(self, effects: Sequence[Effect]) -> None:
        """Do at Redis what some events at once led to: what is told is told together, before the rest.

        When a hundred partitions drain in one turn of the event loop, that is one call to release
        them and one message about it, which wakes each of the other workers once.
        """
        marks = [effect for effect in effects if isinstance(effect, MarkLock)]
        if marks:
            self._spawn(self._tell, mark, marks)
        posts = [effect.message for effect in effects if isinstance(effect, PostControl)]
        if posts:
            self._spawn(self._tell, post, posts)
        for effect in merged(effects):
            if operation := OPERATIONS.get(type(effect)):
                self._spawn(self._operate, operation, effect)

    def _trace(self, event: Event, effects: Sequence[Effect]) -> None:
        """Log a step line by line, as ``streamworker simulate --trace`` prints it."""
        if self._log.is_enabled_for(logging.DEBUG) and is_news(event, effects):
            for words in step_in_words(event, effects):
                self._log.debug(f"{self._name}  {words}")

    def _spawn(self, function: Callable[..., Coroutine[Any, Any, object]], *arguments: object) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(function, *arguments)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case StartHeartbeat(member):
                self._keeper.keep(self.keys, member, self._heartbeat_done)
                if self._has_joined:
                    self._spawn(self._declare_again)
                self._has_joined = True
            case SendHeartbeat():
                self._keeper.hurry()
            case StopHeartbeat():
                self._keeper.forget(self.keys)
            case ReportLoad(every_ms):
                self._measuring.cancel()
                self._measuring = anyio.CancelScope()
                if every_ms:
                    self._spawn(self._measure, every_ms, self._measuring)
            case StartRunner():
                running = self._running[effect.partition] = _Running(effect.lock.epoch)
                self._spawn(self._run_partition, effect, running)
            case DrainRunner(partition, epoch):
                self._drain(partition, epoch)
            case CancelRunner(partition, epoch):
                self._cancel(partition, epoch, dropped=False)
            case DropRunner(partition, epoch):
                self._cancel(partition, epoch, dropped=True)
            case PauseBatches():
                self._gate.close()
            case ResumeBatches():
                self._gate.open()
            case Note(event, fields):
                self._log.info(event, **fields)
            case Finished():
                self._finished = True
            case _:
                raise InternalError(f"Nobody performs the effect {effect!r}.")

    async def _declare_again(self) -> None:
        """Make anew what is missing: we were removed, and the database may have been emptied."""
        pauses = Pauses(self._rng)
        while True:
            try:
                await declare(self._backend, self.spec)
            except BackendError as error:
                self._log.warning("declare_failed", error=str(error))
                await anyio.sleep(pauses.next_ms() / 1000)
            else:
                return

    def _heartbeat_done(self, event: HeartbeatDone) -> None:
        if self._witness.is_another(event.run_id) and not self._finished:
            self._spawn(self._witness.compare)
        self.deliver(event)

    async def _operate(self, operation: Operation, effect: Effect) -> None:
        """Do an effect at Redis and bring its answer; "no answer" is an answer too."""
        try:
            event = await operation.do(self._access, effect)
        except BackendError as error:
            self._log.warning("call_unanswered", call=type(effect).__name__, error=str(error))
            event = operation.failed(effect)
        trail.locks_answered(effect, event)
        self.deliver(event)

    async def _tell(self, telling: Callable[..., Awaitable[None]], what: Sequence[object]) -> None:
        """Do effects that have no answer; one that is lost costs a hint or a view."""
        try:
            await telling(self._access, what)
        except BackendError as error:
            self._log.warning("telling_failed", what=telling.__name__, error=str(error))

    # -- runners -------------------------------------------------------------------------------

    async def _run_partition(self, effect: StartRunner, running: _Running) -> None:
        partition, epoch = effect.partition, effect.lock.epoch
        log = self._log.bind(partition=partition, epoch=epoch)
        log.info("partition_started", checkpoint=str(effect.lock.checkpoint))
        stopped: Stopped | None = None
        with running.scope:
            try:
                stopped = await self._handle_records(effect, running, log)
            except Exception as error:
                # A bug of ours or of a library must not take the other partitions down.
                log.exception("runner_failed")
                self.deliver(RunnerHalted(partition, epoch, f"internal error: {error!r}"))
                await running.drained.wait()
        self._fetcher.remove(partition)
        if self._running.get(partition) is running:
            del self._running[partition]
        log.info("partition_stopped", reason=stopped.reason.value if stopped else "cancelled")
        if running.dropped:
            return
        if stopped is not None and stopped.reason is StopReason.FENCED:
            self.deliver(RunnerFenced(partition, epoch))
        else:
            self.deliver(RunnerStopped(partition, epoch))

    async def _handle_records(
        self, effect: StartRunner, running: _Running, log: BoundLogger
    ) -> Stopped | None:
        partition = effect.partition
        await self._witness.acquired(partition, effect.lock)
        stored = await self._stored_state(effect, log)
        if running.drained.is_set():
            return None
        running.runner = PartitionRunner(
            spec=self.spec,
            app_name=self.spec.stream.app,
            partition=partition,
            owner=effect.owner,
            lock=effect.lock,
            state=stored,
            buffer=self._fetcher.add(partition, effect.lock.checkpoint),
            committer=self._committer,
            settings=self._settings,
            rng=self._rng,
            gate=self._gate,
            on_halted=lambda _, reason: self.deliver(RunnerHalted(partition, effect.lock.epoch, reason)),
            on_state=lambda _, reason: self._show(effect, reason),
            log=log,
        )
        try:
            return await running.runner.run()
        finally:
            self._witness.note(partition, running.runner.committed)

    def _show(self, effect: StartRunner, reason: str) -> None:
        """Show in the lock what holds a partition up, or that it goes on."""
        running = self._running.get(effect.partition)
        state = "draining" if running is not None and running.drained.is_set() else "running"
        view = MarkLock(effect.partition, effect.owner, effect.lock.epoch, state, reason)
        self._spawn(self._tell, mark, [view])

    async def _stored_state(self, effect: StartRunner, log: BoundLogger) -> dict[str, bytes]:
        pauses = Pauses(self._rng, first_ms=200)
        tries = 0
        while True:
            try:
                async with self._state_reads:
                    stored = await state.read_state(self._backend, self.keys, effect.partition)
            except BackendError as error:
                log.warning("state_unreadable", error=str(error))
                self._show(effect, f"state unreadable: {error}")
                tries += 1
                await anyio.sleep(pauses.next_ms() / 1000)
                continue
            if tries:
                self._show(effect, "")
            return stored

    def _drain(self, partition: int, epoch: int) -> None:
        running = self._running.get(partition)
        if running is None or running.epoch != epoch:
            return
        running.drained.set()
        if running.runner is not None:
            running.runner.drain()

    def _cancel(self, partition: int, epoch: int, *, dropped: bool) -> None:
        running = self._running.get(partition)
        if running is None or running.epoch != epoch:
            return
        if not dropped:
            self._log.warning("grace_period_over", partition=partition, epoch=epoch)
        running.dropped = dropped
        running.drained.set()
        running.scope.cancel()
        if dropped:
            del self._running[partition]

    def _unreadable(self, partition: int, reason: str) -> None:
        if runner := self.runners().get(partition):
            runner.hinder("reads", reason)

    def _regressed(self, partition: int, detail: str) -> None:
        self._log.error("stream_went_back", partition=partition, detail=detail)
        self._spawn(self._settle_regression, partition, detail)

    async def _settle_regression(self, partition: int, detail: str) -> None:
        """Take a partition anew whose lock went back with its stream.

        Where the stream alone was deleted or made again, to go on would skip what it holds now.
        """
        running = self._running.get(partition)
        gone = await self._witness.compare(partition)
        if running is None or partition in gone or running is not self._running.get(partition):
            return
        if not running.drained.is_set():
            if running.runner is not None:
                running.runner.shows_trouble = False  # What is in hand may still be committed.
            self.deliver(RunnerHalted(partition, running.epoch, detail))

    async def _measure(self, every_ms: int, scope: anyio.CancelScope) -> None:
        def runners() -> dict[int, PartitionRunner]:
            return {p: runner for p, runner in self.runners().items() if runner}

        report = partial(self._keeper.report, self.keys)
        with scope:
            await measure(self._backend, self.keys, runners, report, every_ms, self._log)

    # -- maintenance ---------------------------------------------------------------------------

    async def _maintain(self) -> None:
        """Trim what everybody is past, and raise the alarm for handlers without progress.

        A partition is asked about only when something moved: its checkpoint or its readers.
        """
        while True:
            await anyio.sleep(self._settings.trim_interval_ms / 1000)
            self._alarm()
            try:
                passed = await readers.slowest_rows(self._backend, self.keys) if self._running else {}
                moved = {}
                for partition, running in self._running.items():
                    if running.runner is None:
                        continue
                    rows = running.runner.acked_trim_rows = passed.get(partition, 0)
                    if running.runner.trims.without_commit(rows):
                        moved[partition] = rows
                if moved:
                    await streams.trim_many(self._backend, self.keys, moved)
            except BackendError as error:
                self._log.warning("trim_failed", error=str(error))

    def _alarm(self) -> None:
        now_ms, limit_ms = monotonic_ms(), self._settings.max_processing_time_ms
        for partition, running in self._running.items():
            runner = running.runner
            since_ms = runner.busy_since_ms if runner else None
            if runner is None or since_ms is None or since_ms == running.alarmed_ms:
                continue
            if now_ms - since_ms < limit_ms:
                continue
            running.alarmed_ms = since_ms
            entry = {"entry": oldest} if (oldest := runner.oldest) else {}
            busy_ms = now_ms - since_ms
            self._log.error(
                "handler_makes_no_progress", partition=partition, busy_ms=busy_ms, limit_ms=limit_ms, **entry
            )
