"""The partitions that one worker runs for one group: their runners, and what these share.

The group says which partition starts, drains and is cancelled. This reports as events how each ends.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio
from structlog.stdlib import BoundLogger

from streamworker.core.data.entries import EntryId
from streamworker.core.events import Event, MarkLock, RunnerFenced, RunnerHalted, RunnerStopped, StartRunner
from streamworker.core.pauses import Pauses
from streamworker.core.words import ranges
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.errors import BackendError, ProcessingError, StreamworkerError
from streamworker.redisio.admin.retiming import begin
from streamworker.redisio.data import schemas
from streamworker.redisio.data.ackedlog import log_schema
from streamworker.redisio.group.risks import count_left
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.archive import archive_log
from streamworker.runtime.durability import durability_of
from streamworker.runtime.forward.forwarder import Forwarder
from streamworker.runtime.forward.moving import OwnedOutbox
from streamworker.runtime.forward.routing import Routes
from streamworker.runtime.observing import Observer
from streamworker.runtime.read.buffer import ByteBudget
from streamworker.runtime.read.polling import fetcher_for, reader_of
from streamworker.runtime.resources import ResourceEnded, Resources
from streamworker.runtime.risks import Risks
from streamworker.runtime.run.activity import Trouble
from streamworker.runtime.run.committer import Committer
from streamworker.runtime.run.failures import cancelled_by, describe_error, failure, traceback_of
from streamworker.runtime.run.generations import Generations
from streamworker.runtime.run.rollback import Witness
from streamworker.runtime.run.runner import PartitionRunner, Stopped, StopReason, build_runner
from streamworker.runtime.run.state import TableCache
from streamworker.runtime.run.trims import Trimmer, expire_once, tell_of_deleted, trim_once
from streamworker.runtime.send.adopting import Adopter
from streamworker.runtime.send.due import send_due
from streamworker.runtime.signals import Gate
from streamworker.runtime.telling import warn
from streamworker.settings import Settings

T = TypeVar("T")

TOLD_S = 0.2
"""How long the line about partitions that start or stop waits for more of them."""
STATE_READS_MAX = 2
"""How many partitions' states are read at a time. A worker may start a thousand partitions at once. A read
that waits here has not started its deadline yet, and leaves the connections to other calls."""


@dataclass(slots=True)
class _Running:
    epoch: int
    has_died: bool = False
    """Whether its last owner died, or one that still had another partition's lock when this worker began."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    runner: PartitionRunner | None = None
    drained: anyio.Event = field(default_factory=anyio.Event)
    dropped: bool = False
    counted: bool = False
    """Whether it is known what killed its last owner, of what is named."""


