"""A partition whose entries cannot be read for a while goes on by itself."""

import asyncio

import msgspec
import pytest
from structlog.testing import capture_logs

from streamworker import App
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.raw import opened

pytestmark = pytest.mark.anyio


class Item(msgspec.Struct):
    """What the stream carries."""

    number: int


async def test_a_partition_whose_key_was_of_another_type_says_so_and_goes_on_when_it_is_right(
    redis_url: str,
) -> None:
    """Without anybody who takes it over, and with the owner that it had."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, partitions=1)

    @app.processor(items)
    async def keep(item: Item) -> Item:
        return item

    key, lock = StreamKeys("shop", "items").events(0), GroupKeys("shop", "items", "keep").lock(0)
    with opened(redis_url) as raw:
        async with local_worker(app) as worker:
            await items.send(Item(1))
            await worker.until_drained()
            before = raw.hmget(lock, "owner", "epoch")
            with raw.pipeline(transaction=True) as swap:
                swap.rename(key, f"{key}:spare").set(key, "x").execute()
            told = await worker.until(
                lambda group: key in group.partitions[0].reason and bool(raw.hget(lock, "reason")),
                "it is said",
                processor=keep,
            )
            assert told.partitions[0].state == "halted"
            assert raw.hmget(lock, "state", "reason") == [
                b"running",
                f"key {key} holds a string and not a stream".encode(),
            ]
            raw.rename(f"{key}:spare", key)
            await items.send(Item(2))
            await worker.until_drained()
            assert await worker.rows(keep) == [{"number": 1}, {"number": 2}]
            assert raw.hmget(lock, "owner", "epoch") == before
            shown = await worker.until(
                lambda group: not raw.hget(lock, "reason"), "it is said no more", processor=keep
            )
            assert (shown.partitions[0].state, shown.partitions[0].reason) == ("running", "")


async def test_a_partition_that_halted_while_it_was_unreadable_stays_shown_as_halted(redis_url: str) -> None:
    """When its key is right it could be read on; the lock still says that its handler gave up, and why."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, partitions=1)
    called, may_fail = asyncio.Event(), asyncio.Event()

    @app.processor(items, attempts=1)
    async def keep(item: Item) -> Item:
        called.set()
        await may_fail.wait()
        raise ValueError("bad")

    key, lock = StreamKeys("shop", "items").events(0), GroupKeys("shop", "items", "keep").lock(0)

    def shown() -> list[str]:
        return [(each or b"").decode() for each in raw.hmget(lock, "state", "reason")]

    with opened(redis_url) as raw, capture_logs() as logs:
        async with local_worker(app):
            await items.send(Item(1))
            await called.wait()
            with raw.pipeline(transaction=True) as swap:
                swap.rename(key, f"{key}:spare").set(key, "x").execute()
            await wait_for_async(lambda: "and not a stream" in shown()[1], "its reads are held up")
            may_fail.set()
            await wait_for_async(lambda: shown()[0] == "halted", "it is halted")
            halted = shown()
            assert "bad" in halted[1]
            raw.rename(f"{key}:spare", key)
            await wait_for_async(
                lambda: any(log["event"] == "partition_readable" for log in logs), "its key is right"
            )
            await asyncio.sleep(0.3)  # For it to be shown, if it were.
            assert shown() == halted


async def test_a_lock_that_somebody_wrote_to_holds_up_its_partition_alone_until_it_is_right(
    redis_url: str,
) -> None:
    """Its checkpoint was read as an id, which ended the worker with all of its partitions."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, partitions=2, key="number")

    @app.processor(items)
    async def keep(item: Item) -> Item:
        return item

    lock = GroupKeys("shop", "items", "keep").lock(0)
    with opened(redis_url) as raw:
        async with local_worker(app) as worker:
            await items.send_many([Item(n) for n in range(20)])
            await worker.until_drained()
            right = raw.hget(lock, "checkpoint")
            raw.hset(lock, "checkpoint", "x")
            await items.send_many([Item(n) for n in range(20, 40)])
            told = await worker.until(
                lambda group: (
                    "lock of partition 0" in group.partitions[0].reason and group.partitions[1].lag == 0
                ),
                "it is said, and the other goes on",
                processor=keep,
            )
            assert told.partitions[1].reason == ""
            raw.hset(lock, "checkpoint", right)
            await worker.until_drained()
            assert sorted(row["number"] for row in await worker.rows(keep)) == list(range(40))


async def test_an_epoch_that_somebody_wrote_over_costs_its_owner_the_batch_in_hand_and_no_more(
    redis_url: str,
) -> None:
    """The owner asked for the lock four times a second, and was not asked to end in less than a minute."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, partitions=2, key="number")

    @app.processor(items)
    async def keep(item: Item) -> Item:
        return item

    lock = GroupKeys("shop", "items", "keep").lock(0)
    with opened(redis_url) as raw:
        async with local_worker(app) as worker:
            await items.send_many([Item(n) for n in range(20)])
            await worker.until_drained()
            owner, before = raw.hmget(lock, "owner", "epoch")
            raw.hset(lock, "epoch", "x")
            await items.send_many([Item(n) for n in range(20, 40)])
            await worker.until_drained()
            assert sorted(row["number"] for row in await worker.rows(keep)) == list(range(40))
            after = raw.hmget(lock, "owner", "epoch")
            assert after[0] == owner
            assert int(after[1]) > int(before)
        assert raw.hget(lock, "owner") == b""
