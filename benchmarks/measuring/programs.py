"""Runs programs in turn, each as its own process, until the server has all acknowledgements."""

import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from benchmarks.measuring.ground import BenchGround
from benchmarks.measuring.task import Begun, Task
from streamworker.dev.children import Child
from streamworker.errors import StreamworkerError

POLL_S = 0.01
STALL_S = 60.0
"""A process whose streams neither grow nor are read for this long has failed. On a very busy machine a
process may take more than a minute to begin."""
STOP_TIMEOUT_S = 15.0
LOOK = 128
"""Streams that one round trip checks."""


def worker(app: str) -> tuple[str, ...]:
    """Return the command line of a worker, as a user starts it."""
    return ("-m", "streamworker", "run", app, "--log-level", "warning")


WORKER = worker("benchmarks.measuring.worker:app")

Told = TypeVar("Told", bound=msgspec.Struct)
Result = TypeVar("Result")


class BenchFailed(StreamworkerError):
    """A measured process failed or stalled, so there is no figure."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that handles the entries of a stream, or sends them."""

    name: str
    command: tuple[str, ...] = WORKER
    """Arguments for the Python interpreter."""
    mode: str = "batch"
    """Each program defines its modes."""
    entries: str = "events"
    """Name of the stream that it reads or fills."""
    python: str = sys.executable
    tree: Path | None = None
    """The checkout that it is run from; None for this one."""


@dataclass(frozen=True, slots=True)
class RunTiming:
    """The figures of one run."""

    per_s: float
    server_us: float
    """CPU time of the server for each record, in µs."""


@dataclass(slots=True)
class Bench:
    """The settings of a scene: the server, the amount of work and the callback for progress messages."""

    ground: BenchGround
    runs: int = 5
    records: int = 200_000
    """Records in a run."""
    partitions: int = 1
    """Partitions that hold the records, for all programs."""
    before: Path | None = None
    """Another checkout, whose workers are measured beside those of this one."""
    say: Callable[[str], None] = lambda _: None

    async def in_turn(
        self, programs: Sequence[Program], measure: Callable[[Program], Awaitable[Result]]
    ) -> dict[str, list[Result]]:
        """Measure each program once in every run, and return the results by the programs' names.

        Every second run reverses the order, so that each one also goes first.
        """
        found: dict[str, list[Result]] = {each.name: [] for each in programs}
        for run in range(self.runs):
            for each in programs if run % 2 == 0 else programs[::-1]:
                self.say(f"run {run + 1} of {self.runs}: {each.name}")
                found[each.name].append(await measure(each))
        return found

    async def handled(self, program: Program, keys: list[str]) -> RunTiming:
        """Let a program handle all entries of some streams, and measure the time.

        The time begins with its first call and ends when the server has the last acknowledgement.
        """
        async with self.started(program, keys) as process:
            begun = await process.told(Begun)
            cpu_s, records = await self.ground.cpu_s(), await self.ground.length(keys) - begun.records
            if records < 1:
                raise BenchFailed(
                    f"{program.name} had all records in its first call, which is not counted.",
                    remedy="Ask for more, with --records.",
                )
            await process.done()
            seconds = time.monotonic() - begun.at_s
            cpu_s = await self.ground.cpu_s() - cpu_s
        return RunTiming(records / seconds, cpu_s * 1e6 / records)

    @asynccontextmanager
    async def started(
        self, program: Program, keys: list[str], *, records: int = 0, per_s: int = 0
    ) -> AsyncIterator["BenchProcess"]:
        """Start a program on some streams; at the end stop it and remove its group."""
        group = f"g{secrets.token_hex(4)}"
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            task = Task(
                app=self.ground.name,
                mode=program.mode,
                group=group,
                keys=keys,
                stream=program.entries,
                partitions=len(keys),
                records=records,
                per_s=per_s,
                begun_path=f"{folder}/begun",
                url=self.ground.url,
            )
            child = Child(
                [program.python, *program.command],
                log_path=Path(folder) / "log",
                environ=task.environ if program.tree is None else _environ_in(program.tree, task),
                cwd=program.tree,
            )
            try:
                yield BenchProcess(program.name, task, child, self.ground)
            finally:
                await asyncio.to_thread(child.stop, STOP_TIMEOUT_S)
                await self.ground.forget(keys, group)


def _environ_in(tree: Path, task: Task) -> dict[str, str]:
    """Return the variables of a task whose program takes its modules from another checkout."""
    return {**task.environ, "PYTHONPATH": str(tree)}


@dataclass(frozen=True, slots=True)
class BenchProcess:
    """A running program."""

    name: str
    task: Task
    child: Child
    ground: BenchGround

    async def told(self, kind: type[Told], suffix: str = "", *, beside: "BenchProcess | None" = None) -> Told:
        """Wait for the result that the process writes to its file; fail if a process beside it fails."""
        path = Path(self.task.begun_path + suffix)

        async def is_there() -> bool:
            return path.exists()  # noqa: ASYNC240 - a local file: takes microseconds

        await self._until(is_there, "begun, or not ended", beside)
        return msgspec.json.decode(path.read_bytes(), type=kind)  # noqa: ASYNC240 - as above

    async def done(self) -> None:
        """Wait until the server has the process's last acknowledgement."""
        left = list(self.task.keys)

        async def is_done() -> bool:
            # These checks cost server CPU, which is counted. So check one stream until it is done, then many.
            count = 1
            while left:
                left[:count] = undone = await self.ground.undone(left[:count], self.task.group)
                if undone:
                    return False
                count = LOOK
            return True

        await self._until(is_done, "handled all records")

    async def _until(
        self, condition: Callable[[], Awaitable[bool]], what: str, beside: "BenchProcess | None" = None
    ) -> None:
        progress: object = None
        look_s = time.monotonic() + STALL_S / 2
        while not await condition():
            if not self.child.running and not await condition():
                self.fail(what)
            if beside is not None and beside.child.exit_code not in (None, 0):
                beside.fail("sent all records")
            if time.monotonic() > look_s:
                before, progress = progress, await self.ground.progress(self.task.keys, self.task.group)
                if progress == before:
                    self.fail(what)
                look_s = time.monotonic() + STALL_S / 2
            await asyncio.sleep(POLL_S)

    def fail(self, what: str) -> NoReturn:
        """Raise an error that contains the end of this process's log."""
        raise BenchFailed(
            f"{self.name} has not {what}.",
            remedy=f"The end of its log:\n{self.child.log_tail() or '(empty)'}",
        )
