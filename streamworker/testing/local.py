"""A worker in this process, for tests, examples and notebooks.

It is the real worker, on a server in memory or on a real one. Only signals are left out, since they belong to
the program around it.
"""

import asyncio
import logging
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar

import anyio
import anyio.abc
import structlog

from streamworker.app import App
from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.units import Duration, duration_ms, time_ms
from streamworker.declaring.parameters import Override
from streamworker.declaring.specs import ProcessorSpec
from streamworker.declaring.timed.timers import Timer
from streamworker.declaring.windows import Windowed
from streamworker.errors import BackendUnavailable, ConfigurationError, ProcessingError
from streamworker.redisio.data.state import ask_for_calls, calls_asked_for
from streamworker.redisio.group.following import unfinished
from streamworker.redisio.group.requests import make_request
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import CONNECTIONS, Backend
from streamworker.runtime.connecting import connected
from streamworker.runtime.run.runner import PartitionRunner
from streamworker.runtime.worker import Worker
from streamworker.testing.clock import LOOK_S
from streamworker.testing.home import Home, home_of
from streamworker.testing.memory import changes_at
from streamworker.testing.stored import Stored

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

POLL_S, PAUSE_MAX_S = 0.02, 1.0
"""Shortest and longest pause between snapshots. One takes two round trips, about 1 ms on a local server."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The groups of a worker's processors as they were a moment ago.

    Examples
    --------
    >>> def all_done(now: Snapshot) -> bool:  # for LocalWorker.until
    ...     return now.processors["price"].committed >= 200
    """

    processors: Mapping[str, GroupSnapshot]
    """By the processor's name: members, partitions, lag, committed records."""


