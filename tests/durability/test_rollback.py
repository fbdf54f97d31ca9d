"""Redis goes back to an earlier state: those who remember more say what is gone, by count and ids."""

import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import anyio
import pytest
import structlog

from streamworker import App
from streamworker.core.data.channel import (
    APPENDS_REMEMBERED,
    Ledger,
)
from streamworker.core.data.entries import EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.errors import DataLoss, StreamFull
from streamworker.redisio.data import streams
from streamworker.redisio.group import locks
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.run.rollback import Witness, rollback_of
from streamworker.runtime.worker import Worker
from streamworker.spark.source.logs import AckedLogs
from streamworker.spark.source.offsets import Slice, find_losses
from streamworker.spark.source.options import SourceOptions
from tests.helpers import wait_for_async
from tests.runtime.workbench import Order, Priced, bench
from tests.spark.acked import AckedLog, orders
from tests.stage.server import Server, cut, newest_aof

pytestmark = pytest.mark.anyio


def all_of(log: Iterable[Mapping[str, Any]], event: str) -> list[dict[str, Any]]:
    return [dict(line) for line in log if line["event"] == event]


async def bytes_written(server: Server) -> int:
    with server.client() as client:
        assert client.execute_command("WAITAOF", 1, 0, 5_000)[0] == 1
    assert server.data_dir is not None
    return newest_aof(server.data_dir).stat().st_size


def lose(server: Server, back_to: int) -> None:
    """End the server as a power failure does: what is behind a place of its file was never written."""
    assert server.data_dir is not None
    server.kill()
    path = newest_aof(server.data_dir)
    cut(path, path.stat().st_size - back_to)
    server.start()


# -- producers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["the next send", "asked"])
async def test_a_producer_says_which_of_its_sends_are_lost(durable: Server, how: str) -> None:
    """By the ids that it was told, whether it sends again or only asks; what it sends then is there."""
    async with bench(durable.url) as desk:
        kept = [await desk.producer.send(Order(n)) for n in range(3)]
        size = await bytes_written(durable)
        gone = [await desk.producer.send(Order(n)) for n in range(3, 8)]
        lose(durable, size + random.randrange(40))
        with structlog.testing.capture_logs() as log:
            if how == "asked":
                (lost,) = await desk.producer.verify()
            else:
                await desk.producer.send(Order(99))
                (lost,) = desk.producer.lost
            assert await desk.producer.verify() == []
        assert (lost.stream, lost.partition, lost.records, lost.is_all) == ("orders", 0, 5, True)
        assert (lost.first, lost.last) == (gone[0].entry_id, gone[-1].entry_id)
        (line,) = all_of(log, "sends_lost")
        assert (line["log_level"], line["records"], line["first"]) == ("error", 5, str(gone[0].entry_id))
        assert (await desk.ids())[:3] == [str(sent.entry_id) for sent in kept]


async def test_a_restart_that_loses_nothing_is_no_loss(durable: Server) -> None:
    """Nor is a send that was given up, nor one that found no room."""
    async with bench(durable.url, stream={"records_max": 3}) as desk:
        for n in range(3):
            await desk.producer.send(Order(n))
        with pytest.raises(StreamFull):
            await desk.producer.send(Order(4), on_full="raise")
        durable.restart()
        with durable.client() as client:
            client.delete(desk.stream_keys.events(0))
        await desk.producer.send(Order(5))
        assert await desk.producer.verify() == [] and not desk.producer.lost


