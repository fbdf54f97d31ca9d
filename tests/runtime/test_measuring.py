"""Measuring what partitions ask of their worker, and what counts as work."""

import anyio
import pytest
import structlog

from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.measuring import measure
from tests.helpers import wait_for_async
from tests.runtime.workbench import Order, handling

pytestmark = pytest.mark.anyio

EVERY_MS = 20


async def test_what_is_not_measured_any_more_is_no_load(redis_url: str) -> None:
    """As when a group goes on under another assignment: the last figure must not stand there for ever."""
    told: list[dict[int, int]] = []

    async def price(_: Order) -> None:
        await anyio.sleep(30)

    async with handling(redis_url, price, [1]) as (desk, running), anyio.create_task_group() as tasks:
        tasks.start_soon(
            measure,
            *(desk.backend, desk.keys, lambda: {0: running.runner}),
            *(lambda loads: told.append(dict(loads)), EVERY_MS, structlog.get_logger("test")),
        )
        await wait_for_async(lambda: bool(told and told[-1].get(0)), "a load was measured")
        tasks.cancel_scope.cancel()
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
