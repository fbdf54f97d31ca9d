"""Measuring what partitions ask of their worker, and what counts as work."""

import asyncio
from typing import Any

import pytest

from streamworker import App
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.watch.keeper import Keeper
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.runtime.workbench import Order, handling

pytestmark = pytest.mark.anyio


async def test_what_is_not_measured_any_more_is_no_load(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a group goes on under another assignment: the last figure must not stand there for ever."""
    told: list[dict[int, int]] = []
    monkeypatch.setattr(Keeper, "report", lambda _keeper, _keys, loads: told.append(dict(loads)))
    often: dict[str, Any] = {"heartbeat_interval_ms": 200, "balance_interval_ms": 200}
    app = App("shop", redis_url=redis_url, assignment="weighted", **often)
    orders, release = app.stream("orders", Order, partitions=1), asyncio.Event()

    @app.processor(orders)
    async def price(_: Order) -> None:
        await release.wait()

    async with local_worker(app, url=redis_url):
        await orders.send(Order(1))
        await wait_for_async(lambda: bool(told and told[-1].get(0)), "a load was measured")
        release.set()
    assert told[-1] == {}


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_halted_partition_is_not_at_work(redis_url: str, concurrency: int) -> None:
    """It stands still: to count it as a worker's whole time would move all others away from it."""

    async def price(_: Order) -> None:
        raise ValueError("poison")

    async with handling(redis_url, price, [1], concurrency=concurrency) as (_, running):
        await running.halts()
        at_ms = monotonic_ms()
        assert running.runner.activity.worked_ms(at_ms + 1_000) == running.runner.activity.worked_ms(at_ms)
