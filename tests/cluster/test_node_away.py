"""One node of a Cluster gives no answer: what a worker does at the others does not wait for it."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import anyio
import pytest
import structlog
from structlog.stdlib import BoundLogger

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.events import StartRunner
from streamworker.core.ownership.locks import Acquired
from streamworker.core.protocols.membership.events import HeartbeatDone
from streamworker.core.words import ranges
from streamworker.redisio.group import locks
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.read.buffer import ByteBudget
from streamworker.runtime.read.fetcher import Reads
from streamworker.runtime.read.polling import fetcher_for
from streamworker.runtime.run.rollback import Witness
from streamworker.runtime.watch.keeper import Keeper
from streamworker.settings import Settings
from streamworker.tui import model
from tests.cluster.stub import StubNode, url_of
from tests.helpers import PATIENCE_S, wait_for_async
from tests.raw import RawCluster
from tests.stage.cluster import Cluster, Node
from tests.stub import stub

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.full("waits for a Cluster to replace a node"),
]

KEYS = GroupKeys("shop", "orders", "price")
STREAM = StreamKeys("shop", "orders")
PARTITIONS = range(24)
FAR = EntryId(9, 0)
FINE: dict[Any, Any] = {"checkpoint": "9-0", "entries": 90, "rows": 30, "epoch": 7, "log": "a", "owner": "w1"}
"""A lock as a runner knows it."""
WENT_BACK = {**FINE, "checkpoint": "8-0", "entries": 80, "rows": 25}
LOG = cast(BoundLogger, structlog.get_logger("test"))


@contextmanager
def hanging(nodes: Cluster) -> Iterator[tuple[list[int], dict[int, Node]]]:
    """Stop a node; give the partitions that are there, and those elsewhere with their nodes."""
    places = {p: nodes.primary_of(KEYS.lock(p)) for p in PARTITIONS}
    hung = places[0]
    with hung.paused():
        yield (
            [p for p in PARTITIONS if places[p] is hung],
            {p: node for p, node in places.items() if node is not hung},
        )


def calls(places: Mapping[int, Node], command: str) -> int:
    found = 0
    for node in {node.port: node for node in places.values()}.values():
        with node.client() as client:
            found += client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]
    return found


class Runner:
    """A partition that runs: what is known of its last commit."""

    committed = Acquired(7, FAR, 90, 30, "a")

    def __init__(self) -> None:
        self.commits = self.ending = self
        self.start = StartRunner(0, "w1", self.committed)
        self.abandoned = ""
        self.outbox = None

    def abandon(self, reason: str) -> None:
        self.abandoned = reason


async def test_what_went_back_at_one_node_is_found_while_another_gives_no_answer(
    nodes: Cluster, raw: RawCluster
) -> None:
    """And however many ask for it, a node that gives no answer is asked again by one, and it is said."""
    for p in PARTITIONS:
        raw.hset(KEYS.lock(p), mapping=WENT_BACK)
    runners = {p: Runner() for p in PARTITIONS}

    def running() -> dict[int, Any]:
        return {p: runner for p, runner in runners.items() if not runner.abandoned}

    with structlog.testing.capture_logs() as lines:
        async with Backend.open(nodes.url, name="t", call_timeout_ms=1_000) as backend:
            await backend.pipeline([("HGETALL", KEYS.lock(p)) for p in PARTITIONS])
            witness = Witness(backend, KEYS, running, random.Random(1), LOG)
            with hanging(nodes) as (there, elsewhere):
                before = calls(elsewhere, "hgetall")
                compares = [asyncio.create_task(witness.compare()) for _ in range(5)]
                await wait_for_async(lambda: set(running()) == set(there), "what is elsewhere is found")
                await asyncio.sleep(2.0)  # Two timeouts.
                assert calls(elsewhere, "hgetall") - before <= 5 * len(elsewhere)
            await asyncio.wait_for(asyncio.gather(*compares), PATIENCE_S)
    assert not running()
    unknown = [line for line in lines if line["event"] == "rollback_unknown"]
    assert unknown[0]["partitions"] == there
    assert 1 <= len(unknown) <= 2, "once for each reason"
    told = [line["partition"] for line in lines if line["event"] == "partition_rolled_back"]
    assert sorted(told) == list(PARTITIONS)


async def test_partitions_of_a_node_that_gives_no_answer_are_unknown_and_not_empty(
    nodes: Cluster, raw: RawCluster
) -> None:
    """Their lag is not 0, nor are they halted: the snapshot says which partitions it does not count."""
    raw.hset(KEYS.meta, mapping={"partitions": len(PARTITIONS)})
    for p in PARTITIONS:
        raw.xadd(STREAM.events(p), {"d": "{}"})
    others = [p for p in PARTITIONS if nodes.primary_of(KEYS.lock(p)) is not nodes.primary_of(KEYS.members)]
    hung = nodes.primary_of(KEYS.lock(others[0]))
    away = [p for p in PARTITIONS if nodes.primary_of(KEYS.lock(p)) is hung]
    async with Backend.open(nodes.url, name="t", call_timeout_ms=1_000) as backend:
        assert (await take_snapshot(backend, "shop", "orders", "price")).lag == len(PARTITIONS)
        with hung.paused():
            seen = await take_snapshot(backend, "shop", "orders", "price")
        assert [view.partition for view in seen.partitions if view.state == "unknown"] == away
        assert seen.lag == len(PARTITIONS) - len(away)
        (line,) = seen.unknown
        assert line.startswith(
            f"Not in the figures: {len(away)} partitions of price: {ranges(away)}. Redis at"
        )
        whole = await take_snapshot(backend, "shop", "orders", "price")
    assert model.rows(seen, whole).cells[away[0]].per_s is None


async def test_a_comparison_that_is_overtaken_by_another_stops_what_it_finds(
    redis_url: str, raw: RawCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both begin, the later one ends first and finds nothing: what the first one finds is its own."""
    raw.hset(KEYS.lock(0), mapping=FINE)
    true_read, goes_on, reads = locks.read_locks, asyncio.Event(), 0

    async def read(*given: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == 1:
            await goes_on.wait()
        return await true_read(*given)

    monkeypatch.setattr(locks, "read_locks", read)
    runner = cast(Any, Runner())
    async with Backend.open(redis_url, name="t") as backend:
        witness = Witness(backend, KEYS, lambda: {0: runner}, random.Random(1), LOG)
        first = asyncio.create_task(witness.compare())
        await asyncio.sleep(0)
        await witness.compare()
        assert not runner.abandoned
        raw.hset(KEYS.lock(0), mapping=WENT_BACK)
        goes_on.set()
        await first
        assert runner.abandoned


@asynccontextmanager
async def fetching(url: str) -> AsyncIterator[tuple[Backend, Reads]]:
    settings = Settings(redis_url=url)
    async with (
        Backend.open(url, name="t", call_timeout_ms=200) as backend,
        anyio.create_task_group() as tasks,
    ):
        fetcher = fetcher_for(backend)(backend, STREAM, settings, ByteBudget(1_000_000), rng=random.Random(1))
        tasks.start_soon(fetcher.run)
        yield backend, fetcher
        tasks.cancel_scope.cancel()


async def test_a_node_that_is_away_is_no_reason_to_look_at_all_streams_of_the_others(
    nodes: Cluster, raw: RawCluster
) -> None:
    for p in PARTITIONS:
        raw.xadd(STREAM.events(p), {"v": "x"}, id="9-0")
    async with Backend.open(nodes.url, name="t", call_timeout_ms=1_000) as backend:
        fetcher = fetcher_for(backend)(backend, STREAM, Settings(redis_url=nodes.url), ByteBudget(1_000_000))
        idle = [fetcher.add(p, FAR) for p in PARTITIONS]
        await fetcher._watch._compare(idle)
        with hanging(nodes) as (_, elsewhere):
            before = calls(elsewhere, "xinfo|stream")
            await fetcher._watch._compare([each for each in idle if each.partition in elsewhere] + idle[:1])
            assert 0 < calls(elsewhere, "xinfo|stream") - before <= 8
            gone, node = next(iter(elsewhere.items()))
            with node.client() as client:
                client.delete(STREAM.events(gone))
            await fetcher._watch._compare(idle)
            assert fetcher._watch.left_out == {gone}


async def test_a_node_that_gives_no_answer_is_left_alone_though_others_change_places() -> None:
    """What is known of where slots are changes often while some move: its pauses grow all the same."""
    node, reads = StubNode(), 0

    def answer(words: list[bytes]) -> bytes:
        nonlocal reads
        if words[0] == b"XREAD":
            reads += 1
            return b"-CLUSTERDOWN The cluster is down\r\n"
        return node.answer(words)

    async with stub(answer) as node.port, fetching(url_of(node.port)) as (backend, fetcher):
        fetcher.add(0, ZERO)
        await wait_for_async(lambda: reads > 0, "it was asked")
        until_s = time.monotonic() + 0.7
        while time.monotonic() < until_s:
            backend.server._topology.version += 1  # type: ignore[union-attr]
            fetcher.add(0, ZERO)  # Which wakes what waits.
            await asyncio.sleep(0.02)
        assert 2 <= reads <= 7


@contextmanager
def keeping(settings: Settings) -> Iterator[Keeper]:
    """Run what renews heartbeats."""
    keeper = Keeper(settings, "w1")
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop()


GROUPS = [GroupKeys("shop", "orders", f"p{n}") for n in range(12)]


@pytest.mark.alone("about seconds")
async def test_a_node_that_hangs_delays_the_heartbeats_of_its_groups_only(nodes: Cluster) -> None:
    """The others are renewed at their pace meanwhile; those of the node again when it answers."""
    settings = Settings(
        redis_url=nodes.url, heartbeat_interval_ms=200, call_timeout_ms=500, dead_after_ms=600,
        session_timeout_ms=1_500, slow_after_ms=2_000,
    )  # fmt: skip
    here = GROUPS[0]
    hung = nodes.primary_of(here.members)
    there = next(keys for keys in GROUPS if nodes.primary_of(keys.members) is not hung)
    beats: dict[str, list[HeartbeatDone]] = {here.group: [], there.group: []}
    with keeping(settings) as keeper:
        for keys in (here, there):
            keeper.keep(keys, "w1.a", beats[keys.group].append)
        await wait_for_async(lambda: all(len(each) > 2 for each in beats.values()), "both groups are renewed")
        run_ids = {beats[keys.group][-1].run_id for keys in (here, there)}
        assert len(run_ids) == 2, "each is renewed at its own server"
        with hung.paused():
            before = {name: len(each) for name, each in beats.items()}
            await asyncio.sleep(1.0)
            late = {name: len(each) - before[name] for name, each in beats.items()}
        assert late[here.group] <= 1
        assert late[there.group] >= 3
        count = len(beats[here.group])
        await wait_for_async(lambda: len(beats[here.group]) > count + 1, "it is renewed again")


async def test_a_new_membership_is_renewed_at_once_while_a_node_hangs(nodes: Cluster) -> None:
    settings = Settings(redis_url=nodes.url, heartbeat_interval_ms=3_000, dead_after_ms=6_000)
    hung = nodes.primary_of(KEYS.members)
    elsewhere = [keys for keys in GROUPS if nodes.primary_of(keys.members) is not hung]
    beats: list[HeartbeatDone] = []
    with keeping(settings) as keeper:
        keeper.keep(elsewhere[0], "w1.a", beats.append)
        await wait_for_async(lambda: beats, "it is renewed")
        with hung.paused():
            keeper.keep(KEYS, "w1.a", lambda _: None)
            await asyncio.sleep(0.2)
            asked = time.monotonic()
            renewed: list[HeartbeatDone] = []
            keeper.keep(elsewhere[1], "w1.a", renewed.append)
            await wait_for_async(lambda: renewed, "the new one is renewed")
            assert time.monotonic() - asked < 1.0
