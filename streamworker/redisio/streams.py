"""Streams and their partitions: declare, register, append, read, trim."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, cast

from streamworker.core.entries import Entry, EntryId
from streamworker.errors import (
    BackendError,
    BackendRefused,
    BackendUnavailable,
    ConfigurationError,
    RecordError,
)
from streamworker.records.entries import Entries
from streamworker.redisio.client import Backend, BlockingConnection, ScriptCall
from streamworker.redisio.durability import MEMORY, Durability, Undurable
from streamworker.redisio.keys import GroupKeys, StreamKeys, whole
from streamworker.redisio.link import Argument
from streamworker.redisio.locks import foreign_lock, new_nonce
from streamworker.redisio.scripts import APPEND, ARGS_MAX, COUNT, REGISTER, TRIM, checked, wrong_type

PAYLOAD = b"v"
"""Field of an encoded record."""
HEADER_PREFIX = b"h."
TRIM_ENTRIES = 10_000
"""Most entries that one trim of one partition drops; some milliseconds of the server's time."""
COUNT_ENTRIES = 10_000

Payload = bytes | Mapping[bytes, bytes]
"""An encoded record, or an entry's own fields."""
Headers = Mapping[bytes, bytes] | None


class AppendCode(Enum):
    """What became of an append."""

    OK = "OK"
    DUP = "DUP"
    """It was done by an earlier try."""
    FULL = "FULL"
    """Nothing was written: the partition is at its limit, and a group still needs all of it."""
    EARLY = "EARLY"
    """Nothing was written: the append that it follows is not the last one that was done."""
    REFUSED = "REFUSED"
    """Nothing was written: Redis refused, and ``error`` says why."""
    UNKNOWN = "UNKNOWN"
    """It may be there and may be lost yet, and ``error`` says why. Send it again under its number."""


@dataclass(frozen=True, slots=True)
class Append:
    """Entries of one producer for one partition; appended all or none."""

    partition: int
    producer: str
    """A name that no other producer has; see :attr:`seq`."""
    seq: int
    """Number of this append: greater than all before it of this producer and partition. Sent
    again with the same number, it writes nothing a second time."""
    limit: int
    """Entries that the partition may hold; 0 for no limit."""
    entries: Sequence[bytes | tuple[Payload, Headers]]
    """A payload alone, or one with headers."""
    follows: int = 0
    """Number of the append that must be the last one done of this producer and partition, which may
    still be under way; 0 if it does not matter. Redis answers the repeats of two appends at most."""


@dataclass(frozen=True, slots=True)
class AppendReply:
    """What became of an append."""

    code: AppendCode
    last_id: EntryId | None
    """Id of its last entry; None where nothing was written."""
    length: int
    """Entries in the partition now."""
    error: BackendError | None = None
    wrote: bool = True
    """Whether this call wrote something, so that a wait behind it says anything about the append."""
    before: int | None = None
    """Number of the append before it that Redis knew of this producer; None if it knew none."""


async def declare(backend: Backend, keys: StreamKeys, partitions: int, codec: str) -> None:
    """Write down how a stream is made, or compare with what was written down.

    Raises
    ------
    ConfigurationError
        If the stream has another number of partitions or another codec already: records would
        be routed or decoded wrongly.
    BackendError
        Without an answer. May be repeated.
    """
    names = ("app", "stream", "partitions", "codec")
    mine = (keys.app, keys.stream, str(partitions), codec)
    commands: list[Sequence[Argument]] = [
        ("HSETNX", keys.meta, name, value) for name, value in zip(names, mine, strict=True)
    ]
    commands += [
        ("HSETNX", keys.meta, "created_at", int(time.time() * 1000)),
        ("HMGET", keys.meta, *names),
    ]
    *written, found = await backend.pipeline(commands)
    for reply in (*written, found):
        if isinstance(reply, BackendError):
            raise reply
    app, stream, count, used_codec = (value.decode("utf-8", "replace") for value in found)
    if (app, stream) != mine[:2]:
        raise ConfigurationError(
            f"Stream {keys.stream!r} of app {keys.app!r} would share its keys with stream {stream!r} of app "
            f"{app!r}.",
            remedy="Give one of them a name without a dot.",
        )
    if count != mine[2]:
        raise ConfigurationError(
            f"Stream {keys.stream!r} has {count} partitions in Redis and {partitions} in the app.",
            remedy=f"Declare it with partitions={count}. Another number would send the records of a key to "
            "another partition; for that, take a new stream.",
        )
    if used_codec != codec:
        raise ConfigurationError(
            f"Stream {keys.stream!r} is written as {used_codec!r} in Redis and as {codec!r} in the app.",
            remedy=f"Declare it with codec={used_codec!r}, or take a new stream.",
        )


