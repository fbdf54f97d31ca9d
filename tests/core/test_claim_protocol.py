"""What the claim protocol does when partitions are handed over and things go wrong, in the simulator's world.

The document's worked examples are the transcripts tests/protocol/002-*.txt.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from streamworker.core.protocols.claim.settings import Claim
from tests.core.groups import NotingWorld, causes, check, pause, until
from tests.simulator.faults import QUIET
from tests.simulator.simulation import Schedule, run
from tests.simulator.worker import SimWorker

CYCLE_MS, EXPIRY_MS = Claim().cycle_ms, Claim().expiry_ms
LONGEST_CYCLE_MS = CYCLE_MS + CYCLE_MS // 10 + 50
"""With its spread, and the calls."""
DRAIN_DEADLINE_MS = 12_000
BATCH_MS = 50


class Group(NotingWorld):
    """Workers that share partitions by claims, and what an observer counts."""

    def __init__(self, partitions: int, seed: int = 0) -> None:
        super().__init__(
            seed,
            partitions=partitions,
            protocol="claim",
            drain_deadline_ms=DRAIN_DEADLINE_MS,
        )
        self.conditions = self.usual = replace(QUIET, latency_ms=5, batch_ms=BATCH_MS)

    @property
    def displaced(self) -> int:
        """How often a lock was taken while somebody else had it."""
        return sum(bool(change.owner_before) for change in self.starts)

    def start_some(self, count: int) -> list[SimWorker]:
        return [self.start() for _ in range(count)]

    @property
    def store(self) -> Any:
        return self.model.extension

    def shares(self) -> list[int]:
        """Return how many partitions each worker that is there handles, the most first."""
        there = [worker for worker in self.workers if worker.alive and not worker.finished]
        return sorted((len(running(worker)) for worker in there), reverse=True)

    def settles_at(self, *shares: int, within_ms: int = 60_000) -> int:
        """Wait until the workers handle so many partitions each, and nothing moves any more."""
        took_ms = until(self, has(self, *shares), f"{shares}, and not {self.shares()}", within_ms)
        before = len(self.starts)
        self.clock.run_for(3 * EXPIRY_MS)
        assert self.shares() == list(shares)
        assert len(self.starts) == before, "partitions moved although all was balanced"
        check(self)
        return took_ms


def running(worker: SimWorker) -> set[int]:
    return {p for p, runner in worker.runners.items() if not runner.ended}


def has(group: Group, *shares: int) -> Callable[[], bool]:
    return lambda: group.shares() == list(shares)


seeds = pytest.mark.parametrize("seed", range(8))


# -- handing over ------------------------------------------------------------------------------


def test_a_thief_overtakes_who_does_not_release_at_the_drain_deadline() -> None:
    """A handler that cannot be stopped keeps no partition for ever; its commits are refused."""
    group = Group(2)
    stuck = group.start()
    group.settles_at(2)
    group.conditions = replace(group.usual, stuck=1.0)
    until(
        group, lambda: all(runner.busy for runner in stuck.runners.values()), "both handle an entry", 10_000
    )
    group.clock.run_for(BATCH_MS)
    for runner in stuck.runners.values():
        runner.stubborn = True
    group.conditions = group.usual
    thief = group.start()
    took_ms = until(group, lambda: len(running(thief)) == 1, "it is overtaken", 30_000)
    assert DRAIN_DEADLINE_MS <= took_ms <= DRAIN_DEADLINE_MS + 3 * LONGEST_CYCLE_MS
    assert group.model.overtaken == 1
    group.clock.run_for(30_000)
    assert group.model.fenced == 1
    check(group)


@seeds
def test_who_leaves_drains_releases_and_gives_up_its_entries(seed: int) -> None:
    """Others claim at once what it had; nobody waits for the expiry."""
    group = Group(8, seed)
    group.start_some(2)
    group.settles_at(4, 4)
    leaving = group.workers[0]
    group.stop(leaving)
    until(group, lambda: leaving.finished, "it has left", 2_000)
    assert leaving.owner not in {entry.owner for entry in group.store.entries.values()}
    assert leaving.owner not in {lock.owner for lock in group.model.locks}
    assert group.settles_at(8) <= 5 * LONGEST_CYCLE_MS
    assert group.displaced == 0


def test_who_leaves_before_it_owns_anything_just_leaves() -> None:
    """Also when its first claim is won while it leaves."""
    for after_ms in range(30):
        group = Group(3, seed=after_ms)
        worker = group.start()
        group.clock.run_for(after_ms)
        group.stop(worker)
        until(group, lambda worker=worker: worker.finished, "it has left", 2_000)  # type: ignore[misc]
        assert group.store.entries == {}
        assert {lock.owner for lock in group.model.locks} == {""}


# -- trouble -----------------------------------------------------------------------------------


@seeds
def test_a_worker_that_slept_finds_its_partitions_claimed_and_takes_part_again(seed: int) -> None:
    """It drains what it lost, is fenced where it would commit, and balances by claims."""
    group = Group(6, seed)
    group.start_some(2)
    group.settles_at(3, 3)
    sleeper, other = group.workers
    group.conditions = replace(group.usual, batch_ms=2_000)
    group.clock.run_for(2_000)
    until(group, lambda: all(r.busy for r in sleeper.runners.values()), "it has batches in hand", 60_000)
    pause(group, sleeper, 30_000)
    until(group, lambda: len(running(other)) == 6, "its partitions are claimed", 30_000)
    until(group, lambda: not sleeper.paused, "it wakes", 30_000)
    group.settles_at(3, 3)
    assert group.model.fenced > 0


@seeds
def test_lost_answers_leave_no_partition_unhandled_and_none_handled_twice(seed: int) -> None:
    """A quarter of all calls fails, some of these were done; then all is well, and balance comes."""
    group = Group(12, seed)
    group.start_some(3)
    group.conditions = replace(group.usual, lost=0.25)
    group.clock.run_for(60_000)
    group.kill(group.workers[0])
    group.start()
    group.clock.run_for(60_000)
    group.conditions = group.usual
    group.settles_at(4, 4, 4)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_the_partitions_are_shared_in_the_end(seed: int) -> None:
    """All faults of the simulator, in any order; after them each partition is handled, evenly."""
    outcome = run(Schedule(seed=seed, protocol="claim", partitions=16))
    assert outcome.violations == ()
    assert outcome.settled_ms is not None


def test_the_record_says_who_claimed_and_who_stole() -> None:
    """`streamworker history` shows it, as it shows the changes of a membership."""
    group = Group(4)
    group.start()
    group.settles_at(4)
    assert causes(group) == ["claim"] * 4
    group.start()
    group.settles_at(2, 2)
    assert causes(group) == ["claim"] * 4 + ["steal"] * 2