async def test_a_send_that_overtakes_the_question_is_not_taken_for_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was true when Redis gave it; what was confirmed since is not in it."""
    true_numbers = streams.last_numbers
    async with bench(redis_url) as desk:

        async def late(*arguments: Any) -> Mapping[int, int]:
            numbers = await true_numbers(*arguments)
            await desk.producer.send(Order(2))
            return numbers

        await desk.producer.send(Order(1))
        monkeypatch.setattr(streams, "last_numbers", late)
        assert await desk.producer.verify() == []
        assert not desk.producer.lost


def test_a_ledger_that_is_full_says_that_there_may_be_more() -> None:
    """Memory is bounded, and what is told is not more than what is known."""
    ledger = Ledger()
    for number in range(1, APPENDS_REMEMBERED + 3):
        ledger.confirm(number, 2, EntryId(number, 1), 0)
    lost = ledger.behind("orders", 0, 1, 0)
    assert lost is not None
    assert (lost.records, lost.is_all, str(lost.first)) == (2 * APPENDS_REMEMBERED, False, "3-0")


# -- workers -----------------------------------------------------------------------------------


QUICK: dict[str, Any] = {
    "heartbeat_interval_ms": 200,
    "call_timeout_ms": 500,
    "dead_after_ms": 600,
    "session_timeout_ms": 1_500,
    "slow_after_ms": 2_000,
    "founding_pause_ms": 1,
}


KEYS = GroupKeys("shop", "orders", "price")


class Shop:
    """An app whose worker runs in this process, and what its function was given."""

    def __init__(self, url: str) -> None:
        self.app = App("shop", redis_url=url, **QUICK)
        self.orders = self.app.stream("orders", Order, partitions=1)
        self.seen: list[int] = []

        @self.app.processor(self.orders, batch=10, within=0.0)
        async def price(batch: list[Order]) -> list[Priced]:
            self.seen.extend(order.number for order in batch)
            return [Priced(order.number, 1.0) for order in batch]

        self.worker = Worker(self.app)

    async def send(self, *numbers: int) -> list[EntryId]:
        return [(await self.orders.send(Order(number))).entry_id for number in numbers]

    async def until_committed(self, rows: int) -> None:
        """Wait until the log has so many rows, and the worker has the answer to the commit of the last."""

        async def enough() -> bool:
            runners = [group.partitions.running().get(0) for group in self.worker._groups]
            async with Backend.open(self.app.settings.redis_url, name="o", call_timeout_ms=10_000) as backend:
                lock = await locks.read_lock(backend, KEYS, 0)
            known = any(runner and runner.commits.committed.rows == rows for runner in runners)
            return known and lock is not None and lock.rows == rows

        await wait_for_async(enough, f"{rows} rows are in the log")


@contextlib.asynccontextmanager
async def working(url: str) -> AsyncIterator[Shop]:
    shop = Shop(url)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shop.worker.run)
        yield shop
        shop.worker.stop()


@pytest.mark.parametrize("how", ["a power failure", "a restored copy", "flushed"])
async def test_a_worker_says_what_of_its_commits_is_gone(durable: Server, how: str) -> None:
    """Though it is idle: source, checkpoint and log went back together, and fit each other."""
    assert durable.data_dir is not None
    copy = durable.data_dir.with_name("copy")
    with structlog.testing.capture_logs() as log:
        async with working(durable.url) as shop:
            kept = await shop.send(1, 2, 3)
            await shop.until_committed(3)
            size = await bytes_written(durable)
            shutil.copytree(durable.data_dir, copy)
            gone = await shop.send(4, 5, 6, 7)
            await shop.until_committed(7)
            if how == "flushed":
                with durable.client() as client:
                    client.flushall()
            elif how == "a power failure":
                await anyio.to_thread.run_sync(lose, durable, size)
            else:
                durable.kill()
                shutil.rmtree(durable.data_dir)
                shutil.copytree(copy, durable.data_dir)
                durable.start()
            await wait_for_async(lambda: all_of(log, "partition_rolled_back"), "it is told")
            left = 0 if how == "flushed" else 3
            again = await shop.send(8, 9)
            await shop.until_committed(left + 2)
            producer = shop.app.producer(shop.orders)
            (lost,) = producer.lost
    (line,) = all_of(log, "partition_rolled_back")
    assert (line["log_level"], line["partition"], line["up_to"]) == ("error", 0, str(gone[-1]))
    assert (line["entries"], line["rows"], line["rows_after"]) == (7 - left, 7 - left, left)
    assert line["log_replaced"] is (how == "flushed")
    if how != "flushed":
        assert line["after"] == str(kept[-1])
        assert f"its last entry is {kept[-1]}" in line["source"] and again[0] > gone[-1]
    assert (lost.records, lost.last) == (7 - left, gone[-1])
    assert shop.seen == [1, 2, 3, 4, 5, 6, 7, 8, 9]


async def test_commits_that_are_gone_while_the_entries_are_there_are_done_again(
    durable: Server,
) -> None:
    """A failure between the sends and the commits: the function runs again, and the log has each row once."""
    with structlog.testing.capture_logs() as log:
        async with working(durable.url) as shop:
            await shop.send(1)
            await shop.until_committed(1)
            kept = (KEYS.lock(0), KEYS.acked(0))
            with durable.client() as client:
                before = [client.dump(key) for key in kept]
            await shop.send(2, 3)
            await shop.until_committed(3)
            with durable.client() as client:
                for key, value in zip(kept, before, strict=True):
                    client.restore(key, 0, value, replace=True)
            durable.restart()
            await wait_for_async(lambda: all_of(log, "partition_rolled_back"), "it is told")
            await shop.until_committed(3)
    (line,) = all_of(log, "partition_rolled_back")
    assert (line["entries"], line["rows"]) == (2, 2)
    assert line["source"] == "the entries are there, and are handled again"
    assert shop.seen == [1, 2, 3, 2, 3]


async def test_an_idle_worker_acquires_a_lock_anew_if_redis_has_lost_who_has_it(durable: Server) -> None:
    """No commit would tell it, and a partition that takes nothing more has no further one."""
    async with working(durable.url) as shop:
        await shop.send(1)
        await shop.until_committed(1)
        with durable.client() as client:
            epoch = int(client.hget(KEYS.lock(0), "epoch"))
            client.hdel(KEYS.lock(0), "owner")
            client.hset(KEYS.lock(0), "epoch", epoch - 1)
        durable.restart()

        def is_back() -> bool:
            with durable.client() as client:
                owner, now = client.hmget(KEYS.lock(0), "owner", "epoch")
            return owner is not None and int(now) >= epoch

        await wait_for_async(is_back, "it has the lock")
    assert shop.seen == [1]


async def test_an_idle_worker_acquires_a_partition_anew_if_redis_has_lost_that_it_is_open(
    durable: Server,
) -> None:
    """Once it takes nothing more, the group would never be done with it."""
    with structlog.testing.capture_logs() as log:
        async with working(durable.url) as shop:
            await shop.send(1)
            await shop.until_committed(1)
            with durable.client() as client:
                client.hset(KEYS.lock(0), "from", "0")
            durable.restart()
            await wait_for_async(lambda: all_of(log, "partition_fenced"), "it gives the partition up")
            with durable.client() as client:
                client.hdel(KEYS.lock(0), "from")
            await shop.send(2)
            await shop.until_committed(2)
    assert shop.seen == [1, 2]


async def test_a_restart_without_loss_and_a_reset_are_no_rollback(durable: Server) -> None:
    with structlog.testing.capture_logs() as log:
        async with working(durable.url) as shop:
            await shop.send(1, 2)
            await shop.until_committed(2)
            durable.restart()
            await shop.send(3)
            await shop.until_committed(3)
    known = Acquired(7, EntryId(9, 0), 90, 30, "a")
    assert rollback_of(known, Acquired(9, EntryId(0, 0), 0, 30, "a", reset=8)) is None
    assert rollback_of(known, Acquired(9, EntryId(0, 0), 0, 30, "a", reset=7)) is not None
    assert not all_of(log, "partition_rolled_back") and not all_of(log, "sends_lost")
    assert shop.seen == [1, 2, 3]


async def test_what_was_sent_after_a_loss_hides_none_of_it(redis_url: str) -> None:
    """The last entry that is told is from before the loss: senders go on before a worker has looked."""
    keys, log = GroupKeys("shop", "orders", "price"), structlog.testing.CapturingLogger()
    async with Backend.open(redis_url, name="witness") as backend:
        for entry in ("1-0", "3-0", "9-0"):
            await backend.execute("XADD", keys.events(0), entry, "v", "1")
        witness = Witness(backend, keys, dict, random.Random(0), log)  # type: ignore[arg-type]
        await witness.acquired(0, Acquired(7, EntryId(7, 0), 90, 30, "a"))
        await witness.acquired(0, Acquired(8, EntryId(3, 0), 70, 10, "a"))
    (told,) = log.calls
    assert told.kwargs["source"].startswith("went back too: up to 7-0 its last entry is 3-0; what was behind")


# -- Spark -------------------------------------------------------------------------------------


def test_spark_notices_a_log_that_went_back_and_grew_past_where_it_had_read(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In other batches than before: what it had read as the end of an entry lies within one now."""
    monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", redis_url)
    options = SourceOptions(app="shop", stream="orders", processor="price", retry_timeout_ms=200)
    with AckedLog(redis_url, partitions=1) as acked:
        acked.fill(0, [4, 4])
        reader = AckedLogs(options)
        read_up_to = reader.tails()[0]
        acked.rewrite(0, acked.entries(0)[:1])
        acked.append(0, orders(200, 3))
        acked.append(0, orders(300, 3))
        now = reader.tails()[0]
        assert find_losses({0: read_up_to}, {0: now}) == {}
        part = Slice(0, now.log, read_up_to.rows, now.rows, read_up_to.last)
        with pytest.raises(DataLoss, match=r"row 8 was the last of an entry .* lies within entry 10-0"):
            list(reader.read(part))
