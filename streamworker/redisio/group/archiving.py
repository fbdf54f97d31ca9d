"""What the archive of a stream asks of Redis: raw entries to put, and how far it has come for its readers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from streamworker.core.data.archives import GROUP
from streamworker.core.data.entries import SEQUENCE_MAX, ZERO, EntryId
from streamworker.errors import ConfigurationError
from streamworker.records.entries import Entries, joined_entries
from streamworker.redisio.keys import GroupKeys, StreamKeys, number
from streamworker.redisio.scripts import GO_ON, STORE, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import RecordCounts, pairs_of

READ_BYTES = 4 * 1024 * 1024
"""How much one call reads, about: it must not hold the server up."""


class Unarchived(NamedTuple):
    """What of a partition is not archived."""

    now_ms: int
    oldest: EntryId | None
    """Its first record; None if nothing waits."""
    records: int
    newest: EntryId = ZERO
    """The stream's last id, if that of the first one is of a time that is not yet."""


def archiver_keys(keys: StreamKeys) -> GroupKeys:
    """Return the keys of the group that archives a stream."""
    return GroupKeys(keys.app, keys.stream, GROUP)


async def read_waiting(backend: Backend, keys: StreamKeys, partition: int, after: EntryId) -> Unarchived:
    """Return what follows the last archived record."""
    events = keys.events(partition)
    asked = [
        ("XRANGE", events, f"({after}", "+", "COUNT", 1),
        ("XLEN", events),
        RecordCounts.command(keys.counts(partition)),
        ("HGET", archiver_keys(keys).lock(partition), "entries"),
    ]
    found, length, counts, entries = all_answered(await backend.pipeline(asked))
    now_ms = await backend.time_ms(near=events)
    waiting = Unarchived(now_ms, None, RecordCounts.of(counts).lag(length, number(entries)))
    if not found:
        return waiting
    oldest = newest = EntryId.parse(found[0][0])
    if oldest.ms > now_ms:
        newest = EntryId.parse(
            pairs_of(await backend.execute("XINFO", "STREAM", events))[b"last-generated-id"]
        )
    return waiting._replace(oldest=oldest, newest=newest)


async def note_waiting(backend: Backend, keys: StreamKeys, partition: int, since_ms: int | None) -> None:
    """Note in the lock since when the oldest record waits; who may not read records sees it there."""
    fields = ("waits_since", "" if since_ms is None else since_ms)
    lock = archiver_keys(keys).lock(partition)
    checked(await backend.run(STORE, STORE.call(hash=lock, command="HSET", fields=fields)))


async def read_raw(
    backend: Backend, keys: StreamKeys, partition: int, after: EntryId, until: EntryId, bytes_max: int
) -> Entries:
    """Return what a partition holds between two ids, whole entries, until it is so many bytes."""
    parts: list[Entries] = []
    size, count, position = 0, 10, after
    while size < bytes_max:
        reply = await backend.execute(
            "XRANGE", keys.events(partition), f"({position}", str(until), "COUNT", count
        )
        if not reply:
            break
        part = Entries.of(reply).after(after)
        parts.append(part)
        its = sum(part.sizes)
        size, position = size + its, EntryId.parse(reply[-1][0])
        if len(reply) < count:
            break
        count = max(10, min(10_000, count * READ_BYTES // max(1, its)))
    whole = joined_entries(parts) if parts else Entries.of([])
    assert isinstance(whole, Entries)
    return whole


def up_to(ms: int) -> EntryId:
    """Return the last id that a moment may give."""
    return EntryId(max(0, ms), SEQUENCE_MAX)


async def go_on_behind(
    backend: Backend, keys: StreamKeys, partition: int, last: EntryId, *, total: int, before: int
) -> None:
    """Let no id come again that the archive has; see ``lua/group/go_on.lua``. The call may be repeated."""
    named = {"last": str(last), "total": total, "before": before}
    checked(await backend.run(GO_ON, GO_ON.at(archiver_keys(keys), partition, **named)))


async def read_archived(backend: Backend, keys: StreamKeys, partitions: Sequence[int]) -> dict[int, EntryId]:
    """Return up to which id the archive holds each partition; the lowest id where it holds nothing.

    What is archived may have been trimmed. So who has read entries after a position asks this **then**: if
    the archive is not above that position, nothing behind the position was trimmed when the entries were
    read.
    """
    lock = archiver_keys(keys).lock
    replies = all_answered(await backend.pipeline([("HGET", lock(p), "checkpoint") for p in partitions]))
    return {p: _id_of(each) for p, each in zip(partitions, replies, strict=True)}


async def overtaken(backend: Backend, keys: StreamKeys, positions: Mapping[int, EntryId]) -> set[int]:
    """Return those partitions whose streams may lack archived records behind a position."""
    archived = await read_archived(backend, keys, list(positions))
    behind = [p for p, position in positions.items() if position < archived[p]]
    if not behind:
        return set()
    firsts = all_answered(
        await backend.pipeline([("XRANGE", keys.events(p), "-", "+", "COUNT", 1) for p in behind])
    )
    # A trim drops from the front, so with an entry at or below the position all behind it are there.
    begins = {p: _id_of(found[0][0]) if found else None for p, found in zip(behind, firsts, strict=True)}
    return {p for p, first in begins.items() if first is None or first > positions[p]}


def _id_of(text: bytes | None) -> EntryId:
    try:
        return ZERO if text is None else EntryId.parse(text)
    except ConfigurationError:  # Another program wrote to the lock.
        return ZERO
