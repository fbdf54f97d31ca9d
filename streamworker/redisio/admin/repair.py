"""The steps of ``streamworker repair``: what is read to plan them, and how each is done.

This module decides nothing; ``cli.doctor.repair_plan`` chooses the steps. Each change is a compare-and-set:
it is skipped if the data has changed since it was read. So a repair does not harm a live group, and every
change may be repeated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from streamworker.core.control import GroupChanged
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.membership.events import Beat, ChangeDocument, DocumentChanged
from streamworker.errors import BackendRefused
from streamworker.redisio.admin.health import connection_names, in_pieces
from streamworker.redisio.admin.outboxes import Diverged, accept_target
from streamworker.redisio.data.streams import set_field
from streamworker.redisio.group import control
from streamworker.redisio.group.locks import LockView, lock_view
from streamworker.redisio.group.membership import change_members, connected, read_beats
from streamworker.redisio.group.operations import HASHES
from streamworker.redisio.keys import GroupKeys, declaration, declared_by
from streamworker.redisio.scripts import (
    REPAIR_AHEAD,
    REPAIR_GROUP,
    REPAIR_LOCK,
    REPAIR_PARTITION,
    Call,
    Script,
    checked,
)
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered, is_wrong_type
from streamworker.redisio.wire.info import ms_of


@dataclass(frozen=True, slots=True)
class Facts:
    """The data of a group from which a repair is planned."""

    keys: GroupKeys
    partitions: int
    now_ms: int
    """The server's time."""
    run_id: str
    """Run id of the server."""
    membership: Membership | None
    """None for a group without a document: it uses another protocol, or never had members."""
    beats: Mapping[str, str]
    """Heartbeats of all members, in their stored form."""
    connections: frozenset[int] | None
    """The members' connections that the server still has; None if this user may not list them."""
    names: frozenset[str] | None
    """Names of all connections; None if this user may not list them."""
    locks: Mapping[int, LockView]
    readers: Mapping[str, str]
    """Positions of the readers, in their stored form."""
    ahead: Mapping[int, str] = field(default_factory=dict)
    """Last id of each acked log whose last id is higher than its lock's row count."""

    def beat(self, member: str) -> Beat | None:
        """Return a member's last heartbeat."""
        text = self.beats.get(member, "")
        return read_beats([_stored(member), _stored(text)]).get(member)


CHANGED = "left alone: it has changed since"
"""How the outcome of a step begins whose keys have changed since it was planned."""

