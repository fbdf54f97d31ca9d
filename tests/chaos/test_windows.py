"""Windows while workers are killed, memory is full and the server fails over: exactly those of pandas.

N=20000 KILLS=10 SEED="11 12" pytest -m soak -s tests/chaos/test_windows.py
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pandas as pd
import pytest

from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.testing.stored import Stored
from tests.chaos.forked import Forge, Forked
from tests.chaos.window_oracle import HOUR, Expected, Total, expected, is_last, made, ms, oracles, total
from tests.chaos.windows_app import PARTITIONS, TAIL_LATE_S, TAIL_S, Event, Row, Site
from tests.helpers import wait_for_async
from tests.nightly import TURN
from tests.runtime.workbench import full_memory
from tests.stage.cluster import Cluster
from tests.stage.server import QUIET_MS, Server, on_file
from tests.stage.trio import Trio

pytestmark = [pytest.mark.anyio, pytest.mark.full("workers are killed, and windows close by the clock")]

ROOT = Path(__file__).parents[2]
WORKERS, A_STEP = 3, 400
N, KILLS = int(os.environ.get("N", "20000")), int(os.environ.get("KILLS", "10"))
SEEDS = [int(seed) for seed in os.environ.get("SEED", str(11 + int(os.environ.get(TURN, "0")))).split()]
"""Each night has another one."""


class Scene:
    """Workers, the server, and what happens to them."""

    def __init__(
        self, servers: Trio | Cluster | Server, forge: Forge, folder: Path, rng: random.Random
    ) -> None:
        self.servers, self.rng = servers, rng
        self.durability = "memory" if isinstance(servers, Server) else "replicas"
        self.met = Counter[str]()
        self.one_at_a_time = asyncio.Lock()
        self._forge, self._folder = forge, folder
        self.workers = [self._start(n) for n in range(WORKERS)]

    def _start(self, n: int) -> Forked:
        environ = {"STREAMWORKER_REDIS_URL": self.servers.url, "STREAMWORKER_DURABILITY": self.durability}
        return self._forge.run(
            ["run", "tests.chaos.windows_app:app"],
            cwd=ROOT,
            environ={**os.environ, **environ},
            log_path=self._folder / f"w{n}.log",
        )

    async def kill(self) -> None:
        """SIGKILL a worker, and start another in its place."""
        n = self.rng.randrange(WORKERS)
        await asyncio.to_thread(self.workers[n].kill)
        self.workers[n] = self._start(n)
        self.met["killed"] += 1

    async def kill_all(self) -> None:
        """Let nobody work for some seconds, while events go on to come."""
        for worker in self.workers:
            await asyncio.to_thread(worker.kill)
        await asyncio.sleep(self.rng.uniform(2, 6))
        self.workers = [self._start(n) for n in range(WORKERS)]
        self.met["killed"] += WORKERS
        self.met["all killed"] += 1

    async def pause(self) -> None:
        """Stop a worker until it is taken for dead; it wakes and finds that another owns its partitions."""
        worker = self.rng.choice(self.workers)
        worker.pause()
        await asyncio.sleep(4)
        worker.resume()
        self.met["paused"] += 1

    async def fill(self) -> None:
        """Let the server, or each node of a Cluster, refuse what needs memory."""
        with ExitStack() as full:
            for server in self._primaries():
                full.enter_context(full_memory(server.url))
            await asyncio.sleep(3)
        self.met["full memory"] += 1

    def _primaries(self) -> list[Server]:
        match self.servers:
            case Trio():
                return [self.servers.primary]
            case Cluster():
                return [node for node in self.servers.nodes if node.is_primary]
            case server:
                return [server]

    async def lose(self) -> None:
        """SIGKILL a server: a replica that has all that was confirmed takes its place, or it comes back."""
        await asyncio.to_thread(self._lose)
        self.met["servers killed"] += 1

    def _lose(self) -> None:
        match self.servers:
            case Trio() as trio:
                primary = trio.primary
                primary.kill()
                trio.replace(primary)
                trio.bring_back(primary)
            case Cluster() as cluster:
                key = StreamKeys("site", "events").events(self.rng.randrange(PARTITIONS))
                cluster.fail_over(cluster.primary_of(key))
                cluster.make_whole()
            case server:
                server.kill()
                server.start()


Fault = Callable[[Scene], Coroutine[Any, Any, None]]


def drawn_faults(steps: int, kills: int, others: Sequence[Fault], rng: random.Random) -> dict[int, Fault]:
    """Return what happens beside which steps: as many kills as asked for, and others in between."""
    chosen = rng.sample(range(1, steps - 1), kills + len(others))
    return dict(zip(chosen, [*[Scene.kill] * kills, *others], strict=True))


async def happens(fault: Fault, scene: Scene) -> None:
    async with scene.one_at_a_time:
        await fault(scene)


async def send(site: Site, scene: Scene, parts: list[list[Event]], faults: dict[int, Fault]) -> None:
    """Send events in order, while faults happen; nothing is sent to a server whose memory is full."""
    async with anyio.create_task_group() as tasks:
        for step, part in enumerate(parts):
            fault = faults.get(step)
            if fault is not None and fault is not Scene.fill:
                tasks.start_soon(happens, fault, scene)
            await site.events.send_many(part)
            if fault is Scene.fill:
                await happens(fault, scene)
            await asyncio.sleep(0.2)


async def send_tail(site: Site, scene: Scene, users: int) -> list[Total]:
    """Send records whose windows only the clock closes, and kill workers meanwhile; return their totals."""
    start = datetime(2025, 11, 28, 10, tzinfo=UTC)
    events = [
        Event(
            f"user-{n % users}",
            n,
            start + timedelta(milliseconds=n * 3 * TAIL_S * 1_000 / (4 * users)),
            n % 7,
        )
        for n in range(4 * users)
    ]
    await site.tail.send_many(events)
    for _ in range(2):
        await asyncio.sleep(scene.rng.uniform(0, TAIL_LATE_S / 2))
        await scene.kill()
    frame = pd.DataFrame(
        [(each.user, ms(each.at), each.amount) for each in events], columns=["user", "at", "n"]
    )
    frame["start"] = frame["at"] // (TAIL_S * 1_000) * TAIL_S * 1_000
    found = frame.groupby(["user", "start"])["n"].agg(["size", "sum"])
    return [
        (user, at, at + TAIL_S * 1_000, int(size), int(sum_)) for (user, at), size, sum_ in found.itertuples()
    ]


async def until_all_is_told(site: Site, left: dict[str, int]) -> None:
    """Wait until everything is committed and sent, and as many windows are open as stay so."""
    backend, shown = site.app.backend(), ""

    async def is_told() -> bool:
        nonlocal shown
        groups = [
            await take_snapshot(backend, "site", each.spec.stream.name, name)
            for name, each in site.windows.items()
        ]
        open_ = {name: await each.open.count() for name, each in site.windows.items()}
        shown = f"{open_}, " + ", ".join(f"{each.processor}: {each.lag} {each.outbox}" for each in groups)
        return not any(each.lag or each.outbox for each in groups) and open_ == left

    try:
        await wait_for_async(is_told, "all windows are told", 120)
    except AssertionError as error:
        error.add_note(shown)
        raise


async def letters(stored: Stored, site: Site, name: str) -> list[int]:
    """Return the numbers of the events that are dead letters, each of which says that it is late."""
    found = await stored.dead_letters(site.windows[name])
    decode: Any = site.events.spec.record.decoder("json")
    assert all("late by" in each.error for each in found)
    return sorted(decode(each.fields).n for each in found)


def judge_changes(rows: list[Row], told: Expected) -> None:
    """Each row is what its window had come to after one of its events, later ones after later ones."""
    so_far: dict[tuple[str, int], list[int]] = {}
    for user, start, amount in told.counted[["user", "start", "amount"]].itertuples(index=False):
        sums = so_far.setdefault((user, start), [0])
        sums.append(sums[-1] + amount)
    last: dict[tuple[str, int], Total] = {}
    for row in map(total, rows):
        user, start, _, events, amount = row
        assert amount == so_far[user, start][events], row
        assert events > (last[user, start][3] if (user, start) in last else 0), row
        last[user, start] = row
    assert sorted(last.values()) == told.totals


async def still_open(site: Site, name: str) -> list[Row]:
    """Return what is open of the windows of a name."""
    if name != "sessions":
        return [row async for _, row in site.windows[name].open.scan()]
    found = [each async for _, its in site.sessions.open.scan() for each in its]
    return [
        Row(each.total.user, each.start, each.end, each.total.events, each.total.amount) for each in found
    ]


async def judge(site: Site, count: int, tail: list[Total]) -> str:
    """Compare all that is in Redis with what pandas finds; return figures."""
    stored = Stored([each.spec for each in site.windows.values()], site.app.backend())
    events = await stored.sent(site.events)  # The order in each partition is that of its stream.
    assert sorted(each.n for each in events) == list(range(count))
    said = list[str]()
    for name, oracle in oracles().items():
        told, rows = expected(oracle, events), await stored.sent(site.rows[name])
        late = await letters(stored, site, name)
        if name == "hopping":
            assert late == []
            late = sorted(each.n for each in await stored.sent(site.late))
        assert late == told.late, name
        open_ = [each for each in told.totals if is_last(each[0])]
        if name == "changes":
            judge_changes(rows, told)
        else:
            closed = [each for each in told.totals if not is_last(each[0])]
            doubled = [row for row, times in Counter(map(total, rows)).items() if times > 1]
            assert not doubled, f"{name}: {len(doubled)} windows came twice, such as {doubled[:3]}"
            assert sorted(map(total, rows)) == closed, name
        assert sorted(map(total, await still_open(site, name))) == open_, name
        if name != "hopping":
            assert sum(each[3] for each in told.totals) + len(late) == count
        if name == "days":
            assert {(end - start) / HOUR for _, start, end, *_ in told.totals} == {23, 24, 25}
        said.append(f"{name} {len(rows)} rows, {len(late)} late")
    assert sorted(map(total, await stored.sent(site.rows["soon"]))) == sorted(tail)
    assert await letters(stored, site, "soon") == []
    return "; ".join([*said, f"soon {len(tail)} rows"])


async def play(scene: Scene, seed: int, count: int, kills: int, others: Sequence[Fault]) -> None:
    """Send events while faults happen, and judge what comes of them."""
    events = list(made(count, random.Random(seed)))
    site = Site(scene.servers.url, scene.durability)
    async with site.app:
        parts = [events[n : n + A_STEP] for n in range(0, count, A_STEP)]
        await send(site, scene, parts, drawn_faults(len(parts), kills, others, scene.rng))
        tail = await send_tail(site, scene, max(count // 50, 10))
        ends = {
            name: sum(is_last(each[0]) for each in expected(its, events).totals)
            for name, its in oracles().items()
        }
        await until_all_is_told(site, {**ends, "soon": 0})
        for worker in scene.workers:
            worker.terminate()
        for worker in scene.workers:
            assert worker.wait() == 0, worker.log()
        print(f"seed {seed}: {count} events; {dict(scene.met)}; {await judge(site, count, tail)}")


async def test_windows_are_those_of_pandas_while_workers_are_killed(
    own_server: Server, crew: Forge, tmp_path: Path
) -> None:
    """Tumbling, hopping and days of Paris, changes, sessions: none twice, none missing, none left open."""
    scene = Scene(own_server, crew, tmp_path, random.Random(1))
    await play(scene, 1, 2_000, 2, [])


async def play_all(scene: Scene, seed: int) -> None:
    """Kill workers, also all at once, pause one, fill the memory, and kill servers."""
    others = [Scene.kill_all, Scene.kill_all, Scene.pause, Scene.fill, Scene.fill, Scene.lose, Scene.lose]
    await play(scene, seed, N, KILLS, others)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
async def test_windows_are_those_of_pandas_while_sentinels_replace_the_primary(
    crew: Forge, tmp_path: Path, seed: int
) -> None:
    """With waits for replicas nothing that was confirmed is lost."""
    with Trio(down_after_ms=QUIET_MS) as trio:
        await play_all(Scene(trio, crew, tmp_path, random.Random(seed)), seed)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
async def test_windows_are_those_of_pandas_while_nodes_of_a_cluster_fail_over(
    nodes: Cluster, crew: Forge, tmp_path: Path, seed: int
) -> None:
    """Partitions, and what windows come to, are on different nodes."""
    await play_all(Scene(nodes, crew, tmp_path, random.Random(seed)), seed)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
async def test_windows_are_those_of_pandas_while_the_server_is_killed(
    crew: Forge, tmp_path: Path, seed: int
) -> None:
    """It comes back with what it had on its disk."""
    with on_file(tmp_path / "data", appendfsync="always", port=0) as server:
        await play_all(Scene(server, crew, tmp_path, random.Random(seed)), seed)
