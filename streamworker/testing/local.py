"""A worker in this process, for tests, examples and notebooks.

It is the real worker on a real server: nothing is simulated, and what a test sees is what
production does. Only signals are left out, since they belong to the program around it.
"""

import logging
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc
import structlog

from streamworker.app import App, Processor
from streamworker.core.entries import ZERO
from streamworker.core.snapshot import GroupSnapshot
from streamworker.errors import ConfigurationError, ProcessingError
from streamworker.processors import ProcessorSpec
from streamworker.redisio.ackedlog import decode_entry, deserialize_schema
from streamworker.redisio.client import Backend
from streamworker.redisio.dead import StoredLetter, list_dead
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.schemas import CURRENT
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.streams import range_entries
from streamworker.runtime.worker import Worker

POLL_S = 0.02
"""How often a group is looked at: two round trips, which a local server answers in about 1 ms."""
READ_ENTRIES = 1_000
DEAD_LETTERS_MAX = 10_000

ProcessorName = str | Processor[..., Any]


class LocalWorker:
    """A worker that runs in this process, and what can be seen of its work.

    Made by :func:`local_worker`. Processors are named by their function or their name.
    """

    def __init__(self, app: App, worker: Worker, specs: Sequence[ProcessorSpec], backend: Backend) -> None:
        self._app = app
        self._worker = worker
        self._specs = {spec.name: spec for spec in specs}
        self._backend = backend

    @property
    def name(self) -> str:
        """The worker's name, as ``streamworker status`` shows it."""
        return self._worker.name

    def stop(self) -> None:
        """Begin to end it before the block does: it drains, releases its partitions and leaves."""
        self._worker.stop()

    async def snapshot(self, processor: ProcessorName) -> GroupSnapshot:
        """Return the group of a processor as it is now: members, partitions, checkpoints, lag."""
        stream = self._spec(processor).stream
        return await take_snapshot(self._backend, stream.app, stream.name, self._spec(processor).name)

    async def until(
        self,
        condition: Callable[[GroupSnapshot], bool],
        description: str,
        *,
        processor: ProcessorName,
        timeout: float = 30.0,
    ) -> GroupSnapshot:
        """Wait until a condition holds for a processor's group; return the snapshot that shows it.

        Parameters
        ----------
        condition
            Called with a fresh snapshot every few milliseconds.
        description
            What is waited for, for the message of the error.
        processor
            Whose group is looked at.
        timeout
            Seconds.

        Raises
        ------
        TimeoutError
            Naming what was waited for.
        """
        try:
            with anyio.fail_after(timeout):
                while True:
                    snapshot = await self.snapshot(processor)
                    if condition(snapshot):
                        return snapshot
                    # Nothing tells when Redis holds what is waited for.
                    await anyio.sleep(POLL_S)
        except TimeoutError:
            raise TimeoutError(f"Waited {timeout:g} s in vain until {description}.") from None

    async def until_drained(self, timeout: float = 30.0) -> None:
        """Wait until each record that was sent is committed by each of the worker's processors.

        Raises
        ------
        ProcessingError
            If a partition halted: what it holds will never be committed.
        TimeoutError
            Naming the processor and how much it had left.
        """
        for name in self._specs:

            def drained(snapshot: GroupSnapshot) -> bool:
                _refuse_halted(snapshot)
                return snapshot.lag == 0

            await self.until(
                drained, f"processor {name!r} had committed all records", processor=name, timeout=timeout
            )

    async def rows(self, processor: ProcessorName) -> list[dict[str, Any]]:
        """Return what a processor has forwarded: the rows of its acked log, by partition, in order.

        Rows that every reader is past may have been trimmed.
        """
        spec = self._spec(processor)
        keys = GroupKeys(spec.stream.app, spec.stream.name, spec.name)
        stored = await self._backend.execute("HGETALL", keys.schemas)
        schemas = {
            name.decode(): deserialize_schema(value)
            for name, value in zip(stored[::2], stored[1::2], strict=True)
            if name != CURRENT
        }
        rows: list[dict[str, Any]] = []
        for partition in range(spec.stream.partitions):
            after = ZERO
            while entries := await range_entries(
                self._backend, keys.acked(partition), after.successor(), None, READ_ENTRIES
            ):
                for entry in entries:
                    rows += decode_entry(entry.id, entry.fields, schemas).to_pylist()
                after = entries[-1].id
        return rows

    async def dead_letters(self, processor: ProcessorName) -> list[StoredLetter]:
        """Return the records that a processor gave up on, by partition, oldest first."""
        spec = self._spec(processor)
        keys = GroupKeys(spec.stream.app, spec.stream.name, spec.name)
        return await list_dead(self._backend, keys, range(spec.stream.partitions), count=DEAD_LETTERS_MAX)

    def _spec(self, processor: ProcessorName) -> ProcessorSpec:
        name = processor if isinstance(processor, str) else processor.name
        if name not in self._specs:
            raise ConfigurationError(
                f"This worker does not run a processor {name!r}.",
                remedy=f"It runs: {', '.join(self._specs)}.",
            )
        return self._specs[name]


