"""Rebalances by claims of partitions, with real workers."""

import json
import time
from pathlib import Path

import pytest
import redis

from streamworker.redisio.keys import GroupKeys, StreamKeys
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.rebalance.scene import FAST, Scene

pytestmark = pytest.mark.timeout(180)

CLAIM = {
    **FAST,
    "COORDINATION": "claim",
    "STREAMWORKER_CLAIM_CYCLE_MS": "200",
    "STREAMWORKER_CLAIM_EXPIRY_MS": "1500",
}
"""Short spans; the relations are those of the defaults."""
KEYS = GroupKeys("ledger", "items", "record")


@pytest.fixture
def scene(redis_url: str, spawn: SpawnWorker, tmp_path: Path) -> Scene:
    return Scene(redis_url, spawn, tmp_path, partitions=8)


def shares(scene: Scene) -> list[int]:
    """Return how many partitions each worker holds, the most first."""
    return sorted(scene.owners().values(), reverse=True)


def test_claims_share_partitions_through_joins_a_leave_and_a_death_and_the_log_stays_right(
    scene: Scene,
) -> None:
    """Two join, one leaves, one is killed; the acked log holds each record once, in order."""
    with scene.steady_load():
        w1 = scene.worker("w1", **CLAIM)
        scene.wait_for_owners({"w1": 8})
        w2 = scene.worker("w2", **CLAIM)
        scene.wait_for_owners({"w1": 4, "w2": 4})
        scene.worker("w3", **CLAIM)
        wait_for(lambda: shares(scene) == [3, 3, 2], "three workers share the partitions", 30)
        w1.terminate()
        assert w1.wait() == 0, w1.log()
        scene.wait_for_owners({"w2": 4, "w3": 4})
        w2.kill()
        scene.wait_for_owners({"w3": 8})
    scene.wait_until_drained()
    scene.check_acked_log()


def test_a_thief_waits_for_the_batch_in_hand_and_nothing_runs_twice(scene: Scene) -> None:
    """The worker that was stolen from notices on its next cycle, drains and releases."""
    w1 = scene.worker("w1", **CLAIM, HANDLER_S="0.3", BATCH="5")
    scene.wait_for_owners({"w1": 8})
    with scene.steady_load(200):
        scene.wait_until_busy(w1)
        scene.worker("w2", **CLAIM)
        scene.wait_for_owners({"w1": 4, "w2": 4})
    scene.wait_until_drained()
    scene.check_acked_log()
    assert sorted(scene.executed()) == list(range(scene.sent)), "a record was executed twice or never"


def test_a_worker_that_leaves_gives_up_its_entries(scene: Scene, redis_url: str) -> None:
    """SIGTERM: others need not wait until they expire; only the newest ETag stays."""
    w1 = scene.worker("w1", **CLAIM)
    scene.wait_for_owners({"w1": 8})
    with redis.Redis.from_url(redis_url) as client:
        assert len(client.hkeys(KEYS.of_group("claims"))) == 9
        w1.terminate()
        assert w1.wait() == 0, w1.log()
        assert client.hkeys(KEYS.of_group("claims")) == [b"last"]
    assert scene.owners() == {}


def test_a_worker_that_slept_cannot_commit_and_takes_part_again(scene: Scene) -> None:
    """SIGSTOP for longer than the expiry: its partitions are claimed, and come back by claims."""
    w1, _ = scene.worker("w1", **CLAIM), scene.worker("w2", **CLAIM)
    scene.wait_for_owners({"w1": 4, "w2": 4})
    with scene.steady_load():
        wait_for(lambda: len(scene.calls()) > 20, "both are busy")
        w1.pause()
        scene.wait_for_owners({"w2": 8})
        w1.resume()
        scene.wait_for_owners({"w1": 4, "w2": 4})
    scene.wait_until_drained()
    scene.check_acked_log()


def test_partitions_that_are_added_are_claimed(scene: Scene, redis_url: str) -> None:
    """The number of partitions is read each cycle; records begin at the earliest one."""
    scene.worker("w1", **CLAIM)
    scene.wait_for_owners({"w1": 8})
    with redis.Redis.from_url(redis_url) as client:
        client.hset(StreamKeys("ledger", "items").meta, "partitions", 9)
        client.xadd(KEYS.events(8), {"v": json.dumps({"key": "k", "n": 0})})
        wait_for(lambda: client.hget(KEYS.lock(8), "owner"), "the new partition has an owner")
        wait_for(lambda: client.xlen(KEYS.acked(8)) == 1, "its first record is in the log")


def test_workers_claim_anew_after_the_database_was_emptied(scene: Scene, redis_url: str) -> None:
    """FLUSHALL: the entries come back in one cycle, and new records are handled."""
    scene.worker("w1", **CLAIM)
    scene.worker("w2", **CLAIM)
    scene.wait_for_owners({"w1": 4, "w2": 4})
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        start = time.monotonic()
        wait_for(lambda: len(client.hkeys(KEYS.of_group("claims"))) == 9, "all is claimed again")
        print(f"claimed again after {time.monotonic() - start:.2f} s")
    scene.send(200)
    scene.wait_for_owners({"w1": 4, "w2": 4})
    scene.wait_until_drained()
    assert set(scene.executed()) == set(range(scene.sent))
