"""Windows go along when a stream grows: each is counted on where its key goes, and sent once."""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
import msgspec
import pytest

from streamworker import App, Stream, Window, Windowed
from streamworker.core.data.placement import Placement
from streamworker.redisio.admin import growth
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.runtime.run import generations
from streamworker.runtime.worker import Worker
from streamworker.testing.stored import Stored
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio

BEGAN = datetime(2026, 3, 28, 10, tzinfo=UTC)
NAMES = [f"customer-{n}" for n in range(40)]
KEYS = GroupKeys("shop", "orders", "per_minute")


class Order(msgspec.Struct):
    customer: str
    at: datetime


class Minute(msgspec.Struct):
    customer: str
    minute: datetime
    orders: int = 0


def shop(url: str) -> tuple[App, Stream[Order], Stream[Minute], Windowed[Order, Minute]]:
    """Return an app whose event time only records move, as far as they say."""
    app = App("shop", redis_url=url, heartbeat_interval_ms=200, trim_interval_ms=200)
    orders = app.stream("orders", Order, key="customer", partitions=2)
    minutes = app.stream("minutes", Minute, key="customer", partitions=2, retention="1 day")

    @app.window(
        orders, every="1 minute", by="at", late="5 minutes", into=minutes, ahead="400 days", idle="never"
    )
    def per_minute(total: Minute | None, order: Order, window: Window) -> Minute:
        total = total or Minute(order.customer, window.start)
        total.orders += 1
        return total

    return app, orders, minutes, per_minute


@asynccontextmanager
async def workers(url: str, *names: str) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        running = [Worker(shop(url)[0], name=name) for name in names]
        for worker in running:
            tasks.start_soon(worker.run)
        yield
        for worker in running:
            worker.stop()


@pytest.mark.parametrize("counts", [(2, 3), (2, 4, 5)])
async def test_each_window_is_counted_on_where_its_key_goes_and_is_sent_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...]
) -> None:
    """While records come that are out of order, of minutes that have begun in the partitions before."""
    monkeypatch.setattr(generations, "LOOK_S", 0.5)
    rng, expected, minute = random.Random(7), Counter[tuple[str, datetime]](), 0
    app, orders, minutes, per_minute = shop(redis_url)

    async def send(count: int) -> None:
        nonlocal minute
        records = []
        for _ in range(count):
            minute += rng.random() < 0.004
            at = BEGAN + timedelta(minutes=minute - rng.randrange(3), seconds=rng.randrange(60))
            customer = rng.choice(NAMES)
            expected[customer, at.replace(second=0)] += 1
            records.append(Order(customer, at))
        await orders.send_many(records)

    async with app, Backend.open(redis_url, name="test") as backend, workers(redis_url, "w1", "w2"):
        for count in counts[1:]:
            await send(1_000)
            await growth.prepare(backend, KEYS, count, MEMORY)
            await send(500)
            await growth.go_on(backend, KEYS, MEMORY, "test")
            await send(500)
        placement = Placement(*counts)
        last = {placement.partition_of(f"last-{n}".encode()): f"last-{n}" for n in range(99)}
        assert last.keys() == set(placement.active)
        await orders.send_many([Order(name, BEGAN + timedelta(days=365)) for name in last.values()])

        async def only_the_last_are_open() -> bool:
            return await per_minute.open.count() == len(last)

        await wait_for_async(only_the_last_are_open, "all others are closed")
        stored = Stored([app.registry.processors["per_minute"]], backend)
        await wait_for_async(lambda: _has(stored, minutes, len(expected)), "their rows have arrived")
        rows = await stored.sent(minutes)
        assert Counter({(row.customer, row.minute): row.orders for row in rows}) == expected
        assert len(rows) == len(expected)
        assert await stored.dead_letters(per_minute) == []


async def _has(stored: Stored, minutes: Stream[Minute], count: int) -> bool:
    return len(await stored.sent(minutes)) >= count
