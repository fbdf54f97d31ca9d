"""Totals in a table while workers are killed: each record is counted once."""

import random
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamworker import App
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from streamworker.testing.local import Snapshot
from tests.conftest import SpawnWorker
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio

CUSTOMERS, PARTITIONS, KILLS = 300, 8, 20
SETTINGS: dict[str, Any] = {"heartbeat_interval_ms": 200, "dead_after_ms": 400, "trim_interval_ms": 200}
COUNTING = """
import asyncio, random
import msgspec
from streamworker import App

settings = {"heartbeat_interval_ms": 200, "dead_after_ms": 400, "trim_interval_ms": 200}
app = App("shop", table_cache_bytes=20_000, **settings)


class Order(msgspec.Struct):
    number: int
    customer: str


orders = app.stream("orders", Order, key="customer", partitions=8)
totals = app.table("totals", list[int], ttl="1 hour")


@app.processor(orders, batch=40, within=0.01, tables=[totals])
async def count(batch: list[Order]) -> None:
    known = await totals.get_many({order.customer for order in batch})
    for order in batch:
        known.setdefault(order.customer, []).append(order.number)
    await asyncio.sleep(random.random() / 100)
    totals.set_many(known)
"""


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
    return {customer: found async for customer, found in app.tables["totals"].scan()}


def expected(orders: list[Order]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for order in orders:
        found.setdefault(order.customer, []).append(order.number)
    return found


async def test_a_worker_dies_again_and_again_and_each_record_is_counted_once(emptied: str) -> None:
    """Also those of commits that were under way, and in the order in which they were sent."""
    orders = sent(4_000)
    app = app_of(emptied)
    await app.streams["orders"].send_many(orders)
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


@pytest.mark.timeout(600)  # It starts 23 processes, each of which may take ten seconds.
async def test_processes_are_killed_at_random_and_each_record_is_counted_once(
    emptied: str, spawn: SpawnWorker, tmp_path: Path
) -> None:
    """Three workers; again and again one that owns partitions is killed while it counts."""
    (tmp_path / "counting.py").write_text(COUNTING, "utf-8")
    orders = sent(12_000)
    app, rng = app_of(emptied), random.Random(2)
    async with app, Backend.open(emptied, name="test") as backend:
        await app.streams["orders"].send_many(orders)
        workers = {f"w{n}": spawn("run", "counting:app", "--name", f"w{n}") for n in range(3)}
        for kills in range(KILLS):
            goal = len(orders) * (kills + 1) // (KILLS + 2)

            async def owners(goal: int = goal) -> list[str]:
                now = await take_snapshot(backend, "shop", "orders", "count")
                there = [member.name for member in now.members if member.partitions]
                return [name for name in there if name in workers] if now.committed >= goal else []

            name = rng.choice(await wait_for_async(owners, f"{goal} orders are counted", 60))
            workers.pop(name).process.send_signal(signal.SIGKILL)
            again = f"w{kills + 3}"
            workers[again] = spawn("run", "counting:app", "--name", again)

        async def counted() -> bool:
            return (await take_snapshot(backend, "shop", "orders", "count")).lag == 0

        await wait_for_async(counted, "all orders are counted", 60)
        assert await numbers(app) == expected(orders)
