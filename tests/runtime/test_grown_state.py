"""Tables, keyed state and timers go along when a stream grows: each key goes on where it was."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import datetime
from itertools import pairwise
from typing import Any

import anyio
import msgspec.msgpack
import pytest

from streamworker import App, Context, Stream, Table
from streamworker.core.data.placement import Placement
from streamworker.core.events import StartRunner
from streamworker.core.time.lifetimes import Lifetime
from streamworker.errors import BackendUnavailable
from streamworker.redisio.admin import growth, inheriting
from streamworker.redisio.data.state import TIMERS, read_state, scan_hash
from streamworker.redisio.group import following
from streamworker.redisio.group.locks import LockView, read_locks
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.redisio.wire.failures import all_answered
from streamworker.runtime.run import generations
from streamworker.runtime.worker import Worker
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio

NAME = ContextVar[str]("NAME")
"""The worker in whose task this is."""
KEYS = GroupKeys("shop", "orders", "count")
NAMES = [f"customer-{n}" for n in range(60)]


class Order(msgspec.Struct):
    customer: str
    n: int


class Shop:
    """A stream, and one processor that counts each key in a table and in its state."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.scopes: dict[str, anyio.CancelScope] = {}
        self.sent = Counter[str]()
        self.wrong: list[Any] = []
        self.rng = random.Random(3)

    def app(self) -> tuple[App, Stream[Order], Table[str, int], Table[Any, int]]:
        app = App("shop", redis_url=self.url, heartbeat_interval_ms=200, trim_interval_ms=200)
        orders = app.stream("orders", Order, key="customer", partitions=2)
        totals = app.table("totals", int, ttl="1 hour")
        parity = app.table("parity", int, key=("customer", "odd"))

        @app.processor(orders, tables=[totals, parity])
        async def count(order: Order, ctx: Context) -> None:
            name, odd = order.customer, order.n % 2
            mine = ctx.state.setdefault(name, {"n": 0, "at": []})
            before = (await totals.get(name) or 0, mine["n"], await parity.get((name, odd)) or 0)
            if before != (order.n - 1, order.n - 1, (order.n - 1) // 2):
                self.wrong.append((name, order.n, before))
            totals.set(name, order.n)
            parity.set((name, odd), before[2] + 1)
            mine["n"] = order.n
            ctx.state["sum"] = ctx.state.get("sum", 0) + 1

        @count.timer(every="100ms", missed="all")
        async def tick(at: datetime, ctx: Context) -> None:
            for name in ctx.state:
                if name != "sum":
                    ctx.state[name]["at"].append(round(at.timestamp() * 1000))

        return app, orders, totals, parity

    @asynccontextmanager
    async def workers(self, *names: str) -> AsyncIterator[list[Worker]]:
        async with anyio.create_task_group() as tasks:
            running = [Worker(self.app()[0], name=name) for name in names]
            for worker in running:
                tasks.start_soon(worker.run)
            yield running
            for worker in running:
                worker.stop()

    async def run(self, name: str) -> None:
        """Run a worker that :meth:`kill` can end without a word."""
        NAME.set(name)
        self.scopes[name] = anyio.CancelScope()
        with self.scopes[name]:
            await Worker(self.app()[0], name=name).run()

    async def kill(self) -> None:
        self.scopes[NAME.get()].cancel()
        await anyio.sleep_forever()

    async def send(self, count: int) -> None:
        app, orders, _, _ = self.app()
        async with app:
            records = []
            for customer in self.rng.choices(NAMES, k=count):
                self.sent[customer] += 1
                records.append(Order(customer, self.sent[customer]))
            await orders.send_many(records)


async def grow(backend: Backend, count: int) -> None:
    await growth.prepare(backend, KEYS, count, MEMORY)
    await growth.go_on(backend, KEYS, MEMORY, "test")


async def states(backend: Backend, partitions: range) -> list[dict[str, Any]]:
    """Return the keyed state of each partition, without the fields of its timer."""
    found = [await read_state(backend, KEYS, p) for p in partitions]
    return [
        {name: msgspec.msgpack.decode(value) for name, value in its.items() if not name.startswith(TIMERS)}
        for its in found
    ]


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "LOOK_S", 0.5)


async def all_counted(backend: Backend, shop: Shop, *counts: int) -> None:
    """Wait until all is counted, by the sums that belong to no key, and check the tables from outside."""
    active = Placement(*counts).active

    async def is_counted() -> bool:
        return bool(sum(its.get("sum", 0) for its in await states(backend, active)) == shop.sent.total())

    await wait_for_async(is_counted, "all is counted")
    await check_tables(shop)
    assert not shop.wrong
    for its in await states(backend, active):
        its.pop("sum", None)
        for name, mine in its.items():
            assert mine["n"] == shop.sent[name]
            assert all(after - before == 100 for before, after in pairwise(mine["at"])), name


