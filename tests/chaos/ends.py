"""Workers of the app whose sessions end, what is sent to them, and what they have told."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import msgspec

from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.testing.stored import Stored
from tests.chaos.ends_app import PARTITIONS, Seen, Session, Site
from tests.chaos.forked import Forge, Forked
from tests.helpers import wait_for_async

ROOT = Path(__file__).parents[2]
KEYS = GroupKeys("site", "events", "follow")
USERS, A_STEP = 150, 100


class Team:
    """Two workers of the app, by processes."""

    def __init__(self, url: str, forge: Forge, folder: Path, rng: random.Random, **environ: str) -> None:
        self.rng, self._forge, self._folder = rng, forge, folder
        self._environ = {**os.environ, "STREAMWORKER_REDIS_URL": url, **environ}
        self.workers = [self._start(n) for n in range(2)]

    def _start(self, n: int) -> Forked:
        return self._forge.run(
            ["run", "tests.chaos.ends_app:app"],
            cwd=ROOT,
            environ=self._environ,
            log_path=self._folder / f"w{n}.log",
        )

    async def kill(self) -> None:
        """SIGKILL a worker, and start another in its place."""
        n = self.rng.randrange(2)
        await asyncio.to_thread(self.workers[n].kill)
        self.workers[n] = self._start(n)

    def leave(self) -> None:
        """Let the workers drain and leave."""
        for worker in self.workers:
            worker.terminate()
            assert worker.wait() == 0, worker.log()


async def send(site: Site, rng: random.Random, step: int) -> None:
    """Users fall silent in turns, so that sessions end all the time."""
    users = [f"user-{rng.randrange(USERS) + step // 6 % 2 * USERS}" for _ in range(A_STEP)]
    await site.events.send_many([Seen(user, step * A_STEP + n) for n, user in enumerate(users)])


async def _counted(backend: Backend) -> int:
    """Return how many sessions the calls have counted."""
    found = [await backend.execute("HGET", KEYS.state(p), "ended") for p in range(PARTITIONS)]
    return sum(msgspec.msgpack.decode(each) for each in found if each)


async def told_once(site: Site, count: int) -> list[Session]:
    """Wait until all is committed and no session is open; return them, once each event is in one of them."""
    backend, told = site.app.backend(), list[Session]()

    async def all_told() -> bool:
        nonlocal told
        if await site.sessions.count():
            return False
        now = await take_snapshot(backend, "site", "events", "follow")
        told = await Stored([], backend).sent(site.ended)
        return now.committed == count and len(told) == await _counted(backend)

    await wait_for_async(all_told, "all sessions are told")
    assert Counter(n for session in told for n in session.seen) == Counter(range(count))
    return told
