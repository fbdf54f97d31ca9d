"""One test for each promise of docs/guarantees.md, on real servers and, where it needs them, processes.

The promises are tested in more depth elsewhere: tests/rebalance, tests/contract, tests/spark. Here each is
shown once, as short as it can be shown.
"""

import asyncio
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil
import pyarrow as pa
import pytest
import redis
from structlog.testing import capture_logs

from streamworker import App, Context, DeadLetter, Halt, StreamFull
from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import Placement
from streamworker.core.data.readers import ReaderPosition
from streamworker.core.events import AcquireLocks
from streamworker.core.ownership.locks import Acquired
from streamworker.dev.parquet import read_table
from streamworker.dev.server import EmbeddedServer
from streamworker.redisio.data import streams
from streamworker.redisio.data.ackedlog import encode_batch
from streamworker.redisio.data.commit import CommitCode, CommitReply, CommitRequest, commit_many
from streamworker.redisio.group import locks
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from tests.chaos.forked import Forge
from tests.chaos.proxy import proxied
from tests.chaos.team import Team, now_ms
from tests.chaos.times import FAST, slack_for_this_machine
from tests.conftest import SpawnWorker
from tests.helpers import is_halted, until_shown, wait_for, wait_for_async
from tests.judge import check_chain, check_rows
from tests.raw import records_in


class Item(msgspec.Struct):
    key: str
    n: int


def entries_of(url: str, key: str) -> list[tuple[EntryId, dict[bytes, bytes]]]:
    """Return the entries of an acked log."""
    with redis.Redis.from_url(url) as client:
        return [(EntryId.parse(name), fields) for name, fields in records_in(client, key)]


@pytest.mark.anyio
async def test_i1_nothing_that_was_confirmed_is_lost(crew: Forge, tmp_path: Path) -> None:
    """A worker is killed, the server restarts, all connections are cut; each record is in the log."""
    with EmbeddedServer(data_dir=tmp_path / "redis") as server:
        async with Team(server.url, crew, tmp_path, name="ledger") as team:
            await team.hired("w1", "w2")
            async with team.load(per_second=400):
                team.kill("w1")
                await asyncio.to_thread(server.restart)
                await team.raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await team.hired("w3")
            await team.finished()
            assert team.sends.confirmed


@pytest.mark.anyio
async def test_i2_no_source_entry_is_in_the_acked_log_twice(redis_url: str) -> None:
    """Answers to sends and commits are lost all the time, and each is repeated until there is one."""
    async with proxied(redis_url) as proxy:
        app = App("shop", redis_url=proxy.url)
        items = app.stream("items", Item, key="key", partitions=2)

        @app.processor(items, batch=10, within=0.01)
        async def keep(batch: list[Item]) -> list[Item]:
            return batch

        async def lose() -> None:
            while proxy.lost < 12:
                proxy.lose = 1
                await anyio.sleep(0.1)

        proxy.only_after = b"EVALSHA"
        async with local_worker(app, url=proxy.url) as worker, anyio.create_task_group() as tasks:
            tasks.start_soon(lose)
            n = 0
            while proxy.lost < 12:
                await items.send_many(Item(f"k{i % 10}", i) for i in range(n, n + 20))
                n += 20
            await worker.until_drained()
            rows = await worker.rows(keep)
    assert sorted(row["n"] for row in rows) == list(range(n))
    keys = GroupKeys("shop", "items", "keep")
    for partition in range(2):
        check_chain(f"partition {partition}", entries_of(redis_url, keys.acked(partition)))


