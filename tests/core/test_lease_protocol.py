"""What the author of the lease-grab race says of it: his four claims, and the fault he warns of.

And what he could not say: whatever the race does, each entry is committed once and in order.
"""

from random import Random

import pytest

from streamworker.core.protocols.lease import protocol as lease_module
from streamworker.core.protocols.lease.protocol import LeaseCore
from streamworker.core.protocols.lease.settings import Lease
from streamworker.core.protocols.lease.timing import UNIT, LoadMeasure, count_of_partitions
from streamworker.core.protocols.registry import Coordinator
from tests.core.groups import NotingWorld, check, pause, settled, until
from tests.simulator.faults import Fault, FaultKind, draw, kinds_of
from tests.simulator.group import START_MS
from tests.simulator.server.lease import ModelLeases
from tests.simulator.worker import SimWorker
from tests.simulator.world import World

TIMING = Lease()
ROUND_MS = TIMING.normal_ms + 200
"""Within this a node has looked at each partition once; 200 ms pass before it begins."""
HANDOVER_MS = 1_000
"""A race is decided, the batch in hand (up to 400 ms) is finished, some calls are made."""


class Race(NotingWorld):
    """Nodes that race for leases."""

    def __init__(
        self,
        seed: int,
        *,
        partitions: int = 8,
        lease: Lease | None = None,
        load: LoadMeasure = count_of_partitions,
    ) -> None:
        self.load = load
        super().__init__(seed, partitions=partitions, protocol="lease", coordination=lease)

    def make_core(self, worker: SimWorker) -> Coordinator:
        return LeaseCore(self.setup(worker), self.load)

    @property
    def leases(self) -> ModelLeases:
        """The two hashes."""
        assert isinstance(self.model.extension, ModelLeases)
        return self.model.extension

    @property
    def counts(self) -> list[int]:
        """How many partitions each worker that stays handles, in the order of their starts."""
        return [len(running(worker)) for worker in self.staying]

    def is_covered(self) -> bool:
        handled = [p for worker in self.staying for p in running(worker)]
        return sorted(handled) == list(range(len(self.model.locks)))

    def is_balanced(self) -> bool:
        """Whether, besides, no worker handles two more than another."""
        return self.is_covered() and max(self.counts) - min(self.counts) <= 1


def running(worker: SimWorker) -> set[int]:
    """Return the partitions that a worker handles and was not told to drain."""
    return {p for p, runner in worker.runners.items() if not runner.ended and not runner.draining}


def at_rest(seed: int, *, workers: int, partitions: int) -> Race:
    """Return a world in which some workers have shared the partitions some time ago."""
    world = Race(seed, partitions=partitions)
    for _ in range(workers):
        world.start()
    until(world, world.is_balanced, "the partitions are shared", 60_000)
    world.clock.run_for(10_000)
    return world


def under_load(world: World, seed: int, *, for_ms: int, stall_ms: int) -> None:
    """Let all workers be too busy to answer, now and then, for a while.

    Every second or so, each worker stalls for up to ``stall_ms``. The same seed gives the same
    stalls whatever the protocol does.
    """
    dice = Random(seed)
    for place in range(len(world.workers)):
        at_ms = dice.randint(0, 1_000)
        while at_ms + stall_ms < for_ms:
            stall = Fault(0, FaultKind.PAUSE, place, dice.randint(0, stall_ms))
            world.clock.after(at_ms, lambda stall=stall: world.happen(stall))  # type: ignore[misc]
            at_ms += stall.span_ms + dice.randint(500, 1_500)
    world.clock.run_for(for_ms)


# -- the four claims -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_new_node_has_its_share_within_the_normal_lease_time(seed: int) -> None:
    """The author: "Once a new node comes online within the normal lease time the workload has been
    distributed evenly among the new and old nodes". No partition moves that need not.
    """
    world = at_rest(seed, workers=1, partitions=8)
    before = len(world.starts)
    world.start()
    took_ms = until(world, world.is_balanced, "the new node has its share", 60_000)
    assert took_ms <= ROUND_MS + HANDOVER_MS
    assert world.counts == [4, 4]
    assert len(world.starts) - before == 4


