"""The claim protocol's worked examples, and what it does when things go wrong, in the simulator's world.

The examples are those of the document (docs/protocols/claim.md has it sentence by sentence); each is
run from several seeds. Step by step they are in tests/protocol.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from streamworker.core.events import Effect
from streamworker.core.protocols.claim.events import ClaimPartitions
from streamworker.core.protocols.claim.settings import Claim
from streamworker.core.protocols.registry import Coordinator
from tests.core.groups import Around, NotingWorld, causes, check, pause, until
from tests.simulator.faults import QUIET, Fault, FaultKind
from tests.simulator.process import CALL_TIMEOUT_MS
from tests.simulator.simulation import Schedule, run
from tests.simulator.worker import SimWorker

CYCLE_MS, EXPIRY_MS = Claim().cycle_ms, Claim().expiry_ms
LONGEST_CYCLE_MS = CYCLE_MS + CYCLE_MS // 10 + 50
"""With its spread, and the calls."""
DRAIN_DEADLINE_MS = 12_000
BATCH_MS = 50


class Spied(Around):
    """A core of which is known what it asked for."""

    def __init__(self, core: Coordinator) -> None:
        super().__init__(core)
        self.asked: list[Effect] = []

    def after(self, effects: list[Effect]) -> list[Effect]:
        self.asked += effects
        return effects


class Group(NotingWorld):
    """Workers that share partitions by claims, and what an observer counts."""

    def __init__(self, partitions: int, seed: int = 0) -> None:
        super().__init__(
            seed,
            partitions=partitions,
            protocol="claim",
            drain_deadline_ms=DRAIN_DEADLINE_MS,
            wrap=Spied,
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


# -- the worked examples -----------------------------------------------------------------------


@seeds
def test_scenario_1_one_worker_claims_five_partitions_one_a_cycle(seed: int) -> None:
    """5 partitions, 1 worker: the first is a random one, and each cycle brings one more."""
    group = Group(5, seed)
    worker = group.start()
    for claimed in range(1, 6):
        took_ms = until(group, has(group, claimed), f"{claimed} are handled", LONGEST_CYCLE_MS)
        assert took_ms >= CYCLE_MS - 50 or claimed == 1, "two claims in one cycle"
    group.settles_at(5)
    assert running(worker) == set(range(5))


def test_scenario_1_the_first_partition_is_a_random_one() -> None:
    """Over some seeds each one comes up."""
    firsts = set()
    for seed in range(40):
        group = Group(5, seed)
        worker = group.start()
        until(group, has(group, 1), "the first claim", 1_000)
        firsts |= running(worker)
    assert firsts == set(range(5))


@seeds
def test_scenario_2_a_sixth_worker_stays_inactive_until_one_of_five_goes_down(seed: int) -> None:
    """5 / 6 = 0 and 5 % 6 = 5: five own 1 partition, and one owns none and keeps looking."""
    group = Group(5, seed)
    group.start_some(5)
    group.settles_at(1, 1, 1, 1, 1)
    sixth = group.start()
    group.settles_at(1, 1, 1, 1, 1, 0)
    assert isinstance(sixth.core, Spied)
    assert sixth.core.asked
    assert not any(isinstance(effect, ClaimPartitions) for effect in sixth.core.asked)
    group.kill(group.workers[2])
    took_ms = group.settles_at(1, 1, 1, 1, 1)
    assert len(running(sixth)) == 1
    assert took_ms <= EXPIRY_MS + 2 * LONGEST_CYCLE_MS


@seeds
def test_scenario_3_a_fourth_worker_steals_until_eighteen_partitions_are_balanced(seed: int) -> None:
    """18 / 4 = 4 and 18 % 4 = 2: two own 4 and two own 5, and no more moves than that takes."""
    group = Group(18, seed)
    group.start_some(3)
    group.settles_at(6, 6, 6)
    before = len(group.starts)
    group.start()
    took_ms = group.settles_at(5, 5, 4, 4)
    assert len(group.starts) - before == 4
    assert took_ms <= 5 * LONGEST_CYCLE_MS, "one steal a cycle"
    assert group.displaced == 0


@seeds
def test_scenario_4_three_workers_claim_what_a_fourth_left_when_it_went_down(seed: int) -> None:
    """20 / 3 = 6 and 20 % 3 = 2: one owns 6 and two own 7, and nobody is stolen from."""
    group = Group(20, seed)
    group.start_some(4)
    group.settles_at(5, 5, 5, 5)
    before, changes = len(group.starts), len(causes(group))
    group.kill(group.workers[0])
    took_ms = group.settles_at(7, 7, 6)
    assert len(group.starts) - before == 5
    assert EXPIRY_MS - LONGEST_CYCLE_MS <= took_ms <= EXPIRY_MS + 4 * LONGEST_CYCLE_MS
    assert causes(group)[changes:] == ["claim"] * 5


@seeds
def test_scenario_5_partitions_that_were_added_are_claimed(seed: int) -> None:
    """25 / 4 = 6 and 25 % 4 = 1: three own 6 and one owns 7; the count is read in each cycle."""
    group = Group(20, seed)
    group.start_some(4)
    group.settles_at(5, 5, 5, 5)
    before = len(group.starts)
    group.grow(25)
    took_ms = group.settles_at(7, 6, 6, 6)
    assert len(group.starts) - before == 5
    assert took_ms <= 4 * LONGEST_CYCLE_MS


@seeds
def test_workers_that_start_at_once_share_the_partitions_without_moving_one_twice(seed: int) -> None:
    """Their claims collide, and one of each two wins; a partition in dispute is handled by one."""
    group = Group(24, seed)
    group.start_some(8)
    group.settles_at(*[3] * 8)
    assert group.displaced == 0
    assert len(group.starts) <= 24 + 12, "stealing is for who came too late"


# -- handing over ------------------------------------------------------------------------------


@seeds
def test_a_thief_waits_until_the_batch_in_hand_is_done(seed: int) -> None:
    """The worker that was stolen from drains, releases, and says so; the lock waits for it."""
    group = Group(6, seed)
    group.conditions = replace(group.usual, batch_ms=5_000)
    group.start()
    group.settles_at(6)
    group.start()
    group.settles_at(3, 3)
    assert (group.displaced, group.model.overtaken, group.model.fenced) == (0, 0, 0)
    assert max(group.checker.executions.values()) == 1


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
def test_a_worker_that_cannot_renew_starts_no_batch_before_its_claims_expire(seed: int) -> None:
    """By its own clock, one cycle earlier; and again once it could renew."""
    group = Group(4, seed)
    worker = group.start()
    group.settles_at(4)
    group.happen(Fault(0, FaultKind.CUT, 0, EXPIRY_MS))
    last_ms = max(entry.modified_ms for entry in group.store.entries.values())
    until(group, lambda: worker.batches_paused, "it pauses", EXPIRY_MS)
    assert group.clock.now_ms < last_ms + EXPIRY_MS
    again_ms = EXPIRY_MS + 2 * CYCLE_MS + CALL_TIMEOUT_MS
    until(group, lambda: not worker.batches_paused, "it goes on", again_ms)
    assert running(worker) == set(range(4)), "nobody else was there to claim them"


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


@seeds
def test_the_store_comes_back_from_what_is_owned(seed: int) -> None:
    """After FLUSHALL each worker claims anew, in one cycle, what it had; nothing moves."""
    group = Group(12, seed)
    group.start_some(3)
    group.settles_at(4, 4, 4)
    before = len(group.starts)
    owned = {worker.name: running(worker) for worker in group.workers}
    group.model.empty_store()
    group.settles_at(4, 4, 4)
    assert len(group.starts) == before
    assert {worker.name: running(worker) for worker in group.workers} == owned


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
