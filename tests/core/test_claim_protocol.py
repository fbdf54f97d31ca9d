"""What the claim protocol does when a partition is handed over, in the simulator's world.

The document's worked examples are the transcripts tests/protocol/002-*.txt.
"""

from dataclasses import replace

import pytest

from streamworker.core.protocols.claim.settings import Claim
from streamworker.redisio.group.operations_claim import CLAIMS
from tests.core.groups import check, running, until
from tests.simulator.faults import QUIET
from tests.simulator.world import World

LONGEST_CYCLE_MS = Claim().cycle_ms * 11 // 10 + 50
"""With its spread, and the calls."""
DRAIN_DEADLINE_MS = 12_000
BATCH_MS = 50
USUAL = replace(QUIET, latency_ms=5, batch_ms=BATCH_MS)


def sharing(seed: int, *, workers: int, partitions: int) -> World:
    """Return a world in which some workers have shared the partitions by claims."""
    world = World(seed, partitions=partitions, protocol="claim", drain_deadline_ms=DRAIN_DEADLINE_MS)
    world.conditions = world.usual = USUAL
    for _ in range(workers):
        world.start()
    until(world, lambda: world.is_settled, "the partitions are shared", 60_000)
    return world


def claimants(world: World) -> list[str]:
    """Return the owners in the entries."""
    return [entry.decode().split("|", 4)[4] for entry in world.server.shares(CLAIMS).values()]


def test_a_thief_overtakes_who_does_not_release_at_the_drain_deadline() -> None:
    """A handler that cannot be stopped keeps no partition for ever; its commits are refused."""
    world = sharing(0, workers=1, partitions=2)
    (stuck,) = world.workers
    world.conditions = replace(USUAL, stuck=1.0)
    until(world, lambda: all(each.busy for each in stuck.runners.values()), "both handle an entry", 10_000)
    world.clock.run_for(BATCH_MS)
    for runner in stuck.runners.values():
        runner.stubborn = True
    world.conditions = USUAL
    thief = world.start()
    took_ms = until(world, lambda: len(running(thief)) == 1, "it is overtaken", 30_000)
    assert DRAIN_DEADLINE_MS <= took_ms <= DRAIN_DEADLINE_MS + 3 * LONGEST_CYCLE_MS
    assert world.server.overtaken == 1
    world.clock.run_for(30_000)
    assert world.server.fenced == 1
    check(world)


@pytest.mark.parametrize("seed", range(3))
def test_what_a_worker_gives_up_is_claimed_at_once_and_then_nothing_moves(seed: int) -> None:
    """Nobody waits for the expiry of who leaves, and nobody overtakes it."""
    world = sharing(seed, workers=2, partitions=8)
    leaving = world.workers[0]
    world.stop(leaving)
    until(world, lambda: leaving.finished, "it has left", 2_000)
    assert leaving.owner not in claimants(world)
    took_ms = until(world, lambda: world.is_settled, "the other has its partitions", 10_000)
    assert took_ms <= 5 * LONGEST_CYCLE_MS
    epochs = [its.epoch for its in world.server.partitions]
    world.clock.run_for(3 * Claim().expiry_ms)
    moved = [its.epoch for its in world.server.partitions] != epochs
    assert not moved, "partitions moved although all was balanced"
    assert (world.server.fenced, world.server.overtaken) == (0, 0)
    check(world)


def test_who_leaves_before_it_owns_anything_just_leaves() -> None:
    """Also when its first claim is won while it leaves."""
    for after_ms in range(0, 30, 3):
        world = World(after_ms, partitions=3, protocol="claim")
        worker = world.start()
        world.clock.run_for(after_ms)
        world.stop(worker)
        until(world, lambda worker=worker: worker.finished, "it has left", 2_000)  # type: ignore[misc]
        assert claimants(world) == []
        assert {lock.owner for lock in world.server.partitions} == {""}
