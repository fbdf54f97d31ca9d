"""Totals in a table while workers are killed: each record is counted once."""

import random
from typing import Any

import msgspec
import pytest

from streamworker import App
from streamworker.testing import local_worker
from streamworker.testing.local import Snapshot

pytestmark = pytest.mark.anyio

CUSTOMERS, PARTITIONS = 300, 8
SETTINGS: dict[str, Any] = {"heartbeat_interval_ms": 200, "dead_after_ms": 400, "trim_interval_ms": 200}


class Order(msgspec.Struct):
    number: int
    customer: str


def app_of(url: str) -> App:
    """Return an app that notes the numbers of each customer's orders, in the order of its calls."""
    app = App("shop", redis_url=url, table_cache_bytes=20_000, **SETTINGS)
    orders = app.stream("orders", Order, key="customer", partitions=PARTITIONS)
    totals = app.table("totals", list[int], ttl="1 hour")

    @app.processor(orders, batch=40, within=0.01, tables=[totals])
    async def count(batch: list[Order]) -> None:
        known = await totals.get_many({order.customer for order in batch})
        for order in batch:
            known.setdefault(order.customer, []).append(order.number)
        totals.set_many(known)

    return app


def sent(count: int) -> list[Order]:
    """Return orders of customers drawn at random."""
    rng = random.Random(3)
    return [Order(number, f"c{rng.randrange(CUSTOMERS)}") for number in range(count)]


async def numbers(app: App) -> dict[str, list[int]]:
    return {customer: found async for customer, found in app.registry.tables["totals"].scan()}


def expected(orders: list[Order]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for order in orders:
        found.setdefault(order.customer, []).append(order.number)
    return found


async def test_a_worker_dies_again_and_again_and_each_record_is_counted_once(emptied: str) -> None:
    """Also those of commits that were under way, and in the order in which they were sent."""
    orders = sent(4_000)
    app = app_of(emptied)
    await app.registry.streams["orders"].send_many(orders)
    rng = random.Random(1)
    for life in range(8):
        async with local_worker(app, url=emptied, name=f"w{life}") as worker:
            before = (await worker.snapshot()).processors["count"].committed
            goal = min(before + rng.randrange(50, 400), 3_900)

            def enough(now: Snapshot, goal: int = goal) -> bool:
                return now.processors["count"].committed >= goal

            await worker.until(enough)
            await worker.kill()
    async with local_worker(app, url=emptied) as worker:
        await worker.until_drained()
        assert await numbers(app) == expected(orders)
