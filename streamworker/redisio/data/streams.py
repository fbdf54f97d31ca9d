"""Streams and their partitions: provision, register, append, read."""

import time
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, cast

import msgspec

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.data.placement import Placement
from streamworker.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    RecordError,
)
from streamworker.records.entries import Entries
from streamworker.records.lists import Run
from streamworker.records.packs import (
    ENTRY_BYTES_MAX,
    ENTRY_RECORDS_MAX,
    HEADER_PREFIX,
    as_binary,
    pack,
    pack_array,
    pack_headers,
)
from streamworker.records.rows import NumberedRows, cut, first_id
from streamworker.redisio.data import maps
from streamworker.redisio.group.locks import foreign_lock, new_nonce, numbers
from streamworker.redisio.keys import TRIMMED, GroupKeys, StreamKeys, is_name, number
from streamworker.redisio.scripts import (
    APPEND,
    ARGS_MAX,
    COUNT,
    REGISTER,
    SET_FIELD,
    STORE,
    Call,
    Script,
    checked,
    sealed,
    wrong_type,
)
from streamworker.redisio.wire.client import Backend, BlockingConnection
from streamworker.redisio.wire.durability import MEMORY, Durability, Undurable
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.link import Argument

PAYLOAD = b"v"
"""The entry field that holds an encoded record."""
COUNT_ENTRIES = 10_000

PACK_MIN = 4
"""Records of one append from which on they share an entry."""

Packing = Literal["", "json", "msgpack", "arrow", "binary"]

Payload = bytes | Mapping[bytes, bytes]
"""An encoded record, or an entry's own fields."""
Headers = Mapping[bytes, bytes] | None


@dataclass(frozen=True, slots=True)
class Append:
    """Entries of one producer for one partition, appended all or none."""

    partition: int
    producer: str
    """A unique name of the producer; see :attr:`through`."""
    through: int
    """Number of this append, which no other of this producer and partition ever has. An append that is
    repeated with the same number writes nothing."""
    limit: int
    """Records that the partition may hold besides those that retention keeps; 0 for no limit."""
    entries: Sequence[bytes | tuple[Payload, Headers]]
    """Payloads, each alone or with headers."""
    since: int = 0
    """Number of the append that it follows: the last one written by this producer to this partition, which
    may still be in progress; 0 for none. Redis recognises repeats of the last two appends only."""
    pack: Packing = ""
    """How the payloads are encoded, if many of them may go into one entry; empty if none may."""


async def provision(
    backend: Backend,
    keys: StreamKeys,
    partitions: int,
    codec: str,
    *,
    schema: Mapping[str, Any] | None = None,
) -> tuple[int, ...]:
    """Store how a stream is declared, or compare the declaration with the stored one; return its map.

    Other partitions or another codec would route or decode records wrongly. If the JSON Schema of the records
    is given, it replaces the stored one, which only ``streamworker schema check`` reads. The call may be
    repeated.
    """
    names = ("app", "stream", "partitions", "codec")
    mine = (keys.app, keys.stream, str(partitions), codec)
    found = await backend.execute("HMGET", keys.meta, *names, "schema")
    if None in found[:-1]:
        values = {**dict(zip(names, mine, strict=True)), "created_at": str(int(time.time() * 1000))}
        await store_fields(backend, keys.meta, values, again=False)
        found = await backend.execute("HMGET", keys.meta, *names, "schema")
    app, stream, _, used_codec = (value.decode("utf-8", "replace") for value in found[:-1])
    if (app, stream) != mine[:2]:
        raise ConfigurationError(
            f"Stream {keys.stream!r} of app {keys.app!r} would share its keys with stream {stream!r} of app "
            f"{app!r}.",
            remedy="Give one of them a name without a dot.",
        )
    counts = maps.checked_map(keys, found[2], partitions)
    if used_codec != codec:
        raise ConfigurationError(
            f"Stream {keys.stream!r} is written as {used_codec!r} in Redis and as {codec!r} in the app.",
            remedy=f"Declare it with codec={used_codec!r}, or take a new stream.",
        )
    if schema and (text := msgspec.json.encode(schema)) != found[-1]:
        await store_fields(backend, keys.meta, {"schema": text})
    return counts


async def store_fields(
    backend: Backend, key: str, fields: Mapping[str, str | bytes], *, again: bool = True
) -> None:
    """Store how something is declared, also when memory is full; without ``again``, what is there stays."""
    flat = [each for pair in fields.items() for each in pair]
    call = STORE.call(hash=key, command="HSET" if again else "HSETNX", fields=flat)
    checked(await backend.run(STORE, call))


