"""What ``streamworker repair`` looks at and does. Each deed is a compare-and-set of what was seen.

Nothing here decides what is to be done; ``cli.repair_plan`` does. What has changed since it was looked
at is left alone, whoever changed it, so that a group that lives is never harmed, and everything may be
done again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamworker.core.control import GroupChanged, to_fields
from streamworker.core.events import Beat
from streamworker.core.membership import Membership
from streamworker.errors import BackendError, BackendRefused
from streamworker.redisio import control
from streamworker.redisio.client import Backend
from streamworker.redisio.failures import is_wrong_type
from streamworker.redisio.health import connection_names, in_pieces
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.locks import LockView, lock_view
from streamworker.redisio.membership import connected, fields_of, put_aside, read_beats
from streamworker.redisio.readers import ReaderPosition, read_readers
from streamworker.redisio.scripts import (
    REPAIR_DAMAGED,
    REPAIR_GROUP,
    REPAIR_LOCK,
    REPAIR_LOG,
    REPAIR_MEMBERS,
    REPAIR_PLACE,
    REPAIR_READER,
    checked,
)

TRIM_ENTRIES = 1_000
"""Entries of an acked log that one call drops."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of a group when a repair is planned."""

    keys: GroupKeys
    now_ms: int
    """By the server's clock."""
    run_id: str
    """Of the server."""
    membership: Membership | None
    """None for a group without a document: of another protocol, or without members since ever."""
    beats: Mapping[str, str]
    """Of all members, as they are stored."""
    connections: frozenset[int] | None
    """Which of the members' connections the server still has; None if it does not tell."""
    names: frozenset[str] | None
    """Names of all connections; None if the server does not tell."""
    locks: Mapping[int, LockView]
    log_lengths: Mapping[int, int]
    readers: Mapping[str, str]
    """Positions as they are stored."""
    damaged: str = ""
    """Fingerprint of what was put aside in place of document or heartbeats; empty if there is nothing."""

    def beat(self, member: str) -> Beat | None:
        """Return a member's last heartbeat."""
        text = self.beats.get(member, "")
        return read_beats([member.encode(), text.encode()]).get(member)

    def position(self, reader: str) -> ReaderPosition:
        """Return a reader's position."""
        return read_readers([reader.encode(), self.readers[reader].encode()])[reader]


async def look(backend: Backend, keys: GroupKeys, partitions: int) -> Facts:
    """Look at a group: a few round trips that change nothing.

    Raises
    ------
    BackendError
        Without an answer, or if a key of the group holds another type.
    CoordinationError
        If the membership document cannot be read.
    """
    time, document, flat_beats, flat_readers = await _all_of(
        backend, [("TIME",), ("GET", keys.members), ("HGETALL", keys.beats), ("HGETALL", keys.readers)]
    )
    commands = [
        command for p in range(partitions) for command in (("HGETALL", keys.lock(p)), ("XLEN", keys.acked(p)))
    ]
    replies = await in_pieces(backend, commands)
    for reply in replies:
        if isinstance(reply, BackendError):
            raise reply
    views = {p: view for p in range(partitions) if (view := lock_view(replies[2 * p], p)) is not None}
    beats = _texts(flat_beats)
    run_id = (await backend.info(near=keys.members)).run_id
    client_ids = {beat.connection for beat in read_beats(flat_beats).values() if beat.run_id == run_id}
    there = await connected(backend, sorted(client_ids - {0}), keys.members)
    return Facts(
        keys=keys,
        now_ms=int(time[0]) * 1000 + int(time[1]) // 1000,
        run_id=run_id,
        membership=Membership.parse(document) if document else None,
        beats=beats,
        connections=None if there is None else frozenset(there),
        names=await connection_names(backend),
        locks=views,
        log_lengths={p: replies[2 * p + 1] for p in range(partitions)},
        readers=_texts(flat_readers),
        damaged=await put_aside(backend, keys),
    )


async def _all_of(backend: Backend, commands: Sequence[Sequence[str]]) -> list[Any]:
    replies = await backend.pipeline(commands)
    for reply in replies:
        if isinstance(reply, BackendError):
            raise reply
    return replies


def _texts(flat: Sequence[bytes]) -> dict[str, str]:
    return {
        name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for name, value in zip(flat[::2], flat[1::2], strict=True)
    }


