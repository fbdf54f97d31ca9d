"""Sessions end while primaries fail over: each event is in one session, where commits wait for replicas."""

import asyncio
import random
from pathlib import Path

import anyio
import pytest

from tests.chaos.ends import A_STEP, Team, send, told_once
from tests.chaos.ends_app import Site
from tests.chaos.forked import Forge
from tests.stage.trio import Trio

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.full("sentinels, replicas and failovers, which take seconds each"),
]

DURABLE = {"STREAMWORKER_DURABILITY": "replicas", "STREAMWORKER_DURABILITY_REPLICAS": "2"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("failovers", [1, pytest.param(5, marks=pytest.mark.soak)])
async def test_each_event_is_in_one_session_though_primaries_fail(
    steady: Trio, forge: Forge, tmp_path: Path, failovers: int
) -> None:
    """They are killed in turn, and a replica takes over that has all commits that were confirmed."""
    rng = random.Random(9)
    team, site = Team(steady.url, forge, tmp_path, rng, **DURABLE), Site(steady.url)
    steps = 12 * failovers
    async with site.app, anyio.create_task_group() as tasks:
        for step in range(steps):
            tasks.start_soon(send, site, rng, step)
            await asyncio.sleep(0.3)
            if step % 12 == 6:
                old = steady.primary
                await asyncio.to_thread(old.kill)
                await asyncio.to_thread(steady.replace, old)
                await asyncio.to_thread(steady.wait_for_other_primary, old)
                await asyncio.to_thread(steady.bring_back, old)
        await told_once(site, steps * A_STEP)
    await asyncio.to_thread(team.leave)
