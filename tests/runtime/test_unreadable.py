"""What other programs and a full disk do to a partition: it says so, and goes on by itself."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
import structlog
from structlog.testing import capture_logs

from streamworker import App, Halt, Processor, Stream
from streamworker.cli.workers.exporter import samples_of
from streamworker.dev.server import EmbeddedServer
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.testing import local_worker
from tests.helpers import until_shown, wait_for_async
from tests.raw import opened
from tests.runtime.workbench import Order

pytestmark = pytest.mark.anyio


EVENTS, LOCK = StreamKeys("shop", "items").events(0), GroupKeys("shop", "items", "keep").lock(0)


class Item(msgspec.Struct):
    number: int


def keeping(
    redis_url: str, partitions: int = 2
) -> tuple[App, Stream[Item], Processor[[Item], Coroutine[Any, Any, Item]]]:
    """Return an app that forwards each item, its stream and its processor."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, partitions=partitions, key="number")

    @app.processor(items)
    async def keep(item: Item) -> Item:
        return item

    return app, items, keep


async def test_a_partition_whose_key_was_of_another_type_says_so_and_goes_on_when_it_is_right(
    redis_url: str,
) -> None:
    """Without anybody who takes it over, and with the owner that it had."""
    app, items, keep = keeping(redis_url, partitions=1)
    with opened(redis_url) as raw:
        async with local_worker(app, url=redis_url) as worker:
            await items.send(Item(1))
            await worker.until_drained()
            before = raw.hmget(LOCK, "owner", "epoch")
            with raw.pipeline(transaction=True) as swap:
                swap.rename(EVENTS, f"{EVENTS}:spare").set(EVENTS, "x").execute()
            told = await until_shown(worker, lambda view: EVENTS in view.reason)
            assert told.state == "halted"
            await wait_for_async(lambda: raw.hget(LOCK, "reason"), "its lock has the reason")
            assert raw.hmget(LOCK, "state", "reason") == [
                b"running",
                f"key {EVENTS} holds a string and not a stream".encode(),
            ]
            raw.rename(f"{EVENTS}:spare", EVENTS)
            await items.send(Item(2))
            await worker.until_drained()
            assert await worker.rows(keep) == [{"number": 1}, {"number": 2}]
            assert raw.hmget(LOCK, "owner", "epoch") == before
            shown = await until_shown(worker, lambda _: not raw.hget(LOCK, "reason"))
            assert (shown.state, shown.reason) == ("running", "")


