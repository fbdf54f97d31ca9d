"""The operations of the lease protocol; ``core.protocols.lease.events`` says what its effects mean.

The two channels of the algorithm are two kinds of messages on the control stream.
"""

from itertools import chain
from typing import Any

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

CHALLENGE, RACE, UPDATE = SCRIPTS = tuple(load(f"lease/{name}") for name in ("challenge", "race", "update"))
GRAB = "grab"
"""The key of the winner of the race for each partition, and of `last`, the newest generation."""
ALLOCATION = "allocation"
"""The key of the member that processes each partition."""
KEYS = tuple(KeyRow(f"sw:{{app.stream:GROUP}}:{name}", "hash") for name in (GRAB, ALLOCATION))


async def _challenge_leases(access: Access, effect: ChallengeLeases) -> Event:
    challenges = [word for partition, how in effect.challenges.items() for word in (partition, how.value)]
    call = CHALLENGE.at(access.keys, **_hashes(access.keys), owner=effect.owner, challenges=challenges)
    reply = checked(await access.backend.run(CHALLENGE, call))
    return LeasesChallenged(tuple(effect.challenges), frozenset(int(each) for each in reply[1:]))


async def _race_for_lease(access: Access, effect: RaceForLease) -> Event:
    call = RACE.call(**_hashes(access.keys), owner=effect.owner, partition=effect.partition)
    _, winner, generation, allocated = checked(await access.backend.run(RACE, call))
    return LeaseRaced(effect.partition, winner.decode(), int(generation), allocated.decode())


async def _update_leases(access: Access, effect: UpdateLeases) -> Event:
    processed, cleared = (list(chain(*pairs.items())) for pairs in (effect.allocate, effect.clear))
    changes = {"processed": processed, "ended": effect.end, "cleared": cleared}
    call = UPDATE.at(access.keys, **_hashes(access.keys), owner=effect.owner, **changes)
    checked(await access.backend.run(UPDATE, call))
    return LeasesUpdated()


def _hashes(keys: GroupKeys) -> dict[str, Any]:
    return {name: keys.of_group(name) for name in (GRAB, ALLOCATION)}


OPERATIONS: dict[type[Effect], Operation] = {
    ChallengeLeases: _challenge_leases,
    RaceForLease: _race_for_lease,
    UpdateLeases: _update_leases,
}
"""Each is safe to repeat: the hashes stay the same, and an additional message does no harm."""
