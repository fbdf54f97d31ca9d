"""Tables, keyed state and timers go along when a stream grows: each key goes on where it was."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import anyio
import msgspec.msgpack
import pytest

from streamworker import App, Context, Stream, Table
from streamworker.core.data.placement import Placement
from streamworker.redisio.admin import growth
from streamworker.redisio.data.state import TIMERS, read_state
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.redisio.wire.failures import all_answered
from streamworker.runtime.run import generations
from streamworker.runtime.worker import Worker
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio

KEYS = GroupKeys("shop", "orders", "count")
NAMES = [f"customer-{n}" for n in range(60)]


class Order(msgspec.Struct):
    customer: str
    n: int


class Shop:
    """A stream, and one processor that counts each key in a table and in its state."""

    def __init__(self, url: str) -> None:
        self.url = url
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


async def test_each_key_goes_on_with_its_table_its_state_and_its_timer(redis_url: str) -> None:
    shop = Shop(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1", "w2"):
        for count in (3, 5, None):
            await shop.send(600)
            await asyncio.sleep(0.3)
            if count:
                await grow(backend, count)
        last = Placement(2, 3, 5)

        async def all_counted() -> bool:
            found = await states(backend, last.active)
            return bool(sum(its.get("sum", 0) for its in found) == shop.sent.total())

        await wait_for_async(all_counted, "all is counted")
        app, _, totals, parity = shop.app()
        async with app:
            assert await totals.get_many(NAMES) == shop.sent
            assert {key: value async for key, value in totals.scan()} == shop.sent
            assert await totals.count() == len(shop.sent)
            assert sum([value async for _, value in parity.scan()]) == shop.sent.total()

        async def is_removed() -> bool:
            keys = [
                key
                for p in range(last.base)
                for key in (KEYS.state(p), *KEYS.tables(p, ["totals", "parity"]))
            ]
            return not any(all_answered(await backend.pipeline([("EXISTS", key) for key in keys])))

        await wait_for_async(is_removed, "the old partitions have no copies")
        async with app:
            assert await totals.get_many(NAMES) == shop.sent
            assert {key: value async for key, value in totals.scan()} == shop.sent
        assert not shop.wrong
        for its in await states(backend, last.active):
            its.pop("sum", None)
            for name, mine in its.items():
                assert mine["n"] == shop.sent[name]
                assert mine["at"] == [*range(mine["at"][0], mine["at"][-1] + 1, 100)], name