async def test_a_partition_that_halted_while_it_was_unreadable_stays_shown_as_halted(redis_url: str) -> None:
    """When its key is right it could be read on; the lock still says that its handler gave up, and why."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, partitions=1)
    called, may_fail = asyncio.Event(), asyncio.Event()

    @app.processor(items, errors=Halt())
    async def keep(item: Item) -> Item:
        called.set()
        await may_fail.wait()
        raise ValueError("bad")

    def shown() -> list[str]:
        return [(each or b"").decode() for each in raw.hmget(LOCK, "state", "reason")]

    with opened(redis_url) as raw, capture_logs() as logs:
        async with local_worker(app, url=redis_url):
            await items.send(Item(1))
            await called.wait()
            with raw.pipeline(transaction=True) as swap:
                swap.rename(EVENTS, f"{EVENTS}:spare").set(EVENTS, "x").execute()
            await wait_for_async(lambda: "and not a stream" in shown()[1], "its reads are held up")
            may_fail.set()
            await wait_for_async(lambda: shown()[0] == "halted", "it is halted")
            halted = shown()
            assert "bad" in halted[1]
            raw.rename(f"{EVENTS}:spare", EVENTS)
            await wait_for_async(
                lambda: any(log["event"] == "partition_readable" for log in logs), "its key is right"
            )
            await asyncio.sleep(0.3)  # For it to be shown, if it were.
            assert shown() == halted


async def test_a_lock_that_somebody_wrote_to_holds_up_its_partition_alone_until_it_is_right(
    redis_url: str,
) -> None:
    """Its checkpoint was read as an id, which ended the worker with all of its partitions."""
    app, items, keep = keeping(redis_url)
    with opened(redis_url) as raw:
        async with local_worker(app, url=redis_url) as worker:
            await items.send_many([Item(n) for n in range(20)])
            await worker.until_drained()
            right = raw.hget(LOCK, "checkpoint")
            raw.hset(LOCK, "checkpoint", "x")
            await items.send_many([Item(n) for n in range(20, 40)])
            await until_shown(worker, lambda view: "lock of partition 0" in view.reason)
            other = await until_shown(worker, lambda view: view.lag == 0, partition=1)
            assert other.reason == ""
            raw.hset(LOCK, "checkpoint", right)
            await worker.until_drained()
            assert sorted(row["number"] for row in await worker.rows(keep)) == list(range(40))


async def test_what_held_a_partition_up_before_a_rollback_is_not_shown_after_it(redis_url: str) -> None:
    """The lock has the reason that the lost writes had cleared, and its owner takes it again."""
    app, items, _ = keeping(redis_url, partitions=1)
    with opened(redis_url) as raw:
        async with local_worker(app, url=redis_url) as worker:
            await items.send_many([Item(n) for n in range(20)])
            await worker.until_drained()
            before = raw.hmget(LOCK, "checkpoint", "entries")
            await items.send_many([Item(n) for n in range(20)])
            await worker.until_drained()
            raw.hset(LOCK, mapping={"checkpoint": before[0], "entries": before[1], "reason": "not confirmed"})
            await items.send_many([Item(n) for n in range(20)])
            await worker.until_drained()
            await until_shown(
                worker, lambda view: not view.lag and (view.state, view.reason) == ("running", "")
            )


@pytest.mark.full("waits for a server to notice its disk")
async def test_a_server_that_cannot_write_to_its_disk_is_named_as_what_holds_all_up(tmp_path: Path) -> None:
    """It refuses all writes, so that no worker can tell it; nobody is taken for dead."""
    with EmbeddedServer(data_dir=tmp_path / "data", appendonly=False) as server, opened(server.url) as raw:
        app, _, _ = keeping(server.url, partitions=1)
        async with local_worker(app, url=server.url) as worker:
            await until_shown(worker, lambda view: view.state == "running")
            raw.config_set("save", "3600 1")
            (tmp_path / "data").rename(tmp_path / "away")
            (tmp_path / "away").rmdir()
            raw.bgsave()
            view = await until_shown(worker, lambda view: "cannot write to its disk" in view.reason)
            assert view.state == "running"
            raw.config_set("save", "")
            await until_shown(worker, lambda view: view.reason == "")


async def test_an_epoch_that_somebody_wrote_over_costs_its_owner_the_batch_in_hand_and_no_more(
    redis_url: str,
) -> None:
    """It takes its lock anew; it asked four times a second in vain, and for a minute when it was to end."""
    app, items, keep = keeping(redis_url)
    with opened(redis_url) as raw:
        async with local_worker(app, url=redis_url) as worker:
            await items.send_many([Item(n) for n in range(20)])
            await worker.until_drained()
            owner, before = raw.hmget(LOCK, "owner", "epoch")
            raw.hset(LOCK, "epoch", "x")
            await items.send_many([Item(n) for n in range(20, 40)])
            await worker.until_drained()
            assert sorted(row["number"] for row in await worker.rows(keep)) == list(range(40))
            after = raw.hmget(LOCK, "owner", "epoch")
            assert after[0] == owner
            assert int(after[1]) > int(before)
        assert raw.hget(LOCK, "owner") == b""


# -- entries that others delete ----------------------------------------------------------------


async def test_a_worker_that_takes_a_partition_says_what_was_deleted_while_nobody_ran_it(
    redis_url: str,
) -> None:
    """Once and with the number; the rest is handled, and the metrics keep the count."""
    app = App("deleted", redis_url=redis_url)
    orders = app.stream("orders", Order, partitions=1, single_entries=True)
    seen: list[int] = []

    @app.processor(orders)
    async def handle(order: Order) -> None:
        seen.append(order.number)

    key = "sw:{deleted.orders.0}:events"
    async with local_worker(app, url=redis_url) as worker:
        await orders.send(Order(0))
        await worker.until_drained()
    async with app:
        await orders.send_many(Order(number) for number in range(1, 11))
    with redis.Redis.from_url(redis_url) as raw:
        raw.xtrim(key, maxlen=6, approximate=False)
        raw.xdel(key, raw.xrange(key)[2][0])
    with structlog.testing.capture_logs() as logged:
        async with local_worker(app, url=redis_url) as worker:
            await worker.until_drained()
            snapshot = (await worker.snapshot()).processors["handle"]
    told = [line for line in logged if line["event"] == "entries_deleted"]
    assert [(line["partition"], line["entries"]) for line in told] == [(0, 5)]
    assert seen == [0, 5, 6, 8, 9, 10]
    (view,) = snapshot.partitions
    assert (view.lag, view.records, view.gone) == (0, 6, 5)
    assert [
        value for name, _, value in samples_of(snapshot) if name == "streamworker_deleted_records_total"
    ] == [5]
    with structlog.testing.capture_logs() as logged:
        async with local_worker(app, url=redis_url) as worker:
            await worker.until_drained()
    assert not [line for line in logged if line["event"] == "entries_deleted"]
