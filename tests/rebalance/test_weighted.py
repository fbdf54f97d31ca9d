"""Sharing by load with real workers: what a hot partition makes move, and that it then rests."""

import time

import pytest

from tests.helpers import wait_for
from tests.rebalance.scene import FAST, Scene

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.full("sessions and holds run out, and how long partitions stand still is measured"),
    pytest.mark.alone("shares by the load that is measured"),
]

WEIGHTED = {
    **FAST,
    "ASSIGNMENT": "weighted",
    "STREAMWORKER_BALANCE_INTERVAL_MS": "500",
    "STREAMWORKER_BALANCE_THRESHOLD_PERCENT": "30",
}
"""Ten times the usual pace, and a threshold for machines on which other things run."""
HOT = {"HANDLER_S": "0.002", "HOT": "6", "HOT_S": "0.2"}
"""Partition 6 takes a worker's whole time, the others a tenth or less."""
REST_MS = 6_000
"""Twelve looks."""


def balanced(scene: Scene) -> list[int]:
    return [p for each in scene.snapshot().rebalances if each.cause == "balance" for p in each.moved]


def rest_ms(scene: Scene) -> int:
    snapshot = scene.snapshot()
    return snapshot.taken_ms - max(each.at_ms for each in snapshot.rebalances if each.moved)


def test_what_shares_a_worker_with_a_hot_partition_moves_away_and_then_nothing_moves(scene: Scene) -> None:
    """The hot one stays where it is, nothing is lost or repeated, and the figures are there to see."""
    environ = {**WEIGHTED, **HOT}
    scene.worker("w1", **environ)
    scene.wait_for_owners({"w1": 8})
    scene.worker("w2", **environ)
    scene.wait_for_owners({"w1": 4, "w2": 4})
    hot = next(view.owner for view in scene.snapshot().partitions if view.partition == 6)
    others = {view.partition for view in scene.snapshot().partitions if view.owner == hot} - {6}
    with scene.steady_load():
        wait_for(lambda: balanced(scene), "what is beside the hot one moves", 40)
        wait_for(lambda: rest_ms(scene) >= REST_MS, "nothing moves any more", 60)
        before = balanced(scene)
        time.sleep(REST_MS / 1000)
        assert balanced(scene) == before, scene.snapshot().rebalances
        snapshot = scene.snapshot()
    assert next(view.owner for view in snapshot.partitions if view.partition == 6) == hot
    assert set(before) <= others, "only what was beside the hot one has moved"
    assert len(before) == len(set(before)), "something moved twice"
    loads = {member.id: member.load for member in snapshot.members}
    print(f"moved {before} of {sorted(others)}; loads then {sorted(loads.values())}")
    assert all(load > 0 for load in loads.values())
    scene.wait_until_drained()
    scene.check_acked_log()
    numbers = scene.executed()
    assert len(numbers) == len(set(numbers)) == scene.sent


def test_a_worker_of_capacity_three_is_given_three_quarters(scene: Scene) -> None:
    """At its join, before anything is measured."""
    scene.worker("w1", **WEIGHTED)
    scene.wait_for_owners({"w1": 8})
    scene.worker("w2", **WEIGHTED, STREAMWORKER_CAPACITY="3")
    scene.wait_for_owners({"w1": 2, "w2": 6})
    assert {member.name: member.capacity for member in scene.snapshot().members} == {"w1": 1, "w2": 3}


def test_a_worker_that_joins_later_is_given_its_share_of_what_was_measured(scene: Scene) -> None:
    """Not half of the partitions, but about half of the work."""
    # As much work as all others together, and no more: what cannot be shared cannot be judged.
    environ = {**WEIGHTED, **HOT, "HOT_S": "0.01"}
    with scene.steady_load():
        scene.worker("w1", **environ)
        scene.wait_for_owners({"w1": 8})
        wait_for(lambda: scene.snapshot().rebalances[-1].cause == "weights", "the weights are known")
        scene.worker("w2", **environ)
        wait_for(lambda: len(scene.owners()) == 2, "both work")
        wait_for(lambda: all(member.load for member in scene.snapshot().members), "both have measured")
        wait_for(lambda: rest_ms(scene) >= 1_000, "it rests", 40)
        loads = [member.load for member in scene.snapshot().members]
    print(f"loads {loads}, partitions {scene.owners()}")
    assert abs(scene.owners()["w1"] - scene.owners()["w2"]) >= 2
    assert max(loads) <= 2 * min(loads), loads