@pytest.mark.parametrize("seed", range(10))
def test_races_that_overlap_need_more_rounds_and_still_end_balanced(seed: int) -> None:
    """Many partitions on one node make long waits: an owner learns late what it has lost, and a
    new node takes too much at first. Measured: 1 to 3 normal leases for 64 partitions.
    """
    world = at_rest(seed, workers=1, partitions=64)
    world.start()
    took_ms = until(world, world.is_balanced, "both have their share", 60_000)
    print(f"64 partitions, 1 to 2 nodes: {took_ms} ms, {len(world.starts) - 64} moves, the fewest are 32")
    assert took_ms <= 3 * ROUND_MS + HANDOVER_MS


@pytest.mark.parametrize("seed", range(30))
def test_the_load_of_a_killed_node_moves_after_about_the_maximum_lease_time(seed: int) -> None:
    """The author: "If I kill a node without giving it any chance to do any cleanup after roughly
    maximum lease time the load is distributed out to the remaining nodes".
    """
    world = Race(seed, partitions=8)
    for _ in range(3):
        world.start()
    until(world, world.is_balanced, "the partitions are shared", 60_000)
    world.clock.run_for(world.random.randint(5_000, 15_000))
    world.kill(world.workers[0])
    took_ms = until(world, world.is_balanced, "the others share what it had", 60_000)
    print(f"after a kill: {took_ms} ms")
    assert took_ms <= TIMING.max_ms + HANDOVER_MS
    check(world)


# -- what was decided where the text is in two minds -----------------------------------------


def test_one_wait_in_words_and_the_other_as_a_formula_would_let_a_single_partition_jump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(active - 1/2) for the owner and (active + 1/2) for the others is a tie: dice decide."""

    def mixed(load: int, delay_ms: int, *, is_processing: bool) -> int:
        return (load - UNIT // 2 if is_processing else load + UNIT // 2) * delay_ms // UNIT

    monkeypatch.setattr(lease_module, "race_delay_ms", mixed)
    world = Race(1, partitions=1)
    for _ in range(2):
        world.start()
    world.clock.run_for(300_000)
    assert len(world.starts) > 10


def test_a_measure_of_load_takes_the_place_of_the_count() -> None:
    """The author: "Replace the locally active partitions with whatever measurement of load you
    wish". Partition 0 is as heavy as six others, so its owner ends up with at most one of them.
    """

    def load(partitions: frozenset[int]) -> int:
        return UNIT * (len(partitions) + 5 * (0 in partitions))

    world = Race(3, partitions=8, load=load)
    for _ in range(2):
        world.start()
    until(world, world.is_covered, "each partition has an owner", 60_000)
    world.clock.run_for(60_000)
    heavy = next(running(worker) for worker in world.workers if 0 in running(worker))
    assert len(heavy) <= 2
    before = len(world.starts)
    world.clock.run_for(60_000)
    assert len(world.starts) == before


# -- the known fault -------------------------------------------------------------------------

MINUTES = 5
STALL_MS = 1_000


def jumps(world: World, seed: int, stall_ms: int) -> int:
    """Return how many partitions moved while nobody came or went, and workers stalled."""
    before = sum(lock.epoch for lock in world.model.locks)
    under_load(world, seed, for_ms=MINUTES * 60_000, stall_ms=stall_ms)
    check(world)
    return sum(lock.epoch for lock in world.model.locks) - before


def test_partitions_jump_between_loaded_nodes_and_under_the_same_load_membership_moves_nothing() -> None:
    """The author: "Nodes under heavy load tend to be too slow to answer to hold on to their leases
    causing partitions to jump between hosts". Four workers, 16 partitions, five minutes in which each
    worker stalls for up to a second every second or so.
    """
    leases = at_rest(0, workers=4, partitions=16)
    members = settled(0, workers=4, partitions=16)
    by_lease, by_membership = jumps(leases, 0, STALL_MS), jumps(members, 0, STALL_MS)
    print(f"jumps in {MINUTES} minutes: lease {by_lease}, membership {by_membership}")
    assert by_lease > 200
    assert by_membership == 0
    assert max(members.checker.executions.values()) == 1


def test_stalls_that_are_short_beside_the_wait_move_nothing() -> None:
    """Half a delay is the margin: stalls up to 100 ms against a delay of 500 ms, the author's most."""
    timing = Lease(held_delay_ms=500)
    world = Race(7, partitions=4, lease=timing)
    for _ in range(2):
        world.start()
    until(world, world.is_balanced, "the partitions are shared", 60_000)
    world.clock.run_for(10_000)
    assert jumps(world, 7, 100) == 0


