"""The operations of the membership protocol and of locks, and the tables of all protocols.

The runtime passes every effect that it does not perform itself to ``OPERATIONS``, and knows none of them by
name. A new protocol adds its effects to its core, and a module here with its operations, scripts and keys.
"""

from streamworker.core.events import AcquireLocks, Effect, Event, LocksReleased, ReleaseLocks
from streamworker.core.protocols.membership.events import (
    ChangeDocument,
    MendDocument,
    PeersProbed,
    ProbePeers,
    ReadDocument,
    ReadLoads,
)
from streamworker.redisio import keys, scripts
from streamworker.redisio.group import loads, locks, membership, operations_claim, operations_lease
from streamworker.redisio.group.operation import Access, Operation


async def _probe_peers(access: Access, effect: ProbePeers) -> Event:
    return PeersProbed(await membership.connected(access.backend, effect.connections, access.keys.members))


async def _release_locks(access: Access, effect: ReleaseLocks) -> Event:
    # A lock that another member holds needs no release, so either answer is final.
    replies = await locks.release_many(access.backend, access.keys, effect.epochs, effect.owner)
    return LocksReleased(effect.owner, tuple(effect.epochs), frozenset(replies))


OPERATIONS: dict[type[Effect], Operation] = {
    ReadDocument: lambda access, _: membership.read_members(access.backend, access.keys),
    ChangeDocument: lambda access, effect: membership.change_members(access.backend, access.keys, effect),
    MendDocument: lambda access, effect: membership.mend_members(access.backend, access.keys, effect),
    ProbePeers: _probe_peers,
    ReadLoads: lambda access, _: loads.read_loads(access.backend, access.keys),
    AcquireLocks: locks.acquire,
    ReleaseLocks: _release_locks,
    **operations_claim.OPERATIONS,
    **operations_lease.OPERATIONS,
}
"""Every effect that has an answer. Each is safe to repeat, or its core handles a repeat."""
SCRIPTS = (*scripts.SHARED, *operations_claim.SCRIPTS, *operations_lease.SCRIPTS)
"""All scripts."""
HASHES = (operations_claim.CLAIMS, operations_lease.GRAB, operations_lease.ALLOCATION)
"""The keys of a group that only one protocol has, see ``GroupKeys.of_group``; each is a hash."""
KEY_TABLE: tuple[keys.KeyRow, ...] = (*keys.SHARED, *operations_claim.KEYS, *operations_lease.KEYS)
"""All keys: the source of docs/redis-keys.md."""
