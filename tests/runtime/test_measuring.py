"""Measuring what partitions ask of their worker."""

import anyio
import pytest
import structlog

from streamworker.runtime.measuring import measure
from tests.helpers import wait_for_async
from tests.runtime.bench import Order, handling

pytestmark = pytest.mark.anyio

EVERY_MS = 20


async def test_what_is_not_measured_any_more_is_no_load(redis_url: str) -> None:
    """As when a group goes on under another assignment: the last figure must not stand there for ever."""
    told: list[dict[int, int]] = []

    async def price(_: Order) -> None:
        await anyio.sleep(30)

    async with handling(redis_url, price, [1]) as (desk, running):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                measure,
                *(desk.backend, desk.keys, lambda: {0: running.runner}),
                *(lambda loads: told.append(dict(loads)), EVERY_MS, structlog.get_logger("test")),
            )
            await wait_for_async(lambda: bool(told and told[-1].get(0)), "a load was measured")
            tasks.cancel_scope.cancel()
    assert told[-1] == {}
