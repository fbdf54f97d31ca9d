"""A worker process: starts the groups of its processors, and ends in two stages.

The first SIGTERM or SIGINT drains and leaves: each partition finishes the batch in hand, commits
it and is released, and the process ends with 0. A second signal, or ``shutdown_timeout_ms``
after the first, ends it at once with ``FORCED``: what was not committed is done again elsewhere.
``stages`` has how.
"""

import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio

from streamworker.core.balance import BalanceRules
from streamworker.core.claim_timing import ClaimTiming
from streamworker.core.lease_timing import LeaseTiming
from streamworker.core.protocols import Coordinator, Setup, make_coordinator
from streamworker.core.worker import Identity, Timing
from streamworker.errors import BackendUnavailable, ConfigurationError
from streamworker.log import get_logger
from streamworker.processors import ProcessorSpec
from streamworker.redisio.client import Backend
from streamworker.redisio.info import check_server
from streamworker.redisio.keys import check_name
from streamworker.runtime.collector import rested_collector
from streamworker.runtime.declaring import declare
from streamworker.runtime.durability import check_durability, pipelines_of
from streamworker.runtime.group import Group
from streamworker.runtime.keeper import Keeper
from streamworker.runtime.listener import Listener
from streamworker.runtime.pauses import Pauses
from streamworker.runtime.stages import TwoStages
from streamworker.runtime.watchdog import Watchdog
from streamworker.settings import Settings

if TYPE_CHECKING:
    from streamworker.app import App

log = get_logger("streamworker.worker")

OTHER_CALLS = 3
"""Connections for all calls but the commits, of which each processor has two at a time (four where they
wait). Calls are short. With its reads, the control stream and the heartbeats, a worker of one processor has
8 connections at most, on a Cluster to each primary; the watchdog makes one for a moment when it has
something to say or to ask."""
START_PATIENCE_S = 30
"""How long a worker that starts waits for what a server that answers cannot do for the moment: some times
what a Cluster needs to give a dead primary a successor."""


