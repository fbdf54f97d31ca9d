"""The operations of the membership protocol, and the table of all operations.

The runtime passes every effect that it does not perform itself to this table, and knows none of them by
name. A new protocol adds its effects to its core and its operations to ``protocols``.
"""

from collections.abc import Sequence

from streamworker.core.control import ControlMessage
from streamworker.core.events import (
    AcquireLocks,
    Effect,
    Event,
    LocksAnswered,
    LocksReleased,
    MarkLock,
    ReleaseLocks,
)
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
from streamworker.redisio.group import control, loads, locks, membership, protocols
from streamworker.redisio.group.operation import Access, Operation


async def read_document(access: Access, _: ReadDocument) -> Event:
    """Read the membership document and the server's clock."""
    return DocumentRead(*await membership.look_at_members(access.backend, access.keys))


async def change_document(access: Access, effect: ChangeDocument) -> Event:
    """Write the membership document by compare-and-set."""
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


async def mend_document(access: Access, effect: MendDocument) -> Event:
    """Move a damaged membership document aside, and write a new one."""
    known = effect.membership
    return await membership.mend_members(
        access.backend,
        access.keys,
        seen=effect.seen,
        body=known.body() if known.generation else "",
        message=effect.message.fields(),
        present=known.present_ids,
        at_least=effect.at_least,
    )


async def probe_peers(access: Access, effect: ProbePeers) -> Event:
    """Ask which connections the server still has."""
    connected = await membership.connected(access.backend, effect.connections, access.keys.members)
    return PeersProbed(None if connected is None else frozenset(connected))


async def read_loads(access: Access, _: ReadLoads) -> Event:
    """Read the loads that all members measured."""
    return LoadsRead(*await loads.read_loads(access.backend, access.keys))


async def acquire_locks(access: Access, effect: AcquireLocks) -> Event:
    """Try to acquire locks."""
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


async def release_locks(access: Access, effect: ReleaseLocks) -> Event:
    """Release locks; a lock that another member holds needs no release, so either answer is final."""
    replies = await locks.release_many(access.backend, access.keys, effect.epochs, effect.owner)
    return LocksReleased(effect.owner, tuple(effect.epochs), frozenset(replies))


OPERATIONS: dict[type[Effect], Operation] = {
    ReadDocument: Operation(read_document, lambda _: CallFailed(DocumentCall.DOCUMENT)),
    ChangeDocument: Operation(change_document, lambda _: CallFailed(DocumentCall.DOCUMENT)),
    MendDocument: Operation(mend_document, lambda _: CallFailed(DocumentCall.DOCUMENT)),
    ProbePeers: Operation(probe_peers, lambda _: CallFailed(DocumentCall.PROBE)),
    ReadLoads: Operation(read_loads, lambda _: CallFailed(DocumentCall.LOADS)),
    AcquireLocks: Operation(acquire_locks, lambda effect: LocksAnswered(effect.owner, effect.partitions, {})),
    ReleaseLocks: Operation(
        release_locks, lambda effect: LocksReleased(effect.owner, tuple(effect.epochs), frozenset())
    ),
    **protocols.OPERATIONS,
}
"""Every effect that has an answer. Each is safe to repeat, or its core handles a repeat."""


async def mark(access: Access, marks: Sequence[MarkLock], clock_ms: int) -> None:
    """Write partitions' states to their locks, in one round trip."""
    await locks.mark_many(access.backend, access.keys, marks, clock_ms=clock_ms)


async def post(access: Access, messages: Sequence[ControlMessage]) -> None:
    """Post to the control stream, in one round trip."""
    await control.post(access.backend, access.keys, [message.fields() for message in messages])
