"""The locks of partitions: acquire, release, mark, read; ``core.locks`` says what they mean."""

import contextlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamworker.core.data.entries import EntryId
from streamworker.core.events import AcquireLocks, LocksAnswered, MarkLock, StartRunner
from streamworker.core.ownership.locks import Acquired, AcquireReply, Held, Stale
from streamworker.core.snapshot import PauseView, RetryView
from streamworker.core.time.lifetimes import NO_TABLES, Lifetimes
from streamworker.errors import BackendError, BackendRefused, ConfigurationError
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import EVENT_TIME, TICK, GroupKeys, number, whole
from streamworker.redisio.scripts import ACQUIRE, MARK, MOVE_CHECKPOINT, RELEASE, STORE_TRIES, Call, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY, Durability, Undurable
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import pairs_of

ALONE = "alone"
"""Ends the attempts of a record that is called while nothing else is: its owner's death is its doing."""


@dataclass(frozen=True, slots=True)
class LockView:
    """The content of a partition's lock."""

    owner: str
    """Empty if no member holds the lock."""
    epoch: int
    checkpoint: EntryId
    entries: int
    """Source records up to the checkpoint: those that the group has committed, plus ``gone``."""
    rows: int
    """Rows that the acked log has ever held."""
    log: str
    """Identity of the acked log."""
    since_ms: int
    """When it was acquired, by the server's clock."""
    state: str
    """``running``, ``retrying``, ``draining``, ``halted``, ``paused``, or empty without an owner."""
    reason: str
    gone: int
    """Source records that another program deleted before the group had committed them."""
    reset: int
    """The epoch at which the checkpoint was last moved by hand; 0 if it never was."""
    requested: int = 0
    """Version of the operators' requests."""
    obeyed: int = 0
    """The version that the last acquisition returned to its owner."""
    pause: PauseView | None = None
    retry: RetryView | None = None
    """What the state ``retrying`` is about; it stands there afterwards, too."""
    aside: Mapping[EntryId, str] = field(default_factory=dict)
    """The records that an operator wants set aside, and why."""
    deaths: int = 0
    """How many owners died in a row in the call of ``suspect``."""
    suspect: EntryId | None = None
    waits_for: tuple[int, ...] = ()
    """The partitions with whose records the group must be done before it handles any of this one."""
    done: bool = False
    """Whether the group is done with all records of this partition, which takes no more."""
    timers: Mapping[str, int] = field(default_factory=dict)
    """The last planned time (ms) of each timer that is done."""


async def acquire(access: Access, ask: AcquireLocks) -> LocksAnswered:
    """Try to acquire the locks of some partitions, in one round trip. The call may be repeated.

    A lock is free if its owner is not among ``live``, the members of that generation, or has not released it
    for the drain deadline. Partitions that Redis refused are missing in the answer; if it refused all, this
    raises the first refusal.
    """
    keys, partitions = access.keys, ask.partitions
    named = {"owner": ask.owner, "generation": ask.generation, "group": keys.group, "members": ask.live}
    named["drain_deadline_ms"] = access.drain_deadline_ms
    calls = [
        ACQUIRE.at(keys, p, **named, nonce=new_nonce(), parents=numbers(access.parents_of(p)))
        for p in partitions
    ]
    replies = await access.backend.run_many(ACQUIRE, calls)
    return LocksAnswered(ask.owner, partitions, dict(answered(partitions, replies, _acquire_reply)))


def _acquire_reply(reply: Any) -> AcquireReply:
    match reply:
        case [b"OK", epoch, checkpoint, entries, rows, log, gone, reset, requested, paused_at, aside, *died]:
            identity = log.decode("utf-8", "replace")
            counts = (int(entries), int(rows), identity, int(gone), number(reset))
            requests = (number(requested), bool(paused_at), _aside(aside))
            deaths, tries, reason, parents = died
            tried = whole(deaths), _tries(tries), numbered(parents)
            why = reason.decode("utf-8", "replace")
            return Acquired(int(epoch), EntryId.parse(checkpoint), *counts, *requests, *tried, reason=why)
        case [b"HELD", owner, waited_ms]:
            return Held(owner.decode("utf-8", "replace"), int(waited_ms))
        case _:
            return Stale(int(reply[1]))


def _aside(lines: bytes) -> dict[EntryId, str]:
    """Read the lines of a lock's field ``aside``: an id and a reason each; any other counts for nothing."""
    found: dict[EntryId, str] = {}
    for line in lines.split(b"\n"):
        record, _, why = line.partition(b" ")
        with contextlib.suppress(ConfigurationError):
            found[EntryId.parse(record)] = why.decode("utf-8", "replace")
    return found