class Worker:
    """All groups of one process.

    Parameters
    ----------
    app
        The application.
    processors
        Names of the processors to run; all if None.
    name
        The worker's name; made up if None.
    static_id
        Under which it comes back after a restart; that of the settings if None.

    Raises
    ------
    ConfigurationError
        For a processor that the app does not have, or an app without any.
    """

    def __init__(
        self,
        app: "App",
        *,
        processors: Sequence[str] | None = None,
        name: str | None = None,
        static_id: str | None = None,
    ) -> None:
        self.name = check_name("worker", name) if name else _new_name()
        self._app = app
        self._settings: Settings = app.settings
        static_id = static_id or app.settings.static_id
        self._static_id = check_name("static id", static_id) if static_id else ""
        self._specs = _chosen(app, processors)
        self._groups: list[Group] = []
        self._stopping = False

    async def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Run until ``stop``; returns when everything is drained, released and left.

        ``on_ready`` is called once the server was found good and the groups are being joined.

        Raises
        ------
        ConfigurationError
            If the server, the streams or the schemas are not what the app needs.
        BackendError
            If Redis cannot be reached at the start, or what it could not do for the moment took longer than
            a failover takes. Later outages are waited for.
        """
        settings = self._settings
        rng = random.Random()
        async with Backend.open(
            settings.redis_url,
            name=self.name,
            call_timeout_ms=settings.call_timeout_ms,
            connections=OTHER_CALLS + pipelines_of(settings) * len(self._specs),
            allow_plaintext=settings.allow_plaintext,
        ) as backend:
            if not await self._prepare(backend):
                return
            keeper, listener = Keeper(settings, self.name), Listener(backend, rng)
            watchdog = Watchdog(settings, self.name)
            for spec in self._specs:
                group = Group(spec, self._core(spec, rng), backend, keeper, settings, rng, name=self.name)
                await listener.add(group.keys, group.control_received)
                self._groups.append(group)
                watchdog.watch(group)
            keeper.start()
            watchdog.start()
            try:
                async with anyio.create_task_group() as background:
                    background.start_soon(listener.run)
                    async with anyio.create_task_group() as groups:
                        for group in self._groups:
                            groups.start_soon(group.run)
                        if self._stopping:
                            self.stop()
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
        log.info("worker_left", worker=self.name)

    def stop(self) -> None:
        """Begin to end: drain, release, leave. Call it in the worker's event loop."""
        self._stopping = True
        for group in self._groups:
            group.stop()

    async def _prepare(self, backend: Backend) -> bool:
        """Check the server or the Cluster, and declare streams, groups and schemas: all before joining.

        Returns whether to go on: not where it was asked to stop while that was delayed.

        Groups of processors that this worker does not run are registered too, so that nothing is
        trimmed that they have not read. A wrong address is said at once; what answered and cannot do it
        for the moment, as while a slot moves or a replica takes over, is asked again.
        """
        check_server(await backend.info(), as_cluster=backend.is_cluster)
        pauses, until = Pauses(random.Random()), anyio.current_time() + START_PATIENCE_S
        while True:
            try:
                await check_durability(backend, self._settings)
                for spec in self._app.processors.values():
                    await declare(backend, spec)
            except BackendUnavailable as error:
                if anyio.current_time() > until:
                    raise
                log.warning("start_delayed", worker=self.name, error=str(error))
                await anyio.sleep(pauses.next_ms() / 1000)
                if self._stopping:
                    return False
            else:
                return True

    def _core(self, spec: ProcessorSpec, rng: random.Random) -> Coordinator:
        settings = self._settings
        setup = Setup(
            identity=Identity(
                self.name, socket.gethostname(), os.getpid(), self._static_id, settings.capacity
            ),
            partitions=spec.stream.partitions,
            assignment=self._app.assignment,
            timing=Timing(
                heartbeat_interval_ms=settings.heartbeat_interval_ms,
                dead_after_ms=settings.dead_after_ms,
                session_timeout_ms=settings.session_timeout_ms,
                slow_after_ms=settings.slow_after_ms,
                grace_period_ms=settings.grace_period_ms,
                acquire_retry_ms=settings.acquire_retry_ms,
                hold_ms=settings.hold_ms,
                founding_pause_ms=settings.founding_pause_ms,
            ),
            nonce=lambda: secrets.token_hex(4),
            jitter=lambda most: rng.randint(0, most),
            balance=BalanceRules(
                interval_ms=settings.balance_interval_ms,
                threshold_percent=settings.balance_threshold_percent,
                looks=settings.balance_looks,
                damping_percent=settings.balance_damping_percent,
                moves_per_minute=settings.balance_moves_per_minute,
            ),
            claim=ClaimTiming(cycle_ms=settings.claim_cycle_ms, expiry_ms=settings.claim_expiry_ms),
            lease=LeaseTiming(
                normal_lease_ms=settings.lease_normal_ms,
                max_lease_ms=settings.lease_max_ms,
                max_shutdown_ms=settings.lease_max_shutdown_ms,
                min_grab_ms=settings.lease_min_grab_ms,
                held_delay_ms=settings.lease_held_delay_ms,
            ),
        )
        return make_coordinator(self._app.coordination, setup)


def run_worker(
    app: "App",
    *,
    processors: Sequence[str] | None = None,
    name: str | None = None,
    static_id: str | None = None,
    on_ready: Callable[[], None] | None = None,
    use_uvloop: bool = False,
) -> int:
    """Run a worker in this process until a signal ends it; return the exit code.

    Call it in the main thread: it installs handlers for SIGTERM and SIGINT. What is loaded by then is
    left out of the collection of cycles for as long as it runs; see ``collector``.
    """
    worker = Worker(app, processors=processors, name=name, static_id=static_id)

    async def main() -> None:
        timeout_ms = app.settings.shutdown_timeout_ms
        stages = TwoStages(worker.stop, name=worker.name, timeout_ms=timeout_ms)
        with stages, rested_collector():
            await worker.run(on_ready)

    anyio.run(main, backend_options={"use_uvloop": use_uvloop})
    return 0


def _chosen(app: "App", names: Sequence[str] | None) -> list[ProcessorSpec]:
    if not app.processors:
        raise ConfigurationError(
            f"App {app.name!r} has no processors.", remedy="Declare one with @app.processor(stream)."
        )
    for name in names or ():
        if name not in app.processors:
            raise ConfigurationError(
                f"App {app.name!r} has no processor {name!r}.",
                remedy=f"It has: {', '.join(sorted(app.processors))}.",
            )
    return [spec for spec in app.processors.values() if not names or spec.name in names]


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group of tasks: the others follow from it."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _new_name() -> str:
    """Return a name for a worker that was given none: its host, process and start."""
    host = "".join(c if c.isalnum() or c in "_-" else "-" for c in socket.gethostname())[:32] or "host"
    return f"{host}-{time.time_ns() // 1_000_000 % 100_000_000:x}"