_STARTS = {"earliest": "0-0", "latest": "$"}


async def register(backend: Backend, keys: GroupKeys, partitions: int, start: str) -> dict[int, EntryId]:
    """Make a group's place in all partitions of a stream, in one round trip; keeps what is there.

    From then on nothing is trimmed that the group has not committed. May be repeated.

    Parameters
    ----------
    partitions
        Their number.
    start
        Where a new group begins: ``earliest``, ``latest`` for after the last entry, or after an
        entry id.

    Returns
    -------
    dict
        The checkpoint of each partition.

    Raises
    ------
    ConfigurationError
        If ``start`` is none of these.
    BackendError
        Without an answer, or if a key holds another type.
    """
    after = _STARTS.get(start) or str(EntryId.parse(start))
    calls: list[ScriptCall] = [
        ((keys.lock(p), keys.events(p), keys.acked(p)), (keys.group, after, new_nonce()))
        for p in range(partitions)
    ]
    checkpoints: dict[int, EntryId] = {}
    for partition, reply in enumerate(await backend.run_many(REGISTER, calls)):
        if isinstance(reply, BackendError):
            raise reply
        try:
            checkpoints[partition] = EntryId.parse(checked(reply)[1])
        except ConfigurationError as error:
            raise foreign_lock(partition, error) from None
    return checkpoints


# -- writing ---------------------------------------------------------------------------------


async def append_many(
    backend: Backend, keys: StreamKeys, appends: Sequence[Append], durability: Durability = MEMORY
) -> list[AppendReply]:
    """Append to several partitions, in one round trip. May be repeated as it is.

    The appends of one producer to one partition are done in their order.

    Parameters
    ----------
    appends
        What is to be appended.
    durability
        How safe an append must be to be answered with ``OK`` or ``DUP``.

    Raises
    ------
    BackendUnavailable
        Without an answer: each may or may not be there. Send all again.
    RecordError
        For an entry with more fields than a script can pass on; nothing was sent.
    """
    rounds: list[list[tuple[int, ScriptCall]]] = [[]]
    seen: set[tuple[int, str]] = set()
    for place, append in enumerate(appends):
        who = (append.partition, append.producer)
        if who in seen:
            # A script that the server forgot in the middle is sent again later than the calls
            # behind it, so two appends that depend on each other never share a round trip.
            rounds.append([])
            seen.clear()
        seen.add(who)
        rounds[-1].append((place, append_call(keys, append)))
    replies: list[AppendReply] = []
    for calls in rounds:
        answers = await backend.run_many(APPEND, [call for _, call in calls], durability=durability)
        replies += [_append_reply(answer) for answer in answers]
    if durability.command:
        return [reply if reply.wrote else _unproven(reply) for reply in replies]
    return replies


def append_call(keys: StreamKeys, append: Append) -> ScriptCall:
    """Return keys and arguments of ``append.lua`` for an append."""
    p, entries = append.partition, append.entries
    args: list[Argument] = [append.seq, append.follows or "", append.limit, len(entries)]
    payloads = _payloads(entries)
    if payloads is not None:
        args.append("v")
        args += payloads
    else:
        args.append("f")
        for entry in entries:
            flat = _entry_fields(entry, None) if isinstance(entry, bytes) else _entry_fields(*entry)
            args += (len(flat), *flat)
    return (keys.events(p), keys.producer(p, append.producer)), args


