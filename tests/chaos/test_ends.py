"""Sessions end while workers and their server are killed: each event is in one session, and none stays open.

pytest -m soak -s tests/chaos/test_ends.py
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.testing.stored import Stored
from tests.chaos.ends_app import PARTITIONS, Seen, Session, Site
from tests.chaos.forked import Forge, Forked
from tests.helpers import wait_for_async
from tests.runtime.workbench import full_memory
from tests.stage.server import Server, on_file

pytestmark = [pytest.mark.anyio, pytest.mark.full("workers are killed, and silence lasts a second")]

ROOT = Path(__file__).parents[2]
KEYS = GroupKeys("site", "events", "follow")
USERS, A_STEP = 150, 100


class Scene:
    """Two workers and a server, and the faults that meet them."""

    def __init__(self, server: Server, forge: Forge, folder: Path, rng: random.Random) -> None:
        self.server, self.rng = server, rng
        self._forge, self._folder = forge, folder
        self.workers = [self._start(n) for n in range(2)]

    def _start(self, n: int) -> Forked:
        return self._forge.run(
            ["run", "tests.chaos.ends_app:app"],
            cwd=ROOT,
            environ={**os.environ, "STREAMWORKER_REDIS_URL": self.server.url},
            log_path=self._folder / f"w{n}.log",
        )

    async def kill(self) -> None:
        """SIGKILL a worker, and start another in its place."""
        n = self.rng.randrange(2)
        await asyncio.to_thread(self.workers[n].kill)
        self.workers[n] = self._start(n)

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


async def _send(site: Site, rng: random.Random, step: int) -> None:
    """Users fall silent in turns, so that sessions end all the time."""
    users = [f"user-{rng.randrange(USERS) + step // 6 % 2 * USERS}" for _ in range(A_STEP)]
    await site.events.send_many([Seen(user, step * A_STEP + n) for n, user in enumerate(users)])


async def _counted(backend: Backend) -> int:
    """Return how many sessions the calls have counted."""
    found = [await backend.execute("HGET", KEYS.state(p), "ended") for p in range(PARTITIONS)]
    return sum(msgspec.msgpack.decode(each) for each in found if each)


async def _told(site: Site, count: int) -> list[Session]:
    """Wait until all is committed and no session is open; return those that were sent."""
    backend, told = site.app.backend(), list[Session]()

    async def all_told() -> bool:
        nonlocal told
        if await site.sessions.count():
            return False
        now = await take_snapshot(backend, "site", "events", "follow")
        told = await Stored([], backend).sent(site.ended)
        return now.committed == count and len(told) == await _counted(backend)

    await wait_for_async(all_told, "all sessions are told")
    return told


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
            tasks.start_soon(_send, site, rng, step)
            await asyncio.sleep(0.3)
            if step % 6 == 5:
                fault = rng.choice(faults)
                met[fault] += 1
                await FAULTS[fault](scene)
        told = await _told(site, steps * A_STEP)
    for worker in scene.workers:
        worker.terminate()
        assert worker.wait() == 0, worker.log()
    seen = Counter(n for session in told for n in session.seen)
    assert seen == Counter(range(steps * A_STEP))
    print(f"seed {seed}: {seen.total()} events, {len(told)} sessions, {dict(met)}")