@asynccontextmanager
async def local_worker(
    app: App,
    *,
    redis_url: str | None = None,
    processors: Sequence[str] | None = None,
    name: str | None = None,
) -> AsyncIterator[LocalWorker]:
    """Run a worker in this process for as long as the block runs.

    At the end of the block the worker drains, releases its partitions and leaves. If the block
    raises, the worker is cancelled: what it had not committed is not committed.

    Parameters
    ----------
    app
        The application.
    redis_url
        A server to use in place of the app's own while the block runs, such as that of an
        ``EmbeddedServer``. The app's sends in this block go there too.
    processors
        Names of the processors to run; all if None.
    name
        The worker's name; made up if None. Two workers in one test show two members.

    Raises
    ------
    ConfigurationError, BackendError
        What the worker raises at its start, or while it runs.

    Examples
    --------
    >>> async def test_totals() -> None:
    ...     with EmbeddedServer() as server:
    ...         async with local_worker(app, redis_url=server.url) as worker:
    ...             await orders.send(Order("ann", 5.0))
    ...             await worker.until_drained()
    ...             assert await worker.rows(price) == [{"customer": "ann", "amount": 6.0}]
    """
    before = app.settings
    if redis_url is not None:
        await app.aclose()
        app.settings = replace(before, redis_url=redis_url)
    # Nobody else is about to join.
    app.settings = replace(app.settings, founding_pause_ms=0)
    worker = Worker(app, processors=processors, name=name)
    specs = [app.processors[each] for each in processors or app.processors]
    try:
        async with (
            Backend.open(
                app.settings.redis_url,
                name=f"{worker.name}:observer",
                call_timeout_ms=app.settings.call_timeout_ms,
                allow_plaintext=app.settings.allow_plaintext,
            ) as backend,
            anyio.create_task_group() as tasks,
        ):
            await tasks.start(_run, worker)
            yield LocalWorker(app, worker, specs, backend)
            worker.stop()
    except BaseExceptionGroup as errors:
        raise _only(errors) from None
    finally:
        await app.aclose()
        app.settings = before


def quiet_logs(level: str = "error") -> None:
    """Send the worker's log to stderr, and only what is at least this grave.

    Without it structlog prints every line to stdout, where the output of a test or an example
    is looked for. It changes structlog's configuration for the whole process.
    """
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


async def _run(worker: Worker, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await worker.run(task_status.started)


def _refuse_halted(snapshot: GroupSnapshot) -> None:
    for view in snapshot.partitions:
        if view.state == "halted":
            raise ProcessingError(
                f"Partition {view.partition} of processor {snapshot.processor!r} halted: {view.reason}",
                remedy='Let the function handle the record, or give the processor on_error="dead_letter".',
            )


def _only(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one error that a group holds, as it would be without a task group around it."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
