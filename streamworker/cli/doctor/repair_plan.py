"""Plans the steps of ``repair`` from facts that were read before: nothing here reads or writes.

A step that an option names and that finds nothing is an error: it would else be taken for done. Two rules
prevent harm. No member or lock of a group with a living member is removed: living members do this
themselves, and sooner. And a step that drops unread or uncommitted data is planned only if an
option names it.
"""

from collections.abc import Sequence

from streamworker.core.data.readers import read_position
from streamworker.core.protocols.membership.document import Member
from streamworker.core.words import counted, ranges
from streamworker.errors import CoordinationError, StreamworkerError
from streamworker.redisio.admin.outboxes import Diverged
from streamworker.redisio.admin.repair import Facts, Step
from streamworker.redisio.group.locks import LockView
from streamworker.settings import Settings

READER_RESTS_MS = 60_000
"""A reader that has moved within this time is not forgotten, even if an option names it."""


def plan_targets(facts: Facts, found: Sequence[Diverged]) -> list[Step]:
    """Plan that targets go on which have records that their source has lost."""
    if not found:
        raise _nothing(f"No stream has taken records from {facts.keys.group!r} that were lost here.")
    return [
        Step(
            "accept target",
            facts,
            f"{each.to.in_words}, from partition {each.partition}",
            f"it has {each.stands.records:,} records of it, which goes on from {each.since.records:,}",
            partitions=(each.partition,),
            diverged=each,
        )
        for each in found
    ]


def plan_group(facts: Facts, settings: Settings) -> list[Step]:
    """Plan the safe steps for a group: repair its logs, and clean up after it if no member lives."""
    steps = [
        Step("repair log", facts, f"partition {p}", f"its lock does not know of {last}", partitions=(p,))
        for p, last in facts.ahead.items()
    ]
    if living(facts, settings):
        return steps
    known = facts.membership.members if facts.membership else ()
    dead = [member for member in known if member.state != "held"]
    if dead:
        silent_s = min(_silent_ms(facts, member) for member in dead) // 1000
        who, ids = ", ".join(member.name for member in dead), tuple(member.id for member in dead)
        why = f"silent for {silent_s:,} s and more, and not connected"
        steps.append(Step("remove members", facts, who, why, ids))
    members = {member.id for member in known} - {member.id for member in dead}
    orphans = [p for p, lock in facts.locks.items() if lock.owner and lock.owner not in members]
    free = [p for p in orphans if _is_gone(facts, facts.locks[p], settings)]
    if free:
        owners = sorted({facts.locks[p].owner for p in free})
        why = f"held by {', '.join(owners)}: no member, and not connected"
        what = counted(len(free), "partition")
        steps.append(Step("release locks", facts, what, why, partitions=tuple(free)))
    return steps


def in_doubt(facts: Facts, settings: Settings) -> list[str]:
    """Say what ``plan_group`` leaves although it looks dead: in doubt its owner lives."""
    group, told = facts.keys.group, []
    members = [each for each in facts.membership.members if each.state != "held"] if facts.membership else []
    silent = [each for each in members if _silent_ms(facts, each) > settings.session_timeout_ms]
    if names := [each.name for each in silent if not _is_dead(facts, each, settings)]:
        why = "is connected" if facts.connections is not None else "may be connected, which the server hides"
        told.append(f"Member {', '.join(names)} of {group} is silent, and {why}: it may live, and stays.")
    if facts.membership is not None and not living(facts, settings):
        known = {each.id for each in facts.membership.members}
        orphans = {p: lock for p, lock in facts.locks.items() if lock.owner and lock.owner not in known}
        if held := [p for p, lock in orphans.items() if not _is_gone(facts, lock, settings)]:
            why = "may be connected, which the server hides" if facts.names is None else "may live"
            owners = ", ".join(sorted({orphans[p].owner for p in held}))
            told.append(f"{group} has no member {owners}, which holds partitions {ranges(held)}, and {why}.")
    return told


def plan_reader(facts: Facts, name: str) -> Step:
    """Plan to forget a reader; refuse one that has moved within ``READER_RESTS_MS``."""
    position = read_position(facts.readers[name])
    still_ms = facts.now_ms - position.at_ms
    if still_ms < READER_RESTS_MS:
        raise CoordinationError(
            f"Reader {name!r} of {facts.keys.group!r} was seen {still_ms // 1000} s ago: its query runs.",
            remedy="Stop its query first, and run this again in a minute.",
        )
    behind = sum(max(0, lock.rows - position.rows.get(p, 0)) for p, lock in facts.locks.items())
    why = f"still for {still_ms // 1000:,} s, {counted(behind, 'row')} behind"
    return Step("forget reader", facts, name, why, (name,))


def _nothing(why: str) -> StreamworkerError:
    return StreamworkerError(why, remedy="Nothing was changed. Leave out this option.")


def kind_of(fingerprint: str) -> str:
    """Describe the type of a value for people.

    >>> kind_of("17:da39a3ee5e6b4b0d3255bfef95601890afd80709"), kind_of("hash")
    ('a string of 17 bytes', 'a hash')
    """
    length, colon, _ = fingerprint.partition(":")
    return f"a string of {int(length):,} bytes" if colon else f"a {fingerprint}"


def plan_undeclared(facts: Facts, settings: Settings) -> Step:
    """Plan to delete all keys of a group that the app does not declare; refuse one that a worker runs."""
    group = facts.keys.group
    alive = living(facts, settings)
    held = {lock.owner for lock in facts.locks.values() if lock.owner and not _is_gone(facts, lock, settings)}
    if alive or held:
        raise CoordinationError(
            f"Group {group!r} of stream {facts.keys.stream!r} is run by {', '.join(sorted(alive | held))}.",
            remedy="Stop its workers first.",
        )
    rows = sum(lock.rows for lock in facts.locks.values())
    what = f"its position in the stream, its log ({counted(rows, 'row')} ever), dead letters and state"
    why = "the app does not declare it, and no worker runs it"
    return Step("forget group", facts, what, why, partitions=tuple(range(facts.partitions)))


def living(facts: Facts, settings: Settings) -> set[str]:
    """Return the names of members that may be alive; in doubt a member counts as alive."""
    if facts.membership is None:
        owners = [lock for lock in facts.locks.values() if lock.owner]
        return {lock.owner for lock in owners if not _is_gone(facts, lock, settings)}
    members = (member for member in facts.membership.members if member.state != "held")
    return {member.name for member in members if not _is_dead(facts, member, settings)}


def _is_dead(facts: Facts, member: Member, settings: Settings) -> bool:
    silent_ms = _silent_ms(facts, member)
    if facts.connections is None:  # The server does not report which clients are connected.
        return silent_ms > settings.slow_after_ms
    beat = facts.beat(member.id)
    is_there = beat is not None and beat.run_id == facts.run_id and beat.connection in facts.connections
    return silent_ms > settings.session_timeout_ms and not is_there


def _silent_ms(facts: Facts, member: Member) -> int:
    beat = facts.beat(member.id)
    return facts.now_ms - (member.joined_ms if beat is None else beat.server_ms)


def _is_gone(facts: Facts, lock: LockView, settings: Settings) -> bool:
    """Whether the owner of a lock, which has no known heartbeat, has no connection."""
    if facts.names is None or facts.now_ms - lock.since_ms < settings.session_timeout_ms:
        return False
    called = {lock.owner, lock.owner.rpartition(".")[0]}
    return not any(name in called or name.partition(":")[0] in called for name in facts.names)
