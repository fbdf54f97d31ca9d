"""Where the rows F1-F40 are played: servers, workers to be forked, and scenes that wait side by side.

Most of a scene is waiting, so the scenes of a file are played at the same time, each with servers of its
own, when the first of its tests asks; each test then tells what became of its scene.
"""

import asyncio
import functools
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamworker.dev.server import EmbeddedServer
from tests.chaos.forked import Forge
from tests.chaos.team import Team
from tests.rebalance.scene import FAST

SEED_VARIABLE = "STREAMWORKER_SEED"
AT_A_TIME = 6
"""Scenes that are played side by side: on two cores more of them would measure each other."""


class Yard:
    """Servers and workers for scenes."""

    def __init__(self, forge: Forge, folder: Path, seed: int) -> None:
        self.forge, self.folder, self.seed = forge, folder, seed
        self._servers = 0

    def rng(self, name: object) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    @asynccontextmanager
    async def server(
        self, *, appendonly: bool = False, data_dir: Path | None = None, **options: Any
    ) -> AsyncIterator[EmbeddedServer]:
        """Start a server; with ``appendonly`` it keeps its data over a restart."""
        self._servers += 1
        data = (data_dir or self.folder / f"data-{self._servers}") if appendonly else None
        server = EmbeddedServer(data_dir=data, appendonly=appendonly, **options)
        await asyncio.to_thread(server.start)
        try:
            yield server
        finally:
            await asyncio.to_thread(server.stop)

    def team(self, url: str, name: str, **options: Any) -> Team:
        options.setdefault("environ", FAST)
        return Team(url, self.forge, self.folder, name=name, rng=self.rng(name), **options)

    async def many(
        self, count: int, play: Callable[[Team], Awaitable[None]], name: str, **options: Any
    ) -> None:
        """Let several teams play the same, two on a server."""
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(self.server()) for _ in range((count + 1) // 2)]
            teams = [
                await stack.enter_async_context(self.team(servers[n // 2].url, f"{name}{n}", **options))
                for n in range(count)
            ]
            await gathered(*(play(team) for team in teams))


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
SCENES: dict[str, Scene] = {}


def scene(play: Scene) -> Callable[[Together], None]:
    """Make a test of a scene that is played beside the others of its file."""
    name = play.__name__
    SCENES[name] = play

    @functools.wraps(play)
    def test(together: Together) -> None:
        together.outcome(name)

    del test.__wrapped__  # pytest would ask for the scene's arguments.
    return test
