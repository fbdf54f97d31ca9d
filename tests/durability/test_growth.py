"""A stream grows while the server comes back without the end of its file."""

import asyncio
import random

import pytest

from streamworker.core.data.placement import Placement
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from tests.durability.test_rollback import bytes_written, lose
from tests.runtime.growing import (
    STEPS,
    Menders,
    check_order,
    go_to,
    numbers_there,
    until_grown,
    until_through,
)
from tests.runtime.test_grown_groups import Shop
from tests.stage.server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.full("power failures, one after the other")]

COUNTS = (2, 3, 4, 5, 6, 7)
"""The partitions of each generation: the stream grows once for each step, and once more."""


@pytest.mark.parametrize("where", [pytest.param("before it", marks=pytest.mark.soak), "within it"])
@pytest.mark.parametrize("by_command", [False, True], ids=["a worker goes on", "the command goes on"])
async def test_a_growth_goes_on_after_the_file_has_lost_a_step(
    durable: Server, monkeypatch: pytest.MonkeyPatch, where: str, by_command: bool
) -> None:
    """Or all steps. Each record that is there is committed once in both groups, in the order of its key."""
    menders, rng = Menders(monkeypatch), random.Random(where)
    shop = Shop(durable.url, trim_interval_ms=3_600_000)
    shop.may_repeat = True
    async with Backend.open(durable.url, name="tool") as backend, shop.workers("w1", "w2"):
        async with shop.sending(pause_s=0.1):
            for number, steps in enumerate((*((step,) for step in STEPS), STEPS), start=1):
                after = Placement(*COUNTS[: number + 1])
                await shop.sends(100)
                menders.may = False
                if (before := STEPS.index(steps[0])) > 0:
                    await go_to(STEPS[before - 1], backend, after.live, MEMORY)
                size = await bytes_written(durable)
                await go_to(steps[-1], backend, after.live, MEMORY)
                if where == "within it":
                    size = rng.randint(size, await bytes_written(durable))
                await asyncio.to_thread(lose, durable, size)
                if by_command or steps[0] == "prepared":
                    await until_grown(backend, after, again=True)
                menders.may = True
                await until_grown(backend, after)
            await shop.sends(100)
        found = numbers_there(durable.url, sum(COUNTS))
        await until_through(backend, shop, found, Placement(*COUNTS))
    check_order(shop, found)
