"""The operations of the membership protocol, and the table of all operations.

The runtime passes every effect that it does not perform itself to this table, and knows none of them by
name. A new protocol adds its effects to its core and its operations to ``protocols``.
"""

from streamworker.core.events import AcquireLocks, Effect, Event, LocksAnswered, LocksReleased, ReleaseLocks
from streamworker.core.protocols.membership.events import (
    CallFailed,
    ChangeDocument,
    DocumentCall,
    DocumentRead,
    LoadsRead,
    MendDocument,
    PeersProbed,
    ProbePeers,
    ReadDocument,
    ReadLoads,
)
from streamworker.redisio.group import loads, locks, membership, protocols
from streamworker.redisio.group.operation import Access, Operation


async def _read_document(access: Access, _: ReadDocument) -> Event:
    return DocumentRead(*await membership.look_at_members(access.backend, access.keys))


async def _change_document(access: Access, effect: ChangeDocument) -> Event:
    return await membership.change_members(
        access.backend,
        access.keys,
        expected=effect.expected,
        body=effect.membership.body(),
        message=effect.message.fields(),
        added=effect.added,
        removed=effect.removed,
        at_least=effect.at_least,
    )


async def _mend_document(access: Access, effect: MendDocument) -> Event:
    return await membership.mend_members(access.backend, access.keys, effect)


async def _probe_peers(access: Access, effect: ProbePeers) -> Event:
    connected = await membership.connected(access.backend, effect.connections, access.keys.members)
    return PeersProbed(None if connected is None else frozenset(connected))


async def _read_loads(access: Access, _: ReadLoads) -> Event:
    return LoadsRead(*await loads.read_loads(access.backend, access.keys))


async def _acquire_locks(access: Access, effect: AcquireLocks) -> Event:
    replies = await locks.acquire_many(
        access.backend,
        access.keys,
        effect.partitions,
        owner=effect.owner,
        generation=effect.generation,
        live=effect.live,
        drain_deadline_ms=access.drain_deadline_ms,
    )
    return LocksAnswered(effect.owner, effect.partitions, replies)


async def _release_locks(access: Access, effect: ReleaseLocks) -> Event:
    # A lock that another member holds needs no release, so either answer is final.
    replies = await locks.release_many(access.backend, access.keys, effect.epochs, effect.owner)
    return LocksReleased(effect.owner, tuple(effect.epochs), frozenset(replies))


OPERATIONS: dict[type[Effect], Operation] = {
    ReadDocument: Operation(_read_document, lambda _: CallFailed(DocumentCall.DOCUMENT)),
    ChangeDocument: Operation(_change_document, lambda _: CallFailed(DocumentCall.DOCUMENT)),
    MendDocument: Operation(_mend_document, lambda _: CallFailed(DocumentCall.DOCUMENT)),
    ProbePeers: Operation(_probe_peers, lambda _: CallFailed(DocumentCall.PROBE)),
    ReadLoads: Operation(_read_loads, lambda _: CallFailed(DocumentCall.LOADS)),
    AcquireLocks: Operation(
        _acquire_locks, lambda effect: LocksAnswered(effect.owner, effect.partitions, {})
    ),
    ReleaseLocks: Operation(
        _release_locks, lambda effect: LocksReleased(effect.owner, tuple(effect.epochs), frozenset())
    ),
    **protocols.OPERATIONS,
}
"""Every effect that has an answer. Each is safe to repeat, or its core handles a repeat."""
