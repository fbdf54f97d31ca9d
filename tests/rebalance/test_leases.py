"""Rebalances by the lease-grab race, with real workers."""

from pathlib import Path

import pytest
import redis

from streamworker.redisio.keys import GroupKeys
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.rebalance.scene import FAST, Scene

pytestmark = pytest.mark.timeout(180)

LEASE = {
    **FAST,
    "COORDINATION": "lease",
    "STREAMWORKER_LEASE_NORMAL_MS": "1500",
    "STREAMWORKER_LEASE_MAX_MS": "5000",
    "STREAMWORKER_LEASE_MAX_SHUTDOWN_MS": "2000",
    "STREAMWORKER_LEASE_MIN_GRAB_MS": "1000",
}
"""Short spans; the relations are those of the defaults."""


@pytest.fixture
def scene(redis_url: str, spawn: SpawnWorker, tmp_path: Path) -> Scene:
    return Scene(redis_url, spawn, tmp_path, partitions=8)


def is_even(scene: Scene, *names: str) -> bool:
    """Whether these workers hold all partitions, none of them two more than another."""
    owners = scene.owners()
    return (
        set(owners) == set(names)
        and sum(owners.values()) == scene.partitions
        and max(owners.values()) - min(owners.values()) <= 1
    )


def test_races_share_partitions_through_joins_a_leave_and_a_death_and_the_log_stays_right(
    scene: Scene,
) -> None:
    """Two join, one leaves, one is killed; the acked log holds each record once, in order."""
    with scene.steady_load():
        w1 = scene.worker("w1", **LEASE)
        scene.wait_for_owners({"w1": 8})
        w2 = scene.worker("w2", **LEASE)
        wait_for(lambda: is_even(scene, "w1", "w2"), "two workers share the partitions", 30)
        scene.worker("w3", **LEASE)
        wait_for(lambda: is_even(scene, "w1", "w2", "w3"), "three workers share the partitions", 30)
        w1.terminate()
        assert w1.wait() == 0, w1.log()
        wait_for(lambda: is_even(scene, "w2", "w3"), "what it had is shared by the others", 30)
        w2.kill()
        scene.wait_for_owners({"w3": 8}, 30)
    scene.wait_until_drained()
    scene.check_acked_log()


def test_a_worker_that_leaves_leaves_nothing_in_the_hashes(scene: Scene, redis_url: str) -> None:
    """SIGTERM: its allocations are cleared, and its wins; only the newest generation stays."""
    w1 = scene.worker("w1", **LEASE)
    scene.wait_for_owners({"w1": 8})
    w1.terminate()
    assert w1.wait() == 0, w1.log()
    keys = GroupKeys("ledger", "items", "record")
    with redis.Redis.from_url(redis_url) as client:
        assert client.hgetall(keys.of_group("allocation")) == {}
        assert client.hkeys(keys.of_group("grab")) == [b"last"]


def test_a_worker_that_slept_was_overtaken_cannot_commit_and_races_again(scene: Scene) -> None:
    """SIGSTOP for longer than the maximum shutdown time, then SIGCONT: fenced, and back at work."""
    environ = {**LEASE, "HANDLER_S": "0.3"}
    scene.worker("w1", **environ)
    scene.wait_for_owners({"w1": 8})
    w2 = scene.worker("w2", **environ)
    wait_for(lambda: is_even(scene, "w1", "w2"), "two workers share the partitions", 30)
    with scene.steady_load(200):
        scene.wait_until_busy(w2)
        w2.pause()
        scene.wait_for_owners({"w1": 8}, 30)
        w2.resume()
        wait_for(lambda: is_even(scene, "w1", "w2"), "the sleeper has its share again", 30)
    assert w2.running
    assert "partition_fenced" in w2.log()
    scene.wait_until_drained(60)
    # What it had in hand when it slept was executed again elsewhere, and is in the log once.
    scene.check_acked_log()
