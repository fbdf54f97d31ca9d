"""Real workers on a Cluster: they process, forward and share, while slots move and primaries die."""

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from itertools import pairwise

import pytest

from streamworker.dev.cluster import EmbeddedCluster
from tests.chaos.team import Team
from tests.chaos.times import CLAIM, FAST, LEASE
from tests.cluster.support import (
    another_primary,
    begin_move,
    finish_move,
    move_keys,
    move_slot,
    move_slot_whole,
    primary_of,
)

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
    nodes: EmbeddedCluster, team: Team, environ: Mapping[str, str]
) -> None:
    """A second worker joins while records come, and dies: nothing is lost, doubled or out of order."""
    places = {primary_of(nodes, team.keys.events(p)).port for p in range(team.partitions)}
    assert len(places) > 1, "the partitions are on several nodes"
    await team.hired("w1", **environ)
    async with team.load(per_second=400):
        await team.hired("w2", **environ)
        team.kill("w2")
        await team.settled()
    await team.finished()
    assert await team.ended(team.ask_to_leave("w1")) == 0


@full
async def test_slots_move_while_events_flow(nodes: EmbeddedCluster, team: Team) -> None:
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
            target = another_primary(nodes, primary_of(nodes, key))
            if whole:
                await asyncio.to_thread(move_slot_whole, nodes, key, target)
            else:
                assert await asyncio.to_thread(move_slot, nodes, key, target, pause_s=0.05) >= 3
        await team.resumed_ms(time.time() * 1000)
    assert not team.sends.unknown
    await team.finished()
    assert (await team.snapshot()).generation == generation


@full
async def test_a_worker_that_starts_while_a_slot_moves_waits_for_it(
    nodes: EmbeddedCluster, team: Team
) -> None:
    """A script that needs a key from here and one from there has no answer meanwhile: no reason to end."""
    await team.hired("w1")
    assert await team.ended(team.ask_to_leave("w1")) == 0
    lock, source = team.keys.lock(3), primary_of(nodes, team.keys.lock(3))
    target = another_primary(nodes, source)
    begin_move(nodes, lock, target)
    move_keys(nodes, source, target, lock)
    team.hire("w2", "w3")
    await team.until("both say that they wait", lambda: len(team.logged("start_delayed")) >= 2)
    assert await team.ended(team.ask_to_leave("w3")) == 0, "it was asked to end, and waits for nothing then"
    await asyncio.to_thread(finish_move, nodes, lock, source, target)
    await team.settled()
    assert "moving its slots" in team.workers["w2"].log()


@full
@pytest.mark.alone("measures how long partitions stand still")
async def test_a_node_that_hangs_holds_up_only_its_partitions(nodes: EmbeddedCluster, team: Team) -> None:
    """Sends, reads and commits about other nodes do not wait for it."""
    await team.hired("w1")
    victim = primary_of(nodes, team.keys.events(0))
    if primary_of(nodes, team.keys.members) is victim:
        victim = another_primary(nodes, victim)
    places = {p: primary_of(nodes, team.keys.events(p)) for p in range(team.partitions)}
    async with team.load(per_second=400):
        await team.until("records flow", lambda: len(team.sends.confirmed) > 200)
        began = time.monotonic()
        os.kill(victim.pid, signal.SIGSTOP)
        await asyncio.sleep(2.0)
        os.kill(victim.pid, signal.SIGCONT)
        ended = time.monotonic()
    await team.finished()
    for partition in (p for p, node in places.items() if node is not victim):
        starts = sorted(call["start"] for call in team.calls() if call["partition"] == partition)
        during = [start for start in starts if began < start < ended]
        longest_s = max(after - before for before, after in pairwise([began, *during, ended]))
        assert longest_s < 1.0, f"partition {partition} stood still for {longest_s:.2f} s"
