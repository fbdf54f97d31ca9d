"""What a group of workers promises, and in which time, in the simulator's world.

Here are the single promises, each from several seeds. All faults at once, and the peace after them,
are in tests/simulation; the steps themselves, line by line, in tests/protocol.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from streamworker.core.control import GroupChanged, RequestMade
from streamworker.core.events import (
    ControlReceived,
    DrainRunner,
    Effect,
    Event,
    LocksAnswered,
    RequestsSeen,
    StopRequested,
)
from streamworker.core.ownership.locks import Acquired
from streamworker.core.protocols.claim.protocol import ClaimCore
from streamworker.core.protocols.lease.protocol import LeaseCore
from streamworker.core.protocols.membership.worker import WorkerCore
from streamworker.core.protocols.registry import PROTOCOLS, Coordinator
from tests.core.groups import check_rest, is_agreed, settled, until
from tests.simulator.faults import QUIET
from tests.simulator.simulation import Schedule, run
from tests.simulator.world import World


@pytest.mark.parametrize("seed", range(20))
def test_partitions_that_keep_their_owner_never_stop(seed: int) -> None:
    """A join moves the upper half; below it nobody notices: same lock, same epoch, commits go on."""
    world = settled(seed, workers=1)
    epochs = [lock.epoch for lock in world.model.locks]
    (first,) = world.workers
    runners = dict(first.runners)
    world.start()
    until(world, lambda: is_agreed(world), "the second worker has its half", 3_000)
    document = world.model.membership
    assert document is not None
    for p, lock in enumerate(world.model.locks):
        if document.owners[p] == first.owner:
            assert lock.epoch == epochs[p]
            assert first.runners[p] is runners[p]
            assert not runners[p].ended
        else:
            assert lock.epoch > epochs[p]
    assert [p for p, owner in enumerate(document.owners) if owner != first.owner] == [4, 5, 6, 7]


@pytest.mark.parametrize("seed", range(20))
def test_a_leave_is_a_short_gap(seed: int) -> None:
    """The longest batch, and a few round trips: the messages spare all pauses."""
    world = settled(seed, workers=3)
    world.stop(world.staying[1])
    took_ms = until(world, lambda: is_agreed(world), "the others have its partitions", 5_000)
    assert took_ms <= world.conditions.batch_ms + 300


@pytest.mark.parametrize("seed", range(20))
def test_without_any_message_a_change_costs_a_heartbeat_and_a_pause(seed: int) -> None:
    """The control stream is a hint: everything is found out without it."""
    world = settled(seed, workers=2)
    world.conditions = replace(QUIET, control_lost=1.0)
    world.start()
    timing = world.timing
    known_ms = 2 * timing.heartbeat_interval_ms
    took_ms = until(world, lambda: is_agreed(world), "the third worker has its share", 10_000)
    assert took_ms <= known_ms + world.conditions.batch_ms + 2 * timing.acquire_retry_ms


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_the_partitions_of_a_killed_worker_run_again_within_seconds(seed: int, tells: bool) -> None:
    """Two heartbeats of silence and the question; or the session timeout, where nobody answers it."""
    world = settled(seed, workers=3)
    world.model.tells_connections = tells
    world.kill(world.random.choice(world.staying))
    timing = world.timing
    patience_ms = timing.dead_after_ms if tells else timing.session_timeout_ms
    took_ms = until(world, lambda: is_agreed(world), "the others have its partitions", 20_000)
    assert took_ms <= patience_ms + 3 * timing.heartbeat_interval_ms
    changes = [message for message in world.model.control if isinstance(message, GroupChanged)]
    assert [change.cause for change in changes].count("death") == 1


@pytest.mark.parametrize("outage_ms", [300, 3_000, 8_000])
@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_an_outage_that_hits_all_workers_moves_nothing(seed: int, restarted: bool, outage_ms: int) -> None:
    """Whoever is back first does not take the others for dead: they are as silent as it was."""
    world = settled(seed, workers=4)
    before, epochs = world.model.membership, [lock.epoch for lock in world.model.locks]
    if restarted:
        world.model.restart()
    for worker in world.workers:
        worker.disconnect()
        worker.later(outage_ms + world.random.randint(0, 700), worker.connect)
    world.clock.run_for(outage_ms + 5_000)
    check_rest(world)
    assert world.model.membership == before
    assert [lock.epoch for lock in world.model.locks] == epochs


def test_two_dozen_workers_start_at_once_and_share_sixteen_partitions() -> None:
    """They are let in together; eight stand by and take over as soon as others leave."""
    world = World(7, partitions=16)
    for _ in range(24):
        world.start()
    until(world, lambda: is_agreed(world), "all have joined", 10_000)
    assert len(world.model.history) < 24
    assert len({lock.owner for lock in world.model.locks}) == 16
    for worker in world.staying[:12]:
        world.stop(worker)
    until(world, lambda: is_agreed(world), "the others have taken over", 10_000)
    assert {lock.owner for lock in world.model.locks} == {worker.owner for worker in world.staying}
    assert max(world.checker.executions.values()) == 1


class Watched:
    """A core that must not drain a partition which nobody took away from it or made a request about."""

    def __init__(self, core: Coordinator) -> None:
        self.core, self.stopping = core, False
        self.requested: frozenset[int] = frozenset()
        """The partitions about which an operator made a request."""

    @property
    def held(self) -> Sequence[int]:
        return self.core.held

    def next_deadline_ms(self) -> int | None:
        return self.core.next_deadline_ms()

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.stopping |= isinstance(event, StopRequested)
        if isinstance(event, ControlReceived):
            orders = [message for message in event.messages if isinstance(message, RequestMade)]
            self.requested |= {partition for order in orders for partition in order.partitions}
        if isinstance(event, RequestsSeen):
            self.requested |= {partition for partition, version in event.versions.items() if version}
        if isinstance(event, LocksAnswered):
            replies = event.replies.items()
            self.requested |= {p for p, reply in replies if isinstance(reply, Acquired) and reply.requested}
        effects = self.core.handle(event, now_ms)
        drained = {effect.partition for effect in effects if isinstance(effect, DrainRunner)}
        uncaused = drained & self.owned - self.requested
        assert self.stopping or not uncaused, f"drained without a cause: {uncaused}"
        return effects

    @property
    def owned(self) -> frozenset[int]:
        """What is its own by all that it knows."""
        if isinstance(self.core, WorkerCore):
            return self.core.membership.owned_by(self.core.member)
        assert isinstance(self.core, ClaimCore | LeaseCore)
        return frozenset(self.core.owned)


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize("seed", range(40))
def test_no_partition_is_drained_that_nobody_took_away_and_all_are_shared_in_the_end(
    seed: int, protocol: str
) -> None:
    """Through all faults, which end: a worker that still owns a partition, and stays, does not stop it."""
    outcome = run(Schedule(seed=seed, protocol=protocol, partitions=8), wrap=Watched)
    assert outcome.violations == ()
    assert outcome.settled_ms is not None