Action = Literal[
    "remove members",
    "release locks",
    "repair log",
    "forget reader",
    "accept target",
    "forget group",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a repair, and the reason for it."""

    action: Action
    facts: Facts = field(repr=False)
    """The facts of the plan; the step is done only if they have not changed."""
    what: str
    """What the step changes, for people."""
    why: str
    names: tuple[str, ...] = ()
    """The members or the reader that the step removes."""
    partitions: tuple[int, ...] = ()
    diverged: Diverged | None = None
    """The target that goes on."""


async def look(backend: Backend, keys: GroupKeys, partitions: int) -> Facts:
    """Read the data of a group, in a few round trips."""
    asked = [("TIME",), ("GET", keys.members), ("HGETALL", keys.beats), ("HGETALL", keys.readers)]
    time, document, flat_beats, flat_readers = all_answered(await backend.pipeline(asked))
    everywhere = range(partitions)
    locks = all_answered(await in_pieces(backend, [("HGETALL", keys.lock(p)) for p in everywhere]))
    run_id = (await backend.info(near=keys.members)).run_id
    client_ids = {beat.connection for beat in read_beats(flat_beats).values() if beat.run_id == run_id}
    there = await connected(backend, sorted(client_ids - {0}), keys.members)
    return Facts(
        keys=keys,
        partitions=partitions,
        now_ms=ms_of(time),
        run_id=run_id,
        membership=Membership.parse(document) if document else None,
        beats=control.fields_of(flat_beats, "surrogateescape"),
        connections=there,
        names=await connection_names(backend),
        locks={p: view for p, flat in enumerate(locks) if (view := lock_view(flat, p)) is not None},
        readers=control.fields_of(flat_readers, "surrogateescape"),
        ahead=await logs_ahead(backend, keys, partitions),
    )


# -- changes: each returns whether it was made ------------------------------------------------------


async def remove_members(backend: Backend, facts: Facts, members: Sequence[str]) -> bool:
    """Remove dead members, as a peer would; the group's history shows it as ``repair``."""
    before = facts.membership
    if before is None:
        return False
    after = before.without(members)
    message = GroupChanged(0, "repair", before.names(members), before.moved(after))
    change = ChangeDocument(before.generation, after, message, (), tuple(members))
    seen = {member: _stored(beat) for member, beat in facts.beats.items()}
    return isinstance(await change_members(backend, facts.keys, change, seen), DocumentChanged)


async def release_lock(backend: Backend, keys: GroupKeys, partition: int, lock: LockView) -> bool:
    """Release the lock of an owner that is gone."""
    call = REPAIR_LOCK.at(keys, partition, owner=lock.owner, epoch=lock.epoch)
    return await _done(backend, REPAIR_LOCK, call)


async def forget_reader(backend: Backend, facts: Facts, name: str) -> bool:
    """Remove a reader whose position has not changed since it was read."""
    return await set_field(backend, facts.keys.readers, _stored(name), _stored(facts.readers[name]), "")


async def logs_ahead(backend: Backend, keys: GroupKeys, partitions: int) -> dict[int, str]:
    """Return the last id of each acked log that is ahead of its lock and so accepts no commit."""
    looks = [REPAIR_AHEAD.at(keys, p, log="") for p in range(partitions)]
    replies = enumerate(await backend.run_many(REPAIR_AHEAD, looks))
    return {p: reply[2].decode() for p, reply in replies if isinstance(reply, list) and reply[1] == b"ahead"}


async def repair_log(backend: Backend, keys: GroupKeys, partition: int, lock: LockView) -> bool:
    """Let rows count on from the end of an acked log that is ahead of its lock, if it is still the same."""
    return await _done(backend, REPAIR_AHEAD, REPAIR_AHEAD.at(keys, partition, log=lock.log))


async def forget_partition(backend: Backend, facts: Facts, partition: int) -> bool:
    """Remove all data of a group in one partition."""
    keys, lock = facts.keys, facts.locks.get(partition)
    owner, epoch = ("", "") if lock is None else (lock.owner, str(lock.epoch))
    call = REPAIR_PARTITION.at(keys, partition, group=keys.group, owner=owner, epoch=epoch)
    return await _done(backend, REPAIR_PARTITION, call)


async def forget_group(backend: Backend, facts: Facts) -> bool:
    """Remove the keys of a group that belong to no partition, and its name from those that readers find."""
    generation = str(facts.membership.generation) if facts.membership else ""
    seen = [part for member, beat in facts.beats.items() for part in (_stored(member), _stored(beat))]
    hashes = {name: facts.keys.of_group(name) for name in HASHES}
    call = REPAIR_GROUP.at(facts.keys, **hashes, generation=generation, seen=seen)
    done = await _done(backend, REPAIR_GROUP, call)
    if done:
        keys = facts.keys
        name = declaration("processor", keys.group, keys.stream)
        await backend.execute("HDEL", declared_by(keys.app), name)
    return done


async def _noted(
    backend: Backend, keys: GroupKeys, by: str, what: str, partitions: Sequence[int] = ()
) -> str:
    """Write a repair to the group's history; return what is to be said if that failed, or an empty text.

    The key may have another type, or memory may be full. The rest of a repair continues in that case,
    since it may free memory.
    """
    moved = ",".join(map(str, partitions))
    message = {"kind": "repaired", "generation": "0", "what": what, "partitions": moved, "by": by}
    try:
        await control.post(backend, keys, [message])
    except BackendRefused as error:
        refusal = f"{keys.control} is no stream" if is_wrong_type(error) else error.message
        return f"; the history does not have it: {refusal}"
    return ""


async def _done(backend: Backend, script: Script, call: Call) -> bool:
    return bool(checked(await backend.run(script, call))[0] == b"OK")


def _stored(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# -- steps --------------------------------------------------------------------------------------


async def do_step(backend: Backend, step: Step, by: str) -> str:
    """Do a step, which the group's history names with who did it; return what came of it, in words."""
    facts, keys = step.facts, step.facts.keys
    noted = partial(_noted, backend, keys, by)
    match step.action:
        case "remove members":
            return "done" if await remove_members(backend, facts, step.names) else CHANGED
        case "forget reader":
            if not await forget_reader(backend, facts, step.names[0]):
                return CHANGED
            return f"done{await noted(f'{step.action} {step.what}')}"
        case "release locks":
            released = [p for p in step.partitions if await release_lock(backend, keys, p, facts.locks[p])]
            end = await noted(step.action, released) if released else ""
            return f"{_how_many(len(released), len(step.partitions))}{end}"
        case "repair log":
            (p,) = step.partitions
            is_done = await repair_log(backend, keys, p, facts.locks[p])
            return f"done{await noted(step.action, [p])}" if is_done else CHANGED
        case "accept target":
            assert step.diverged is not None
            if not await accept_target(backend, keys, step.diverged):
                return CHANGED
            return f"done{await noted(f'{step.action} {step.what}', step.partitions)}"
        case "forget group":
            gone = [p for p in step.partitions if await forget_partition(backend, facts, p)]
            if len(gone) == len(step.partitions) and await forget_group(backend, facts):
                return "done"
            return f"{CHANGED}: {len(gone)} of {len(step.partitions)} partitions are removed"


def _how_many(done: int, total: int) -> str:
    return "done" if done == total else f"{CHANGED}: {total - done} of {total} partitions"