def _payloads(entries: Sequence[bytes | tuple[Payload, Headers]]) -> Sequence[bytes] | None:
    """Return the payloads, if there is nothing else."""
    if set(map(type, entries)) == {bytes}:
        return cast(Sequence[bytes], entries)
    payloads: list[bytes] = []
    for entry in entries:
        payload, headers = (entry, None) if isinstance(entry, bytes) else entry
        if headers or not isinstance(payload, bytes):
            return None
        payloads.append(payload)
    return payloads


def _entry_fields(payload: Payload, headers: Headers) -> list[bytes]:
    if isinstance(payload, bytes):
        flat = [PAYLOAD, payload]
    else:
        flat = [part for pair in payload.items() for part in pair]
    for name, value in (headers or {}).items():
        flat += (HEADER_PREFIX + name, value)
    if not flat:
        raise RecordError("An entry without fields cannot be stored.", remedy="Give it one field at least.")
    if len(flat) > ARGS_MAX:
        raise RecordError(
            f"An entry has {len(flat) // 2} fields.", remedy=f"Redis takes {ARGS_MAX // 2} in one step."
        )
    return flat


def _append_reply(reply: Any) -> AppendReply:
    if isinstance(reply, BackendUnavailable):
        return AppendReply(AppendCode.UNKNOWN, None, 0, reply)
    if isinstance(reply, BackendError):
        return AppendReply(AppendCode.REFUSED, None, 0, reply)
    if isinstance(reply, Undurable):
        # What was refused wrote nothing that could be lost.
        found = _append_reply(reply.reply)
        written = found.code in (AppendCode.OK, AppendCode.DUP)
        return replace(found, code=AppendCode.UNKNOWN, error=reply.error()) if written else found
    if reply[0] == b"BADTYPE":
        return AppendReply(AppendCode.REFUSED, None, 0, wrong_type(reply[1]))
    code, last, length, *more = reply
    if not more:
        return AppendReply(AppendCode(code.decode()), None, int(length))
    before, wrote = more
    return AppendReply(
        AppendCode(code.decode()),
        EntryId.parse(last),
        int(length),
        wrote=bool(wrote),
        before=int(before) if before else None,
    )


def _unproven(reply: AppendReply) -> AppendReply:
    unproven = Undurable(None, "its repeat may not write, since Redis is out of memory")
    return replace(reply, code=AppendCode.UNKNOWN, error=unproven.error())


async def last_numbers(
    backend: Backend, keys: StreamKeys, producer: str, partitions: Sequence[int]
) -> dict[int, int | None]:
    """Return the last number of a producer that Redis knows in each partition; None if it knows none.

    Raises
    ------
    BackendError
        Without an answer.
    """
    replies = await backend.pipeline([("GET", keys.producer(p, producer)) for p in partitions])
    numbers: dict[int, int | None] = {}
    for partition, reply in zip(partitions, replies, strict=True):
        if isinstance(reply, BackendError):
            raise reply
        numbers[partition] = None if reply is None else whole(reply.partition(b":")[0])
    return numbers


# -- reading ---------------------------------------------------------------------------------


async def read(
    connection: BlockingConnection,
    keys: StreamKeys,
    positions: Mapping[int, EntryId],
    count: int,
    block_ms: int,
) -> dict[int, Entries]:
    """Read what follows some positions, waiting at the server until there is something.

    Of one server: on a Cluster no command may ask several partitions; see :func:`read_each`.

    Parameters
    ----------
    positions
        Partition to the id after which to read.
    count
        Most entries of each partition.
    block_ms
        How long to wait; 0 does not wait.

    Returns
    -------
    dict
        Partitions that have something, and what they have; empty when the time was over or the
        read was woken.

    Raises
    ------
    BackendError
        Without an answer, or if a key is no stream. Nothing was changed.
    """
    known = _names(keys)
    names = [known[partition] for partition in positions]
    ids = [f"{ms}-{seq}" for ms, seq in positions.values()]
    block: tuple[Argument, ...] = ("BLOCK", block_ms) if block_ms > 0 else ()
    reply = await connection.execute(
        "XREAD", "COUNT", count, *block, "STREAMS", *names, *ids, block_ms=block_ms
    )
    if not reply:
        return {}
    return {known.partition_of[name]: Entries.of(entries) for name, entries in reply}