# -- safety ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_commits_stay_right_whatever_the_race_does_and_the_load_is_shared_after_all_faults(
    seed: int,
) -> None:
    """All faults of the simulator: an overlap is fenced by the lock's epoch.

    Entries keep coming: a node that was cut off learns by a refused commit that it was overtaken.
    """
    world = Race(seed)
    for _ in range(world.random.randint(1, 4)):
        world.start()
    for fault in draw(world.random, kinds_of("all"), 30_000):
        world.clock.run_for(max(0, START_MS + fault.at_ms - world.clock.now_ms))
        world.happen(fault)
    world.clock.run_for(10_000)
    if not world.staying:
        world.start()
    world.heal()
    until(world, lambda: world.is_settled, "the load is shared", 60_000)
    world.clock.run_for(8_000)
    until(world, lambda: world.is_settled, "the load is shared after late requests", 60_000)
    check(world)


@pytest.mark.parametrize("seed", range(20))
def test_leases_that_are_lost_with_the_data_are_raced_for_again(seed: int) -> None:
    """The two hashes are gone; who processes goes on, and the next races put it down again. Only a
    race that was being run at that moment may have another end.
    """
    world = at_rest(seed, workers=2, partitions=8)
    before = len(world.starts)
    world.model.empty_store()
    world.clock.run_for(2 * ROUND_MS + TIMING.max_shutdown_ms)
    assert len(world.starts) - before <= 2
    assert world.is_balanced()
    assert sorted(world.leases.allocation) == list(range(8))


@pytest.mark.parametrize("seed", range(20))
def test_a_stuck_owner_is_overtaken_after_the_maximum_shutdown_time_and_fenced(seed: int) -> None:
    """The author: "Wait for a maximum of maximum shutdown time and start the partition anyway". A
    paused owner has not ended, and what it commits when it wakes is refused.
    """
    world = at_rest(seed, workers=2, partitions=8)
    sleeper = world.workers[0]
    pause(world, sleeper, 60_000)
    took_ms = until(world, lambda: len(running(world.workers[1])) == 8, "the other has all", 60_000)
    # A win that it did not clear any more lasts for the maximum lease.
    assert TIMING.max_shutdown_ms <= took_ms <= ROUND_MS + TIMING.max_ms + HANDOVER_MS
    until(world, lambda: not sleeper.paused, "it wakes", 60_000)
    until(world, world.is_balanced, "the sleeper has its share again", 60_000)
    assert world.model.fenced > 0
    check(world)


@pytest.mark.parametrize("seed", range(20))
def test_a_node_that_leaves_ends_its_leases_and_the_others_race_at_once(seed: int) -> None:
    """Nobody waits for a lease to run out, and nothing of it stays in the hashes."""
    world = at_rest(seed, workers=3, partitions=9)
    leaver = world.workers[0]
    world.stop(leaver)
    took_ms = until(world, world.is_balanced, "the others share what it had", 60_000)
    assert took_ms <= 2 * HANDOVER_MS
    assert leaver.finished
    assert leaver.owner not in {owner for _, owner in world.leases.allocation.values()}
    assert leaver.owner not in {owner for _, owner in world.leases.grab.values()}
    assert (world.model.fenced, max(world.checker.executions.values())) == (0, 1)
