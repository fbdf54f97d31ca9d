"""The claim protocol's worked examples, and what it does when things go wrong, in virtual time.

The examples are those of the document (docs/protocols/claim.md has it sentence by sentence); each is
run from several seeds.
"""

from collections.abc import Callable
from random import Random

import pytest

from streamworker.core.claim_events import ClaimPartitions
from streamworker.core.claim_timing import ClaimTiming
from streamworker.core.control import GroupChanged
from tests.core.claim_world import DRAIN_DEADLINE_MS, World

CYCLE_MS, EXPIRY_MS = ClaimTiming().cycle_ms, ClaimTiming().expiry_ms
LONGEST_CYCLE_MS = CYCLE_MS + CYCLE_MS // 10 + 50
"""With its spread, and the calls."""


def has(world: World, *shares: int) -> Callable[[], bool]:
    """Return whether the workers that are there handle so many partitions each."""
    return lambda: world.shares() == list(shares)


seeds = pytest.mark.parametrize("seed", range(8))


# -- the worked examples -----------------------------------------------------------------------


@seeds
def test_scenario_1_one_worker_claims_five_partitions_one_a_cycle(seed: int) -> None:
    """5 partitions, 1 worker: the first is a random one, and each cycle brings one more."""
    world = World(5, seed)
    (worker,) = world.start()
    for claimed in range(1, 6):
        took_ms = world.run_until(has(world, claimed), f"{claimed} are handled", LONGEST_CYCLE_MS)
        assert took_ms >= CYCLE_MS - 50 or claimed == 1, "two claims in one cycle"
    world.settles_at(5)
    assert worker.core.owned == frozenset(range(5))


def test_scenario_1_the_first_partition_is_a_random_one() -> None:
    """Over some seeds each one comes up."""
    firsts = set()
    for seed in range(40):
        world = World(5, seed)
        (worker,) = world.start()
        world.run_until(has(world, 1), "the first claim", 1_000)
        firsts |= set(worker.running)
    assert firsts == set(range(5))


@seeds
def test_scenario_2_a_sixth_worker_stays_inactive_until_one_of_five_goes_down(seed: int) -> None:
    """5 / 6 = 0 and 5 % 6 = 5: five own 1 partition, and one owns none and keeps looking."""
    world = World(5, seed)
    world.start(5)
    world.settles_at(1, 1, 1, 1, 1)
    (sixth,) = world.start()
    world.settles_at(1, 1, 1, 1, 1, 0)
    assert not any(isinstance(call, ClaimPartitions) for call in sixth.calls)
    world.workers[2].kill()
    took_ms = world.settles_at(1, 1, 1, 1, 1)
    assert len(sixth.running) == 1
    assert took_ms <= EXPIRY_MS + 2 * LONGEST_CYCLE_MS


@seeds
def test_scenario_3_a_fourth_worker_steals_until_eighteen_partitions_are_balanced(seed: int) -> None:
    """18 / 4 = 4 and 18 % 4 = 2: two own 4 and two own 5, and no more moves than that takes."""
    world = World(18, seed)
    world.start(3)
    world.settles_at(6, 6, 6)
    before = world.starts.total()
    world.start()
    took_ms = world.settles_at(5, 5, 4, 4)
    assert world.starts.total() - before == 4
    assert took_ms <= 5 * LONGEST_CYCLE_MS, "one steal a cycle"
    assert world.overlaps == 0


@seeds
def test_scenario_4_three_workers_claim_what_a_fourth_left_when_it_went_down(seed: int) -> None:
    """20 / 3 = 6 and 20 % 3 = 2: one owns 6 and two own 7, and nobody is stolen from."""
    world = World(20, seed)
    world.start(4)
    world.settles_at(5, 5, 5, 5)
    before = world.starts.total()
    world.workers[0].kill()
    took_ms = world.settles_at(7, 7, 6)
    assert world.starts.total() - before == 5
    assert EXPIRY_MS - LONGEST_CYCLE_MS <= took_ms <= EXPIRY_MS + 4 * LONGEST_CYCLE_MS
    assert "steal" not in causes(world)[20:]


@seeds
def test_scenario_5_partitions_that_were_added_are_claimed(seed: int) -> None:
    """25 / 4 = 6 and 25 % 4 = 1: three own 6 and one owns 7; the count is read in each cycle."""
    world = World(20, seed)
    world.start(4)
    world.settles_at(5, 5, 5, 5)
    before = world.starts.total()
    world.grow(25)
    took_ms = world.settles_at(7, 6, 6, 6)
    assert world.starts.total() - before == 5
    assert took_ms <= 4 * LONGEST_CYCLE_MS


@seeds
def test_workers_that_start_at_once_share_the_partitions_without_moving_one_twice(seed: int) -> None:
    """Their claims collide, and one of each two wins; a partition in dispute is handled by one."""
    world = World(24, seed)
    world.start(8)
    world.settles_at(*[3] * 8)
    assert world.overlaps == 0
    assert world.starts.total() <= 24 + 12, "stealing is for who came too late"


# -- handing over ------------------------------------------------------------------------------


@seeds
def test_a_thief_waits_until_the_batch_in_hand_is_done(seed: int) -> None:
    """The worker that was stolen from drains, releases, and says so; the lock waits for it."""
    world = World(6, seed)
    world.drain_ms = 5_000
    world.start()
    world.settles_at(6)
    world.start()
    world.settles_at(3, 3)
    assert world.overlaps == 0
    assert world.server.overtaken == 0