async def read_each(
    backend: Backend, keys: StreamKeys, positions: Mapping[int, EntryId], count: int
) -> dict[int, Entries | BackendError]:
    """Read what follows some positions, without waiting, in one command for each partition.

    A Cluster refuses to read several partitions by one: they are in different slots.

    Returns
    -------
    dict
        For each partition what it has, which may be nothing; the error of one that was not read.

    Raises
    ------
    BackendUnavailable
        Without any answer.
    """
    known = _names(keys)
    replies = await backend.pipeline(
        [
            ("XREAD", "COUNT", count, "STREAMS", known[partition], f"{ms}-{seq}")
            for partition, (ms, seq) in positions.items()
        ]
    )
    return {
        partition: reply if isinstance(reply, BackendError) else Entries.of(reply[0][1] if reply else ())
        for partition, reply in zip(positions, replies, strict=True)
    }


class _Names(dict[int, str]):
    """Names of a stream's partitions: a read may ask a thousand, and a hundred reads a second each."""

    def __init__(self, keys: StreamKeys) -> None:
        super().__init__()
        self._keys = keys
        self.partition_of: dict[bytes, int] = {}

    def __missing__(self, partition: int) -> str:
        name = self[partition] = self._keys.events(partition)
        self.partition_of[name.encode()] = partition
        return name


@lru_cache(maxsize=64)
def _names(keys: StreamKeys) -> _Names:
    return _Names(keys)


async def range_entries(
    backend: Backend, key: str, start: EntryId, end: EntryId | None, count: int
) -> list[Entry]:
    """Return entries of any stream from ``start`` to ``end``, both included; at most ``count``.

    ``end=None`` means up to the last.

    Raises
    ------
    BackendError
        Without an answer, or if the key is no stream.
    """
    last = "+" if end is None else str(end)
    return list(Entries.of(await backend.execute("XRANGE", key, str(start), last, "COUNT", count)))


async def entries_up_to(backend: Backend, key: str, position: EntryId) -> int:
    """Return how many entries were ever added to a stream up to and with a position.

    Counts what follows it, in slices, so that the server is never busy for long.

    Raises
    ------
    BackendError
        Without an answer, or if the key is no stream.
    """
    after, last = 0, str(position)
    while True:
        _, counted, last_id, added = checked(await backend.run(COUNT, (key,), (last, COUNT_ENTRIES)))
        after, last = after + int(counted), last_id.decode()
        if counted < COUNT_ENTRIES:
            # This slice saw the end of the stream, and `added` is of the same moment.
            return max(0, int(added) - after)


# -- trimming --------------------------------------------------------------------------------


async def trim_many(
    backend: Backend, keys: GroupKeys, acked_rows: Mapping[int, int], *, limit: int = TRIM_ENTRIES
) -> dict[int, tuple[int, int]]:
    """Drop what everybody is past, in one round trip. May be repeated, and by anybody.

    Source entries go that every group of the stream has committed, and acked batches that every
    reader has.

    Parameters
    ----------
    acked_rows
        Partition to the rows of its acked log that all readers are past; 0 keeps all of it.
    limit
        Most entries to drop of each stream.

    Returns
    -------
    dict
        Partition to the source entries and acked entries that went. One that Redis refused is
        missing.

    Raises
    ------
    BackendError
        Without any answer; the first refusal, if all were refused.
    """
    calls: list[ScriptCall] = [
        ((keys.events(p), keys.acked(p)), (rows, limit)) for p, rows in acked_rows.items()
    ]
    dropped: dict[int, tuple[int, int]] = {}
    refusal: BackendError | None = None
    for partition, reply in zip(acked_rows, await backend.run_many(TRIM, calls), strict=True):
        try:
            if isinstance(reply, BackendError):
                raise reply
            _, events, acked = checked(reply)
        except BackendRefused as error:
            refusal = refusal or error
        else:
            dropped[partition] = (int(events), int(acked))
    if refusal is not None and not dropped:
        raise refusal
    return dropped