@pytest.mark.anyio
async def test_i3_order_holds_in_each_partition_and_for_each_key(redis_url: str) -> None:
    """While two workers come and go, and every tenth record is a dead letter after retries."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, key="key", partitions=4)
    entries: dict[int, list[EntryId]] = defaultdict(list)

    @app.processor(items, batch=7, within=0.01, errors=DeadLetter())
    async def keep(batch: list[Item], ctx: Context) -> list[Item]:
        if any(item.n % 10 == 3 for item in batch):
            raise ValueError("not this one")
        entries[ctx.partition] += ctx.entry_ids
        return batch

    async with local_worker(app, url=redis_url, name="w1") as worker:
        for start in range(0, 600, 200):
            async with local_worker(app, url=redis_url, name=f"guest-{start}"):
                await items.send_many(Item(f"k{n % 13}", n) for n in range(start, start + 200))
                await anyio.sleep(0.05)
        await worker.until_drained()
        rows = await worker.rows(keep)

    assert all(ids == sorted(ids) for ids in entries.values())
    assert check_rows([rows]) == {n for n in range(600) if n % 10 != 3}


@pytest.mark.anyio
async def test_i4_a_worker_that_lost_its_partition_cannot_commit(
    redis_url: str, crew: Forge, tmp_path: Path
) -> None:
    """It sleeps with batches in hand, loses its partitions, wakes, and tries to commit."""
    environ = {**FAST, "ROWS_HANDLER_S": "0.3"}
    async with Team(redis_url, crew, tmp_path, name="ledger", environ=environ, ledger=True) as team:
        await team.hired("w1", "w2")
        sleeper, held = team.workers["w2"], await team.held_by("w2")
        started, ended = (team.ledger / f"{sleeper.pid}.{kind}" for kind in ("started", "jsonl"))

        def sleeps_with_a_batch_in_hand() -> bool:
            sleeper.pause()
            # Equal times are of one tick of the file system: what began in it takes longer than a tick.
            if ended.exists() and started.stat().st_mtime_ns >= ended.stat().st_mtime_ns:
                return True
            sleeper.resume()
            return False

        async with team.load(per_second=200):
            await team.until("the sleeper is busy", sleeps_with_a_batch_in_hand)
            await team.takeover_ms(0, held)
            sleeper.resume()
            await team.settled()
        await team.finished()
        executed = [n for call in team.calls() for n in call["n"]]
        assert len(executed) > len(set(executed)), "what it had in hand was executed again, and logged once"


@pytest.mark.anyio
async def test_i5_each_entry_of_the_log_follows_the_one_before(redis_url: str) -> None:
    """With commits that forward nothing in between, a dead letter, and a change of the owner."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, partitions=1)

    @app.processor(items, batch=5, within=0.01, errors=DeadLetter())
    async def some(batch: list[Item]) -> list[Item]:
        if any(item.n == 37 for item in batch):
            raise ValueError("not this one")
        return [item for item in batch if item.n % 25 >= 10]

    for start in (0, 50):
        async with local_worker(app, url=redis_url, name=f"w{start}") as worker:
            await items.send_many(Item("k", n) for n in range(start, start + 50))
            await worker.until_drained()
    keys = GroupKeys("shop", "items", "some")
    log = entries_of(redis_url, keys.acked(0))
    check_chain("the log", log)
    rows, last = log[-1][0].ms, EntryId.parse(log[-1][1][b"last"])
    assert {entry_id.seq for entry_id, _ in log} == {0}
    assert rows == sum(n % 25 >= 10 for n in range(100)) - 1
    async with Backend.open(redis_url, name="test") as backend:
        lock = await locks.read_lock(backend, keys, 0)
    assert lock is not None
    assert (lock.rows, lock.entries) == (rows, 100)
    assert last <= lock.checkpoint


@pytest.mark.anyio
async def test_i6_a_commit_tells_the_truth(redis_url: str) -> None:
    """OK and DUP: it is in the log. FENCED and GAP: it is not. No answer: nobody knows, and asking tells."""
    keys = GroupKeys("shop", "items", "keep")
    rows = encode_batch(pa.RecordBatch.from_pylist([{"n": 1}]), EntryId(1, 0))

    async def commit(backend: Backend, owner: str, epoch: int, previous: int, new: int) -> CommitReply:
        request = CommitRequest(
            partition=0,
            owner=owner,
            epoch=epoch,
            previous=EntryId(previous, 0),
            new=EntryId(new, 0),
            entries=1,
            batch=rows,
        )
        (reply,) = await commit_many(backend, keys, [request])
        return reply

    def logged() -> list[str]:
        return [fields[b"last"].decode() for _, fields in entries_of(redis_url, keys.acked(0))]

    async with Backend.open(redis_url, name="test") as backend, proxied(redis_url) as proxy:
        await streams.provision(backend, StreamKeys("shop", "items"), 1, "json")
        await streams.register(backend, keys, Placement(1), "earliest")
        for n in (1, 2, 3):
            await backend.execute("XADD", keys.events(0), f"{n}-0", "v", "x")

        async def acquire(owner: str, live: list[str]) -> Acquired:
            ask = AcquireLocks((0,), owner, 1, tuple(live))
            reply = (await locks.acquire(Access(backend, keys, 60_000), ask)).replies[0]
            assert isinstance(reply, Acquired)
            return reply

        a = await acquire("a", ["a"])
        assert (await commit(backend, "a", a.epoch, 0, 1)).code is CommitCode.OK
        assert (await commit(backend, "a", a.epoch, 0, 1)).code is CommitCode.DUP
        assert logged() == ["1-0"]
        assert (await commit(backend, "a", a.epoch, 0, 2)).code is CommitCode.GAP
        assert logged() == ["1-0"]
        async with Backend.open(proxy.url, name="unlucky", call_timeout_ms=500) as unlucky:
            await unlucky.execute("PING")
            proxy.only_after, proxy.lose = b"EVALSHA", 1
            assert (await commit(unlucky, "a", a.epoch, 1, 2)).code is CommitCode.UNKNOWN
            assert (await commit(unlucky, "a", a.epoch, 1, 2)).code in (CommitCode.OK, CommitCode.DUP)
            assert logged() == ["1-0", "2-0"]
        b = await acquire("b", ["b"])
        assert b.epoch > a.epoch
        assert b.checkpoint == EntryId(2, 0)
        assert (await commit(backend, "a", a.epoch, 2, 3)).code is CommitCode.FENCED
        assert (await commit(backend, "a", b.epoch, 2, 3)).code is CommitCode.FENCED
        assert logged() == ["1-0", "2-0"]


