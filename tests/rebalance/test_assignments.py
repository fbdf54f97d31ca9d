"""Assignments with real workers: which partitions move when one joins, leaves or dies."""

from pathlib import Path

import pytest

from tests.conftest import SpawnWorker
from tests.rebalance.scene import FAST, Scene

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def scene(redis_url: str, spawn: SpawnWorker, tmp_path: Path) -> Scene:
    """Eight partitions, and nobody there yet."""
    return Scene(redis_url, spawn, tmp_path, partitions=8)


def moved(scene: Scene) -> list[tuple[str, int]]:
    """Return cause and number of moves of each rebalance, oldest first."""
    return [(each.cause, len(each.moved)) for each in scene.snapshot().rebalances]


def test_sticky_workers_keep_what_they_have_when_others_join_leave_and_die(scene: Scene) -> None:
    """Each change moves the fewest partitions that balance allows, and the log is whole."""
    environ = {**FAST, "ASSIGNMENT": "sticky"}
    with scene.steady_load():
        w1 = scene.worker("w1", **environ)
        scene.wait_for_owners({"w1": 8})
        w2 = scene.worker("w2", **environ)
        scene.wait_for_owners({"w1": 4, "w2": 4})
        scene.worker("w3", **environ)
        scene.wait_for_owners({"w1": 3, "w2": 3, "w3": 2})
        epochs = {view.partition: view.epoch for view in scene.held_by("w3")}
        w1.terminate()
        assert w1.wait() == 0, w1.log()
        scene.wait_for_owners({"w2": 4, "w3": 4})
        w2.kill()
        scene.wait_for_owners({"w3": 8})
        after = {view.partition: view.epoch for view in scene.held_by("w3")}
    assert {p: after[p] for p in epochs} == epochs, "a partition that stayed was released meanwhile"
    scene.wait_until_drained()
    scene.check_acked_log()
    assert moved(scene) == [("join", 8), ("join", 4), ("join", 2), ("leave", 3), ("left", 0), ("death", 4)]


def test_a_rolling_restart_with_another_assignment_changes_that_of_the_group(scene: Scene) -> None:
    """The group goes on with the assignment of the worker that joined last."""
    w1 = scene.worker("w1", **FAST)
    scene.wait_for_owners({"w1": 8})
    scene.worker("w2", **FAST, ASSIGNMENT="sticky")
    scene.wait_for_owners({"w1": 4, "w2": 4})
    w1.terminate()
    assert w1.wait() == 0, w1.log()
    scene.wait_for_owners({"w2": 8})
    # By range the fourth worker's join would move 3 partitions.
    scene.worker("w3", **FAST, ASSIGNMENT="sticky")
    scene.wait_for_owners({"w2": 4, "w3": 4})
    scene.worker("w4", **FAST, ASSIGNMENT="sticky")
    scene.wait_for_owners({"w2": 3, "w3": 3, "w4": 2})
    assert moved(scene)[-1] == ("join", 2)
