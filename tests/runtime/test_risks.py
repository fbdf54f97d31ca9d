"""What kills its process and is no record: it is found and held back, and no record is blamed for it."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio
import pytest
import redis

from streamworker import App, DeadLetter
from streamworker.core.ownership.risks import Risk
from streamworker.redisio.group import risks
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.risks import HeldBack, Risks, StartRisks
from streamworker.runtime.watch.health import Health
from streamworker.runtime.worker import Worker
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
OF_WORKER = """
@app.resource
async def prices() -> AsyncIterator[dict[str, int]]:
    dies()
    yield {}


@app.processor(lines, name="priced", **ARGUMENTS)
async def priced(line: Line, prices: dict[str, int]) -> None:
    await asyncio.sleep(0)
"""
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

    def until_handled(self, processors: int = 2) -> None:
        self.until(
            lambda locks: sum(int(lock["entries"]) for lock in locks) == processors * RECORDS,
            "all are handled",
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
    assert deaths(tmp_path) == 3
    held = "timer sweep is held back: "
    command = ("-m", "streamworker")
    wait_for(lambda: held in supervisor.tells(*command, "doctor", "risky:app"), "doctor names it")
    if timer == OF_PARTITION:
        assert held in supervisor.tells(*command, "status", "risky:app")
    assert "held back: " in supervisor.tells(*command, "timers", "risky:app")
    (tmp_path / "deadly").unlink()
    assert "Timer sweep ran" in supervisor.tells(*command, "timers", "run-now", "risky:sweep")
    assert "held back" not in supervisor.tells(*command, "doctor", "risky:app")


@pytest.mark.full("starts a worker after each death")
@pytest.mark.timeout(300)
def test_a_resource_that_kills_each_worker_at_its_start_is_held_back_until_it_is_retried(
    begin: Callable[..., Supervisor], tmp_path: Path
) -> None:
    """A supervisor starts workers at once: the fourth one waits, and goes on without a restart."""
    supervisor = begin(behind=OF_WORKER)
    supervisor.until(lambda _: "start_delayed" in supervisor.workers[-1].log(), "a worker waits")
    assert deaths(tmp_path) == len(supervisor.workers) - 1 == 3
    held, waiting = "resource prices is held back: 3 workers died in a row in it", supervisor.workers[-1]
    assert held in waiting.log()
    command = ("-m", "streamworker")
    for said in ("doctor", "status"):
        assert held in supervisor.tells(*command, said, "risky:app"), said
    (tmp_path / "deadly").unlink()
    assert "Held back no more: resource prices." in supervisor.tells(*command, "retry", "risky:one")
    supervisor.until_handled(processors=3)
    assert supervisor.workers[-1] is waiting and waiting.running
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
            named = await desk.backend.execute("HGET", desk.keys.risks, place)
            return bool(named and named.split()[0] == owner.encode())

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


@dataclass
class Starting:
    """A worker that makes a resource at its start, with a connection of its own."""

    risks: StartRisks
    _dying: AsyncExitStack

    @classmethod
    async def of(cls, url: str) -> "Starting":
        async with AsyncExitStack() as stack:
            opened = Backend.open(url, name="starting", call_timeout_ms=60_000)
            backend = await stack.enter_async_context(opened)
            return cls(StartRisks(backend, KEYS, at_once, nullcontext), stack.pop_all())

    async def begins(self) -> bool:
        """Begin to make it, and go on; return whether it may now."""
        with anyio.move_on_after(0.3):
            return bool(await self.risks.begin("resource prices"))
        return False

    async def dies(self) -> None:
        await self._dying.aclose()


KEYS = GroupKeys("shop", "orders", "price")


async def at_once(call: Callable[[], Awaitable[None]]) -> bool:
    await call()
    return True


async def test_deaths_count_when_a_worker_takes_partitions_over_and_not_when_it_runs_the_same_there(
    redis_url: str,
) -> None:
    """Those of dead workers in other partitions count, too; those that live and run it accuse nothing."""
    async with AsyncExitStack() as stack:

        async def start(name: str) -> Backend:
            backend = Backend.open(redis_url, name=name, call_timeout_ms=60_000)
            return await stack.enter_async_context(backend)

        async def begin(backend: Backend, owner: str, place: int) -> None:
            await risks.step(backend, KEYS, Risk("timer", "sweep", place), owner, "begin", most=2)

        living, dead, here = await start("living"), await start("dead"), await start("here")
        await begin(living, "living.a", 0)
        await begin(dead, "dead.a", 1)
        await dead.aclose()
        await risks.count_left(here, KEYS, "here.a", [2])
        assert await here.execute("HGET", KEYS.risks, "died timer sweep") == b"dead.a"
        await begin(here, "here.a", 2)  # It dies, and is started again with its name.
        await risks.count_left(here, KEYS, "here.b", [])
        assert await here.execute("HGET", KEYS.risks, "died timer sweep") == b"dead.a here.a"
        await risks.count_left(here, KEYS, "here.b", [0])  # It was removed, though it is connected.
        assert await risks.read_deaths(here, KEYS) == {"timer sweep": 2}, "it knew of none of the others"


async def test_workers_that_start_side_by_side_and_are_lost_with_their_machine_accuse_nothing(
    redis_url: str,
) -> None:
    """They count as one death. Then one makes the resource at a time, and when it is made all do again."""
    lost = [await Starting.of(redis_url) for _ in range(5)]
    assert [await each.begins() for each in lost] == [True] * 5
    for each in lost:
        await each.dies()
    first, second = await Starting.of(redis_url), await Starting.of(redis_url)
    async with first.risks.taken("resource", "prices"):
        assert await risks.read_deaths(first.risks.backend, KEYS) == {"resource prices": 1}
        assert not await second.begins()
    assert await first.risks.backend.execute("HLEN", KEYS.risks) == 0
    many = [await Starting.of(redis_url) for _ in range(5)]
    assert [await each.begins() for each in many] == [True] * 5
    for each in (first, second, *many):
        await each.dies()


async def test_workers_that_die_one_after_the_other_at_their_start_hold_the_resource_back(
    redis_url: str,
) -> None:
    """It is made again when an operator has put it right."""
    for _ in range(3):
        one = await Starting.of(redis_url)
        assert await one.begins()
        await one.dies()
    last = await Starting.of(redis_url)
    with pytest.raises(HeldBack, match="resource prices is held back: 3 workers died in a row"):
        await last.begins()
    assert await risks.read_deaths(last.risks.backend, KEYS) == {"resource prices": 3}
    assert await risks.forget_deaths(last.risks.backend, KEYS) == ["resource prices"]
    assert await last.begins()
    await last.dies()


async def test_a_worker_that_makes_its_resource_ends_the_deaths_of_others(redis_url: str) -> None:
    """It lives, however long it takes; so those beside it that died show that they died of something else."""
    lives = await Starting.of(redis_url)
    async with lives.risks.taken("resource", "prices"):
        beside, after = await Starting.of(redis_url), await Starting.of(redis_url)
        assert await beside.begins()
        await beside.dies()
        assert not await after.begins()
    assert await after.begins()
    await after.dies()
    await lives.dies()


async def test_a_worker_is_no_other_one_though_it_was_not_told_that_it_had_named_its_resource(
    redis_url: str,
) -> None:
    one = await Starting.of(redis_url)
    assert await one.begins()
    assert not (await risks.read_starts(one.risks.backend, KEYS, "resource prices")).others
    async with one.risks.taken("resource", "prices"):
        assert await risks.read_deaths(one.risks.backend, KEYS) == {}
    assert await one.risks.backend.execute("HLEN", KEYS.risks) == 0
    await one.dies()


@pytest.mark.usefixtures("streamworker_real_server")
async def test_a_worker_whose_resource_is_held_back_waits_and_leaves_when_it_is_told_to(
    redis_url: str,
) -> None:
    """Probes start no other process. Beside a block it raises, since that would stand still."""
    app, health, made = App("shop", redis_url=redis_url), Health(), list[str]()

    @app.resource
    async def prices() -> AsyncIterator[dict[str, int]]:
        made.append("made")
        yield {}

    @app.processor(app.stream("orders", Order, key="customer", partitions=1), name="price")
    async def price(order: Order, prices: dict[str, int]) -> None: ...

    one = await Starting.of(redis_url)
    # The third of three that died before the server was started again.
    await one.risks.backend.execute("HSET", KEYS.risks, "at resource prices start-2", "7 before 0 2")
    worker, left = Worker(app, health=health, waits=True), list[bool]()

    async def run() -> None:
        left.append(await worker.run())

    with pytest.raises(HeldBack, match="resource prices is held back: 3 workers died in a row"):
        async with app.worker():
            pytest.fail("it does not begin")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await wait_for_async(lambda: bool(health.waits), "it waits")
        assert health.ready().startswith("the worker starts, and resource prices is held back: 3 workers")
        assert (health.live(), health.started()) == ("", "")
        worker.stop()
    assert (left, made) == ([True], [])
    await one.dies()