async def set_field(backend: Backend, key: str, field: str | bytes, seen: str | bytes, value: str) -> bool:
    """Set a field of a hash, or remove it with an empty ``value``, if it is still as it was ``seen``.

    ``seen`` is empty for a field that was not there. The result tells whether it was.
    """
    call = SET_FIELD.call(hash=key, field=field, seen=seen, value=value)
    return bool(checked(await backend.run(SET_FIELD, call))[0] == b"OK")


async def stored_schema(backend: Backend, keys: StreamKeys) -> Mapping[str, Any]:
    """Return the JSON Schema of the records of the workers that ran last; empty if none is stored."""
    stored = await backend.execute("HGET", keys.meta, "schema")
    try:
        found: Mapping[str, Any] = msgspec.json.decode(stored or b"{}", type=dict)
    except msgspec.MsgspecError:
        return {}
    return found


_STARTS = {"earliest": "0-0", "latest": "$"}


async def register(
    backend: Backend,
    keys: GroupKeys,
    placement: Placement,
    start: str,
    partitions: Collection[int] = (),
    durability: Durability = MEMORY,
) -> dict[int, EntryId]:
    """Register a group in some partitions of a stream, or in all if none are named; existing locks stay.

    After that, trimming keeps the entries that the group has not committed. The call may be repeated. It
    takes one round trip, and more for a stream that has grown.

    A new group begins at ``start``: ``earliest``, ``latest`` (after the last entry), or the entry id after
    which it begins. A group that is there already begins a further generation of partitions at its first
    entry: it must have them all. So the newest generation is registered first, that a call which is cut short
    does not make a new group one that is there. The result is the checkpoint of each partition.
    """
    after = _STARTS.get(start) or str(EntryId.parse(start))
    oldest = placement.total
    if placement.base and after != _STARTS["earliest"]:
        held = await backend.pipeline([("HEXISTS", keys.lock(p), "checkpoint") for p in range(oldest)])
        oldest = next((p for p, is_there in enumerate(all_answered(held)) if is_there), oldest)
    checkpoints: dict[int, EntryId] = {}
    for generation in reversed(placement.generations):
        its = [p for p in generation if p in (partitions or placement.all)]
        begins = _STARTS["earliest"] if oldest in range(generation.start) else after
        calls: list[Call] = []
        for p in its:
            parents = numbers(placement.parents_of(p))
            named = {"group": keys.group, "start": begins, "nonce": new_nonce()}
            calls.append(REGISTER.at(keys, p, **named, parents=parents))
        replies = await backend.run_many(REGISTER, calls, durability=durability)
        for partition, reply in zip(its, all_answered(replies), strict=True):
            if isinstance(reply, Undurable):
                raise reply.error()
            try:
                checkpoints[partition] = EntryId.parse(checked(reply)[1])
            except ConfigurationError as error:
                raise foreign_lock(partition, error) from None
    return checkpoints


# -- writing ---------------------------------------------------------------------------------


async def append_many(
    backend: Backend, keys: StreamKeys, appends: Sequence[Append], durability: Durability = MEMORY
) -> list[AppendReply]:
    """Append to several partitions in one round trip; the call may be repeated unchanged.

    Without an answer each append may or may not have been written: send all again. An entry with too many
    fields raises ``RecordError`` before anything is sent.
    """
    calls = [append_call(keys, append) for append in appends]
    return await append_by(backend, APPEND, calls, durability)


async def append_by(
    backend: Backend, script: Script, calls: Sequence[Call], durability: Durability = MEMORY
) -> list[AppendReply]:
    """Call a script that appends once, as often as it is given, in one round trip; it may be repeated.

    Such a script replies with a code and a value, and may add a length and whether it wrote.
    """
    replies = await backend.run_many(script, calls, durability=durability)
    return [_append_reply(reply, bool(durability.command)) for reply in replies]


def append_call(keys: StreamKeys, append: Append) -> Call:
    """Return keys and arguments of ``append.lua`` for an append."""
    return APPEND.at(
        keys,
        append.partition,
        sent=keys.producer(append.partition, append.producer),
        since=append.since,
        through=append.through,
        limit=append.limit,
        records=records_args(append.entries, append.pack),
    )


