"""What counts as work, for those who share by load."""

import pytest

from streamworker.runtime.clock import monotonic_ms
from tests.helpers import wait_for_async
from tests.runtime.bench import Order, bench

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_halted_partition_is_not_at_work(redis_url: str, concurrency: int) -> None:
    """It stands still: to count it as a worker's whole time would move all others away from it."""

    async def price(_: Order) -> None:
        raise ValueError("poison")

    async with bench(redis_url) as desk:
        await desk.send([1])
        running = await desk.start(desk.spec(price, concurrency=concurrency))
        await wait_for_async(lambda: bool(running.halted), "the partition halts")
        at_ms = monotonic_ms()
        assert running.runner.activity.worked_ms(at_ms + 1_000) == running.runner.activity.worked_ms(at_ms)
