"""Assignments with real workers: which partitions move when one joins, leaves or dies."""

import pytest

from tests.helpers import WorkerProcess, wait_for
from tests.rebalance.scene import FAST, STEADY, Scene
from tests.rebalance.test_protocols import moved

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.full("sessions and holds run out, and how long partitions stand still is measured"),
]


def test_a_rolling_restart_with_another_assignment_changes_that_of_the_group(scene: Scene) -> None:
    """The group goes on with the assignment of the worker that joined last."""
    w1 = scene.worker("w1", **STEADY)
    scene.wait_for_owners({"w1": 8})
    scene.worker("w2", **STEADY, ASSIGNMENT="sticky")
    scene.wait_for_owners({"w1": 4, "w2": 4})
    w1.terminate()
    assert w1.wait() == 0, w1.log()
    scene.wait_for_owners({"w2": 8})
    # By range the fourth worker's join would move 3 partitions.
    scene.worker("w3", **STEADY, ASSIGNMENT="sticky")
    scene.wait_for_owners({"w2": 4, "w3": 4})
    scene.worker("w4", **STEADY, ASSIGNMENT="sticky")
    scene.wait_for_owners({"w2": 3, "w3": 3, "w4": 2})
    assert moved(scene)[-1] == ("join", 2)


def epochs(scene: Scene) -> dict[int, int]:
    return {view.partition: view.epoch for view in scene.snapshot().partitions}


def wait_until_acquired(scene: Scene, held: set[int], before: dict[int, int]) -> None:
    """Wait until some locks were acquired once more, and the others were not."""

    def acquired() -> set[int]:
        return {partition for partition, epoch in epochs(scene).items() if epoch != before[partition]}

    wait_for(lambda: acquired() == held, "each has what it had, and nobody has more")


def test_a_rolling_restart_of_static_workers_gives_no_partition_to_another(scene: Scene) -> None:
    """Each partition is acquired once more, by the worker that had it; one worker is killed."""
    names = ("w1", "w2", "w3")

    def start(name: str) -> WorkerProcess:
        return scene.worker(name, **STEADY, STREAMWORKER_STATIC_ID=name)

    with scene.steady_load():
        workers = {name: start(name) for name in names}
        wait_for(lambda: sorted(scene.owners().values()) == [2, 3, 3], "all work")
        held = {name: {view.partition for view in scene.held_by(name)} for name in names}
        seen = len(scene.snapshot().rebalances)
        for name in names:
            before = epochs(scene)
            if name == "w3":
                workers[name].kill()
                wait_for(lambda: scene.snapshot().rebalances[-1].cause == "death", "it is missed")
            else:
                workers[name].terminate()
                assert workers[name].wait() == 0, workers[name].log()
            states = {member.name: member.state for member in scene.snapshot().members}
            assert states[name] == "held"
            start(name)
            wait_until_acquired(scene, held[name], before)
            assert {view.partition for view in scene.held_by(name)} == held[name]
    scene.wait_until_drained()
    scene.check_acked_log()
    causes = ["leave", "left", "return", "leave", "left", "return", "death", "return"]
    assert moved(scene)[seen:] == [(cause, 0) for cause in causes]


def test_the_partitions_of_a_static_worker_are_given_away_when_its_hold_is_over(scene: Scene) -> None:
    """By the server's clock; until then nobody takes them."""
    environ = {**FAST, "STREAMWORKER_HOLD_MS": "2000"}
    scene.worker("w1", **environ)
    scene.wait_for_owners({"w1": 8})
    w2 = scene.worker("w2", "--static-id", "w2", **environ)
    scene.wait_for_owners({"w1": 4, "w2": 4})
    w2.terminate()
    assert w2.wait() == 0, w2.log()
    scene.wait_for_owners({"w1": 8})
    left, over = scene.snapshot().rebalances[-2:]
    assert (left.cause, left.moved) == ("left", ())
    assert (over.cause, over.member, len(over.moved)) == ("hold-expired", "w2", 4)
    assert over.at_ms - left.at_ms >= 2_000 - 300, "a heartbeat's time before the hold was over, or more"


def test_of_two_workers_with_one_static_id_the_earlier_one_ends_and_says_why(scene: Scene) -> None:
    """They would take each other's partitions for ever."""
    first = scene.worker("w1", **FAST, STREAMWORKER_STATIC_ID="same")
    scene.wait_for_owners({"w1": 8})
    scene.worker("w2", **FAST, STREAMWORKER_STATIC_ID="same")
    assert first.wait() != 0
    assert "'w2'" in first.log() and "static id of its own" in first.log()
    scene.wait_for_owners({"w2": 8})