def records_args(entries: Sequence[bytes | tuple[Payload, Headers]], packing: Packing) -> list[Argument]:
    """Return what a script appends: the number of records, the form of the entries, and these."""
    args: list[Argument] = [len(entries)]
    columns = [entry_fields(entry) for entry in entries] if packing == "arrow" else []
    rows = [int(flat[1]) for flat in columns]
    if sum(rows) > len(rows):
        args[:] = [sum(rows), "p"]
        for records, flat in zip(rows, columns, strict=True):
            args += (records, len(flat), *flat)
    elif packing and not columns and len(entries) >= PACK_MIN:
        args.append("p")
        for records, flat in _packed(entries, packing):
            args += (records, len(flat), *flat)
    elif (payloads := _payloads(entries)) is not None:
        args.append("v")
        args += payloads
    else:
        args.append("f")
        for entry in entries:
            flat = entry_fields(entry)
            args += (len(flat), *flat)
    return args


def _packed(
    entries: Sequence[bytes | tuple[Payload, Headers]], packing: Packing
) -> Iterator[tuple[int, list[bytes]]]:
    """Return the entries that hold some records: for each its number of records, names and values."""
    if isinstance(entries, Run):
        for records, array in entries.packs():
            yield records, pack_array(records, array) if records > 1 else entry_fields(array)
        return
    payloads: Sequence[Any] | None = _payloads(entries)
    headed: dict[int, bytes] = {}
    if payloads is not None:
        sizes = list(map(len, payloads))
    else:
        payloads = [entry if isinstance(entry, bytes) else entry[0] for entry in entries]
        headed = {
            index: pack_headers(entry[1])
            for index, entry in enumerate(entries)
            if not isinstance(entry, bytes) and entry[1]
        }
        # A record that has fields of its own is larger than any entry, so that it shares none.
        sizes = [len(each) if isinstance(each, bytes) else ENTRY_BYTES_MAX for each in payloads]
        for index, packed in headed.items():
            sizes[index] += len(packed)
    ends = list(accumulate(sizes))
    start, count = 0, len(entries)
    while start < count:
        # What is left is for the bytes that separate the records.
        end = bisect_right(ends, ends[start] - sizes[start] + ENTRY_BYTES_MAX - ENTRY_RECORDS_MAX, lo=start)
        end = min(max(end, start + 1), start + ENTRY_RECORDS_MAX)
        if end - start == 1:
            yield 1, entry_fields(entries[start])
        else:
            its = {index - start: packed for index, packed in headed.items() if start <= index < end}
            its_payloads = payloads[start:end] if packing != "binary" else as_binary(payloads[start:end])
            yield end - start, pack(its_payloads, its, is_json=packing == "json")
        start = end


def _payloads(entries: Sequence[bytes | tuple[Payload, Headers]]) -> Sequence[bytes] | None:
    """Return the payloads, or None if an entry has headers or its own fields."""
    if set(map(type, entries)) == {bytes}:
        return cast(Sequence[bytes], entries)
    payloads: list[bytes] = []
    for entry in entries:
        payload, headers = (entry, None) if isinstance(entry, bytes) else entry
        if headers or not isinstance(payload, bytes):
            return None
        payloads.append(payload)
    return payloads


def entry_fields(entry: bytes | tuple[Payload, Headers]) -> list[bytes]:
    """Return the names and values of an entry's fields."""
    payload, headers = (entry, None) if isinstance(entry, bytes) else entry
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


def _append_reply(reply: Any, must_write: bool) -> AppendReply:
    if isinstance(reply, BackendError):
        is_unknown = isinstance(reply, BackendUnavailable)
        return AppendReply(AppendCode.UNKNOWN if is_unknown else AppendCode.REFUSED, error=reply)
    if isinstance(reply, Undurable):
        found = _append_reply(reply.reply, must_write)
        # What was refused wrote nothing that could be lost. OTHER may say that a message is there.
        is_safe = found.is_refused or found.code is AppendCode.FULL
        return found if is_safe else AppendReply(AppendCode.UNKNOWN, error=reply.error())
    if reply[0] == b"BADTYPE":
        return AppendReply(AppendCode.REFUSED, error=wrong_type(reply[1]))
    code, value, *more = reply
    length, wrote = [*map(int, more), *(0, 1)[len(more) :]]
    if must_write and not wrote:  # Only a WAIT after a write proves something.
        error = Undurable(None, "its repeat may not write, since Redis is out of memory").error()
        return AppendReply(AppendCode.UNKNOWN, error=error)
    return AppendReply(AppendCode(code.decode()), value, length, sealed() if code == b"SEALED" else None)


