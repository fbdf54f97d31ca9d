"""Snapshots of a whole group: two round trips that only read.

A snapshot is cheap enough to be taken once a second: it reads lengths and hashes, no payloads, and
nothing that grows with the number of entries.
"""

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import Any

from streamworker.core.control import ControlMessage, GroupChanged, PartitionsAcquired, RequestMade
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.inheriting import counted
from streamworker.core.data.placement import Placement
from streamworker.core.data.readers import ReaderPosition
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.membership.events import Beat
from streamworker.core.protocols.registry import PROTOCOLS, from_fields
from streamworker.core.snapshot import (
    GroupSnapshot,
    MemberState,
    MemberView,
    PartitionState,
    PartitionView,
    ReaderView,
    Rebalance,
    TableView,
)
from streamworker.core.time.lifetimes import NO_TABLES, Lifetimes
from streamworker.errors import BackendError, BackendRefused
from streamworker.redisio.data.statetables import view_table
from streamworker.redisio.group.archiving import archiver_keys
from streamworker.redisio.group.control import fields_of
from streamworker.redisio.group.following import first_of
from streamworker.redisio.group.locks import LockView, lock_view
from streamworker.redisio.group.membership import read_beats
from streamworker.redisio.group.readers import read_readers
from streamworker.redisio.group.risks import deaths_in
from streamworker.redisio.keys import GroupKeys, map_in, number
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered, is_wrong_type
from streamworker.redisio.wire.info import RecordCounts, ms_of, pairs_of
from streamworker.redisio.wire.link import Argument

SILENT_AFTER_MS = 3_000
"""A member without a heartbeat for this long is shown as silent: two heartbeats at default settings,
and a margin."""

GOING: Collection[PartitionState] = ("running", "retrying", "draining", "acquiring")
"""A partition in these states goes on by itself."""
CONTROL_MESSAGES = 400
"""Control messages read for the last rebalances; each rebalance posts a few."""


async def take_snapshot(
    backend: Backend,
    app: str,
    stream: str,
    group: str,
    *,
    silent_after_ms: int = SILENT_AFTER_MS,
    tables: Lifetimes = NO_TABLES,
) -> GroupSnapshot:
    """Take a snapshot of a processor's group; the snapshot of a group that never ran is empty.

    It has those of the processor's tables that the caller names.

    If another program wrote to a key of a partition, the partition is shown as halted, with the reason. If
    Redis does not answer for one, as its node of a Cluster is away, it is shown as unknown.
    If another program wrote to a key of the group, ``problems`` names the key, and its content is
    missing.
    """
    keys = GroupKeys(app, stream, group)
    asked: dict[str, Sequence[Argument]] = {
        keys.beats: ("HGETALL", keys.beats),
        keys.readers: ("HGETALL", keys.readers),
        keys.control: ("XREVRANGE", keys.control, "+", "-", "COUNT", CONTROL_MESSAGES),
        keys.meta: ("HGET", keys.meta, "partitions"),
        keys.risks: ("HGETALL", keys.risks),
    }
    replies = await backend.pipeline([("TIME",), ("GET", keys.members), *asked.values()])
    problems: list[str] = []
    for at, key in enumerate(asked, start=2):
        if is_wrong_type(refusal := replies[at]):
            problems.append(f"{key} cannot be read: {refusal.remedy}")
            replies[at] = None
    if isinstance(replies[-1], BackendRefused):
        replies[-1] = None  # A user that was made for an earlier release may not read it.
    time, document, beats, readers, control, declared, risks = all_answered(replies)
    now_ms = ms_of(time)
    placement = Placement(*map_in(declared)) if declared else None
    count = placement.total if placement else 0
    membership = Membership.parse(document) if document else Membership.empty(count, "range")
    looks = await _look_at_partitions(backend, keys, max(membership.partitions, count))
    left = {view.partition for lock, view in looks if not lock.done}
    first = first_of(placement, left) if placement else 0
    known_beats = read_beats(beats or []) if document else None
    if not document:
        membership = _by_locks(looks, first)
    judged = [_judged(look, membership, group) for look in looks]
    done = tuple(judged[:first])
    partitions = tuple(_waiting(view, judged, looks) for view in judged[first:])
    members = _member_views(membership, known_beats, partitions, now_ms, silent_after_ms)
    if members and all(member.state in ("silent", "held") for member in members):
        partitions = await _silent(backend, keys, partitions)
    views: list[TableView] = []
    waits = {p for p, (lock, _) in enumerate(looks) if lock.waits_for}
    holders = counted(placement, waits, set(range(len(looks))) - left) if placement else {}
    for table, lifetime in tables.items():
        try:
            views.append(await view_table(backend, keys, {table: lifetime}, holders))
        except BackendRefused as error:
            problems.append(f"Table {table} cannot be read: {error}")
    return GroupSnapshot(
        app=app,
        stream=stream,
        processor=group,
        generation=membership.generation,
        taken_ms=now_ms,
        members=members,
        partitions=partitions,
        readers=_reader_views(read_readers(readers or []), judged),
        rebalances=rebalances(
            [(EntryId.parse(entry_id).ms, fields_of(flat)) for entry_id, flat in reversed(control or [])],
            {view.partition: view.owner for view in partitions if view.owner and view.owner == view.assigned}
            if document
            else {},
        ),
        problems=tuple(problems),
        tables=tuple(views),
        died=deaths_in(pairs_of(risks or [])),
        done=done,
    )