async def check_tables(shop: Shop) -> None:
    """Check what an application reads that knows the first map."""
    app, _, totals, parity = shop.app()
    async with app:
        assert await totals.get_many(NAMES[:30]) == {name: shop.sent[name] for name in NAMES[:30]}
        assert {key: value async for key, value in totals.scan()} == shop.sent
        assert await totals.count() == len(shop.sent)
        assert sum([value async for _, value in parity.scan()]) == shop.sent.total()


async def removed(backend: Backend, *counts: int) -> None:
    """Wait until the old partitions have no tables and no state."""
    tables = dict.fromkeys(("totals", "parity"), Lifetime())
    old = [key for p in range(Placement(*counts).base) for key in (KEYS.state(p), *KEYS.tables(p, tables))]

    async def are_gone() -> bool:
        return not any(all_answered(await backend.pipeline([("EXISTS", key) for key in old])))

    await wait_for_async(are_gone, "what has moved is removed")


async def test_each_key_goes_on_with_its_table_its_state_and_its_timer(redis_url: str) -> None:
    shop = Shop(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1", "w2"):
        for count in (3, 5, None):
            await shop.send(600)
            await asyncio.sleep(0.3)
            if count:
                await grow(backend, count)
        await all_counted(backend, shop, 2, 3, 5)
        await removed(backend, 2, 3, 5)
        await check_tables(shop)


async def test_a_table_is_read_where_it_is_while_its_stream_grows(redis_url: str) -> None:
    """Also by an application that has read the first map, before, while and after the values move."""
    shop = Shop(redis_url)
    app, _, totals, _ = shop.app()
    async with Backend.open(redis_url, name="tool") as backend, app:

        async def check() -> None:
            await check_tables(shop)
            assert await totals.get_many(NAMES) == shop.sent

        async with shop.workers("w1"):
            await shop.send(600)
            await all_counted(backend, shop, 2)
        await check()
        await grow(backend, 3)
        await check()
        async with shop.workers("w1"):
            await removed(backend, 2, 3)
        await check()
        await grow(backend, 5)
        await check()
        assert {key: value async for key, value in totals.scan(partition=0)} == {
            name: n for name, n in shop.sent.items() if Placement(2).partition_of(name.encode()) == 0
        }


@pytest.mark.full("takes four seconds a step")
@pytest.mark.parametrize(
    "step", ["before it copies", "while it copies", "before it opens", "after it has opened"]
)
async def test_a_worker_that_is_killed_while_it_copies_leaves_that_to_others(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    shop, killed = Shop(redis_url), list[int]()
    take_over, opens, scan = inheriting.take_over, following.open_partition, scan_hash

    async def at(where: str, partition: int) -> None:
        if where == step and not killed:
            killed.append(partition)
            await shop.kill()

    async def taking(*args: Any) -> bool:
        await at("before it copies", args[3].partition)
        return await take_over(*args)

    async def opening(backend: Backend, keys: GroupKeys, start: StartRunner, wait: Any) -> bool:
        await at("before it opens", start.partition)
        is_open = await opens(backend, keys, start, wait)
        await at("after it has opened", start.partition)
        return is_open

    async def scanning(backend: Backend, key: str) -> AsyncIterator[Mapping[bytes, bytes]]:
        async for page in scan(backend, key):
            yield page
            if key.endswith(":table:parity"):
                await at("while it copies", 0)

    monkeypatch.setattr(inheriting, "take_over", taking)
    monkeypatch.setattr("streamworker.redisio.admin.inheriting.scan_hash", scanning)
    monkeypatch.setattr(following, "open_partition", opening)
    async with Backend.open(redis_url, name="tool") as backend, anyio.create_task_group() as tasks:
        for name in ("w1", "w2"):
            tasks.start_soon(shop.run, name)
        await shop.send(600)
        await grow(backend, 3)
        await shop.send(600)
        await all_counted(backend, shop, 2, 3)
        assert killed
        tasks.cancel_scope.cancel()


async def test_a_copy_that_a_failure_has_lost_is_missed_by_name(redis_url: str) -> None:
    """What it was made from is gone, so the partition stays closed, and a read says so, too."""
    shop = Shop(redis_url)
    async with Backend.open(redis_url, name="tool") as backend:
        async with shop.workers("w1"):
            await shop.send(300)
            await grow(backend, 3)
            await all_counted(backend, shop, 2, 3)
            await removed(backend, 2, 3)
        await backend.execute("HSET", KEYS.lock(2), "from", "0")
        await backend.execute("DEL", KEYS.table(2, "totals"))
        async with shop.workers("w1"):

            async def is_told() -> bool:
                lock = (await read_locks(backend, KEYS, [2]))[2]
                return isinstance(lock, LockView) and "a failure has lost its tables" in lock.reason

            await wait_for_async(is_told, "it says what is lost")
        app, _, totals, _ = shop.app()
        async with app:
            with pytest.raises(BackendUnavailable, match="a failure has lost values that have moved"):
                await totals.get_many(NAMES)
