"""Real workers on a Cluster: they process, forward and share, while slots move and primaries die."""

import os
import signal
import time
from itertools import pairwise

import pytest

from tests.cluster.support import (
    ClusterScene,
    another_primary,
    begin_move,
    finish_move,
    move_keys,
    move_slot,
    move_slot_whole,
    primary_of,
)
from tests.helpers import wait_for
from tests.rebalance.scene import CLAIM, FAST, KEYS, LEASE

pytestmark = pytest.mark.timeout(120)
full = pytest.mark.full("workers on a Cluster that loses nodes and moves slots")


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param(FAST, id="membership"),
        pytest.param(CLAIM, id="claim", marks=pytest.mark.soak),
        pytest.param(LEASE, id="lease", marks=pytest.mark.soak),
    ],
)
def test_workers_process_forward_and_share_on_a_cluster(scene: ClusterScene, environ: dict[str, str]) -> None:
    """A second worker joins while records come, a third dies: nothing is lost, doubled or out of order."""
    places = {primary_of(scene.cluster, KEYS.events(p)).port for p in range(scene.partitions)}
    assert len(places) > 1, "the partitions are on several nodes"
    first = scene.worker("w1", **environ)
    scene.wait_for_owners({"w1": 8})
    with scene.remembered_load() as told:
        second = scene.worker("w2", **environ)
        wait_for(lambda: set(scene.owners()) == {"w1", "w2"}, "both have partitions", 60)
        second.kill()
        scene.wait_for_owners({"w1": 8}, 60)
    scene.wait_until_drained()
    assert scene.judged(told)[1] == {}
    first.terminate()
    assert first.wait() == 0


@full
def test_slots_move_while_events_flow(scene: ClusterScene) -> None:
    """Of partitions and of the membership: nothing is lost or doubled, and nobody rebalances."""
    scene.worker("w1", **FAST)
    scene.worker("w2", **FAST)
    scene.wait_for_owners({"w1": 4, "w2": 4})
    generation = scene.snapshot().generation
    with scene.remembered_load() as told:
        wait_for(lambda: len(told.confirmed) > 200, "records flow")
        for whole, key in ((False, KEYS.events(0)), (False, KEYS.members), (True, KEYS.events(1))):
            target = another_primary(scene.cluster, primary_of(scene.cluster, key))
            if whole:
                move_slot_whole(scene.cluster, key, target)
            else:
                assert move_slot(scene.cluster, key, target, pause_s=0.05) >= 3
            assert primary_of(scene.cluster, key) is target
        time.sleep(0.5)
    assert told.unknown == {}
    scene.wait_until_drained()
    assert scene.judged(told)[1] == {}
    assert scene.snapshot().generation == generation


@full
def test_a_worker_that_starts_while_a_slot_moves_waits_for_it(scene: ClusterScene) -> None:
    """A script that needs a key from here and one from there has no answer meanwhile: no reason to end."""
    first = scene.worker("w1", **FAST)
    scene.wait_for_owners({"w1": 8})
    first.terminate()
    assert first.wait() == 0
    lock, source = KEYS.lock(3), primary_of(scene.cluster, KEYS.lock(3))
    target = another_primary(scene.cluster, source)
    begin_move(scene.cluster, lock, target)
    move_keys(scene.cluster, source, target, lock)
    second = scene.worker("w2", **FAST)
    wait_for(lambda: "start_delayed" in second.log(), "it says that it waits")
    third = scene.worker("w3", **FAST)
    wait_for(lambda: "start_delayed" in third.log(), "another says so, too")
    third.terminate()
    assert third.wait() == 0, "it was asked to end, and waits for nothing then"
    finish_move(scene.cluster, lock, source, target)
    scene.wait_for_owners({"w2": 8}, 30)
    assert "moving its slots" in second.log()


@full
@pytest.mark.alone("measures how long partitions stand still")
def test_a_node_that_hangs_holds_up_only_its_partitions(scene: ClusterScene) -> None:
    """Sends, reads and commits about other nodes do not wait for it."""
    scene.worker("w1", **FAST)
    scene.wait_for_owners({"w1": 8})
    victim = primary_of(scene.cluster, KEYS.events(0))
    others = {p for p in range(scene.partitions) if primary_of(scene.cluster, KEYS.events(p)) is not victim}
    if primary_of(scene.cluster, KEYS.members) is victim:
        victim = another_primary(scene.cluster, victim)
        others = {p for p in others if primary_of(scene.cluster, KEYS.events(p)) is not victim}
    with scene.remembered_load() as told:
        wait_for(lambda: len(told.confirmed) > 200, "records flow")
        began = time.monotonic()
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(victim.pid, signal.SIGCONT)
        ended = time.monotonic()
    scene.wait_until_drained()
    for partition in others:
        starts = [c.start for c in scene.calls() if c.partition == partition and began < c.start < ended]
        gaps = [after - before for before, after in pairwise([began, *starts, ended])]
        assert max(gaps) < 1.0, f"partition {partition} stood still for {max(gaps):.2f} s"
    assert scene.judged(told)[1] == {}