# -- partitions ------------------------------------------------------------------------------


_NO_LOCK = LockView("", 0, ZERO, 0, 0, "", 0, "", "", 0, 0)


_Look = tuple[LockView, PartitionView]
"""What Redis stores about one partition; only ``_judged`` says who should own it, and what its owner does."""


async def _look_at_partitions(backend: Backend, keys: GroupKeys, count: int) -> list[_Look]:
    commands: list[Sequence[Argument]] = []
    for p in range(count):
        commands += [
            ("HGETALL", keys.lock(p)),
            ("XLEN", keys.events(p)),
            ("XLEN", keys.acked(p)),
            ("XLEN", keys.dead(p)),
            ("XLEN", keys.outbox(p).messages),
            RecordCounts.command(keys.counts(p)),
            ("HGET", archiver_keys(keys).lock(p), "entries"),
        ]
    replies = await backend.pipeline(commands)
    looks: list[_Look] = []
    for p in range(count):
        lock, length, acked_length, dead, outbox, counts, archived = replies[7 * p : 7 * p + 7]
        packed = RecordCounts.of(counts)
        records = packed.present(_number(length))
        kept = number(archived) if isinstance(archived, bytes) else 0
        broken = [r for r in (lock, length, acked_length, dead, outbox) if isinstance(r, BackendError)]
        view = None
        try:
            view = None if isinstance(lock, BackendError) else lock_view(lock, p)
        except BackendRefused as error:
            broken.append(error)
        held = view or _NO_LOCK
        known = PartitionView(
            partition=p,
            owner=held.owner or None,
            assigned=None,
            epoch=held.epoch,
            state=_state_unread(broken[0]) if broken else "running",
            reason=str(broken[0]) if broken else "",
            checkpoint=str(held.checkpoint),
            records=held.entries - held.gone,
            gone=held.gone,
            lag=records if view is None else packed.lag(_number(length), view.entries, kept),
            length=records,
            rows=held.rows,
            acked_length=_number(acked_length),
            dead=_number(dead),
            outbox=_number(outbox),
            since_ms=held.since_ms,
            retry=held.retry,
            pause=held.pause,
            deaths=held.deaths,
            timers=held.timers,
            waits_for=held.waits_for,
        )
        looks.append((held, known))
    return looks


def _state_unread(error: BackendError) -> PartitionState:
    return "halted" if isinstance(error, BackendRefused) else "unknown"


def _number(reply: Any) -> int:
    return reply if isinstance(reply, int) else 0


def _judged(look: _Look, membership: Membership, group: str) -> PartitionView:
    (lock, view), owners = look, membership.owners
    assigned = owners[view.partition] if view.partition < len(owners) else None
    state, reason = _state(lock, view, assigned, membership)
    if lock.deaths:
        suspect = f"{view.partition}/{lock.suspect}"
        died = "1 worker" if lock.deaths == 1 else f"{lock.deaths} workers"
        reason = reason or f"{died} died in a row in the call of record {suspect}."
        reason += (
            f" Set it aside: `streamworker dead put MODULE:{group} {suspect}`. "
            f"Or have it called again: `streamworker retry MODULE:{group} --partition {view.partition}`."
        )
    retry = lock.retry if state == "retrying" else None
    return replace(view, assigned=assigned, state=state, reason=reason, retry=retry)


