"""A worker process: it runs one group for each of its processors, and ``watch.stages`` ends it.

When it is told to stop, each partition finishes its current batch, commits it and is released. Another
worker handles again what was not committed.
"""

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from typing import Any, Protocol

import anyio
import anyio.abc

from streamworker.core.data.graph import cycles
from streamworker.core.pauses import Pauses
from streamworker.core.protocols.membership.settings import BalanceRules
from streamworker.core.protocols.registry import PROTOCOLS, Coordinator
from streamworker.core.protocols.setup import Identity, Setup, Timing
from streamworker.core.text import storable
from streamworker.declaring.middleware import Layer
from streamworker.declaring.parameters import Override
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.errors import BackendUnavailable, ConfigurationError, ProcessingError
from streamworker.log import get_logger
from streamworker.redisio.group.following import read_first
from streamworker.redisio.keys import GroupKeys, check_name
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import is_wrong_tls
from streamworker.redisio.wire.info import check_server
from streamworker.runtime.clock import CLOCK
from streamworker.runtime.connecting import connected
from streamworker.runtime.durability import check_durability, pipelines_of
from streamworker.runtime.group import Group
from streamworker.runtime.listener import Listener
from streamworker.runtime.observing import Observer
from streamworker.runtime.provisioning import provision, provision_unread
from streamworker.runtime.read.collector import rested_collector
from streamworker.runtime.resources import Resources
from streamworker.runtime.risks import HeldBack, StartRisks, StoppedAtStart
from streamworker.runtime.run.failures import describe_error
from streamworker.runtime.run.runner import PartitionRunner
from streamworker.runtime.run.trims import keep_unread
from streamworker.runtime.telling import warn
from streamworker.runtime.watch.health import Health
from streamworker.runtime.watch.keeper import Keeper
from streamworker.runtime.watch.stages import UNTOLD, TwoStages
from streamworker.runtime.watch.watchdog import Watchdog
from streamworker.settings import Settings

log = get_logger("streamworker.worker")

OTHER_CALLS = 3
"""Connections for all calls except commits. Each processor has two commit pipelines at a time (four where
they wait for durability). Calls are short. Together with its reads, the control stream and the heartbeats,
a worker with one processor uses at most 8 connections, on a Cluster to each primary. The watchdog opens one
more for a moment when it reports or asks something."""
START_PATIENCE_S = 30
"""How long a worker beside a block retries a call that a reachable server cannot do for the moment. This is
several times what a Cluster needs to replace a dead primary."""


class RegistryView(Protocol):
    """What a worker needs of what an app has declared."""

    streams: dict[str, Any]
    processors: dict[str, ProcessorSpec]
    archivers: dict[str, ProcessorSpec]
    middleware: list[Layer]

    @property
    def groups(self) -> list[ProcessorSpec]:
        """Its processors, and the group that runs its timers, if it has any."""

    def chosen(self, names: Sequence[str] | None) -> list[ProcessorSpec]:
        """Return the processors of these names, or all."""


class Application(Protocol):
    """What a worker needs of an app."""

    name: str
    assignment: str
    settings: Settings
    observer: Observer | None

    @property
    def registry(self) -> RegistryView:
        """What it has declared."""

    def load(self) -> None:
        """Import the modules that declare more of it."""

    async def aclose(self) -> None:
        """Close the connections of its senders."""


