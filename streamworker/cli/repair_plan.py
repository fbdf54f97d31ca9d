"""What ``repair`` would do, decided from what was seen: nothing here reads or writes.

Two rules keep what lives from harm. A group of which one member lives is left alone: it heals itself,
and sooner. And what would drop something unread or uncommitted is planned only if an option names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from streamworker.core.membership import Member
from streamworker.errors import CoordinationError
from streamworker.redisio.locks import LockView
from streamworker.redisio.repair import Facts

READER_RESTS_MS = 60_000
"""A reader that has moved within this time is not forgotten, whoever asks."""

Deed = Literal["remove members", "release locks", "forget reader", "trim log", "drop damaged", "forget group"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and why."""

    deed: Deed
    stream: str
    group: str
    what: str
    """What it is done to, for people."""
    why: str
    names: tuple[str, ...] = ()
    """Members or the reader that it is about."""
    partitions: tuple[int, ...] = ()
    facts: Facts | None = field(default=None, repr=False)
    """What was seen; the deed is done only if that has not changed."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a member may be silent before it counts as dead, in ms."""

    session_timeout_ms: int
    slow_after_ms: int
    """Where the server does not tell whether its connection is there."""


def plan_group(facts: Facts, patience: Patience) -> list[Step]:
    """Plan what can be done safely for a group: tidy up behind workers of which none is left."""
    if living(facts, patience):
        return []
    steps = []
    known = facts.membership.members if facts.membership else ()
    dead = [member for member in known if member.state != "held"]
    if dead:
        silent_s = min(_silent_ms(facts, member) for member in dead) // 1000
        steps.append(
            _step(
                "remove members",
                facts,
                ", ".join(member.name for member in dead),
                f"silent for {silent_s:,} s and more, and no connection of theirs is there",
                names=tuple(member.id for member in dead),
            )
        )
    members = {member.id for member in known} - {member.id for member in dead}
    orphans = [p for p, lock in facts.locks.items() if lock.owner and lock.owner not in members]
    free = [p for p in orphans if _is_gone(facts, facts.locks[p], patience)]
    if free:
        owners = sorted({facts.locks[p].owner for p in free})
        steps.append(
            _step(
                "release locks",
                facts,
                f"{len(free)} partitions",
                f"held by {', '.join(owners)}: no member, and not connected",
                partitions=tuple(free),
            )
        )
    return steps


def plan_reader(facts: Facts, name: str) -> Step:
    """Plan to forget a reader.

    Raises
    ------
    CoordinationError
        If it has moved a moment ago.
    """
    position = facts.position(name)
    still_ms = facts.now_ms - position.at_ms
    if still_ms < READER_RESTS_MS:
        raise CoordinationError(
            f"Reader {name!r} of {facts.keys.group!r} moved {still_ms // 1000} s ago: it is at work.",
            remedy="Stop its query first, and run this again in a minute.",
        )
    behind = sum(max(0, lock.rows - position.rows.get(p, 0)) for p, lock in facts.locks.items())
    return _step(
        "forget reader",
        facts,
        name,
        f"still for {still_ms // 1000:,} s, {behind:,} rows behind",
        names=(name,),
    )


def plan_log(facts: Facts) -> list[Step]:
    """Plan to drop what an acked log without readers holds.

    Raises
    ------
    CoordinationError
        If it has a reader.
    """
    if facts.readers:
        raise CoordinationError(
            f"The log of {facts.keys.group!r} has readers: {', '.join(sorted(facts.readers))}.",
            remedy="Rows are dropped when all are past them. --forget-reader removes one that is gone.",
        )
    full = tuple(p for p, length in facts.log_lengths.items() if length and p in facts.locks)
    entries = sum(facts.log_lengths[p] for p in full)
    if not full:
        return []
    return [_step("trim log", facts, f"{entries:,} entries", "no reader has registered", partitions=full)]


def plan_damaged(facts: Facts) -> list[Step]:
    """Plan to remove what was put aside in place of the membership document or the heartbeats."""
    if not facts.damaged:
        return []
    return [
        _step(
            "drop damaged", facts, kind_of(facts.damaged), "put aside by the workers, for somebody to look at"
        )
    ]


def kind_of(fingerprint: str) -> str:
    """Say of what kind a value is, for people.

    Examples
    --------
    >>> kind_of("17:da39a3ee5e6b4b0d3255bfef95601890afd80709"), kind_of("hash")
    ('a string of 17 bytes', 'a hash')
    """
    length, colon, _ = fingerprint.partition(":")
    return f"a string of {int(length):,} bytes" if colon else f"a {fingerprint}"


def plan_leftover(facts: Facts, patience: Patience) -> Step:
    """Plan to remove all that a group has, which the app does not declare any more.

    Raises
    ------
    CoordinationError
        If somebody runs it.
    """
    group = facts.keys.group
    alive = living(facts, patience)
    held = {lock.owner for lock in facts.locks.values() if lock.owner and not _is_gone(facts, lock, patience)}
    if alive or held:
        raise CoordinationError(
            f"Group {group!r} of stream {facts.keys.stream!r} is run by {', '.join(sorted(alive | held))}.",
            remedy="Stop its workers first.",
        )
    rows = sum(lock.rows for lock in facts.locks.values())
    return _step(
        "forget group",
        facts,
        f"its place in the stream, its log ({rows:,} rows ever), dead letters and state",
        "the app does not declare it, and nobody runs it",
        partitions=tuple(facts.log_lengths),
    )


# -- who is alive ------------------------------------------------------------------------------


def living(facts: Facts, patience: Patience) -> set[str]:
    """Return the names of members that may be alive; in doubt they are."""
    if facts.membership is None:
        owners = [lock for lock in facts.locks.values() if lock.owner]
        return {lock.owner for lock in owners if not _is_gone(facts, lock, patience)}
    members = (member for member in facts.membership.members if member.state != "held")
    return {member.name for member in members if not _is_dead(facts, member, patience)}


def _is_dead(facts: Facts, member: Member, patience: Patience) -> bool:
    silent_ms = _silent_ms(facts, member)
    if facts.connections is None:
        return silent_ms > patience.slow_after_ms
    beat = facts.beat(member.id)
    is_there = beat is not None and beat.run_id == facts.run_id and beat.connection in facts.connections
    return silent_ms > patience.session_timeout_ms and not is_there


def _silent_ms(facts: Facts, member: Member) -> int:
    beat = facts.beat(member.id)
    return facts.now_ms - (member.joined_ms if beat is None else beat.server_ms)


def _is_gone(facts: Facts, lock: LockView, patience: Patience) -> bool:
    """Whether the owner of a lock, of whom no heartbeat is known, has no connection."""
    if facts.names is None or facts.now_ms - lock.since_ms < patience.session_timeout_ms:
        return False
    called = {lock.owner, lock.owner.rpartition(".")[0]}
    return not any(name in called or name.partition(":")[0] in called for name in facts.names)


def _step(
    deed: Deed,
    facts: Facts,
    what: str,
    why: str,
    *,
    names: tuple[str, ...] = (),
    partitions: Sequence[int] = (),
) -> Step:
    return Step(deed, facts.keys.stream, facts.keys.group, what, why, names, tuple(partitions), facts)