def test_a_thief_overtakes_who_does_not_release_at_the_drain_deadline() -> None:
    """A handler that cannot be stopped keeps no partition for ever; its commits are refused."""
    world = World(2)
    (stuck,) = world.start()
    world.settles_at(2)
    world.drain_ms = 10**9
    stuck.never_cancels = True
    (thief,) = world.start()
    took_ms = world.run_until(lambda: len(thief.running) == 1, "it is overtaken", 30_000)
    assert DRAIN_DEADLINE_MS <= took_ms <= DRAIN_DEADLINE_MS + 3 * LONGEST_CYCLE_MS
    assert world.server.overtaken == 1


@seeds
def test_who_leaves_drains_releases_and_gives_up_its_entries(seed: int) -> None:
    """Others claim at once what it had; nobody waits for the expiry."""
    world = World(8, seed)
    world.start(2)
    world.settles_at(4, 4)
    leaving = world.workers[0]
    leaving.stop()
    world.run_until(lambda: leaving.finished, "it has left", 2_000)
    assert leaving.owner not in {entry.owner for entry in world.store.entries.values()}
    assert leaving.owner not in {lock.owner for lock in world.server.locks}
    assert world.settles_at(8) <= 5 * LONGEST_CYCLE_MS
    assert world.overlaps == 0


def test_who_leaves_before_it_owns_anything_just_leaves() -> None:
    """Also when its first claim is won while it leaves."""
    for after_ms in range(30):
        world = World(3, seed=after_ms)
        (worker,) = world.start()
        world.run_for(after_ms)
        worker.stop()
        world.run_until(has(world), "it has left", 2_000)
        assert world.store.entries == {}
        assert {lock.owner for lock in world.server.locks} == {""}


# -- trouble -----------------------------------------------------------------------------------


@seeds
def test_a_worker_that_cannot_renew_starts_no_batch_before_its_claims_expire(seed: int) -> None:
    """By its own clock, one cycle earlier; and again once it could renew."""
    world = World(4, seed)
    (worker,) = world.start()
    world.settles_at(4)
    world.fail_calls = 1.0
    last_ms = max(entry.modified_ms for entry in world.store.entries.values())
    world.store_is_down = True
    world.run_until(lambda: worker.batches_paused, "it pauses", EXPIRY_MS)
    assert world.now_ms < last_ms + EXPIRY_MS
    world.fail_calls, world.store_is_down = 0.0, False
    world.run_until(lambda: not worker.batches_paused, "it goes on", CYCLE_MS)
    assert worker.running.keys() == set(range(4)), "nobody else was there to claim them"


@seeds
def test_a_worker_that_slept_finds_its_partitions_claimed_and_takes_part_again(seed: int) -> None:
    """It drains what it lost, is fenced where it would commit, and balances by claims."""
    world = World(6, seed)
    world.start(2)
    world.settles_at(3, 3)
    sleeper = world.workers[0]
    sleeper.asleep = True
    world.run_until(lambda: len(world.workers[1].running) == 6, "its partitions are claimed", 30_000)
    sleeper.wake()
    sleeper.commit_all()
    assert sleeper.running == {}, "each commit was refused"
    world.settles_at(3, 3)


@seeds
def test_lost_answers_leave_no_partition_unhandled_and_none_handled_twice(seed: int) -> None:
    """A quarter of all calls fails, half of these were done; then all is well, and balance comes."""
    world = World(12, seed)
    world.start(3)
    world.fail_calls = 0.25
    world.run_for(60_000)
    world.workers[0].kill()
    world.start()
    world.run_for(60_000)
    world.fail_calls = 0.0
    world.settles_at(4, 4, 4)


@seeds
def test_the_store_comes_back_from_what_is_owned(seed: int) -> None:
    """After FLUSHALL each worker claims anew, in one cycle, what it had; nothing moves."""
    world = World(12, seed)
    world.start(3)
    world.settles_at(4, 4, 4)
    before = world.starts.total()
    owned = {worker.name: worker.core.owned for worker in world.workers}
    world.store.flush()
    world.settles_at(4, 4, 4)
    assert world.starts.total() == before
    assert {worker.name: worker.core.owned for worker in world.workers} == owned


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_the_partitions_are_shared_in_the_end(seed: int) -> None:
    """Workers come, leave, die, sleep and wake, calls fail, the store is emptied, the stream grows."""
    dice = Random(seed)
    world = World(dice.randint(1, 16), seed)
    world.start(dice.randint(1, 5))
    world.drain_ms, world.fail_calls = dice.choice([5, 500, 3_000]), dice.choice([0.0, 0.1, 0.4])
    for _ in range(10):
        world.run_for(dice.randint(10, 9_000))
        some = dice.choice(world.there or world.start())
        match dice.randrange(8):
            case 0:
                world.start()
            case 1:
                some.stop()
            case 2:
                some.kill()
            case 3:
                some.asleep = True
            case 4:
                world.store.flush()
            case 5:
                world.grow(world.partitions + 1)
            case _:
                some.wake()
                some.commit_all()
    world.fail_calls = 0.0
    for worker in world.there or world.start():
        worker.wake()
    world.run_for(3_000)
    for worker in world.there:
        worker.commit_all()
    world.run_for(EXPIRY_MS + LONGEST_CYCLE_MS)
    workers = len(world.there or world.start())
    least, more = divmod(world.partitions, workers)
    world.settles_at(*[least + 1] * more, *[least] * (workers - more))


def test_the_record_says_who_claimed_and_who_stole() -> None:
    """`streamworker history` shows it, as it shows the changes of a membership."""
    world = World(4)
    world.start()
    world.settles_at(4)
    assert causes(world) == ["claim"] * 4
    world.start()
    world.settles_at(2, 2)
    assert causes(world) == ["claim"] * 4 + ["steal"] * 2


def causes(world: World) -> list[str]:
    """Return the causes of all changes."""
    return [message.cause for message in world.server.control if isinstance(message, GroupChanged)]