# -- deeds: each returns whether it was done -------------------------------------------------------


async def remove_members(backend: Backend, facts: Facts, members: Sequence[str]) -> bool:
    """Remove members that are dead, as a peer would; the group's history has it as ``repair``."""
    before = facts.membership
    if before is None:
        return False
    after = before.without(members)
    message = to_fields(GroupChanged(0, "repair", before.names(members), before.moved(after)))
    flat = fields_of(message)
    seen = [part for member in members for part in (member, _stored(facts.beats.get(member, "")))]
    keys = facts.keys
    return await _done(
        backend,
        REPAIR_MEMBERS,
        (keys.members, keys.control, keys.beats, keys.loads),
        (str(before.generation), after.body(), len(flat), *flat, *seen),
    )


async def release_lock(backend: Backend, keys: GroupKeys, partition: int, lock: LockView) -> bool:
    """Release the lock of an owner that is gone."""
    return await _done(backend, REPAIR_LOCK, (keys.lock(partition),), (lock.owner, lock.epoch))


async def forget_reader(backend: Backend, facts: Facts, name: str) -> bool:
    """Forget a reader that has not moved since it was looked at."""
    arguments = (_stored(name), _stored(facts.readers[name]))
    return await _done(backend, REPAIR_READER, (facts.keys.readers,), arguments)


async def trim_log(backend: Backend, keys: GroupKeys, partition: int, lock: LockView) -> int | None:
    """Drop the rows that an acked log had when it was looked at; how many entries, or None if it is new."""
    total = 0
    touched = (keys.lock(partition), keys.acked(partition))
    while True:
        reply = checked(await backend.run(REPAIR_LOG, touched, (lock.log, lock.rows, TRIM_ENTRIES)))
        if reply[0] != b"OK":
            return total or None
        dropped = int(reply[1])
        total += dropped
        if not dropped:
            return total


async def drop_damaged(backend: Backend, facts: Facts) -> bool:
    """Remove what was put aside in place of the membership document or the heartbeats."""
    return await _done(backend, REPAIR_DAMAGED, (facts.keys.damaged,), (facts.damaged,))


async def forget_place(backend: Backend, facts: Facts, partition: int) -> bool:
    """Remove all that a group has in one partition."""
    keys, lock = facts.keys, facts.locks.get(partition)
    held = ("", "") if lock is None else (lock.owner, str(lock.epoch))
    return await _done(
        backend,
        REPAIR_PLACE,
        (
            keys.lock(partition),
            keys.events(partition),
            keys.acked(partition),
            keys.dead(partition),
            keys.state(partition),
        ),
        (keys.group, *held),
    )


async def forget_group(backend: Backend, facts: Facts) -> bool:
    """Remove the keys of a group that belong to no partition."""
    generation = str(facts.membership.generation) if facts.membership else ""
    seen = [part for member, beat in facts.beats.items() for part in (_stored(member), _stored(beat))]
    return await _done(backend, REPAIR_GROUP, group_keys(facts.keys), (generation, *seen))


def group_keys(keys: GroupKeys) -> tuple[str, ...]:
    """Return the keys of a group that belong to no partition, as the script takes them."""
    protocols = (keys.claims, keys.lease_grab, keys.lease_allocation)
    others = (keys.readers, keys.schemas, keys.damaged)
    return keys.members, keys.beats, keys.control, keys.loads, *protocols, *others


async def note(
    backend: Backend, keys: GroupKeys, what: str, partitions: Sequence[int] = (), *, by: str
) -> str:
    """Write what was done to the group's history, and return why not; empty if it was written.

    Another program's value may stand there, or memory be full: no reason to leave the rest of a repair
    undone, which may be what makes room.
    """
    message = {
        "kind": "repaired",
        "generation": "0",
        "what": what,
        "partitions": ",".join(map(str, partitions)),
        "by": by,
    }
    try:
        await control.post(backend, keys, [message])
    except BackendRefused as error:
        return f"{keys.control} is no stream" if is_wrong_type(error) else error.message
    return ""


async def _done(backend: Backend, script: Any, keys: Sequence[str], arguments: Sequence[Any]) -> bool:
    return bool(checked(await backend.run(script, keys, arguments))[0] == b"OK")


def _stored(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
