"""The operations of the lease protocol; ``core.protocols.lease.events`` says what its effects mean.

The two channels of the algorithm are two kinds of messages on the control stream.
"""

from streamworker.core.events import Effect, Event
from streamworker.core.protocols.lease.events import (
    ChallengeLeases,
    LeaseRaced,
    LeasesChallenged,
    LeasesUpdated,
    RaceForLease,
    UpdateLeases,
)
from streamworker.redisio.group.operation import Access, Operation
from streamworker.redisio.keys import GroupKeys, KeyRow
from streamworker.redisio.scripts import checked, load
from streamworker.redisio.wire.link import Argument

CHALLENGE, RACE, UPDATE = SCRIPTS = tuple(load(f"lease/{name}") for name in ("challenge", "race", "update"))
GRAB = "grab"
"""The key of the winner of the race for each partition, and of `last`, the newest generation."""
ALLOCATION = "allocation"
"""The key of the member that processes each partition."""
KEYS = tuple(KeyRow(f"sw:{{app.stream:GROUP}}:{name}", "hash") for name in (GRAB, ALLOCATION))


async def _challenge_leases(access: Access, effect: ChallengeLeases) -> Event:
    args: list[Argument] = [effect.owner]
    for partition, how in effect.challenges.items():
        args += (partition, how.value)
    keys = (*_hashes(access.keys), access.keys.control)
    reply = checked(await access.backend.run(CHALLENGE, keys, args))
    return LeasesChallenged(tuple(effect.challenges), frozenset(int(each) for each in reply[1:]))


async def _race_for_lease(access: Access, effect: RaceForLease) -> Event:
    _, winner, generation, allocated = checked(
        await access.backend.run(RACE, _hashes(access.keys), (effect.owner, effect.partition))
    )
    return LeaseRaced(effect.partition, winner.decode(), int(generation), allocated.decode())


async def _update_leases(access: Access, effect: UpdateLeases) -> Event:
    args: list[Argument] = [effect.owner, len(effect.allocate)]
    args += (part for pair in effect.allocate.items() for part in pair)
    args += (len(effect.end), *effect.end, len(effect.clear))
    args += (part for pair in effect.clear.items() for part in pair)
    checked(await access.backend.run(UPDATE, (*_hashes(access.keys), access.keys.control), args))
    return LeasesUpdated(done=True)


def _hashes(keys: GroupKeys) -> tuple[str, str]:
    return keys.of_group(GRAB), keys.of_group(ALLOCATION)


OPERATIONS: dict[type[Effect], Operation] = {
    ChallengeLeases: Operation(
        _challenge_leases, lambda effect: LeasesChallenged(tuple(effect.challenges), None)
    ),
    RaceForLease: Operation(_race_for_lease, lambda effect: LeaseRaced(effect.partition, None)),
    UpdateLeases: Operation(_update_leases, lambda _: LeasesUpdated(done=False)),
}
"""Each is safe to repeat: the hashes stay the same, and an additional message does no harm."""