class Worker:
    """All groups of one process.

    All processors run if ``processors`` is None. ``static_id`` is kept over restarts, and overrides the one
    in the settings. ``overrides`` are values in place of resources. ``health`` is kept current for probes.
    With ``waits`` it waits at its start, too, for as long as Redis is away.
    """

    def __init__(
        self,
        app: Application,
        *,
        processors: Sequence[str] | None = None,
        name: str | None = None,
        static_id: str | None = None,
        overrides: Sequence[Override] = (),
        health: Health | None = None,
        waits: bool = False,
    ) -> None:
        self._health = health or Health()
        self._waits = waits
        self._preparing: anyio.CancelScope | None = None
        self._reached = False
        self.name = check_name("worker", name) if name else _new_name()
        self._run = secrets.token_hex(4)
        """Tells this process from others whose worker has the same name, in ids of owners and in names of
        connections."""
        self._joins = count(1)
        self._app = app
        self._settings: Settings = app.settings
        static_id = static_id or app.settings.static_id
        self._static_id = check_name("static id", static_id) if static_id else ""
        protocol = app.settings.coordination.name
        if static_id and not PROTOCOLS[protocol].has_document:
            raise ConfigurationError(
                f"A static id does not work with coordination={protocol!r}.",
                remedy='Leave it out, or use coordination="membership".',
            )
        app.load()
        self._specs = _chosen(app, processors)
        read = {spec.stream.name for spec in app.registry.groups}
        streams = [stream.spec for name, stream in app.registry.streams.items() if name not in read]
        self._unread: list[StreamSpec] = [spec for spec in streams if spec.retention]
        self._resources = Resources(
            app.registry.middleware, {each.resource: each.value for each in overrides}
        )
        self._groups: list[Group] = []
        self._firsts: dict[str, int] = {}
        """For each group the first partition of the oldest generation with which it is not done."""
        self._stopping = False

    def runners(self) -> list[PartitionRunner]:
        """Return the runners of this worker's partitions, for tests."""
        return [runner for group in self._groups for runner in group.partitions.running().values()]

    async def run(self, on_ready: Callable[[], None] | None = None) -> bool:
        """Run until ``stop`` is called; return whether all partitions were drained and released.

        ``on_ready`` is called after the server has passed its checks, when the groups begin to join.

        At the start this raises if the server, the streams or the schemas are not what the app needs. It
        also raises if Redis cannot be reached, or cannot do a call for longer than a failover takes, unless
        the worker waits at its start as well. The worker waits out later outages.
        """
        settings = self._settings
        rng = random.Random()
        connections = OTHER_CALLS + pipelines_of(settings) * len(self._specs)
        name = f"{self.name}.{self._run}"
        async with connected(settings, name, connections) as backend, AsyncExitStack() as closing:
            if not await self._patiently(partial(self._prepare, backend)):
                return True
            try:
                opened = self._resources.opened(self._specs, "worker", self._start_risks(backend))
                resources = await closing.enter_async_context(opened)
            except StoppedAtStart:
                return True
            keeper, listener = Keeper(settings, name), Listener(backend, rng)
            watchdog = Watchdog(settings, name)
            streams = {each.name: each.spec for each in self._app.registry.streams.values()}
            for spec in self._specs:
                core = self._core(spec, rng)
                observer = self._app.observer
                its = self.name, spec, core, backend, keeper, settings, rng, resources, observer
                group = Group(*its, streams)
                await listener.add(group.keys, group.control_received)
                self._groups.append(group)
                watchdog.watch(group.keys, group.partitions.runners)
            if not CLOCK.is_virtual:
                keeper.start()
                watchdog.start()
                if self._app.observer is not None:
                    self._app.observer.loop_runs(self._app.name, lambda: watchdog.lag_ms)
                self._health.watched = keeper, watchdog
            self._health.groups = self._groups
            try:
                async with anyio.create_task_group() as background:
                    background.start_soon(listener.run)
                    background.start_soon(keep_unread, backend, self._unread, settings, self._has_first)
                    if CLOCK.is_virtual:  # It stands still during calls: none delays a heartbeat or stalls.
                        background.start_soon(keeper.run)
                    async with anyio.create_task_group() as groups:
                        for group in self._groups:
                            groups.start_soon(group.run)
                        if self._stopping:
                            self.stop()
                        self._tell_cycles()
                        log.info("worker_started", worker=self.name, processors=[s.name for s in self._specs])
                        if on_ready is not None:
                            on_ready()
                    background.cancel_scope.cancel()
            except BaseExceptionGroup as errors:
                raise _first(errors) from errors
            finally:
                watchdog.stop()
                keeper.stop()
                await self._app.aclose()
        if drained := all(group.drained for group in self._groups):
            log.info("worker_left", worker=self.name)
        return drained

    def stop(self) -> None:
        """Start the shutdown: drain, release, leave. Call it in the worker's event loop."""
        self._stopping = self._health.stopping = True
        if self._preparing is not None:
            self._preparing.cancel()
        for group in self._groups:
            group.stop()

    def _has_first(self) -> bool:
        return any(group.spec.stream.placement.base in group.core.held for group in self._groups)

    def _tell_cycles(self) -> None:
        specs = self._app.registry.processors.values()
        for ring in cycles((spec.stream.name, target.name) for spec in specs for target in spec.targets):
            remedy = "If its processors send more than they take, it fills up and stands still."
            log.warning("streams_form_a_cycle", streams=ring, remedy=remedy)

    async def _prepare(self, backend: Backend) -> None:
        """Check the server or the Cluster, and provision streams, groups and schemas, before joining.

        The worker also registers the groups of processors that it does not run, so that nobody trims
        records that they have not read.
        """
        check_server(await backend.info())
        self._reached = True
        await check_durability(backend, self._settings)
        for spec in self._app.registry.groups:
            await provision(backend, spec, log)
        for spec in self._specs:
            keys = GroupKeys(spec.stream.app, spec.stream.name, spec.name)
            self._firsts[spec.name] = await read_first(backend, keys, spec.stream.placement)
        for its in self._unread:
            await provision_unread(backend, its, log, again=False)

    async def _patiently(self, call: Callable[[], Awaitable[None]]) -> bool:
        """Make a call of the start; return False if ``stop`` was called meanwhile.

        It is repeated while Redis is away, or cannot do a call for the moment, for example while a slot moves
        or a replica takes over; and while a resource is held back. A supervisor that started the worker again
        would wait longer each time. What waiting cannot mend ends it: a refusal, a password, a certificate.
        """
        pauses, until = Pauses(random.Random().random), anyio.current_time() + START_PATIENCE_S
        with anyio.CancelScope() as self._preparing:
            while not self._stopping:
                try:
                    await call()
                except (BackendUnavailable, HeldBack) as error:
                    is_away = isinstance(error, BackendUnavailable)
                    is_patient = is_away and self._reached and anyio.current_time() <= until
                    if is_wrong_tls(error) or not (self._waits or is_patient):
                        raise
                    self._health.waits = "Redis is away" if is_away else error.message.rstrip(".")
                    warn(log, "start_delayed", error, level="error", worker=self.name)
                    await anyio.sleep(pauses.next_ms() / 1000)
                else:
                    self._health.waits = ""
                    return True
        return False

    @contextmanager
    def _until_stopped(self) -> Iterator[None]:
        with anyio.CancelScope() as self._preparing:
            try:
                yield
            except ProcessingError:
                if not self._stopping:  # Else the cancel may have become an error.
                    raise
        if self._stopping:
            raise StoppedAtStart

    def _start_risks(self, backend: Backend) -> StartRisks:
        """Name what it runs now in the group of its first processor, which an operator can `retry`."""
        spec = self._specs[0]
        keys = GroupKeys(spec.stream.app, spec.stream.name, spec.name)
        return StartRisks(backend, keys, self._patiently, self._until_stopped)

    def _core(self, spec: ProcessorSpec, rng: random.Random) -> Coordinator:
        settings, host = self._settings, storable(socket.gethostname())
        setup = Setup(
            coordination=settings.coordination,
            identity=Identity(self.name, host, os.getpid(), self._static_id, settings.capacity),
            partitions=spec.stream.placement.total,
            first=self._firsts[spec.name],
            assignment=self._app.assignment,
            timing=settings.part(Timing),
            nonce=lambda: f"{self._run}-{next(self._joins)}",
            jitter=lambda most: rng.randint(0, most),
            balance=settings.part(BalanceRules, "balance_"),
        )
        return PROTOCOLS[setup.coordination.name].make(setup)


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """Run a worker beside a block; at its end the worker drains, and if the worker fails, both end."""

    async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        await worker.run(task_status.started)

    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(run)
            error: Exception | None = None
            try:
                yield worker
            except Exception as raised:  # noqa: BLE001 - it leaves first; else its partitions wait for its death
                error = raised
            worker.stop()
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    if error is not None:
        raise error


