"""The declared retention of a stream and of its groups' acked logs, and how much of both Redis holds.

It stands in the hash of the stream's declaration, so that all workers follow the value that was declared
last, whichever program they run.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.retention import Retention
from streamworker.errors import BackendRefused, ConfigurationError
from streamworker.redisio.keys import GroupKeys, StreamKeys, number
from streamworker.redisio.scripts import STORE, Call, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered, is_missing_key
from streamworker.redisio.wire.info import RecordCounts, pairs_of
from streamworker.redisio.wire.link import Argument


class Retentions(NamedTuple):
    """The retention of a stream and of one group's acked log, as Redis has it."""

    stream: Retention | None
    log: Retention | None


class Amount(NamedTuple):
    """How much one partition of a stream or acked log holds."""

    entries: int
    records: int
    """Records of a stream, rows of an acked log."""
    size: int
    """Bytes of memory; 0 if not asked for."""
    oldest_ms: int = 0
    """The time of the oldest, as of the last trim; 0 if it is not known."""


def _fields(keys: GroupKeys) -> tuple[str, str]:
    """Return the fields of the declaration that hold the retention of the stream and of the acked log."""
    return "retention", f"retention:{keys.group}"


async def read(backend: Backend, keys: GroupKeys) -> Retentions:
    """Return what is declared; a value that another program wrote counts as none."""
    found = await backend.execute("HMGET", keys.meta, *_fields(keys))
    return Retentions(*map(_parsed, found))


async def provision(
    backend: Backend, keys: GroupKeys, partitions: int, mine: Retentions, *, again: bool
) -> Retentions:
    """Store what an app declares, and return what was stored before. The call may be repeated.

    What the app leaves open stays as it is. With ``again`` a stored value stays, too: it may be of a program
    that was started later.
    """
    before = await read(backend, keys)
    calls: list[Call] = []
    for field, was, value in zip(_fields(keys), before, mine, strict=True):
        if value is not None and value != was and not (again and was):
            calls.append(STORE.call(hash=keys.meta, command="HSET", fields=(field, str(value))))
    if (kept := mine.stream or before.stream) and not kept.keeps_nothing:
        # From now on no sender trims; see parts/counts.lua.
        counts = map(keys.counts, range(partitions))
        calls += [STORE.call(hash=key, command="HSETNX", fields=("retained", 0)) for key in counts]
    for reply in all_answered(await backend.run_many(STORE, calls)):
        checked(reply)
    return before


class Edges(NamedTuple):
    """Where one partition of a stream begins and ends."""

    last: EntryId
    """The last id that it gave; of one that is sealed the last before that."""
    oldest: EntryId | None
    """Its first entry; None if it has none."""
    sent: int
    """How many records it ever had."""
    held: int
    """How many of them are there."""


async def edges(backend: Backend, keys: StreamKeys, partition: int) -> Edges:
    """Return where a partition begins and ends; all zero if there is no such stream."""
    try:
        info = pairs_of(await backend.execute("XINFO", "STREAM", keys.events(partition)))
    except BackendRefused as error:
        if not is_missing_key(error):
            raise
        return Edges(ZERO, None, 0, 0)
    counts = RecordCounts.of(await backend.execute(*RecordCounts.command(keys.counts(partition))))
    folded, sealed = await backend.execute("HMGET", keys.counts(partition), "folded", "sealed")
    first = info[b"first-entry"]
    oldest = EntryId.parse(first[0]) if first else None
    sent = info[b"entries-added"] + counts.extra - number(folded)  # see parts/counts.lua
    last = sealed.partition(b" ")[0] if sealed else info[b"last-generated-id"]
    return Edges(EntryId.parse(last), oldest, sent, counts.present(info[b"length"]))


async def measure_stream(backend: Backend, keys: StreamKeys, partitions: int, *, size: bool) -> list[Amount]:
    """Return how much each partition of a stream holds, and with ``size`` in how many bytes."""
    asked: list[Sequence[Argument]] = []
    for p in range(partitions):
        asked += [("XLEN", keys.events(p)), RecordCounts.command(keys.counts(p))]
        asked += [("MEMORY", "USAGE", keys.events(p))] if size else []
    return [_held(*each) for each in _split(await backend.pipeline(asked), partitions)]


async def measure_log(backend: Backend, keys: GroupKeys, partitions: int, *, size: bool) -> list[Amount]:
    """Return how much each partition of an acked log holds, and with ``size`` in how many bytes."""
    asked: list[Sequence[Argument]] = []
    for p in range(partitions):
        asked += [("XLEN", keys.acked(p)), ("HMGET", keys.lock(p), "rows", "dropped", "oldest")]
        asked += [("MEMORY", "USAGE", keys.acked(p))] if size else []
    held = []
    for length, lock, *usage in _split(await backend.pipeline(asked), partitions):
        rows, dropped, oldest = map(number, lock) if isinstance(lock, list) else (0, 0, 0)
        here = _held(length, None, *usage)
        held.append(here._replace(records=rows - dropped, oldest_ms=oldest) if here.entries else here)
    return held


async def measure_sizes(backend: Backend, keys: Sequence[str]) -> int:
    """Return the memory of some keys in bytes."""
    replies = await backend.pipeline([("MEMORY", "USAGE", key) for key in keys])
    return sum(reply for reply in replies if isinstance(reply, int))


def _split(replies: list[Any], partitions: int) -> list[list[Any]]:
    each = len(replies) // partitions
    return [replies[at : at + each] for at in range(0, len(replies), each)]


def _held(length: Any, counts: Any, usage: Any = None) -> Amount:
    entries, packed = length if isinstance(length, int) else 0, RecordCounts.of(counts)
    return Amount(
        entries,
        packed.present(entries),
        usage if isinstance(usage, int) else 0,
        packed.oldest if entries else 0,
    )


def _parsed(value: bytes | None) -> Retention | None:
    if value is None:
        return None
    try:
        return Retention.parse(value.decode("utf-8", "replace"))
    except ConfigurationError:
        return None
