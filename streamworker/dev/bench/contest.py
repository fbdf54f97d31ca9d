"""Runs contestants in turn, each as a process of its own, and times what the server says is done."""

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
"""A process that has not begun, or is not done, after this long will not be, unless its streams still
grow or are still read: on a machine that is very busy it may take a minute and more."""
STOP_TIMEOUT_S = 15.0
LOOK = 128
"""Streams that are looked at in one round trip."""

WORKER = ("-m", "streamworker", "run", "streamworker.dev.bench.ours:app", "--log-level", "warning")
"""A worker as a user starts it."""


Told = TypeVar("Told", bound=msgspec.Struct)


class BenchFailed(StreamworkerError):
    """A process that was measured did not do its work; there is no figure then."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody's way to handle the entries of a stream.

    Parameters
    ----------
    name
        For people.
    command
        What Python is to run.
    mode
        Which of its ways; a program knows its own.
    needs
        The module without which it cannot run.
    extra
        What to install then.
    entries
        Which kind of entries it reads: each kind is a stream of its own, filled once.
    """

    name: str
    command: tuple[str, ...] = WORKER
    mode: str = "batch"
    needs: str = "redis"
    extra: str = "bench"
    entries: str = "events"
    reads_group: bool = False
    """Whether it reads by a Redis group that must be there; a worker makes its own."""

    @property
    def is_installed(self) -> bool:
        """Whether it can run here."""
        return find_spec(self.needs) is not None


@dataclass(frozen=True, slots=True)
class Timing:
    """One run."""

    per_s: float
    server_us: float
    """CPU that the server used for a record."""


@dataclass(slots=True)
class Contest:
    """What a scene needs: the ground, how much to do, and whom to tell.

    Parameters
    ----------
    ground
        The server and our keys.
    runs
        How often each contestant runs.
    records
        How many records each handles in a run.
    partitions
        In how many partitions they lie, for all contestants.
    say
        Told what is being done.
    """

    ground: Ground
    runs: int = 5
    records: int = 200_000
    partitions: int = 1
    say: Callable[[str], None] = lambda _: None
    left_out: list[str] = field(default_factory=list)
    """Why something is not in the table."""

    def installed(self, contestants: Sequence[Contestant]) -> list[Contestant]:
        """Return those that can run here; the others are noted."""
        for each in contestants:
            note = f"{each.name}: not installed. Run: pip install 'streamworker[{each.extra}]'"
            if not each.is_installed and note not in self.left_out:
                self.left_out.append(note)
        return [each for each in contestants if each.is_installed]

    async def in_turn(
        self, contestants: Sequence[Contestant], keys: dict[str, list[str]]
    ) -> dict[str, list[Timing]]:
        """Let each handle all entries, then each again, as often as there are runs.

        Parameters
        ----------
        contestants
            Who takes part.
        keys
            For each kind of entries, the keys where they lie.
        """
        found: dict[str, list[Timing]] = {each.name: [] for each in contestants}
        for run, each in self.turns(contestants):
            self.say(f"run {run + 1} of {self.runs}: {each.name}")
            found[each.name].append(await self.one(each, keys[each.entries]))
        return found

    def turns(self, contestants: Sequence[Contestant]) -> Iterator[tuple[int, Contestant]]:
        """Return who runs when. Who goes first changes, so that nobody always finds a warm machine."""
        for run in range(self.runs):
            for each in contestants if run % 2 == 0 else contestants[::-1]:
                yield run, each

    async def one(self, contestant: Contestant, keys: list[str]) -> Timing:
        """Let one contestant handle all entries of some streams, and time it.

        The time is from its first call to the moment when the server has the last acknowledgement.
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
        """Start a contestant on some streams; end it and forget its group afterwards."""
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
    """A contestant at work."""

    name: str
    task: Task
    child: Child
    ground: Ground

    async def begun(self) -> Begun:
        """Wait for its first call."""
        return await self.told(Begun)

    async def told(self, kind: type[Told], suffix: str = "", *, beside: "Process | None" = None) -> Told:
        """Wait for what it writes into its file; fails too if a process beside it has failed."""
        path = self.task.begun_path + suffix
        await self._until(functools.partial(_is_there, path), "begun, or not ended", beside)
        return _read(path, kind)

    async def done(self) -> None:
        """Wait until the server has its last acknowledgement."""
        left = list(self.task.keys)

        async def is_done() -> bool:
            # What the looks cost the server is counted as well: one stream until it is done, then many.
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
        """End the bench, with the end of this process's log."""
        raise BenchFailed(
            f"{self.name} has not {what}.",
            remedy=f"The end of its log:\n{self.child.log_tail() or '(empty)'}",
        )


async def _is_there(path: str) -> bool:
    return os.path.exists(path)  # noqa: ASYNC240, PTH110 - local, and microseconds


def _read(path: str, kind: type[Told]) -> Told:
    return msgspec.json.decode(Path(path).read_bytes(), type=kind)


def rates(found: dict[str, list[Timing]]) -> dict[str, Figures]:
    """Return how many records each handled in a second."""
    return {name: Figures(name, "events/s", tuple(t.per_s for t in runs)) for name, runs in found.items()}


def server_cpu(found: dict[str, list[Timing]]) -> dict[str, Figures]:
    """Return what a record cost the server with each."""
    return {name: Figures(name, "µs", tuple(t.server_us for t in runs)) for name, runs in found.items()}
