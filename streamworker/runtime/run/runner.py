"""The runner of one partition: builds what its mode works with, and decides how it ends.

A mode takes entries from the intake, reports its calls to the activity, and hands results to the commits;
the runner gives it those three, halts, drains and stops.

After a crash, this worker or another handles everything since the last commit again: at least once for
the function, exactly once for the acked log.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import anyio
import anyio.abc
from structlog.stdlib import BoundLogger

from streamworker.context import Place
from streamworker.core.ownership.locks import Acquired
from streamworker.processors import Mode as ModeName
from streamworker.processors import ProcessorSpec
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.run.activity import Activity
from streamworker.runtime.run.commits import Commits
from streamworker.runtime.run.committer import Committer
from streamworker.runtime.run.intake import Intake
from streamworker.runtime.run.invoke import Invoker
from streamworker.runtime.run.modes.batch import BatchMode
from streamworker.runtime.run.modes.keyed import KeyedMode
from streamworker.runtime.run.modes.modes import Mode
from streamworker.runtime.run.modes.record import RecordMode
from streamworker.runtime.run.modes.stream import StreamMode
from streamworker.runtime.run.rollback import Committed
from streamworker.runtime.run.state import NoState, PartitionState
from streamworker.runtime.signals import Gate
from streamworker.settings import Settings

_MODES: dict[ModeName, type[Mode]] = {
    ModeName.BATCH: BatchMode,
    ModeName.RECORD: RecordMode,
    ModeName.STREAM: StreamMode,
}


def _ways_of(spec: ProcessorSpec) -> tuple[type[Invoker], type[Mode]]:
    """Return a processor's invoker, which calls its function, and its mode."""
    if not spec.uses_columns:
        return Invoker, KeyedMode if spec.concurrency > 1 else _MODES[spec.mode]
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


class PartitionRunner:
    """Runs one processor over one partition while this worker has its lock.

    Parameters
    ----------
    spec
        The processor.
    app_name
        The application's name, for the context.
    partition, owner, lock
        The acquired partition, its owner and its lock.
    state
        The partition's stored state at the time of the acquire, encoded.
    buffer
        The buffer that the fetcher fills. The runner closes it when it ends.
    committer
        The processor's committer; its ``run()`` must be running.
    settings
        The application's settings.
    rng
        The source of jitter.
    gate
        Closed while no batch may start.
    on_halted
        Called once with partition and reason when the error policy stops the partition.
    on_state
        Called with partition and reason when something holds the partition up, and with an empty
        reason when it continues.
    log
        A logger; the runner binds partition and processor to it.
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
        self._partition = partition
        self.owner = owner
        self._settings = settings
        self._on_halted = on_halted
        self._on_state = on_state
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stopped: Stopped | None = None
        self._log = log.bind(app=app_name, processor=spec.name, partition=partition, epoch=lock.epoch)
        name = f"{app_name}:{spec.name}:{partition}:{owner}"
        self.activity = Activity(name, partial(on_state, partition))
        self.intake = Intake(buffer, gate, self.activity)
        self.commits = Commits(
            partition=partition,
            owner=owner,
            lock=lock,
            buffer=buffer,
            committer=committer,
            settings=settings,
            rng=rng,
            activity=self.activity,
            spawn=self._spawn,
            abandon=self.abandon,
            log=self._log,
        )
        kept = NoState(spec.name, spec.concurrency) if spec.concurrency > 1 else PartitionState(state)
        place = Place(app=app_name, processor=spec.name, partition=partition, epoch=lock.epoch, log=self._log)
        invoker, mode = _ways_of(spec)
        self.invoker = invoker(spec, place, kept, settings.handler_threads)
        self._mode = mode(self.invoker, self.intake, self.activity, self.commits, rng)
        buffer.use(spec.batch)

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
                halted = await self._mode.run()
                await self.commits.flush()
                if halted:
                    await self._stay_halted(halted)
        finally:
            self.activity.hide_trouble()
            self.activity.stops()
            self.commits.withdraw()
            self.intake.end()
        return self._stopped or Stopped(StopReason.DRAINED)

    def drain(self) -> None:
        """Finish the running call, commit it and start no other; ``run()`` returns after that."""
        self.intake.drain()

    @property
    def halted(self) -> str:
        """Why the error policy has stopped the partition; empty if it has not."""
        stopped = self._stopped
        return stopped.detail if stopped is not None and stopped.reason is StopReason.HALTED else ""

    @property
    def committed(self) -> Committed:
        """The partition's checkpoint and counts after the last confirmed commit."""
        return self.commits.committed

    @property
    def oldest(self) -> str:
        """Ids of the entries whose call has run for longest; empty if no call runs."""
        return self._mode.oldest

    def abandon(self, detail: str) -> None:
        """Stop at once as fenced: the current batch could not be committed."""
        if self._tasks is not None and not self.halted:
            self._stopped = Stopped(StopReason.FENCED, detail)
            self.intake.buffer.close()
            self._tasks.cancel_scope.cancel()

    def _spawn(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(function, *arguments)

    async def _stay_halted(self, reason: str) -> None:
        self._log.error("partition_halted", reason=reason)
        self._stopped = Stopped(StopReason.HALTED, reason)
        self.activity.hide_trouble()
        self.activity.stops()
        self.activity.rests()
        intake, at = self.intake, self._mode.halted_at
        intake.buffer.close()
        self._on_halted(self._partition, reason)
        while not intake.draining and (not at or await self.commits.holds(at)):
            await intake.wait_draining(self._settings.trim_interval_ms / 1000)
        if not intake.draining:
            self._on_state(self._partition, "")
            self._stopped = Stopped(StopReason.FENCED, "somebody deleted what it had halted at")