def _waiting(
    view: PartitionView, all_views: Sequence[PartitionView], looks: Sequence[_Look]
) -> PartitionView:
    """Say which partitions one waits for before it is handled, and which of those stand still."""
    left = [p for p in view.waits_for if p < len(looks) and not looks[p][0].done]
    if not left or view.state != "running" or view.partition in left:
        return view  # While a reset moves its checkpoint, its owner says so.
    still = [f"; {p} is {all_views[p].state}" for p in left if all_views[p].state not in GOING]
    return replace(view, reason=f"waits for {', '.join(map(str, left))}{''.join(still)}", is_next=not still)


def _state(
    lock: LockView, view: PartitionView, assigned: str | None, membership: Membership
) -> tuple[PartitionState, str]:
    if view.state in ("halted", "unknown"):
        return view.state, view.reason
    owner = membership.get(view.owner) if view.owner is not None else None
    if owner is None:
        # A lock whose owner was removed counts as free.
        heir = membership.get(assigned) if assigned is not None else None
        if heir is not None and heir.state == "held":
            return "unowned", _kept_for(heir)
        return ("acquiring" if assigned else "unowned"), ""
    if lock.pause is not None:
        return "paused" if lock.obeyed >= lock.requested else "pausing", ""
    if owner.state == "held" and lock.state != "halted":
        return "unowned", _kept_for(owner)
    match lock.state:
        case "halted" | "retrying" | "draining" as state:
            return state, lock.reason
        case _:
            return "running", lock.reason


def _kept_for(member: Member) -> str:
    return f"{member.name} is away, and its static id keeps the partition for it"


async def _silent(
    backend: Backend, keys: GroupKeys, views: Sequence[PartitionView]
) -> tuple[PartitionView, ...]:
    """Say of the partitions why no member sends heartbeats: none lives, or the server takes no writes."""
    is_written = True
    with suppress(BackendError):
        info = await backend.info(keys.beats)
        is_written = info.aof_written and info.rdb_written
    reason = "no member is alive" if is_written else "Redis cannot write to its disk, and refuses all writes"
    return tuple(
        replace(view, state="unowned" if is_written else view.state, reason=view.reason or reason, retry=None)
        if view.state in ("running", "retrying", "draining", "acquiring")
        else view
        for view in views
    )


def _by_locks(looks: Sequence[_Look], first: int) -> Membership:
    """Return the members of a group whose protocol keeps no document: the owners of its locks.

    Such a protocol has no heartbeats either, so members count as alive while they hold a lock.
    """
    owners = tuple(view.owner for _, view in looks)
    since: dict[str, int] = {}
    for lock in (lock for lock, _ in looks[first:] if lock.owner):
        since[lock.owner] = min(since.get(lock.owner, lock.since_ms), lock.since_ms)
    members = tuple(
        Member(owner, owner.rpartition(".")[0] or owner, "", 0, joined_ms)
        for owner, joined_ms in sorted(since.items(), key=lambda each: (each[1], each[0]))
    )
    return Membership(0, len(owners), "range", members, owners)


# -- members and readers ---------------------------------------------------------------------


def _member_views(
    membership: Membership,
    beats: Mapping[str, Beat] | None,
    partitions: Sequence[PartitionView],
    now_ms: int,
    silent_after_ms: int,
) -> tuple[MemberView, ...]:
    assigned = {view.assigned for view in partitions}

    def view(member: Member) -> MemberView:
        beat = beats.get(member.id) if beats is not None else None
        age = None if beat is None else max(0, now_ms - beat.server_ms)
        held = tuple(each.partition for each in partitions if each.owner == member.id)
        state: MemberState = "active" if held or member.id in assigned else "standby"
        if member.state == "leaving":
            state = "leaving"
        if beats is not None and (age is None or age > silent_after_ms):
            state = "silent"
        if member.state == "held":
            state = "held"
        load = 0 if beat is None else beat.load
        who = (member.id, member.name, member.host, member.pid, member.joined_ms)
        return MemberView(*who, age, state, held, load, member.capacity)

    return tuple(view(member) for member in membership.members)


