"""What the effects of the lease protocol do at Redis; ``core.lease_events`` says what they mean.

The two channels of the algorithm are two kinds of message on the control stream.
"""

from streamworker.core.events import Effect, Event
from streamworker.core.lease_events import (
    ChallengeLeases,
    LeaseRaced,
    LeasesChallenged,
    LeasesUpdated,
    RaceForLease,
    UpdateLeases,
)
from streamworker.redisio.link import Argument
from streamworker.redisio.operation import Access, Operation
from streamworker.redisio.scripts import LEASE_CHALLENGE, LEASE_RACE, LEASE_UPDATE, checked


async def challenge_leases(access: Access, effect: ChallengeLeases) -> Event:
    """Signal that partitions are challenged."""
    keys = access.keys
    args: list[Argument] = [effect.owner]
    for partition, how in effect.challenges.items():
        args += (partition, how.value)
    reply = checked(
        await access.backend.run(
            LEASE_CHALLENGE, (keys.lease_grab, keys.lease_allocation, keys.control), args
        )
    )
    return LeasesChallenged(tuple(effect.challenges), frozenset(int(each) for each in reply[1:]))


async def race_for_lease(access: Access, effect: RaceForLease) -> Event:
    """Try to be the first in the grab hash."""
    keys = access.keys
    _, winner, generation, allocated = checked(
        await access.backend.run(
            LEASE_RACE, (keys.lease_grab, keys.lease_allocation), (effect.owner, effect.partition)
        )
    )
    return LeaseRaced(effect.partition, winner.decode(), int(generation), allocated.decode())


async def update_leases(access: Access, effect: UpdateLeases) -> Event:
    """Say what we process, what not any more, and which wins may be challenged."""
    keys = access.keys
    args: list[Argument] = [effect.owner, len(effect.allocate)]
    args += (part for pair in effect.allocate.items() for part in pair)
    args += (len(effect.end), *effect.end, len(effect.clear))
    args += (part for pair in effect.clear.items() for part in pair)
    checked(
        await access.backend.run(LEASE_UPDATE, (keys.lease_grab, keys.lease_allocation, keys.control), args)
    )
    return LeasesUpdated(done=True)


OPERATIONS: dict[type[Effect], Operation] = {
    ChallengeLeases: Operation(
        challenge_leases, lambda effect: LeasesChallenged(tuple(effect.challenges), None)
    ),
    RaceForLease: Operation(race_for_lease, lambda effect: LeaseRaced(effect.partition, None)),
    UpdateLeases: Operation(update_leases, lambda _: LeasesUpdated(done=False)),
}
"""Each may be done twice: the hashes are then as after once, and a message too many does no harm."""