def run_worker(
    app: Application,
    *,
    processors: Sequence[str] | None = None,
    name: str | None = None,
    static_id: str | None = None,
    use_uvloop: bool = False,
    health: Health | None = None,
) -> int:
    """Run a worker in this process until a signal ends it; return the exit code, 0 only if it drained.

    Call it in the main thread: it installs handlers for SIGTERM and SIGINT. While the worker runs, the
    garbage collector skips the objects that exist at its start; see ``collector``.
    """
    worker = Worker(app, processors=processors, name=name, static_id=static_id, health=health, waits=True)
    drained, why = False, "its tasks were cancelled"

    async def main() -> None:
        nonlocal drained
        timeout_ms = app.settings.shutdown_timeout_ms
        stages = TwoStages(worker.stop, name=worker.name, timeout_ms=timeout_ms)
        with stages, rested_collector():
            drained = await worker.run()

    try:
        anyio.run(main, backend_options={"use_uvloop": use_uvloop})
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as raised:
        # A task that a user function started has raised it, which ends the event loop.
        why = describe_error(raised)
    if drained:
        return 0
    log.error("worker_ended_untold", worker=worker.name, reason=why)
    return UNTOLD


def _chosen(app: Application, names: Sequence[str] | None) -> list[ProcessorSpec]:
    if not app.registry.groups:
        raise ConfigurationError(
            f"App {app.name!r} has no processors and no timers.",
            remedy="Declare one with @app.processor(stream).",
        )
    chosen = app.registry.chosen(names)
    read = {spec.stream.name for spec in chosen}
    # Some processors come with the archivers of the streams that they read.
    is_whole = not names or {*names} >= app.registry.processors.keys() > set()
    archivers = [its for its in app.registry.archivers.values() if is_whole or its.stream.name in read]
    timers = [spec for spec in app.registry.groups if not spec.stream.has_records]
    return [*chosen, *(each for each in archivers if each not in chosen), *timers]


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a task group: it has caused the others."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _new_name() -> str:
    """Return a name for a worker that was given none, made of its host and start time."""
    host = "".join(c if c.isalnum() or c in "_-" else "-" for c in socket.gethostname())[:32] or "host"
    return f"{host}-{time.time_ns() // 1_000_000 % 100_000_000:x}"
