"""A stream that other programs fill: reads it, and hands its entries to the partitions of one of ours.

Each partition keeps the id of the last entry that it took, and takes a piece only if it stands where the
piece begins (``forward.lua``). So an entry is taken once, whoever reads, though both streams share no slot.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamworker.core.data.channel import AppendReply
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.records.entries import REPLAYED_FOR
from streamworker.redisio.data.streams import append_by, set_field
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.scripts import FORWARD, Call
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import Durability
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import pairs_of
from streamworker.redisio.wire.link import Argument

START = "0-"
"""What ``forward.lua`` says of a partition that has taken nothing."""

Fields = Sequence[bytes]
"""Names and values of an entry, in order."""


class SourcePosition(NamedTuple):
    """How far the stream was read: everything up to an entry was taken."""

    id: EntryId = ZERO
    tag: str = ""
    """A fingerprint of the entry; empty if it is not compared."""
    added: int = -1
    """Entries that were ever added up to it, dropped ones included; -1 while it is not known."""

    @property
    def text(self) -> str:
        """What :func:`keep_position` writes; empty for a stream that was never read."""
        return "" if self == SourcePosition() else f"{self.id} {self.tag} {self.added}"

    @classmethod
    def parse(cls, text: bytes | None) -> "SourcePosition":
        """Read what :func:`keep_position` wrote."""
        if text is None:
            return cls()
        entry_id, tag, count = text.decode().split(" ")
        return cls(EntryId.parse(entry_id), tag, int(count))


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the stream found."""

    entries: list[tuple[EntryId, Fields]]
    """The entries behind the position, in order."""
    position: SourcePosition
    """The position, with the entries counted that were dropped before they were taken."""
    trouble: str = ""
    """Why they are not those that follow: the stream was made anew, or has gone back."""
    dropped: int = 0
    """Entries behind the position that were trimmed or deleted before anybody took them."""

    @property
    def end(self) -> SourcePosition:
        """The position behind the entries."""
        last, fields = self.entries[-1]
        return SourcePosition(last, tag_of(fields), self.position.added + len(self.entries))


def _field(source: str) -> str:
    return f"source {source}"


def tag_of(fields: Fields) -> str:
    """Return the fingerprint of an entry."""
    return hashlib.sha1(b"\0".join(fields), usedforsecurity=False).hexdigest()


async def standing(
    backend: Backend, keys: StreamKeys, source: str, partitions: int
) -> tuple[SourcePosition, dict[int, str]]:
    """Return how far the stream was read, and where each partition stands."""
    asked = [("HGET", keys.taken(p), _field(source)) for p in range(partitions)]
    position, *found = all_answered(await backend.pipeline([("HGET", keys.meta, _field(source)), *asked]))
    return SourcePosition.parse(position), {
        p: START if text is None else text.decode() for p, text in enumerate(found)
    }


async def keep_position(
    backend: Backend, keys: StreamKeys, source: str, was: SourcePosition, position: SourcePosition
) -> bool:
    """Store how far the stream was read, unless another worker has stored something since; return whether."""
    return await set_field(backend, keys.meta, _field(source), was.text, position.text)


async def look(
    backend: Backend, source: str, position: SourcePosition, count: int, taken: EntryId = ZERO
) -> Look:
    """Read what follows a position, and check that it is still there, and the last entry ``taken``."""
    here, newest = str(position.id), max(position.id, taken)
    if not await backend.execute("EXISTS", source):
        return Look([], position, "it is gone" if position.tag or taken != ZERO else "")
    commands = [
        ("XINFO", "STREAM", source),
        ("XRANGE", source, here, here),
        ("XRANGE", source, "-" if position.id == ZERO else f"({here}", "+", "COUNT", count),
    ]
    flat, there, after = all_answered(await backend.pipeline(commands))
    info: Mapping[bytes, Any] = pairs_of(flat)
    last = EntryId.parse(info[b"last-generated-id"])
    if last < newest:
        return Look([], position, f"its last id was {newest}, and is {last}")
    if position.tag and there and tag_of(there[0][1]) != position.tag:
        return Look([], position, f"entry {position.id} holds something else now")
    gone, first = info[b"entries-added"] - info[b"length"], info[b"first-entry"]
    passed = not first or EntryId.parse(first[0]) > position.id  # nothing is left up to the position
    if position.added < 0:  # What was dropped before the first look is none of ours.
        position = position._replace(added=gone if passed else 0)
    dropped = max(0, gone - position.added) if passed else 0
    position = position._replace(added=position.added + dropped)
    return Look([(EntryId.parse(name), fields) for name, fields in after], position, dropped=dropped)


class Piece(NamedTuple):
    """Entries for one partition, and where it must stand to take them."""

    partition: int
    begin: str
    end: str
    entries: Sequence[Fields]


async def hand_over(
    backend: Backend,
    keys: StreamKeys,
    source: str,
    pieces: Sequence[Piece],
    *,
    limit: int,
    durability: Durability,
) -> list[AppendReply]:
    """Hand pieces to their partitions; the replies of those that stand elsewhere say where."""
    calls: list[Call] = []
    for partition, begin, end, entries in pieces:
        records: list[Argument] = [len(entries), "f"]
        for fields in entries:
            records += (len(fields), *(_renamed(fields) if REPLAYED_FOR in fields else fields))
        named = {"source": _field(source), "since": begin, "through": end, "limit": limit}
        calls.append(FORWARD.at(keys, partition, **named, records=records))
    return await append_by(backend, FORWARD, calls, durability)


def _renamed(fields: Fields) -> Fields:
    """Rename the field that would keep all groups but one from an entry: another program wrote it."""
    names = [name if name != REPLAYED_FOR else b"adopted " + name for name in fields[::2]]
    return [part for pair in zip(names, fields[1::2], strict=True) for part in pair]