async def release_many(
    backend: Backend, keys: GroupKeys, epochs: Mapping[int, int], owner: str
) -> dict[int, bool]:
    """Release locks, in one round trip. The call may be repeated.

    ``epochs`` maps each partition to the epoch at which it was acquired. The result tells whether each is
    released: False if another member holds the lock now. Refusals count as in :func:`acquire`.
    """
    partitions = list(epochs)
    calls = [RELEASE.at(keys, p, owner=owner, epoch=epoch) for p, epoch in epochs.items()]
    replies = await backend.run_many(RELEASE, calls)
    return {p: reply[0] == b"OK" for p, reply in answered(partitions, replies)}


async def mark_many(
    backend: Backend,
    keys: GroupKeys,
    marks: Sequence[MarkLock],
    *,
    clock_ms: int = 0,
    only_over: str | None = None,
) -> None:
    """Store the state of partitions, for display; a lock that another member holds by now stays unchanged.

    The server has another clock than the worker, so it is told how long before and after ``clock_ms``, the
    worker's present time, the attempts at a record are.

    With ``only_over`` the locks of halted partitions stay unchanged, and those with a reason that does not
    begin with it: a halted partition or a full acked log says more.
    """
    calls: list[Call] = []
    for mark in marks:
        attempts, since_ms, next_ms = mark.retry or (0, clock_ms, clock_ms)
        call = MARK.at(
            keys,
            mark.partition,
            owner=mark.owner,
            epoch=mark.epoch,
            state=mark.state,
            reason=mark.reason,
            over="*" if only_over is None else only_over,
            attempts=attempts,
            since_ms=clock_ms - since_ms,
            next_ms=max(0, next_ms - clock_ms),
        )
        calls.append(call)
    answered([mark.partition for mark in marks], await backend.run_many(MARK, calls))


async def store_tries(
    backend: Backend, keys: GroupKeys, start: StartRunner, tries: Mapping[EntryId, int], *, alone: bool
) -> None:
    """Store how many calls of some records were begun; ignored if another member holds the lock by now."""
    text = " ".join([f"{entry_id} {count}" for entry_id, count in sorted(tries.items())] + [ALONE] * alone)
    call = STORE_TRIES.at(keys, start.partition, owner=start.owner, epoch=start.lock.epoch, tries=text)
    checked(await backend.run(STORE_TRIES, call))


def _tries(stored: bytes) -> tuple[tuple[EntryId, int], ...]:
    """Parse what ``store_tries`` stored; anything else counts for nothing."""
    pairs = [each for each in stored.decode("utf-8", "replace").split() if each != ALONE]
    try:
        counted = zip(pairs[::2], pairs[1::2], strict=True)
        return tuple((EntryId.parse(entry_id), int(count)) for entry_id, count in counted)
    except (ConfigurationError, ValueError):
        return ()


async def read_lock(backend: Backend, keys: GroupKeys, partition: int) -> LockView | None:
    """Read a lock; None if the group was never registered in the partition."""
    return lock_view(await backend.execute("HGETALL", keys.lock(partition)), partition)


async def read_locks(
    backend: Backend, keys: GroupKeys, partitions: Sequence[int]
) -> dict[int, LockView | BackendError | None]:
    """Read some locks in one round trip; damaged locks are missing.

    A partition maps to the error if Redis refused the read, or on a Cluster if the node did not answer.
    """
    found: dict[int, LockView | BackendError | None] = {}
    replies = await backend.pipeline([("HGETALL", keys.lock(p)) for p in partitions])
    for partition, flat in zip(partitions, replies, strict=True):
        with contextlib.suppress(BackendRefused):
            found[partition] = flat if isinstance(flat, BackendError) else lock_view(flat, partition)
    return found