async def last_numbers(
    backend: Backend, keys: StreamKeys, producer: str, partitions: Sequence[int]
) -> dict[int, int]:
    """Return the number of a producer's last append that each partition remembers; 0 for none."""
    asked = [("GET", keys.producer(p, producer)) for p in partitions]
    replies = zip(partitions, all_answered(await backend.pipeline(asked)), strict=True)
    return {p: number((reply or b"").partition(b":")[0]) for p, reply in replies}


# -- reading ---------------------------------------------------------------------------------


async def read(
    connection: BlockingConnection,
    keys: StreamKeys,
    positions: Mapping[int, EntryId],
    count: int,
    block_ms: int,
) -> dict[int, Entries]:
    """Read the entries after some positions; the server blocks until a partition has entries.

    On a Cluster one command cannot read several partitions; :func:`read_each` can.

    ``positions`` maps each partition to the id after which to read; ``block_ms`` of 0 does not wait. The
    result holds the partitions that have entries; it is empty after the timeout, or if the read was woken.
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
    """Read the entries after some positions, without waiting, with one command for each partition.

    The result has the entries of each partition, which may be none, or its error. If no partition was
    answered, this raises.
    """
    known = _names(keys)
    commands = [
        ("XREAD", "COUNT", count, "STREAMS", known[p], f"{ms}-{seq}") for p, (ms, seq) in positions.items()
    ]
    replies = await backend.pipeline(commands)
    return {
        partition: reply if isinstance(reply, BackendError) else Entries.of(reply[0][1] if reply else ())
        for partition, reply in zip(positions, replies, strict=True)
    }


class _Names(dict[int, str]):
    """Cached keys of a stream's partitions: a hundred reads a second may name a thousand keys each."""

    def __init__(self, keys: StreamKeys) -> None:
        super().__init__()
        self._keys = keys
        self.partition_of: dict[bytes, int] = {}

    def __missing__(self, partition: int) -> str:
        name = self[partition] = self._keys.events(partition)
        self.partition_of[name.encode()] = partition
        return name


_names = lru_cache(maxsize=64)(_Names)


async def range_entries(
    backend: Backend, key: str, start: EntryId, end: EntryId | None, count: int
) -> list[Entry]:
    """Return at most ``count`` entries from ``start`` to ``end``, both included, or to the last entry."""
    last = "+" if end is None else str(end)
    return list(Entries.of(await backend.execute("XRANGE", key, str(start), last, "COUNT", count)))


async def record_at(backend: Backend, keys: StreamKeys, partition: int, record: EntryId) -> Entry | None:
    """Return one record, alone if it is one of many in an entry; None if the stream does not hold it."""
    found = Entries.of(await backend.execute("XRANGE", keys.events(partition), str(record), "+", "COUNT", 1))
    for entry in found:
        if isinstance(entry.origin, NumberedRows) and first_id(entry) <= record <= entry.id:
            row = record.seq - first_id(entry).seq
            return cut(entry, row, row + 1)
        if entry.id == record:
            return entry
    return None


async def entries_up_to(backend: Backend, keys: StreamKeys, partition: int, position: EntryId) -> int:
    """Return how many records were ever added to a stream up to a position, the position included.

    The function counts the records after the position, in slices, so that it never blocks the server
    for long.
    """
    after, last = 0, str(position)
    while True:
        call = COUNT.at(keys, partition, after=str(position), since=last, most=COUNT_ENTRIES)
        _, counted, last_id, added, more = checked(await backend.run(COUNT, call))
        after, last = after + int(counted), last_id.decode()
        if not more:
            # This slice reached the end of the stream, and `added` was read at the same moment.
            return max(0, int(added) - after)


async def slowest_group(backend: Backend, keys: StreamKeys, partition: int) -> str:
    """Return the group that is furthest behind in a partition; empty if there is none.

    A trim waits for a listed name without a lock, too, which no group may have: another program listed it.
    """
    listed = await backend.execute("HGETALL", keys.groups(partition))
    names = [name.decode("utf-8", "replace") for name in listed[::2] if name != TRIMMED]
    ours = [name for name in names if is_name(name)]
    locks = [GroupKeys(keys.app, keys.stream, name).lock(partition) for name in ours]
    entries = await backend.pipeline([("HGET", lock, "entries") for lock in locks])
    passed = dict(zip(ours, map(number, entries), strict=True))
    return min(names, key=lambda name: passed.get(name, 0), default="")