@pytest.mark.anyio
@pytest.mark.alone("about seconds")
async def test_i7_the_partitions_of_a_killed_worker_run_again_within_five_seconds(
    redis_url: str, crew: Forge, tmp_path: Path
) -> None:
    """At default settings; and those of one that was asked to stop, half a second after its last batch."""
    async with Team(redis_url, crew, tmp_path, name="ledger", environ={}, ledger=True) as team:
        await team.hired("w1", "w2", "w3")
        async with team.load(per_second=400):
            await team.until("all three are busy", lambda: len({call["pid"] for call in team.calls()}) == 3)
            orphans, at_ms = await team.held_by("w2"), now_ms()
            team.kill("w2")
            took_ms = await team.takeover_ms(at_ms, orphans)
            assert await team.ended(team.ask_to_leave("w3")) == 0
        print(f"takeover after SIGKILL: {took_ms:.0f} ms")
        assert took_ms <= 5_000

        async def handover_ms() -> list[int]:
            return [ms for cause, _, ms in await team.rebalances() if cause == "leave" and ms is not None]

        (leave_ms,) = await team.until("the others have what it left", handover_ms)
        longest_ms = 1000 * max(call["end"] - call["start"] for call in team.calls())
    print(f"handover after SIGTERM: {leave_ms} ms")
    assert leave_ms <= 500 + longest_ms + 1000 * slack_for_this_machine()


@pytest.mark.anyio
async def test_i8_a_worker_that_left_leaves_nothing_behind(redis_url: str) -> None:
    """No lock, member, heartbeat, connection, thread or task; and no key more at each visit."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, key="key", partitions=4)

    @app.processor(items)
    def keep(item: Item, ctx: Context) -> Item:
        ctx.state["n"] = item.n
        return item

    async def visit() -> None:
        async with local_worker(app, url=redis_url, name="guest") as worker:
            await items.send_many(Item(f"k{n}", n) for n in range(50))
            await worker.until_drained()

    with redis.Redis.from_url(redis_url) as client:
        await visit()  # Threads of the pool that runs `def` functions stay for a while, once.
        keys = {key for key in client.scan_iter() if b":producer:" not in key}
        connections = len(client.client_list())
        threads = {thread.name for thread in threading.enumerate()}
        tasks = len(asyncio.all_tasks())
        files = psutil.Process().num_fds()
        for _ in range(3):
            await visit()
        await wait_for_async(lambda: len(client.client_list()) <= connections, "its connections are closed")
        assert {key for key in client.scan_iter() if b":producer:" not in key} == keys
        assert all(0 < client.ttl(key) <= 3600 for key in client.keys("*:producer:*"))
        group = GroupKeys("shop", "items", "keep")
        assert client.hlen(group.beats) == 0
        document = msgspec.json.decode(client.get(group.members))
        assert document["members"] == []
        assert [client.hget(group.lock(p), "owner") for p in range(4)] == [b""] * 4
    assert {thread.name for thread in threading.enumerate()} <= threads
    assert len(asyncio.all_tasks()) <= tasks
    assert psutil.Process().num_fds() <= files


FLOW = """
import msgspec
from pyspark.sql import DataFrame
from streamworker import App

app = App("flow")

