"""A stream grows while sentinels replace its primary, after each step of the change.

Asynchronous replication loses the step if the replicas have not received it. Whoever finds what is left of
the change goes on with it: a worker, or the command that is run again.
"""

import asyncio
import contextlib

import pytest

from streamworker.core.data.placement import Placement
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY, Durability
from tests.runtime.growing import (
    KEYS,
    STEPS,
    Menders,
    check_order,
    go_to,
    numbers_there,
    until_grown,
    until_through,
)
from tests.runtime.test_grown_groups import GROUPS, Shop
from tests.stage.server import Server
from tests.stage.trio import Trio

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.full("sentinels, replicas and failovers, which take seconds each"),
]

REPLICAS = 2
"""All of them must have what is to survive: sentinels may take any."""
WAITED = Durability("replicas", REPLICAS)
COUNTS = (2, 3, 4, 5, 6)
"""The partitions of each generation: the stream grows once for each step."""


def has(server: Server, step: str, after: Placement) -> bool:
    """Whether a server knows of a step."""
    if step in ("prepared", "opened"):
        field = "growing" if step == "prepared" else "partitions"
        return bool(server.call("HGET", KEYS.meta, field) == str(after))
    if step == "registered":
        return all(server.call("EXISTS", its.lock(p)) for its in GROUPS for p in after.active)
    return all(server.call("HEXISTS", KEYS.counts(p), "sealed") for p in after.generations[-2])


FURTHER = pytest.mark.soak("each takes a quarter of a minute")


@pytest.mark.parametrize("by_command", [False, True], ids=["a worker goes on", "the command goes on"])
@pytest.mark.parametrize("durability", ["replicas", pytest.param("memory", marks=FURTHER)])
@pytest.mark.parametrize("is_lost", [pytest.param(False, marks=FURTHER), True], ids=["kept", "lost"])
async def test_a_growth_goes_on_after_a_failover_at_each_of_its_steps(
    steady: Trio, monkeypatch: pytest.MonkeyPatch, is_lost: bool, durability: str, by_command: bool
) -> None:
    """Each record that is there is committed once in both groups, in the order of its key.

    With a durability that waits for the replicas, all that were sent are there.
    """
    menders = Menders(monkeypatch)
    kept = {"trim_interval_ms": 3_600_000, "durability_replicas": REPLICAS}
    shop = Shop(steady.url, durability=durability, **kept)
    shop.may_repeat = True
    async with Backend.open(steady.url, name="tool") as backend, shop.workers("w1", "w2"):
        async with shop.sending(pause_s=0.1):
            for number, step in enumerate(STEPS, start=1):
                after = Placement(*COUNTS[: number + 1])
                await shop.sends(100)
                await asyncio.to_thread(steady.wait_until_whole)
                menders.may = False
                if number > 1:
                    await go_to(STEPS[number - 2], backend, after.live, WAITED)
                with contextlib.ExitStack() as cut:
                    if is_lost:
                        await asyncio.to_thread(cut.enter_context, steady.replicas_cut_off())
                    await go_to(step, backend, after.live, MEMORY if is_lost else WAITED)
                    primary = steady.primary
                    knowing = [server for server in steady.servers if has(server, step, after)]
                    assert not is_lost or knowing == [primary]
                    primary.kill()
                await asyncio.to_thread(steady.replace, primary)
                await asyncio.to_thread(steady.bring_back, primary)
                if by_command or (is_lost and step == "prepared"):
                    await until_grown(backend, after, again=True)
                menders.may = True
                await until_grown(backend, after)
            await shop.sends(100)
        found = numbers_there(steady.url, sum(COUNTS))
        if durability == "replicas":
            assert found == {customer: list(range(1, n + 1)) for customer, n in shop.sent.items()}
        await until_through(backend, shop, found, Placement(*COUNTS))
    check_order(shop, found)