def lock_view(flat: Sequence[bytes], partition: int) -> LockView | None:
    """Parse the reply to ``HGETALL`` of a partition's lock; refuse a checkpoint that is no entry id."""
    fields: dict[bytes, bytes] = pairs_of(flat)
    if b"checkpoint" not in fields:
        return None
    try:
        checkpoint = EntryId.parse(fields[b"checkpoint"])
    except ConfigurationError as error:
        raise foreign_lock(partition, error) from None

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode("utf-8", "replace")

    died_at, _, deaths = text(b"deaths").partition(" ")
    tried = [each for each, _ in _tries(fields.get(b"tries", b"")) if each > checkpoint]
    return LockView(
        owner=text(b"owner"),
        epoch=number(fields.get(b"epoch")),
        checkpoint=checkpoint,
        entries=number(fields.get(b"entries")),
        rows=number(fields.get(b"rows")),
        log=text(b"log"),
        since_ms=number(fields.get(b"since")),
        state=text(b"state"),
        reason=text(b"reason"),
        gone=number(fields.get(b"gone")),
        reset=number(fields.get(b"reset")),
        requested=number(fields.get(b"ordered")),
        obeyed=number(fields.get(b"obeyed")),
        retry=_retry_view(text(b"retry")),
        pause=PauseView(number(fields.get(b"paused_at")), text(b"paused_by"), text(b"paused_why"))
        if b"paused_at" in fields
        else None,
        aside=_aside(fields.get(b"aside", b"")),
        deaths=number(deaths) if died_at == str(checkpoint) else 0,
        suspect=min(tried, default=None),
        waits_for=numbered(fields.get(b"from", b"")),
        done=b"done" in fields,
        timers={
            name.decode("utf-8", "replace").removeprefix(TICK): number(done.partition(b"/")[0])
            for name, done in fields.items()
            if name.startswith(TICK.encode())
        },
    )


def _retry_view(stored: str) -> RetryView | None:
    numbers = [whole(each) for each in stored.split()]
    return RetryView(*known) if len(known := [each for each in numbers if each is not None]) == 3 else None


async def move_checkpoint(
    backend: Backend,
    keys: GroupKeys,
    partition: int,
    to: EntryId,
    *,
    entries: int,
    owner: str = "",
    clear: Lifetimes = NO_TABLES,
    waits_for: Iterable[int] = (),
    durability: Durability = MEMORY,
) -> EntryId | Held | None:
    """Move a group's checkpoint by hand, while no worker runs the partition, or its worker has paused it.

    The call may be repeated. The script raises the epoch, so that an earlier owner can no longer commit.
    ``entries`` is the number of source entries up to ``to``, which :func:`streams.entries_up_to` counts;
    ``owner`` a dead owner that may still be in the lock; ``clear`` the tables that are emptied in the same
    step, windows with their event time; ``waits_for`` the partitions that the group must be done with before,
    if not those in the lock. The result is the previous checkpoint; ``Held`` if a member holds the lock and
    has not paused, and nothing was moved; None if the group was never registered in the partition.
    """
    cleared, checkpoint = keys.tables(partition, clear), str(to)
    named = {"group": keys.group, "checkpoint": checkpoint, "entries": entries, "owner": owner}
    named["forgotten"] = EVENT_TIME if any(its.is_event_time for its in clear.values()) else ""
    call = MOVE_CHECKPOINT.at(keys, partition, **named, parents=numbers(waits_for), cleared=cleared)
    (reply,) = all_answered(await backend.run_many(MOVE_CHECKPOINT, [call], durability=durability))
    if isinstance(reply, Undurable):
        raise reply.error()
    match checked(reply):
        case [b"OK", before]:
            return EntryId.parse(before)
        case [b"HELD", holder]:
            return Held(holder.decode("utf-8", "replace"), 0)
        case _:
            return None


def numbers(partitions: Iterable[int]) -> str:
    """Return numbers of partitions as a lock holds them."""
    return " ".join(map(str, partitions))


def numbered(stored: bytes) -> tuple[int, ...]:
    """Parse numbers of partitions; anything else counts for nothing."""
    return tuple(one for each in stored.split() if (one := whole(each)) is not None)


def new_nonce() -> str:
    """Return random hexadecimal digits that make a name unique."""
    return secrets.token_hex(6)


def answered(
    partitions: Sequence[int], replies: Sequence[Any], read: Callable[[Any], Any] = lambda reply: reply
) -> list[tuple[int, Any]]:
    """Return the answers about some partitions; raise the first refusal if all were refused.

    If another program damaged the key of one partition, the other partitions must not stop.
    """
    answers: list[tuple[int, Any]] = []
    refusal: BackendError | None = None
    for partition, reply in zip(partitions, replies, strict=True):
        try:
            if isinstance(reply, BackendError):
                raise reply
            answers.append((partition, read(checked(reply))))
        except BackendError as error:
            refusal = refusal or error
        except (ConfigurationError, ValueError, TypeError, AttributeError) as error:
            refusal = refusal or foreign_lock(partition, error)
    if refusal is not None and not answers:
        raise refusal
    return answers


def foreign_lock(partition: int, error: Exception) -> BackendRefused:
    """Return the error for a lock whose fields another program changed."""
    why = error.message if isinstance(error, ConfigurationError) else f"{error}."
    return BackendRefused(
        f"The lock of partition {partition} holds what streamworker does not write: {why}",
        remedy="Another program wrote to it. Stop the group's workers, and correct the field. Do not delete "
        "the key: it holds the checkpoint.",
    )