@dataclass(kw_only=True, eq=False)
class Partitions:
    """The running partitions of one group in one worker."""

    spec: ProcessorSpec
    keys: GroupKeys
    backend: Backend
    settings: Settings
    rng: random.Random
    deliver: Callable[[Event], None]
    """Takes the events of partitions that have stopped, were fenced or halted."""
    mark: Callable[[MarkLock], None]
    """Writes to a lock what holds its partition up."""
    spawn: Callable[..., None]
    """Runs a coroutine function with arguments in a task that ends with the group."""
    log: BoundLogger
    resources: Resources
    streams: Mapping[str, StreamSpec]
    """All of the app, by name."""
    observer: Observer | None = None

    def __post_init__(self) -> None:
        self._running: dict[int, _Running] = {}
        self._cancelled: dict[int, EntryId] = {}
        """Where partitions began that something else cancelled; at a second such cancel there one halts."""
        self._untold: dict[str, list[int]] = {}
        """Partitions that have started or stopped, by the event of the log."""
        self.gate = Gate()
        """Closed while no batch may start."""
        self._counting, self._state_reads = anyio.Lock(), anyio.Semaphore(STATE_READS_MAX)
        self._cache = TableCache(self.settings.table_cache_bytes)
        self._committer = Committer(self.backend, self.keys, self.settings, self.rng)
        self._count_lost = None if (its := self.observer) is None else partial(its.records_lost, self.spec)
        stream, of_log = self.spec.stream, (self.spec.options.retention_of_log, self.spec.forward)
        self._forwarder = Forwarder(self.backend, stream.app, self.settings, self.rng, self._count_lost)
        self._trimmer = Trimmer(self.backend, self.keys, stream, self.settings, self.log, *of_log)
        self.witness = Witness(self.backend, self.keys, self.running, self.rng, self.log, self._count_lost)
        self.fetcher = fetcher_for(self.backend)(
            self.backend,
            self.keys,
            self.settings,
            ByteBudget(self.settings.prefetch_bytes),
            rng=self.rng,
            on_regressed=self._regressed,
            on_unreadable=partial(self._hinder, "reads"),
            on_back=lambda: self.spawn(self.witness.compare),
            cold=reader_of(self.spec, self.observer),
        )
        where = self.backend, self.keys, self.spec, self.settings
        self.generations = Generations(*where, self.rng, self.log, self.runners, self.deliver)
        if self.observer is not None:
            self.observer.processor_runs(self.spec)

    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Return what must run as long as the group does."""
        forwards = (self._forwarder.run,) if self.spec.may_send else ()
        stream, durability = self.spec.stream, durability_of(self.settings)
        due = partial(send_due, self.backend, stream, self.runners, durability, self.log)
        reads = (self.fetcher.run, due) if stream.has_records else ()
        adopts = (self._adopt,) if stream.source else ()
        grows = (self.generations.follow, self.generations.finish)
        its = self.backend, self.keys, self.spec, self.settings, self.rng, self.log
        archive = partial(archive_log, *its, self.running, self.generations.unowned)
        archives = (archive,) if self.spec.options.archive_of_log else ()
        return *reads, self._committer.run, self._maintain, *grows, *forwards, *adopts, *archives

    async def _adopt(self) -> None:
        durability, stream = durability_of(self.settings), self.spec.stream

        def held_up(reason: str) -> None:
            self._hinder("source", stream.placement.base, reason)

        adopter = Adopter(
            self.backend, stream, durability, self.rng.random, self.log, held_up, self._count_lost
        )
        await adopter.run(self.runners)

    def runners(self) -> dict[int, PartitionRunner | None]:
        """Return the runners by partition, None while a state is being read. Safe from any thread."""
        return {partition: running.runner for partition, running in list(self._running.items())}

    def running(self) -> dict[int, PartitionRunner]:
        """Return the runners whose state has been read, by partition."""
        return {partition: runner for partition, runner in self.runners().items() if runner}

    def start(self, effect: StartRunner) -> None:
        """Run an acquired partition."""
        its = self._running[effect.partition] = _Running(effect.lock.epoch, effect.lock.deaths is not None)
        self.spawn(self._run, effect, its)

    def drain(self, partition: int, epoch: int) -> None:
        """Let a partition finish its running call, commit it and stop; ignored if it has another epoch."""
        if (running := self._running.get(partition)) is None or running.epoch != epoch:
            return
        running.drained.set()
        if running.runner is not None:
            running.runner.drain()

    def cancel(self, partition: int, epoch: int, *, dropped: bool) -> None:
        """Stop a partition at once, and forget it if it was dropped; ignored if it has another epoch."""
        if (running := self._running.get(partition)) is None or running.epoch != epoch:
            return
        if not dropped:
            self.log.warning("grace_period_over", partition=partition, epoch=epoch)
        running.dropped = dropped
        running.drained.set()
        running.scope.cancel()
        if dropped:
            del self._running[partition]

    # -- one partition ---------------------------------------------------------------------------

    async def _run(self, effect: StartRunner, running: _Running) -> None:
        partition, epoch = effect.partition, effect.lock.epoch
        log = self.log.bind(partition=partition, epoch=epoch)
        self._say_soon("partitions_started", partition)
        log.debug("partition_started", checkpoint=str(effect.lock.checkpoint))
        stopped: Stopped | None = None
        with running.scope:
            try:
                stopped = await self._handle_records(effect, running, log)
            except ResourceEnded as ended:
                log.warning("resource_ended", error=str(ended))
                stopped = Stopped(StopReason.DRAINED if running.drained.is_set() else StopReason.FENCED, "")
            except BaseException as raised:  # noqa: BLE001 - a bug must not take the other partitions down
                error = failure(raised)
                if isinstance(raised, asyncio.CancelledError):
                    reason = cancelled_by(self.spec.function)
                    if self._cancelled.get(partition) != effect.lock.checkpoint:
                        self._cancelled[partition] = effect.lock.checkpoint
                        ends = StopReason.DRAINED if running.drained.is_set() else StopReason.FENCED
                        stopped = Stopped(ends, reason)
                    log.warning("runner_cancelled", halts=stopped is None, reason=reason)
                else:
                    reason = f"internal error: {describe_error(error)}"
                    log.error("runner_failed", exception=traceback_of(error))  # noqa: TRY400 - as text
                if stopped is None:
                    self.deliver(RunnerHalted(partition, epoch, reason))
                    await running.drained.wait()
        self.fetcher.remove(partition)
        if self._running.get(partition) is running:
            del self._running[partition]
        self._say_soon("partitions_stopped", partition)
        log.debug("partition_stopped", reason=stopped.reason.value if stopped else "cancelled")
        if running.dropped:
            return
        is_fenced = stopped is not None and stopped.reason is StopReason.FENCED
        self.deliver((RunnerFenced if is_fenced else RunnerStopped)(partition, epoch))

    def _say_soon(self, event: str, partition: int) -> None:
        """Log partitions that start or stop together in one line: a worker may have a thousand."""
        if not self._untold:
            asyncio.get_running_loop().call_later(TOLD_S, self._say)
        self._untold.setdefault(event, []).append(partition)

    def _say(self) -> None:
        untold, self._untold = self._untold, {}
        for event, partitions in untold.items():
            self.log.info(event, partitions=ranges(partitions))

    async def _handle_records(
        self, effect: StartRunner, running: _Running, log: BoundLogger
    ) -> Stopped | None:
        partition = effect.partition
        tell_of_deleted(log, effect.lock.gone)
        if deaths := effect.lock.deaths:
            log.warning("workers_died_in_call", deaths=deaths, record=str(effect.lock.tries[0][0]))
        if effect.lock.reason:  # An earlier runner of this worker wrote it, or a rollback restored it.
            self._show(effect, "")
        await self.witness.acquired(partition, effect.lock)
        if effect.lock.waits_for:
            show = partial(self._show, effect)
            if not await self.generations.opened(effect, running.drained, show):
                return None if running.drained.is_set() else Stopped(StopReason.FENCED)
        risks = Risks(self.backend, self.keys, partition, effect.owner)
        async with AsyncExitStack() as stack:

            async def open_resources() -> Resources:
                opened = self.resources.opened([self.spec], "partition", risks)
                return await stack.enter_async_context(opened)

            async def read_state() -> dict[str, bytes]:
                async with self._state_reads:
                    return await begin(self.backend, self.keys, self.spec.lifetimes, effect)

            await self._patiently(effect, log, "deaths_uncounted", partial(self._count_left, effect.owner))
            resources = await self._patiently(effect, log, "resource_not_made", open_resources)
            stored = await self._patiently(effect, log, "state_unreadable", read_state)
            outbox = await self._opened_outbox(effect, log, stack) if self.spec.may_send else None
            if running.drained.is_set():
                return None
            running.runner = build_runner(
                spec=resources.bound(self.spec),
                start=effect,
                names_layers=bool(resources.layers) and any(each.has_died for each in self._running.values()),
                state=stored,
                buffer=self.fetcher.add(partition, effect.lock.checkpoint),
                committer=self._committer,
                settings=self.settings,
                rng=self.rng,
                gate=self.gate,
                on_halted=lambda reason: self.deliver(RunnerHalted(partition, effect.lock.epoch, reason)),
                on_state=lambda reason, retry: self._show(effect, reason, retry),
                log=log,
                cache=self._cache,
                ends_ms=partial(self.generations.ends_ms.get, partition),
                outbox=outbox,
                observer=self.observer,
            )
            try:
                stopped = await running.runner.run()
                if outbox is not None and stopped.reason is StopReason.DRAINED:
                    await outbox.source.settle()
                return stopped
            finally:
                self.witness.note(partition, running.runner.commits.committed)

    async def _count_left(self, owner: str) -> None:
        """Count what the last owners of new partitions have died in, before one of them runs that."""
        async with self._counting:
            if new := {p: each for p, each in self._running.items() if not each.counted}:
                begins = self.resources.layers and len(new) == len(self._running)
                locks = self.spec.stream.placement.all if begins else ()
                has_died = await count_left(self.backend, self.keys, owner, new, locks)
                for each in new.values():
                    each.counted, each.has_died = True, each.has_died or has_died

    def _show(self, effect: StartRunner, reason: str, retry: tuple[int, ...] = ()) -> None:
        """Write to the lock what holds up the partition; an empty reason clears it."""
        running = self._running.get(effect.partition)
        state = "retrying" if retry else "running"
        if running is not None and running.drained.is_set():
            state, retry = "draining", ()
        self.mark(MarkLock(effect.partition, effect.owner, effect.lock.epoch, state, reason, retry))

    async def _opened_outbox(
        self, effect: StartRunner, log: BoundLogger, stack: AsyncExitStack
    ) -> OwnedOutbox:
        """Begin to forward what an earlier owner has left, and return where this owner's messages go."""
        keys, held_up = self.keys.outbox(effect.partition), partial(self._hinder, "outbox", effect.partition)
        opened = partial(self._forwarder.open, keys, held_up, [*self.streams.values(), *self.spec.targets])
        source, heads = await self._patiently(effect, log, "outbox_unreadable", opened)
        stack.callback(source.close)
        its = Routes(self.spec.into, self.settings.entry_bytes_max, self.streams), source, heads, effect
        return OwnedOutbox(*its, self.backend, self.keys, self.settings, self.rng, log, self._count_lost)

    async def _patiently(
        self, effect: StartRunner, log: BoundLogger, trouble: str, call: Callable[[], Awaitable[T]]
    ) -> T:
        """Repeat a call that a partition needs before it runs; its lock shows why it fails meanwhile."""
        pauses, reason = Pauses(self.rng.random, first_ms=200), ""
        while True:
            try:
                done = await call()
            except (BackendError, ProcessingError) as error:
                before, reason = reason, f"{trouble.replace('_', ' ')}: {error}"
                if reason != before:
                    warn(log, trouble, error)
                self._show(effect, reason)
                await anyio.sleep(pauses.next_ms() / 1000)
            else:
                if reason:
                    self._show(effect, "")
                return done

    def _hinder(self, what: Trouble, partition: int, reason: str) -> None:
        if runner := self.runners().get(partition):
            runner.activity.hinder(what, reason)

    def _regressed(self, partition: int, detail: str) -> None:
        self.log.error("stream_went_back", partition=partition, detail=detail)
        self.spawn(self._settle_regression, partition, detail)

    async def _settle_regression(self, partition: int, detail: str) -> None:
        """Acquire a partition again whose lock was rolled back together with its stream.

        If only the stream was deleted or recreated, halt: continuing would skip what it holds now.
        """
        running = self._running.get(partition)
        await self.witness.compare(partition)
        if running is None or running is not self._running.get(partition) or running.drained.is_set():
            return
        if runner := running.runner:
            if runner.ending.stopped is not None:
                return
            runner.activity.hide_trouble()  # The current batch may still be committed.
        self.deliver(RunnerHalted(partition, running.epoch, detail))

    async def _maintain(self) -> None:
        """Trim what every reader has committed, and keep the schema declared."""
        while True:
            await anyio.sleep(self.settings.trim_interval_ms / 1000)
            if trims := {p: runner.commits.trims for p, runner in self.running().items()}:
                await trim_once(self._trimmer, {**self.generations.unowned(), **trims})
            starts = {p: runner.commits.start for p, runner in self.running().items()}
            await expire_once(self.backend, self.keys, self.spec, starts, self.log)
            if self._running and self.spec.forward and self.spec.output:
                try:  # Somebody may have deleted its schema.
                    await schemas.provision_schema(self.backend, self.keys, log_schema(self.spec), again=True)
                except StreamworkerError as error:
                    warn(self.log, "schema_unreadable", error)
