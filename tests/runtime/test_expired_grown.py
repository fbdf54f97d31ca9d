"""The ends of a table's values go along when a stream grows: each is called for once, where the value is."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
import msgspec
import pytest

from streamworker import App, Context, Stream, Table
from streamworker.redisio.admin import growth
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.runtime.run import generations
from streamworker.runtime.worker import Worker
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio

KEYS = GroupKeys("shop", "orders", "hold")


class Order(msgspec.Struct):
    customer: str
    ends_s: float
    """In how many seconds it ends."""


class Shop:
    """Orders that are held until their ends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: list[tuple[str, int]] = []
        self.early: list[str] = []

    def app(self) -> tuple[App, Stream[Order], Table[str, float]]:
        app = App("shop", redis_url=self.url, heartbeat_interval_ms=200, trim_interval_ms=200)
        orders = app.stream("orders", Order, key="customer", partitions=2)
        held = app.table("held", float)

        @app.processor(orders, tables=[held])
        async def hold(order: Order) -> None:
            until = datetime.now(UTC) + timedelta(seconds=order.ends_s)
            held.set(order.customer, until.timestamp(), until=until)

        @hold.expired(held)
        async def over(customer: str, ends_s: float, ctx: Context) -> None:
            if datetime.now(UTC).timestamp() < ends_s - 0.002:  # It was rounded to milliseconds.
                self.early.append(customer)
            self.calls.append((customer, ctx.partition))

        return app, orders, held

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        worker = Worker(self.app()[0], name="w1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            yield
            worker.stop()


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "LOOK_S", 0.5)


async def test_each_end_is_called_for_once_while_a_stream_grows(redis_url: str) -> None:
    """Before, while and after values move; those that are far away wait in the new partitions."""
    shop = Shop(redis_url)
    app, orders, held = shop.app()
    soon, far = {f"c{n}": n / 15 for n in range(60)}, [f"far-{n}" for n in range(40)]
    async with Backend.open(redis_url, name="tool") as backend, app:
        async with shop.worker():
            await orders.send_many([Order(name, ends_s) for name, ends_s in soon.items()])
            await orders.send_many([Order(name, 3600) for name in far])
            await wait_for_async(lambda: len(shop.calls) > 3, "some have ended")
            for count in (3, 5):
                await growth.prepare(backend, KEYS, count, MEMORY)
                await growth.go_on(backend, KEYS, MEMORY, "test")
                await asyncio.sleep(0.5)
            await wait_for_async(lambda: len({name for name, _ in shop.calls}) == 60, "all have ended")

            async def moved() -> bool:
                left = [await backend.execute("EXISTS", KEYS.due(p, "held")) for p in range(5)]
                return left == [0] * 5

            await wait_for_async(moved, "no end is left in an old partition")
        assert await held.count() == 40
        ends = [await backend.execute("ZCARD", KEYS.due(p, "held")) for p in range(5, 10)]
    assert (sum(ends), 0 in ends) == (40, False)
    assert set(Counter(name for name, _ in shop.calls).values()) == {1}
    assert not shop.early
    where = {partition for _, partition in shop.calls}
    assert min(where) < 2 and max(where) >= 5


async def test_ends_wait_in_a_partition_that_takes_nothing_more(redis_url: str) -> None:
    """A value that ends while its partition is worked off is called for in the one that follows."""
    shop = Shop(redis_url)
    app, orders, held = shop.app()
    async with Backend.open(redis_url, name="tool") as backend, app:
        async with shop.worker():
            await orders.send_many([Order(f"c{n}", 1) for n in range(40)])

            async def are_held() -> bool:
                return await held.count() == 40

            await wait_for_async(are_held, "all are held")
        await growth.prepare(backend, KEYS, 3, MEMORY)
        await growth.go_on(backend, KEYS, MEMORY, "test")
        await asyncio.sleep(1)
        async with shop.worker():
            await wait_for_async(lambda: len(shop.calls) == 40, "all have ended")
    assert {partition for _, partition in shop.calls} == {2, 3, 4}
    assert len({name for name, _ in shop.calls}) == 40
