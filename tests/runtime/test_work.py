"""What counts as work, for those who share by load."""

import pytest

from streamworker.runtime.clock import monotonic_ms
from tests.runtime.bench import Order, handling

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_halted_partition_is_not_at_work(redis_url: str, concurrency: int) -> None:
    """It stands still: to count it as a worker's whole time would move all others away from it."""

    async def price(_: Order) -> None:
        raise ValueError("poison")

    async with handling(redis_url, price, [1], concurrency=concurrency) as (desk, running):
        await running.halts()
        at_ms = monotonic_ms()
        assert running.runner.activity.worked_ms(at_ms + 1_000) == running.runner.activity.worked_ms(at_ms)
