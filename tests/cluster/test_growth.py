"""A stream grows on a Cluster, where each partition and its locks may be on another node."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from streamworker.core.data.placement import Placement
from streamworker.errors import BackendUnavailable
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from tests.chains import test_growth as chains
from tests.runtime import test_grown_state
from tests.runtime.growing import KEYS, STEPS, Menders, go_to
from tests.runtime.test_grown_groups import Shop, all_committed, grow, settled
from tests.stage.cluster import Cluster, Node

pytestmark = [pytest.mark.anyio, pytest.mark.full("workers on a Cluster")]

Moves = Callable[[Cluster, dict[str, Node]], None]
"""Lets the slots of some keys go to other nodes."""


async def test_groups_go_on_in_order_while_their_stream_grows(redis_url: str) -> None:
    shop = Shop(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1", "w2"):
        async with shop.sending():
            await shop.sends(300)
            for count in (3, 5):
                await grow(backend, count)
                await shop.sends(300)
        await shop.all_handled()
        await settled(backend, 2, 3, 5)
        await all_committed(backend, shop, 2, 3, 5)


def by_keys(nodes: Cluster, targets: dict[str, Node]) -> None:
    """Key by key: clients are led to another node for those that are not there any more, or not yet."""
    sources = {key: nodes.begin_move(key, target) for key, target in targets.items()}
    for key, target in targets.items():
        nodes.finish_move(key, sources[key], target, pause_s=0.02)


def whole(nodes: Cluster, targets: dict[str, Node]) -> None:
    for key, target in targets.items():
        nodes.move_slot_whole(key, target)


@pytest.mark.parametrize("move", [by_keys, whole])
async def test_slots_move_at_each_step_of_a_growth(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, move: Moves
) -> None:
    """Those of an old partition, of a new one and of the stream's hash, while producers send."""
    Menders(monkeypatch).may = False
    shop = Shop(nodes.url)
    async with Backend.open(nodes.url, name="tool") as backend, shop.workers("w1", "w2"):
        async with shop.sending(pause_s=0.05):
            for before, after in ((Placement(2), Placement(2, 3)), (Placement(2, 3), Placement(2, 3, 5))):
                moved = (KEYS.events(before.base), KEYS.events(after.base), KEYS.meta)
                await shop.sends(50)
                for step in STEPS:
                    targets = {key: nodes.another_primary(nodes.primary_of(key)) for key in moved}
                    moving = asyncio.create_task(asyncio.to_thread(move, nodes, targets))
                    while True:  # A slot that moves may refuse, and each step may be repeated.
                        with contextlib.suppress(BackendUnavailable):
                            await go_to(step, backend, after.live, MEMORY)
                            break
                        await asyncio.sleep(0.01)
                    await moving
            await shop.sends(50)
        await shop.all_handled()
        await settled(backend, 2, 3, 5)
        await all_committed(backend, shop, 2, 3, 5)


async def test_tables_state_and_timers_go_along_to_other_nodes(redis_url: str) -> None:
    shop = test_grown_state.Shop(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1", "w2"):
        for count in (3, 5, None):
            await shop.send(300)
            if count:
                await grow(backend, count)
        await test_grown_state.all_counted(backend, shop, 2, 3, 5)
        await test_grown_state.removed(backend, 2, 3, 5)
        await test_grown_state.check_tables(shop)


async def test_a_chain_goes_on_when_its_source_and_its_target_grow_at_once(redis_url: str) -> None:
    await chains.test_source_and_target_grow_at_once(redis_url)
