"""Rebalances by each protocol, with real workers."""

import json
from collections.abc import Mapping

import pytest
import redis

from streamworker.redisio.keys import StreamKeys
from tests.helpers import wait_for
from tests.rebalance.scene import CLAIM, KEYS, LEASE, STEADY, Scene

pytestmark = pytest.mark.timeout(180)
full = pytest.mark.full("sessions and holds run out, and how long partitions stand still is measured")

STICKY = {**STEADY, "ASSIGNMENT": "sticky"}


def moved(scene: Scene) -> list[tuple[str, int]]:
    """Return cause and number of moves of each rebalance, oldest first."""
    return [(each.cause, len(each.moved)) for each in scene.snapshot().rebalances]


@full
@pytest.mark.parametrize("environ", [STEADY, STICKY, CLAIM, LEASE], ids=["range", "sticky", "claim", "lease"])
def test_partitions_follow_joins_a_leave_and_a_death_and_nothing_is_lost_or_repeated_in_the_log(
    scene: Scene, environ: Mapping[str, str]
) -> None:
    """Two join, one leaves, one is killed. Sticky workers keep what they have."""
    with scene.steady_load():
        w1 = scene.worker("w1", **environ)
        scene.wait_for_owners({"w1": 8})
        w2 = scene.worker("w2", **environ)
        scene.wait_until_even("w1", "w2")
        scene.worker("w3", **environ)
        scene.wait_until_even("w1", "w2", "w3")
        if "COORDINATION" not in environ:
            assert scene.owners() == {"w1": 3, "w2": 3, "w3": 2}
        epochs = {view.partition: view.epoch for view in scene.held_by("w3")}
        w1.terminate()
        assert w1.wait() == 0, w1.log()
        scene.wait_until_even("w2", "w3")
        w2.kill()
        scene.wait_for_owners({"w3": 8})
        after = {view.partition: view.epoch for view in scene.held_by("w3")}
    scene.wait_until_drained()
    scene.check_acked_log()
    causes = ["join", "join", "join", "leave", "left", "death"]
    if environ is STEADY:
        assert [cause for cause, _ in moved(scene)] == causes
    if environ is STICKY:
        assert moved(scene) == list(zip(causes, (8, 4, 2, 3, 0, 4), strict=True))
        assert {p: after[p] for p in epochs} == epochs, "a partition that stayed was released meanwhile"


@pytest.mark.parametrize(
    ("environ", "left"),
    [(CLAIM, {"claims": [b"last"]}), (LEASE, {"allocation": [], "grab": [b"last"]})],
    ids=["claim", "lease"],
)
def test_a_worker_that_leaves_gives_up_its_entries(
    scene: Scene, redis_url: str, environ: Mapping[str, str], left: Mapping[str, list[bytes]]
) -> None:
    """SIGTERM: others need not wait until they expire; only the newest ETag or generation stays."""
    w1 = scene.worker("w1", **environ)
    scene.wait_for_owners({"w1": 8})
    with redis.Redis.from_url(redis_url) as client:
        first = KEYS.of_group(next(iter(left)))
        # With leases a worker that has the lock enters its allocation afterwards.
        wait_for(lambda: client.hlen(first) >= 8, "it has its entries")
        w1.terminate()
        assert w1.wait() == 0, w1.log()
        assert {name: client.hkeys(KEYS.of_group(name)) for name in left} == left
    assert scene.owners() == {}


@full
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


@full
def test_partitions_that_are_added_are_claimed(scene: Scene, redis_url: str) -> None:
    """The number of partitions is read each cycle; records begin at the earliest one."""
    scene.worker("w1", **CLAIM)
    scene.wait_for_owners({"w1": 8})
    with redis.Redis.from_url(redis_url) as client:
        client.hset(StreamKeys("ledger", "items").meta, "partitions", 9)
        client.xadd(KEYS.events(8), {"v": json.dumps({"key": "k", "n": 0})})
        wait_for(lambda: client.hget(KEYS.lock(8), "owner"), "the new partition has an owner")
        wait_for(lambda: client.xlen(KEYS.acked(8)) == 1, "its first record is in the log")


@full
def test_workers_claim_anew_after_the_database_was_emptied(scene: Scene, redis_url: str) -> None:
    """FLUSHALL: the entries come back in one cycle, and new records are handled."""
    scene.worker("w1", **CLAIM)
    scene.worker("w2", **CLAIM)
    scene.wait_for_owners({"w1": 4, "w2": 4})
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        wait_for(lambda: client.hlen(KEYS.of_group("claims")) == 9, "all is claimed again")
    scene.send(200)
    scene.wait_for_owners({"w1": 4, "w2": 4})
    scene.wait_until_drained()
    assert set(scene.executed()) == set(range(scene.sent))
