"""What kills its process and is no record: it is found and held back, and no record is blamed for it."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio
import pytest
import redis

from streamworker import App, DeadLetter
from streamworker.core.ownership.risks import Risk
from streamworker.redisio.group import risks
from streamworker.runtime.risks import HeldBack, Risks
from tests.chaos.forked import Forked
from tests.conftest import SpawnWorker
from tests.helpers import wait_for, wait_for_async
from tests.runtime.workbench import Order, bench

pytestmark = pytest.mark.anyio

APP = """
import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from streamworker import App, Context, DeadLetter

app = App("risky", heartbeat_interval_ms=200, dead_after_ms=600)


@dataclass
class Line:
    number: int


lines = app.stream("lines", Line, partitions=3, key="number")


def dies() -> None:
    if Path("deadly").exists() and os.environ.get("WORKER"):
        with Path("deaths").open("a") as file:
            file.write("died\\n")
        os.kill(os.getpid(), signal.SIGKILL)


async def handle(line: Line) -> None:
    await asyncio.sleep(0.1)


ARGUMENTS = {"errors": DeadLetter(), "forward": False}
one = app.processor(lines, name="one", **ARGUMENTS)(handle)
many = app.processor(lines, name="many", concurrency=4, **ARGUMENTS)(handle)
BEHIND
"""
OF_APP = """
@app.timer(every="0.5 seconds", missed="once")
async def sweep(ctx: Context) -> None:
    dies()