class Item(msgspec.Struct):
    key: str
    n: int

items = app.stream("items", Item, key="key", partitions=2)

@app.processor(items, batch=100, within=0.05)
async def keep(batch: list[Item]) -> list[Item]:
    return batch

@app.pipeline(keep, trigger="100 milliseconds", path="table", options={"maxRowsPerTrigger": "500"})
def table(frame: DataFrame) -> DataFrame:
    return frame
"""


@pytest.mark.spark("runs a pipeline")
@pytest.mark.full("a JVM and three workers take a minute of CPU")
@pytest.mark.slow
@pytest.mark.timeout(480)
def test_i9_the_spark_table_equals_the_log(
    redis_url: str, spawn: SpawnWorker, write_app: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Spark is killed in the middle of a micro-batch, and started again from its checkpoint directory."""
    write_app("flow", FLOW)
    total = 10_000
    flow: dict[str, Any] = {"__name__": "flow"}
    exec(compile(FLOW, "flow.py", "exec"), flow)

    async def send_and_collect() -> list[tuple[str, int]]:
        async with local_worker(flow["app"], url=redis_url) as worker:
            await flow["items"].send_many(flow["Item"](f"k{n % 50}", n) for n in range(total))
            await worker.until_drained()
            return [(row["key"], row["n"]) for row in await worker.rows("keep")]

    log = asyncio.run(send_and_collect())
    spark = spawn("spark", "flow:app")
    wait_for(lambda: read_table(tmp_path / "table").num_rows > 0, "Spark has written rows", 240)
    os.killpg(spark.pid, signal.SIGKILL)
    spark.wait()
    part = read_table(tmp_path / "table").num_rows
    again = spawn("spark", "flow:app", "--once")
    assert again.wait(240) == 0, again.log()
    table = read_table(tmp_path / "table")
    print(f"{part} rows when it was killed, {table.num_rows} in the end")
    assert 0 < part < total
    assert Counter(zip(*table.select(["key", "n"]).to_pydict().values(), strict=True)) == Counter(log)


@pytest.mark.anyio
async def test_i10_a_partition_that_stands_still_says_why(redis_url: str) -> None:
    """Halted at a record, or full behind a reader; and a sender is told.

    tests/runtime/test_watchdog.py has functions that are stuck, test_keeper.py there Redis that is away.
    """
    with capture_logs() as logs:
        await a_halted_partition_says_why(redis_url)
        await a_full_log_says_why(redis_url)
    assert {"partition_halted", "acked_log_full"} <= {line["event"] for line in logs}


async def a_halted_partition_says_why(redis_url: str) -> None:
    """In the snapshot that status and top show; and a sender that it holds up is told."""
    app = App("halted", redis_url=redis_url)
    items = app.stream("items", Item, key="key", partitions=1, max_records=5)

    @app.processor(items, errors=Halt())
    async def keep(item: Item) -> Item:
        raise ValueError("cannot be booked")

    async with local_worker(app, url=redis_url) as worker:
        sent = await items.send(Item("k", 0))
        reason = (await until_shown(worker, is_halted)).reason
        assert str(sent.entry_id) in reason
        assert "cannot be booked" in reason
        for n in range(4):
            await items.send(Item("k", n))
        with pytest.raises(StreamFull):
            await items.send(Item("k", 9), on_full="raise")


async def a_full_log_says_why(redis_url: str) -> None:
    """A commit that waits for readers does not look like one that has nothing to do."""
    app = App("full", redis_url=redis_url, acked_entries_max=2)
    items = app.stream("items", Item, key="key", partitions=1)

    @app.processor(items, batch=1)
    async def keep(batch: list[Item]) -> list[Item]:
        return batch

    keys = GroupKeys("full", "items", "keep")
    with redis.Redis.from_url(redis_url) as client:
        client.hset(keys.readers, "query", ReaderPosition({0: 0}, {0: "a log"}, 1).text())
    async with local_worker(app, url=redis_url) as worker:
        await items.send_many(Item("k", n) for n in range(5))
        assert (await until_shown(worker, lambda view: "acked log full" in view.reason)).lag > 0
        with redis.Redis.from_url(redis_url) as client:  # As if a reader had passed them.
            client.xtrim(keys.acked(0), maxlen=0, approximate=False)
            await until_shown(worker, lambda view: view.rows == 4)
            client.xtrim(GroupKeys("full", "items", "keep").acked(0), maxlen=0, approximate=False)
        await worker.until_drained()