def _reader_views(
    readers: Mapping[str, ReaderPosition], partitions: Sequence[PartitionView]
) -> tuple[ReaderView, ...]:
    def view(name: str, reader: ReaderPosition) -> ReaderView:
        lag_rows = sum(max(0, each.rows - reader.rows.get(each.partition, 0)) for each in partitions)
        told = (reader.at_ms, reader.late_rows, reader.failed, reader.failed_ms, reader.batch_ms)
        return ReaderView(name, dict(reader.rows), lag_rows, *told, reader.dropped_rows)

    return tuple(view(name, reader) for name, reader in sorted(readers.items()))


# -- rebalances ------------------------------------------------------------------------------


def rebalances(
    messages: Sequence[tuple[int, Mapping[str, str]]], settled: Mapping[int, str] | None = None
) -> tuple[Rebalance, ...]:
    """Compute the rebalances from control messages, oldest first.

    A rebalance ends when each partition that it moved was acquired at its generation or a later one: then the
    partition runs again, under this owner or a later one. It is superseded if the partitions that are left
    moved elsewhere by a later generation, or came back to an owner that had not released them yet, and so
    acquires none. Each message has its server time in ms and its fields; ``settled`` has the owners of the
    partitions that are where they belong.

    >>> rebalances([
    ...     (10, {"kind": "changed", "generation": "7", "cause": "join", "member": "a", "moved": "0,1"}),
    ...     (30, {"kind": "acquired", "generation": "7", "owner": "a.1", "partitions": "0,1"}),
    ... ])
    (Rebalance(generation=7, cause='join', member='a', at_ms=10, moved=(0, 1), ms=20, superseded=False),)
    >>> rebalances([
    ...     (10, {"kind": "challenged", "generation": "9", "owner": "a.1", "partitions": "0,1"}),
    ...     (95, {"kind": "acquired", "generation": "9", "owner": "b.1", "partitions": "1"}),
    ... ])
    (Rebalance(generation=9, cause='race', member='b', at_ms=10, moved=(1,), ms=85, superseded=False),)
    """
    known = [(at_ms, message) for at_ms, fields in messages if (message := from_fields(fields)) is not None]
    acquirers = {
        partition: message.owner
        for _, message in known
        if isinstance(message, PartitionsAcquired)
        for partition in message.partitions
    }
    # Of whom no acquisition is known, it was before all messages.
    kept = {each for each, owner in (settled or {}).items() if acquirers.get(each, owner) == owner}
    changes = [
        _rebalance(message, at_ms, known[index + 1 :], kept)
        for index, (at_ms, message) in enumerate(known)
        if isinstance(message, GroupChanged)
    ]
    repairs = [_repair(at_ms, fields) for at_ms, fields in messages if fields.get("kind") == "repaired"]
    requests = [
        Rebalance(0, message.order, _given_by(message), at_ms, message.partitions, 0)
        for at_ms, message in known
        if isinstance(message, RequestMade)
    ]
    others = [each for protocol in PROTOCOLS.values() for each in protocol.history(known)]
    return tuple(sorted([*changes, *requests, *others, *repairs], key=lambda each: each.at_ms))


def _given_by(message: RequestMade) -> str:
    return f'{message.who} "{message.why}"' if message.why else message.who


def _repair(at_ms: int, fields: Mapping[str, str]) -> Rebalance:
    """Return a ``streamworker repair`` as a rebalance; it moves nothing, and the history shows it."""
    parts = fields.get("partitions", "").split(",")
    partitions = tuple(int(each) for each in parts if each.isdecimal() and len(each) < 10)
    what = f"{fields.get('what', '')} by {fields.get('by', '')}"
    return Rebalance(0, "repair", what, at_ms, partitions, 0)


def _rebalance(
    change: GroupChanged, at_ms: int, later: Sequence[tuple[int, ControlMessage]], kept: AbstractSet[int]
) -> Rebalance:
    """Return a change, and when it ended; ``kept`` are the partitions whose owners never lost them."""
    left, elsewhere = set(change.moved), set[int]()
    ms = None if left else 0
    for then_ms, message in later:
        if isinstance(message, PartitionsAcquired) and message.generation >= change.generation:
            left.difference_update(message.partitions)
        elif isinstance(message, GroupChanged) and message.generation > change.generation:
            elsewhere.update(message.moved)
        if not left and ms is None:
            ms = then_ms - at_ms
    known = (change.generation, change.cause, change.member, at_ms, change.moved)
    return Rebalance(*known, ms, superseded=ms is None and left <= kept | elsewhere)
