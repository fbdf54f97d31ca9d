"""What was acknowledged survives what it was to survive: failovers, and power failures.

What is lost without durability, and reported to the id, is shown by rows F10 and F17 of the fault matrix.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from streamworker.core.data.entries import EntryId
from streamworker.errors import StreamworkerError
from streamworker.runtime.run.runner import StopReason
from tests.chaos.figures import record
from tests.chaos.proxy import running
from tests.helpers import wait_for_async
from tests.raw import records_in
from tests.runtime.workbench import Bench, Order, Priced, bench
from tests.stage.pair import Pair, Switch
from tests.stage.server import Server, cut, newest_aof

pytestmark = [pytest.mark.anyio, pytest.mark.full("failovers and power failures, one after the other")]

SENDERS = 16
FOR_EVER_MS = 3_600_000


class Traffic:
    """Sends numbered orders and commits what comes of them, through whatever happens.

    It keeps what it was told: the ids of its sends, and where its commits had got to.
    """

    def __init__(self, desk: Bench) -> None:
        self.desk = desk
        self.sent: dict[int, EntryId] = {}
        self.committed = EntryId(0, 0)
        self.rows = 0
        self._next = 0

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(SENDERS):
                tasks.start_soon(self._send)
            tasks.start_soon(self._work)

    async def _send(self) -> None:
        while True:
            number, self._next = self._next, self._next + 1
            with contextlib.suppress(StreamworkerError):
                self.sent[number] = (await self.desk.producer.send(Order(number), timeout=20)).entry_id

    async def _work(self) -> None:
        async def price(batch: list[Order]) -> list[Priced]:
            return [Priced(order.number, 1.0) for order in batch]

        while True:
            try:
                running = await self.desk.start(self.desk.spec(price, batch=20))
            except StreamworkerError:
                await asyncio.sleep(0.02)
                continue
            while not running.ended.is_set():
                self._note(running.runner.commits.committed.checkpoint, running.runner.commits.committed.rows)
                await asyncio.sleep(0.005)
            assert running.stopped is not None and running.stopped.reason is StopReason.FENCED

    def _note(self, checkpoint: EntryId, rows: int) -> None:
        self.committed, self.rows = max(self.committed, checkpoint), max(self.rows, rows)


@contextlib.asynccontextmanager
async def traffic(url: str, **settings: Any) -> AsyncIterator[Traffic]:
    async with bench(url, trim_interval_ms=FOR_EVER_MS, durability_timeout_ms=1_500, **settings) as desk:
        found = Traffic(desk)
        desk.tasks.start_soon(found.run)
        yield found
        desk.tasks.cancel_scope.cancel()


def source(server: Server, traffic: Traffic) -> set[EntryId]:
    with server.client() as client:
        found = records_in(client, traffic.desk.stream_keys.events(0))
    return {EntryId.parse(entry_id) for entry_id, _ in found}


def lost_sends(server: Server, traffic: Traffic) -> set[EntryId]:
    return set(traffic.sent.values()) - source(server, traffic)


def commits_lost(server: Server, traffic: Traffic) -> bool:
    with server.client() as client:
        checkpoint, rows = client.hmget(traffic.desk.keys.lock(0), "checkpoint", "rows")
    return EntryId.parse(checkpoint) < traffic.committed or int(rows) < traffic.rows


def log_is_right(server: Server, traffic: Traffic) -> bool:
    """Whether the log holds each committed source entry once, in order, and nothing else."""
    with server.client() as client:
        entries = client.xrange(traffic.desk.keys.acked(0))
        source = [entry_id for entry_id, _ in records_in(client, traffic.desk.stream_keys.events(0))]
    place = 0
    for entry_id, fields in entries:
        rows = int(fields[b"rows"])
        assert source[place] == fields[b"first"] and source[place + rows - 1] == fields[b"last"]
        place += rows
        assert entry_id == b"%d-0" % place
    return True


async def more(traffic: Traffic, count: int) -> None:
    """Wait until so many more sends are confirmed, and a commit."""
    goal, rows = len(traffic.sent) + count, traffic.rows
    await wait_for_async(lambda: len(traffic.sent) >= goal and traffic.rows > rows, "traffic flows")


# -- failovers ---------------------------------------------------------------------------------


@pytest.fixture
def own_pair() -> Iterator[Pair]:
    pair = Pair()
    pair.start()
    yield pair
    pair.stop()


async def fail_over(pair: Pair, rng: random.Random, *, lag: bool) -> None:
    """Kill the primary while traffic flows; with lag the replica has stopped following some time before."""
    await asyncio.sleep(rng.uniform(0, 0.1))
    if not lag:
        pair.primary.kill()
    await anyio.to_thread.run_sync(pair.promote)
    if lag:
        await asyncio.sleep(0.1)
        await asyncio.sleep(rng.uniform(0, 0.1))
        pair.replica.kill()


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
async def test_failovers_to_a_replica_lose_nothing_that_was_acknowledged(own_pair: Pair, count: int) -> None:
    """The replica that takes over had each send and each commit before anybody was told of it."""
    rng = random.Random(11)
    settings = {"durability": "replicas"}
    async with running(Switch(own_pair.primary.url)) as switch, traffic(switch.url, **settings) as flow:
        for turn in range(count):
            await more(flow, 20)
            # A replica that lags shows that the wait is what counts, and not that replicas are fast.
            await fail_over(own_pair, rng, lag=turn % 2 == 1)
            assert lost_sends(own_pair.primary, flow) == set(), f"in failover {turn}"
            assert not commits_lost(own_pair.primary, flow), f"in failover {turn}"
            switch.point_at(own_pair.primary.url)
            await anyio.to_thread.run_sync(own_pair.rejoin)
        await more(flow, 20)
        assert not flow.desk.producer.lost
        assert log_is_right(own_pair.primary, flow)
    record(
        "F17",
        'two plain servers, durability="replicas": the primary killed, every other time its replica had not '
        "followed" + (", in small" if count < 100 else ""),
        times=count,
        target="nothing acknowledged is lost",
        verdict="met",
        said=f"{len(flow.sent)} sends and {flow.rows} rows confirmed, 0 lost",
        seed=11,
    )


# -- power failures ----------------------------------------------------------------------------


async def power_failure(server: Server, rng: random.Random) -> int:
    """Let the disk hang, and end the server; return how many bytes of what came since were never written.

    Whatever was written to disk is before the place where the file ended when the last fsync had
    ended. Behind that a power failure may cut anywhere.
    """
    assert server.data_dir is not None
    path = newest_aof(server.data_dir)
    with server.client() as client:
        client.config_set("appendfsync", "no")
        await wait_for_async(
            lambda: client.info("persistence")["aof_pending_bio_fsync"] == 0, "no fsync is under way"
        )
    certain = path.stat().st_size
    await asyncio.sleep(0.1)
    await asyncio.sleep(rng.uniform(0, 0.2))
    server.kill()
    gone = path.stat().st_size - rng.randint(certain, path.stat().st_size)
    cut(path, gone)
    await anyio.to_thread.run_sync(server.start)
    return gone


@pytest.mark.parametrize("count", [3, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
async def test_power_failures_lose_nothing_that_was_on_the_disk(durable: Server, count: int) -> None:
    """With `appendfsync always`: a send and a commit are confirmed once they are on the disk."""
    rng, gone = random.Random(13), 0
    async with traffic(durable.url, durability="aof") as flow:
        for turn in range(count):
            await more(flow, 5)
            gone += await power_failure(durable, rng)
            assert lost_sends(durable, flow) == set(), f"in failure {turn}"
            assert not commits_lost(durable, flow), f"in failure {turn}"
        await more(flow, 5)
        assert gone and not flow.desk.producer.lost
        assert log_is_right(durable, flow)
        print(f"{count} power failures: {len(flow.sent)} confirmed sends, {flow.rows} rows, 0 lost")