"""
OF_PARTITION = OF_APP.replace("@app.timer", "@one.timer")
RECORDS = 60
WORKERS_MAX = 14


@dataclass
class Supervisor:
    """Starts a worker again whenever one has died, and runs commands."""

    redis_url: str
    folder: Path
    spawn: SpawnWorker
    workers: list[Forked] = field(default_factory=list)

    def tells(self, *command: str) -> str:
        environ = {**os.environ, "STREAMWORKER_REDIS_URL": self.redis_url, "COLUMNS": "400"}
        line = [sys.executable, *command]
        done = subprocess.run(line, check=False, cwd=self.folder, env=environ, capture_output=True, text=True)
        return done.stdout

    def until(self, stands: Callable[[list[dict[str, str]]], bool], what: str) -> None:
        """Wait until the locks of the two processors in three partitions are as they should be."""
        with redis.Redis.from_url(self.redis_url, decode_responses=True) as client:

            def look() -> bool:
                if not self.workers or not self.workers[-1].running:
                    assert len(self.workers) < WORKERS_MAX, "it goes on for ever"
                    name = f"w{len(self.workers)}"
                    self.workers.append(
                        self.spawn("run", "risky:app", "--name", name, environ={"WORKER": "1"})
                    )
                return stands([client.hgetall(key) for key in client.keys("sw:{risky.lines.*}:lock:*")])

            wait_for(look, what, timeout_s=200)
            assert client.keys("*:dead:*") == [], "no record is blamed"

    def until_handled(self) -> None:
        self.until(
            lambda locks: sum(int(lock["entries"]) for lock in locks) == 2 * RECORDS, "all are handled"
        )


@pytest.fixture
def begin(
    redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker, tmp_path: Path
) -> Callable[..., Supervisor]:
    """Return what writes an app in which something is deadly, and sends it records."""

    def write(behind: str) -> Supervisor:
        write_app("risky", APP.replace("BEHIND", behind))
        (tmp_path / "deadly").touch()
        supervisor = Supervisor(redis_url, tmp_path, spawn)
        sending = "import asyncio, risky\nasync def main():\n    async with risky.app:\n"
        sending += f"        await risky.lines.send_many([risky.Line(n) for n in range({RECORDS})])\n"
        supervisor.tells("-c", f"{sending}asyncio.run(main())")
        return supervisor

    return write


def deaths(folder: Path) -> int:
    return (folder / "deaths").read_text().count("died")


@pytest.mark.full("starts a worker after each death")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("timer", [OF_APP, OF_PARTITION], ids=["of the app", "of each partition"])
def test_a_timer_that_kills_its_process_is_held_back_and_records_go_on(
    timer: str, begin: Callable[..., Supervisor], tmp_path: Path
) -> None:
    """Its deaths count against it alone; once it is put right, it runs again."""
    supervisor = begin(behind=timer)
    supervisor.until_handled()
    # A name that is left in one partition may be counted after the next worker has died in another one.
    assert deaths(tmp_path) <= 3 + 3
    held = "timer sweep is held back: "
    command = ("-m", "streamworker")
    wait_for(lambda: held in supervisor.tells(*command, "doctor", "risky:app"), "doctor names it")
    if timer == OF_PARTITION:
        assert held in supervisor.tells(*command, "status", "risky:app")
    assert "held back: " in supervisor.tells(*command, "timers", "risky:app")
    (tmp_path / "deadly").unlink()
    assert "Timer sweep ran" in supervisor.tells(*command, "timers", "run-now", "risky:sweep")
    assert "held back" not in supervisor.tells(*command, "doctor", "risky:app")


async def test_middleware_in_which_owners_die_halts_the_partition_and_no_record_is_blamed(
    redis_url: str,
) -> None:
    """It is named in place of the record, and the record again while its function runs."""
    app, deadly, calls = App("shop"), True, list[int]()

    @app.middleware
    async def watched() -> AsyncIterator[None]:
        if deadly:
            await anyio.sleep_forever()
        yield

    async def price(order: Order) -> None:
        calls.append(order.number)

    async with bench(redis_url) as desk:
        await desk.send(range(3))
        spec = replace(desk.spec(price, errors=DeadLetter()), layers=app.registry.middleware)
        await desk.acquire(0, "w0")  # It dies with records to handle.
        place = f"at middleware {watched.__name__} 0"

        async def named_by(owner: str) -> bool:
            return bool(await desk.backend.execute("HGET", desk.keys.risks, place) == owner.encode())

        for owner in ("w1", "w2", "w3"):
            running = await desk.start(spec, owner=owner)
            await wait_for_async(partial(named_by, owner), "it is named")
            assert running.lock.deaths == 0, "the last death was none of a record"
            tries = await desk.backend.execute("HGET", desk.keys.lock(0), "tries")
            assert not tries.endswith(b"alone"), "the record is not"
            # A worker that is killed takes back nothing; one that is cancelled does.
            stored = await desk.backend.execute("HGETALL", desk.keys.risks)
            await running.cancelled()
            await desk.backend.execute("HSET", desk.keys.risks, *stored)
            await desk.backend.execute("HSET", desk.keys.lock(0), "tries", tries)
        running = await desk.start(spec, owner="w4")
        assert "middleware watched is held back: 3 workers died in a row in it" in await running.halts()
        await running.drained()
        deadly = False
        await risks.forget_deaths(desk.backend, desk.keys)
        running = await desk.start(spec, owner="w5")
        await desk.until_committed(3)
        assert calls == [0, 1, 2] and await desk.dead() == []
        assert await risks.read_deaths(desk.backend, desk.keys) == {}


async def test_a_resource_in_which_owners_died_is_not_made_until_somebody_has_put_it_right(
    redis_url: str,
) -> None:
    made: list[int] = []

    async with bench(redis_url) as desk:

        async def make(owner: str) -> None:
            async with Risks(desk.backend, desk.keys, 0, owner).taken("resource", "connection"):
                made.append(len(made))

        for owner in ("w1", "w2", "w3"):
            risk = Risk("resource", "connection", 0)
            await risks.step(desk.backend, desk.keys, risk, owner, "begin", most=2)
        with pytest.raises(HeldBack, match="resource connection is held back: 3 workers died in a row"):
            await make("w4")
        assert made == []
        await risks.forget_deaths(desk.backend, desk.keys, "resource connection")
        await make("w4")
        assert made == [0] and await risks.read_deaths(desk.backend, desk.keys) == {}
