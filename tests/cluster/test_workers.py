"""Real workers on a Cluster: they process, forward and share, while slots move and primaries die."""

import asyncio
import time
from collections.abc import Mapping
from itertools import pairwise

import pytest

from tests.chaos.team import Team
from tests.chaos.times import CLAIM, FAST, LEASE
from tests.stage.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
full = pytest.mark.full("workers on a Cluster that loses nodes and moves slots")


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param(FAST, id="membership"),
        pytest.param(CLAIM, id="claim", marks=pytest.mark.soak),
        pytest.param(LEASE, id="lease", marks=pytest.mark.soak),
    ],
)
async def test_workers_process_forward_and_share_on_a_cluster(
    nodes: Cluster, team: Team, environ: Mapping[str, str]
) -> None:
    """A second worker joins while records come, and dies: nothing is lost, doubled or out of order."""
    places = {nodes.primary_of(team.keys.events(p)).port for p in range(team.partitions)}
    assert len(places) > 1, "the partitions are on several nodes"
    await team.hired("w1", **environ)
    async with team.load(per_second=400):
        await team.hired("w2", **environ)
        team.kill("w2")
        await team.settled()
    await team.finished()
    assert await team.ended(team.ask_to_leave("w1")) == 0


@full
async def test_slots_move_while_events_flow(nodes: Cluster, team: Team) -> None:
    """Of partitions and of the membership: nothing is lost or doubled, and nobody rebalances."""
    await team.hired("w1", "w2")
    generation = (await team.snapshot()).generation
    async with team.load(per_second=400):
        await team.until("records flow", lambda: len(team.sends.confirmed) > 200)
        for whole, key in (
            (False, team.keys.events(0)),
            (False, team.keys.members),
            (True, team.keys.events(1)),
        ):
            target = nodes.another_primary(nodes.primary_of(key))
            if whole:
                await asyncio.to_thread(nodes.move_slot_whole, key, target)
            else:
                assert await asyncio.to_thread(nodes.move_slot, key, target, pause_s=0.05) >= 3
        await team.resumed_ms(time.time() * 1000)
    assert not team.sends.unknown
    await team.finished()
    assert (await team.snapshot()).generation == generation


@full
async def test_a_worker_that_starts_while_a_slot_moves_waits_for_it(nodes: Cluster, team: Team) -> None:
    """A script that needs a key from here and one from there has no answer meanwhile: no reason to end."""
    await team.hired("w1")
    assert await team.ended(team.ask_to_leave("w1")) == 0
    lock, source = team.keys.lock(3), nodes.primary_of(team.keys.lock(3))
    target = nodes.another_primary(source)
    nodes.begin_move(lock, target)
    nodes.move_keys(source, target, lock)
    team.hire("w2", "w3")
    await team.until("both say that they wait", lambda: len(team.logged("start_delayed")) >= 2)
    assert await team.ended(team.ask_to_leave("w3")) == 0, "it was asked to end, and waits for nothing then"
    await asyncio.to_thread(nodes.finish_move, lock, source, target)
    await team.settled()
    assert "moving its slots" in team.workers["w2"].log()


@full
@pytest.mark.alone("measures how long partitions stand still")
async def test_a_node_that_hangs_holds_up_only_its_partitions(nodes: Cluster, team: Team) -> None:
    """Sends, reads and commits about other nodes do not wait for it."""
    await team.hired("w1")
    victim = nodes.primary_of(team.keys.events(0))
    if nodes.primary_of(team.keys.members) is victim:
        victim = nodes.another_primary(victim)
    places = {p: nodes.primary_of(team.keys.events(p)) for p in range(team.partitions)}
    async with team.load(per_second=400):
        await team.until("records flow", lambda: len(team.sends.confirmed) > 200)
        began = time.monotonic()
        with victim.paused():
            await asyncio.sleep(2.0)
        ended = time.monotonic()
    await team.finished()
    for partition in (p for p, node in places.items() if node is not victim):
        starts = sorted(call["start"] for call in team.calls() if call["partition"] == partition)
        during = [start for start in starts if began < start < ended]
        longest_s = max(after - before for before, after in pairwise([began, *during, ended]))
        assert longest_s < 1.0, f"partition {partition} stood still for {longest_s:.2f} s"
