"""Runs contestants in turn, each as its own process, until the server has all acknowledgements."""

import asyncio
import functools
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from streamworker.dev.bench.figures import Figures
from streamworker.dev.bench.ground import Ground
from streamworker.dev.bench.task import Begun, Task
from streamworker.dev.children import Child
from streamworker.errors import StreamworkerError

POLL_S = 0.01
STALL_S = 60.0
"""A process whose streams neither grow nor are read for this long has failed. On a very busy machine a
process may take more than a minute to begin."""
STOP_TIMEOUT_S = 15.0
LOOK = 128
"""Streams that one round trip checks."""

WORKER = ("-m", "streamworker", "run", "streamworker.dev.bench.ours:app", "--log-level", "warning")
"""The command line of a worker, as a user starts it."""


Told = TypeVar("Told", bound=msgspec.Struct)


class BenchFailed(StreamworkerError):
    """A measured process failed or stalled, so there is no figure."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program that handles the entries of a stream.

    Parameters
    ----------
    name
        Name in the table.
    command
        Arguments for the Python interpreter.
    mode
        Mode of the program; each program defines its modes.
    needs
        Module that the program needs.
    extra
        Extra of streamworker that installs the module.
    entries
        Kind of entries that the program reads: each kind is one stream, filled once.
    """

    name: str
    command: tuple[str, ...] = WORKER
    mode: str = "batch"
    needs: str = "redis"
    extra: str = "bench"
    entries: str = "events"
    reads_group: bool = False
    """Whether the program needs an existing Redis consumer group; a worker creates its own."""

    @property
    def is_installed(self) -> bool:
        """Whether the needed module is installed."""
        return find_spec(self.needs) is not None


@dataclass(frozen=True, slots=True)
class Timing:
    """The figures of one run."""

    per_s: float
    server_us: float
    """CPU time of the server for each record, in µs."""


@dataclass(slots=True)
class Contest:
    """The settings of a scene: the server, the amount of work and the progress callback.

    Parameters
    ----------
    ground
        The server and the keys of the bench.
    runs
        Number of runs of each contestant.
    records
        Number of records in a run.
    partitions
        Number of partitions that hold the records, for all contestants.
    say
        Callback for progress messages.
    """

    ground: Ground
    runs: int = 5
    records: int = 200_000
    partitions: int = 1
    say: Callable[[str], None] = lambda _: None
    left_out: list[str] = field(default_factory=list)
    """The reason for each contestant or scene that is not in the table."""

    def installed(self, contestants: Sequence[Contestant]) -> list[Contestant]:
        """Return the contestants that can run here; note the others in ``left_out``."""
        for each in contestants:
            note = f"{each.name}: not installed. Run: pip install 'streamworker[{each.extra}]'"
            if not each.is_installed and note not in self.left_out:
                self.left_out.append(note)
        return [each for each in contestants if each.is_installed]

    async def in_turn(
        self, contestants: Sequence[Contestant], keys: dict[str, list[str]]
    ) -> dict[str, list[Timing]]:
        """Let each contestant handle all entries once in every run.

        Parameters
        ----------
        contestants
            The contestants.
        keys
            The streams of each kind of entries.
        """
        found: dict[str, list[Timing]] = {each.name: [] for each in contestants}
        for run, each in self.turns(contestants):
            self.say(f"run {run + 1} of {self.runs}: {each.name}")
            found[each.name].append(await self.one(each, keys[each.entries]))
        return found

    def turns(self, contestants: Sequence[Contestant]) -> Iterator[tuple[int, Contestant]]:
        """Yield run and contestant. Every second run reverses the order, so that each one also goes first."""
        for run in range(self.runs):
            for each in contestants if run % 2 == 0 else contestants[::-1]:
                yield run, each

    async def one(self, contestant: Contestant, keys: list[str]) -> Timing:
        """Let one contestant handle all entries of some streams, and measure the time.

        The time begins with its first call and ends when the server has the last acknowledgement.
        """
        async with self.started(contestant, keys) as process:
            begun = await process.begun()
            cpu_s, records = await self.ground.cpu_s(), await self.ground.length(keys) - begun.records
            if records < 1:
                raise BenchFailed(
                    f"{contestant.name} had all records in its first call, which is not counted.",
                    remedy="Ask for more, with --records.",
                )
            await process.done()
            seconds = time.monotonic() - begun.at_s
            cpu_s = await self.ground.cpu_s() - cpu_s
        return Timing(records / seconds, cpu_s * 1e6 / records)

    @asynccontextmanager
    async def started(
        self, contestant: Contestant, keys: list[str], *, stream: str = "", records: int = 0, per_s: int = 0
    ) -> AsyncIterator["Process"]:
        """Start a contestant on some streams; at the end stop it and remove its group."""
        group = f"g{secrets.token_hex(4)}"
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            task = Task(
                app=self.ground.name,
                mode=contestant.mode,
                group=group,
                keys=keys,
                stream=stream or contestant.entries,
                partitions=len(keys),
                records=records,
                per_s=per_s,
                begun_path=f"{folder}/begun",
                url=self.ground.url,
            )
            if contestant.reads_group:
                for key in keys:
                    await self.ground.group(key, group)
            child = Child(
                [sys.executable, *contestant.command], log_path=Path(folder) / "log", environ=task.environ
            )
            try:
                yield Process(contestant.name, task, child, self.ground)
            finally:
                await asyncio.to_thread(child.stop, STOP_TIMEOUT_S)
                await self.ground.forget(keys, group)


@dataclass(frozen=True, slots=True)
class Process:
    """A running contestant."""

    name: str
    task: Task
    child: Child
    ground: Ground

    async def begun(self) -> Begun:
        """Wait for the process's first call."""
        return await self.told(Begun)

    async def told(self, kind: type[Told], suffix: str = "", *, beside: "Process | None" = None) -> Told:
        """Wait for the result that the process writes to its file; fail if a process beside it fails."""
        path = self.task.begun_path + suffix
        await self._until(functools.partial(_is_there, path), "begun, or not ended", beside)
        return _read(path, kind)

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
        self, condition: Callable[[], Awaitable[bool]], what: str, beside: "Process | None" = None
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


async def _is_there(path: str) -> bool:
    return os.path.exists(path)  # noqa: ASYNC240, PTH110 - a local file: takes microseconds


def _read(path: str, kind: type[Told]) -> Told:
    return msgspec.json.decode(Path(path).read_bytes(), type=kind)


def rates(found: dict[str, list[Timing]]) -> dict[str, Figures]:
    """Return the records a second of each contestant."""
    return {name: Figures(name, "events/s", tuple(t.per_s for t in runs)) for name, runs in found.items()}


def server_cpu(found: dict[str, list[Timing]]) -> dict[str, Figures]:
    """Return the server's CPU time for a record, for each contestant."""
    return {name: Figures(name, "µs", tuple(t.server_us for t in runs)) for name, runs in found.items()}
