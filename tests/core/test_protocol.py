"""What a group of workers never does without a cause, in the simulator's world.

What each change does, and when, is in the transcripts of tests/protocol, line by line; all faults at once,
and the peace after them, in tests/simulation.
"""

from collections.abc import Sequence

import pytest

from streamworker.core.control import RequestMade
from streamworker.core.events import (
    ControlReceived,
    DrainRunner,
    Effect,
    Event,
    LocksAnswered,
    PartitionsSeen,
    RequestsSeen,
    StopRequested,
)
from streamworker.core.ownership.locks import Acquired
from streamworker.core.protocols.claim.protocol import ClaimCore
from streamworker.core.protocols.lease.protocol import LeaseCore
from streamworker.core.protocols.membership.worker import WorkerCore
from streamworker.core.protocols.registry import PROTOCOLS, Coordinator
from tests.core.groups import check, is_agreed, settled
from tests.simulator.simulation import Schedule, run


@pytest.mark.parametrize("outage_ms", [300, 3_000, 8_000])
@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_an_outage_that_hits_all_workers_moves_nothing(seed: int, restarted: bool, outage_ms: int) -> None:
    """Whoever is back first does not take the others for dead: they are as silent as it was."""
    world = settled(seed, workers=4)
    before, epochs = world.server.membership, [lock.epoch for lock in world.server.partitions]
    if restarted:
        world.server.restart()
    for worker in world.workers:
        worker.disconnect()
        worker.later(outage_ms + world.random.randint(0, 700), worker.connect)
    world.clock.run_for(outage_ms + 5_000)
    assert is_agreed(world)
    check(world)
    assert world.server.membership == before
    assert [lock.epoch for lock in world.server.partitions] == epochs


class Watched:
    """A core that must not drain a partition which nobody took away from it or made a request about."""

    def __init__(self, core: Coordinator) -> None:
        self.core, self.stopping = core, False
        self.requested: frozenset[int] = frozenset()
        """The partitions about which an operator made a request."""
        self.first = 0
        """The first partition with which the group is not done."""

    @property
    def held(self) -> Sequence[int]:
        return self.core.held

    def next_deadline_ms(self) -> int | None:
        return self.core.next_deadline_ms()

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.stopping |= isinstance(event, StopRequested)
        if isinstance(event, PartitionsSeen):
            self.first = event.first
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
        uncaused = {p for p in drained & self.owned - self.requested if p >= self.first}
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
@pytest.mark.parametrize("seed", range(10))
def test_no_partition_is_drained_that_nobody_took_away_and_all_are_shared_in_the_end(
    seed: int, protocol: str
) -> None:
    """Through all faults, which end: a worker that still owns a partition, and stays, does not stop it."""
    outcome = run(Schedule(seed=seed, protocol=protocol, partitions=8), wrap=Watched)
    assert outcome.violations == ()
    assert outcome.settled_ms is not None