class LocalWorker(Stored):
    """A worker that runs in this process, and access to its results.

    :func:`local_worker` creates it. Methods take a processor as its function or its name.

    Examples
    --------
    >>> import msgspec
    >>> class Order(msgspec.Struct):
    ...     customer: str
    ...     amount: float
    >>> app = App("shop")
    >>> orders = app.stream("orders", Order, key="customer")
    >>> @app.processor(orders)
    ... async def price(order: Order) -> Order:
    ...     return Order(order.customer, order.amount * 2)
    >>> async def test_prices() -> list[dict[str, Any]]:
    ...     async with local_worker(app) as worker:
    ...         await orders.send(Order("ann", 5.0))
    ...         await worker.until_drained()
    ...         return await worker.rows(price)
    >>> quiet_logs()
    >>> asyncio.run(test_prices())
    [{'customer': 'ann', 'amount': 10.0}]
    """

    def __init__(self, worker: Worker, specs: Sequence[ProcessorSpec], backend: Backend, home: Home) -> None:
        self._worker = worker
        self._clock, self._url, self._app = home.clock, home.url, home.app
        super().__init__(specs, backend)
        self._running = anyio.CancelScope()
        self._started, self._ended = anyio.Event(), anyio.Event()

    @property
    def name(self) -> str:
        """The worker's name, as ``streamworker status`` shows it."""
        return self._worker.name

    def stop(self) -> None:
        """Stop the worker before the end of the block: it drains, releases its partitions and leaves."""
        self._worker.stop()

    async def kill(self) -> None:
        """End it as SIGKILL would: it commits nothing more, releases nothing and tells nobody."""
        self._running.cancel()
        await self._ended.wait()

    async def snapshot(self) -> Snapshot:
        """Return the group of each processor as it is now."""
        return Snapshot(
            {
                name: await take_snapshot(self._backend, spec.stream.app, spec.stream.name, name)
                for name, spec in self._specs.items()
            }
        )

    async def until(self, condition: Callable[[Snapshot], bool], timeout: float = 30.0) -> Snapshot:
        """Wait until a condition holds; return the snapshot that shows it.

        Parameters
        ----------
        condition
            Called with a fresh snapshot every few milliseconds:
            ``lambda now: now.processors["price"].committed >= 200``.
        timeout
            Timeout in seconds, of real time.

        Raises
        ------
        TimeoutError
            With what the last snapshot showed.
        """
        return await self._until(condition, timeout)

    async def _until(
        self, condition: Callable[[Snapshot], bool], timeout: float, *, once_a_moment: bool = False
    ) -> Snapshot:
        """Wait until a condition holds.

        By a virtual clock it sees the same snapshot until the server's data change, or a second passes: a
        group also changes by time. With ``once_a_moment`` it sees changes once a moment, which ends when
        nothing can run, and each quarter of a second.
        """
        shown = ""
        snapshot: Snapshot | None = None
        known: tuple[object, object] = None, None

        def version(jumps: int) -> tuple[object, object]:
            """Return what a snapshot depends on, and the moment."""
            if self._clock is None:
                return object(), object()
            changes, now_ns = changes_at(self._url), self._clock.now_ns
            if once_a_moment:
                return changes, (jumps < 0, now_ns // 250_000_000)
            return (changes, now_ns // 1_000_000_000), object()

        async def holds(jumps: int) -> bool:
            nonlocal shown, snapshot, known
            newest = version(jumps)
            if snapshot is None or newest[0] != known[0]:
                if newest[1] == known[1]:
                    return False
                try:
                    snapshot, known = await self.snapshot(), newest
                except BackendUnavailable as error:  # On a busy machine an answer may take longer.
                    shown = str(error)
                    return False
                shown = "; ".join(map(_in_words, snapshot.processors.values()))
            return condition(snapshot)

        await self._wait(holds, timeout, lambda: f"Last seen: {shown or 'nothing'}.")
        assert snapshot is not None
        return snapshot

    async def _wait(
        self, holds: Callable[[int], Awaitable[bool]], timeout: float, what: Callable[[], str]
    ) -> None:
        jumps, end_s = -1, time.monotonic() + timeout
        try:
            with anyio.fail_after(timeout if self._clock is None else math.inf):
                while self._clock is None or time.monotonic() < end_s:
                    began_s = time.monotonic()
                    if await holds(jumps):
                        return
                    # Nothing tells when Redis holds what is waited for. The worker has most of the time.
                    # On a busy machine, where a look takes seconds, several looks fit into the timeout.
                    pause_s = min(4 * (time.monotonic() - began_s), PAUSE_MAX_S)
                    if self._clock is None:
                        await anyio.sleep(max(POLL_S, pause_s))
                    else:
                        jumps = await self._clock.look(jumps, max(LOOK_S, pause_s))
                raise TimeoutError
        except TimeoutError:
            raise TimeoutError(f"Waited {timeout:g} s in vain. {what()}") from None

    async def until_drained(self, timeout: float = 30.0) -> None:
        """Wait until each record that was sent is committed by each of the worker's processors.

        That includes the records that these send to other streams, and windows that records have closed.

        Parameters
        ----------
        timeout
            Timeout in seconds, of real time.

        Raises
        ------
        ProcessingError
            If a partition halted: its remaining records will not be committed.
        TimeoutError
            With how much each processor had left.
        """
        may_send = any(spec.may_send for spec in self._specs.values())
        before = -1

        def drained(now: Snapshot) -> bool:
            nonlocal before
            groups = now.processors.values()
            for group in groups:
                _refuse_halted(group)
            runners = self._worker.runners()
            if any(group.lag or group.outbox for group in groups) or not all(map(_is_settled, runners)):
                return False
            # The groups were looked at one after the other. What one of them sent to another meanwhile was
            # noticed if the other has committed more since the look before.
            known, before = before, sum(group.committed for group in groups)
            before += sum(each.intake.timers.ticks for each in runners)
            return not may_send or known == before

        await self._until(drained, timeout, once_a_moment=True)

    async def advance(self, by: Duration) -> None:
        """Let time pass, with ``clock="virtual"``: what is due meanwhile runs, each at its time.

        Parameters
        ----------
        by
            A duration, such as ``"30 minutes"``.

        Raises
        ------
        ConfigurationError
            If the clock is real.
        """
        if self._clock is None:
            raise ConfigurationError(
                "The clock of this worker is real.", remedy='Write local_worker(app, clock="virtual").'
            )
        await anyio.sleep(duration_ms(by, "advance") / 1000)
        await self._clock.look(self._clock.jumps - 1)

    async def event_time(self, processor: Windowed[Any, Any], at: datetime, *, timeout: float = 30.0) -> None:
        """Let event time pass in this worker's partitions, and wait until the windows are closed that end.

        All that was sent is handled before, and partitions that are about to start have started. A record
        that is later than these windows is late then.

        Parameters
        ----------
        processor
            The processor of the windows, or sessions.
        at
            What event time comes to at least, with a zone.
        timeout
            Timeout in seconds, of real time.

        Raises
        ------
        ConfigurationError
            If the processor has no windows, this worker does not run it, or the time has no zone.
        ProcessingError, TimeoutError
            As :meth:`until_drained`.
        """
        at_ms = time_ms(at, "at")
        keys, _ = self._group_of(processor)
        if processor.spec.window is None:
            raise ConfigurationError(
                f"Processor {keys.group!r} has no windows.", remedy="Name one of @app.window or @app.session."
            )

        def runners() -> dict[int, PartitionRunner]:
            found = [each for each in self._worker.runners() if each.commits.spec.name == keys.group]
            return {each.commits.start.partition: each for each in found}

        def have_started(now: Snapshot) -> bool:
            views = now.processors[keys.group].partitions
            mine = {each.partition for each in views if (each.owner or "").rpartition(".")[0] == self.name}
            return mine <= runners().keys() and all(each.state != "acquiring" for each in views)

        await self.until_drained(timeout)
        await self._until(have_started, timeout)
        for runner in runners().values():
            for call in runner.intake.timers.calls:
                call.let_pass(at_ms)
        await self.until_drained(timeout)

    async def run(self, timer: Timer[..., Any], *, at: datetime | None = None, timeout: float = 30.0) -> None:
        """Let a timer run now, whatever its schedule says, and wait until its results are committed and sent.

        Parameters
        ----------
        timer
            The timer, which runs once in the app, or in each partition of its processor.
        at
            The planned time that it is given; now, by the server's clock, if None.
        timeout
            Timeout in seconds, of real time.

        Raises
        ------
        ConfigurationError
            If this is no timer of the app, or the time has no zone.
        TimeoutError
            If it has not run by then, with its error if it fails.
        """
        asked: Any = getattr(timer, "spec", None)
        found = [spec for spec in self._app.registry.groups if asked in spec.timers]
        if not found:
            raise ConfigurationError(
                f"worker.run({getattr(timer, 'name', timer)}) names no timer of the app.",
                remedy="Give it a function with @app.timer or @processor.timer above it. Processors run by "
                "themselves once records are sent.",
            )
        [group] = found
        keys = GroupKeys(group.stream.app, group.stream.name, group.name)
        partitions = sorted(await unfinished(self._backend, keys, group.stream.placement.all))
        at_ms = await self._backend.time_ms() if at is None else time_ms(at, "at")
        await ask_for_calls(self._backend, keys, partitions, timer.name, at_ms)
        await make_request(self._backend, keys, partitions, "retry", who=self.name, why=f"run {timer.name}")

        seen = ""

        async def has_run(_: int) -> bool:
            nonlocal seen
            waits = (await calls_asked_for(self._backend, keys, partitions, timer.name, at_ms)).waiting
            snapshot = await take_snapshot(self._backend, keys.app, keys.stream, keys.group)
            seen = _in_words(snapshot)
            return not waits and not snapshot.outbox

        await self._wait(
            has_run, timeout, lambda: f"Timer {timer.name} has not run in each partition. Last seen: {seen}."
        )

    async def _run(self) -> None:
        try:
            with self._running:
                await self._worker.run(self._started.set)
        finally:
            self._ended.set()


@asynccontextmanager
async def local_worker(
    app: App,
    *,
    url: str | None = None,
    name: str | None = None,
    processors: Sequence[str] | None = None,
    resources: Sequence[Override] = (),
    clock: Literal["real", "virtual"] = "real",
) -> AsyncIterator[LocalWorker]:
    """Run a worker in this process during an ``async with`` block.

    At the end of the block the worker drains, releases its partitions and leaves. If the block
    raises, the worker is cancelled and commits nothing more. Connections that the app opened to send
    records in this block are closed.

    Parameters
    ----------
    app
        The application.
    url
        A real server, such as that of an ``EmbeddedServer``. None: a server in memory, which the blocks of
        this app share until the last of them ends. What the app begins to send meanwhile goes there too.
    name
        The worker's name; made up if None. Two workers in one test show two members.
    processors
        Names of the processors to run; all if None.
    resources
        Values in place of resources: ``[prices.override(client)]``.
    clock
        ``virtual``: time stands still while anything runs, and jumps to what is due next when nothing
        can. So a test waits for no backoff and no timer, and ``advance`` lets minutes pass. It is the time
        of the event loop, the worker and the server in memory; with another server it is an error.

    Raises
    ------
    ConfigurationError, BackendError
        If the worker fails at its start or while it runs.

    Examples
    --------
    >>> async def test_totals() -> None:
    ...     async with local_worker(app) as worker:
    ...         await orders.send(Order("ann", 5.0))
    ...         await worker.until_drained()
    ...         assert await worker.rows(price) == [{"customer": "ann", "amount": 6.0}]
    """
    if not structlog.is_configured():  # It would print each step of the protocol.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with home_of(app, url, clock) as home:
        worker = Worker(app, processors=processors, name=name, overrides=resources)
        specs = app.registry.chosen(processors)
        try:
            # Not anyio's group of tasks: pytest-asyncio ends a fixture in another task than it began it.
            async with (
                connected(app.settings, f"{worker.name}:observer", CONNECTIONS) as backend,
                asyncio.TaskGroup() as tasks,
            ):
                local = LocalWorker(worker, specs, backend, home)
                tasks.create_task(local._run())  # noqa: SLF001
                try:
                    await local._started.wait()  # noqa: SLF001
                    yield local
                except BaseException:
                    local._running.cancel()  # noqa: SLF001
                    raise
                worker.stop()
        except BaseExceptionGroup as errors:
            raise _only(errors) from None
        finally:
            await app.aclose()
            await asyncio.to_thread(app.close)


def quiet_logs(level: str = "error") -> None:
    """Send the worker's log to stderr, from a level on.

    Without this call structlog prints every line to stdout, between the output of a test or an example.
    It changes structlog's configuration for the whole process.

    Parameters
    ----------
    level
        The least level that is logged: ``debug``, ``info``, ``warning`` or ``error``.

    Examples
    --------
    >>> quiet_logs()  # in conftest.py
    """
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _is_settled(runner: PartitionRunner) -> bool:
    return not runner.commits.is_committing and runner.intake.timers.is_settled


def _in_words(group: GroupSnapshot) -> str:
    total = group.committed + group.lag
    told = f"{group.processor!r} had committed {group.committed} of {total} entries"
    stands = [
        f"partition {view.partition} {view.state}"
        + (f": {view.reason}" if view.reason and view.state != "halted" else "")
        for view in group.partitions
        if view.reason or view.state == "halted"
    ]
    return ", ".join([told, *stands])


def _refuse_halted(snapshot: GroupSnapshot) -> None:
    for view in snapshot.partitions:
        if view.state == "halted":
            raise ProcessingError(
                f"Partition {view.partition} of processor {snapshot.processor!r} halted: {view.reason}",
                remedy="Let the function handle the record, or give its error a policy (docs: errors).",
            )


def _only(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the single error of a group, as it would be raised without a task group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
