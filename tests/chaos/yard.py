"""Where the rows F1-F40 are played: servers, workers to be forked, and scenes that wait side by side.

Most of a scene is waiting, so the scenes of a file are played at the same time, each with servers of its
own, when the first of its tests asks; each test then tells what became of its scene.
"""

import asyncio
import copy
import functools
import itertools
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pytest

from tests.chaos.figures import insist, percentile, record, repeats
from tests.chaos.forked import Forge
from tests.chaos.team import Team
from tests.chaos.times import FAST
from tests.stage.server import Server, on_file

SEED_VARIABLE = "STREAMWORKER_SEED"
SMALL = "small"
COUNTS, FEWER = ("count", "rounds"), 3
"""Sizes that say how often a fault comes, and how many times fewer of them a night has."""
AT_A_TIME = 6
"""Scenes that are played side by side: on two cores more of them would measure each other."""


class Yard:
    """Servers and workers for scenes."""

    def __init__(self, forge: Forge, folder: Path, seed: int) -> None:
        self.forge, self.folder, self.seed = forge, folder, seed
        self.size = ""
        """``small``, or another of the sizes in which the scene is played; empty if it has only one."""
        self._numbers = itertools.count(1)

    def of_size(self, size: str) -> Self:
        """Return it for a scene of some size."""
        twin = copy.copy(self)
        twin.size = size
        return twin

    @property
    def is_small(self) -> bool:
        return self.size.startswith(SMALL)

    def rng(self, name: object) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    @asynccontextmanager
    async def server(self, *, appendonly: bool = False, **options: Any) -> AsyncIterator[Server]:
        """Start a server; with ``appendonly`` it keeps its data over a restart."""
        data = self.folder / f"data-{next(self._numbers)}"
        server = on_file(data, **options) if appendonly else Server(**options)
        await asyncio.to_thread(server.start)
        try:
            yield server
        finally:
            await asyncio.to_thread(server.stop)

    def team(self, url: str, name: str, **options: Any) -> Team:
        options.setdefault("environ", FAST)
        name += self.size.removeprefix(SMALL).replace("_", "-") if self.is_small else ""
        return Team(url, self.forge, self.folder, name=name, rng=self.rng(name), **options)

    @asynccontextmanager
    async def group(
        self, name: str, *, server: Mapping[str, Any] = MappingProxyType({}), **options: Any
    ) -> AsyncIterator[Team]:
        """Start a server, and a team that has it for itself."""
        async with self.server(**server) as own, self.team(own.url, name, **options) as team:
            team.server = own
            yield team

    async def many(
        self, count: int, play: Callable[[Team], Awaitable[None]], name: str, **options: Any
    ) -> None:
        """Let several groups play the same."""

        async def one(number: int) -> None:
            async with self.group(f"{name}{number}", **options) as team:
                await play(team)

        await gathered(*map(one, range(count)))

    def record(
        self,
        row: str,
        what: str,
        *,
        target: str,
        met: bool = True,
        most_ms: float | None = None,
        samples_ms: Sequence[float] = (),
        times: int | None = None,
        strict: bool = False,
        **more: Any,
    ) -> None:
        """Write a figure down; 99 of 100 samples must be within ``most_ms``.

        A target that is missed fails the test, but in small only where it is strict.
        """
        is_met = met and (most_ms is None or percentile(samples_ms, 99) <= most_ms)
        found = record(
            row,
            what + (", in small" if self.is_small else ""),
            target=target,
            times=len(samples_ms) if times is None else times,
            verdict="met" if is_met else "missed",
            samples_ms=samples_ms,
            seed=self.seed,
            caller=2,
            **more,
        )
        if strict or not self.is_small:
            insist(found)


async def gathered(*works: Awaitable[None]) -> None:
    """Do all; raise the first error when all have ended."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def seed() -> int:
    """Return the seed of this run: drawn, or given to repeat one."""
    return int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(10**6))


class Together:
    """The scenes of one file, played at once when the first is asked for."""

    def __init__(self, forge: Forge, folder: Path, names: list[str]) -> None:
        self._forge, self._folder, self._names = forge, folder, names
        self._outcomes: dict[str, BaseException | None] | None = None
        self.seed = seed()

    def outcome(self, name: str) -> None:
        if self._outcomes is None:
            self._outcomes = asyncio.run(self._play())
        if (error := self._outcomes[name]) is not None:
            print(f"repeat with: {SEED_VARIABLE}={self.seed} pytest -m 'not soak' tests/chaos -k {name}")
            raise error

    async def _play(self) -> dict[str, BaseException | None]:
        free = asyncio.Semaphore(AT_A_TIME)

        async def play(name: str, yard: Yard) -> BaseException | None:
            async with free:
                try:
                    await SCENES[name](yard)
                except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
                    raise
                # pytest's Skipped and Failed are no Exceptions: one scene's are not the others'.
                except BaseException as error:
                    if is_time_limit(error):
                        raise
                    return error
            return None

        yard = Yard(self._forge, self._folder, self.seed)
        outcomes = await asyncio.gather(*(play(name, yard) for name in self._names))
        return dict(zip(self._names, outcomes, strict=True))


def is_time_limit(error: BaseException) -> bool:
    """Whether it is the end of the time for all scenes, which hits whichever just runs."""
    return isinstance(error, pytest.fail.Exception) and "pytest-timeout" in str(error)


Scene = Callable[[Yard], Awaitable[None]]
Sized = Callable[..., Awaitable[None]]
SCENES: dict[str, Scene] = {}
"""Those that are played side by side, by the names of their tests."""


def scene(play: Scene) -> Callable[[Together], None]:
    """Make a test of a scene that is played beside the others of its file."""
    name = play.__name__
    SCENES[name] = play

    @functools.wraps(play)
    def test(together: Together) -> None:
        together.outcome(name)

    del test.__wrapped__  # pytest would ask for the scene's arguments.
    return test


def sized(
    *, minutes: float = 60, **sizes: Mapping[str, Any]
) -> Callable[[Sized], Callable[[pytest.FixtureRequest, str], None]]:
    """Make a test of a scene in several sizes.

    Those whose names begin with ``small`` are played beside the other scenes of the file. Each other one is a
    test for the soak, played alone, and may take so many minutes; a night repeats its fault less often.
    """

    def make(play: Sized) -> Callable[[pytest.FixtureRequest, str], None]:
        def of(size: str) -> Scene:
            given = sizes[size]
            if not size.startswith(SMALL):
                given = {
                    name: repeats(n, -(-n // FEWER)) if name in COUNTS else n for name, n in given.items()
                }
            return lambda yard: play(yard.of_size(size), **given)

        SCENES.update({f"{play.__name__}[{size}]": of(size) for size in sizes if size.startswith(SMALL)})
        soak = (pytest.mark.soak, pytest.mark.timeout(60 * minutes))

        @pytest.mark.parametrize(
            "size", [size if size.startswith(SMALL) else pytest.param(size, marks=soak) for size in sizes]
        )
        @functools.wraps(play)
        def test(request: pytest.FixtureRequest, size: str) -> None:
            if size.startswith(SMALL):
                request.getfixturevalue("together").outcome(request.node.name)
            else:
                asyncio.run(of(size)(request.getfixturevalue("yard")))  # type: ignore[arg-type]

        del test.__wrapped__
        return test

    return make
