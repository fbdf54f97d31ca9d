"""Sessions end while workers and their server are killed: each event is in one session, and none stays open.

pytest -m soak -s tests/chaos/test_ends.py
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.chaos.ends import A_STEP, Team, send, told_once
from tests.chaos.ends_app import Site
from tests.chaos.forked import Forge
from tests.runtime.workbench import full_memory
from tests.stage.server import Server, on_file

pytestmark = [pytest.mark.anyio, pytest.mark.full("workers are killed, and silence lasts a second")]


class Scene(Team):
    """Workers and their server, and the faults that meet them."""

    def __init__(self, server: Server, *others: Any) -> None:
        super().__init__(server.url, *others)
        self.server = server

    async def pause(self) -> None:
        """Stop a worker until it is taken for dead; it wakes and finds that another owns its partitions."""
        worker = self.rng.choice(self.workers)
        worker.pause()
        await asyncio.sleep(5)
        worker.resume()

    async def restart(self) -> None:
        """SIGKILL the server, whose disk has all that it has answered."""
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)

    async def fill(self) -> None:
        """Let the server refuse what needs memory, for longer than a session lasts."""
        with full_memory(self.server.url):
            await asyncio.sleep(2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with on_file(tmp_path / "data", appendfsync="always", port=0) as server:
        yield server


FAULTS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "worker killed": Scene.kill,
    "worker paused": Scene.pause,
    "server killed": Scene.restart,
    "memory full": Scene.fill,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "steps", "faults"),
    [
        (4, 20, ["worker killed"]),
        *(pytest.param(seed, 100, ["worker killed"], marks=pytest.mark.soak) for seed in (5, 6)),
        *(pytest.param(seed, 100, [*FAULTS], marks=pytest.mark.soak) for seed in (7, 8)),
    ],
)
async def test_each_event_is_in_one_session_and_none_stays_open(
    server: Server, forge: Forge, tmp_path: Path, seed: int, steps: int, faults: list[str]
) -> None:
    """Each end is counted and told once, whatever is killed."""
    rng, met = random.Random(seed), Counter[str]()
    site, scene = Site(server.url), Scene(server, forge, tmp_path, rng)
    async with site.app, anyio.create_task_group() as tasks:
        for step in range(steps):
            tasks.start_soon(send, site, rng, step)
            await asyncio.sleep(0.3)
            if step % 6 == 5:
                fault = rng.choice(faults)
                met[fault] += 1
                await FAULTS[fault](scene)
        told = await told_once(site, steps * A_STEP)
    scene.leave()
    print(f"seed {seed}: {steps * A_STEP} events, {len(told)} sessions, {dict(met)}")
