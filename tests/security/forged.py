"""Whole acked logs that somebody forged, and a reader of them without Redis.

A log as commits write it, with commits without rows, takeovers and resets, is changed as another program or a
careless restore may change it: entries are swapped, repeated, moved, dropped, laid over others, renumbered or
given other fields. The reader returns the rows that were committed, or it raises ``DataLoss``.

Nothing here makes another chain that fits in itself: contents that are exchanged together with their CRC, or
a repeated entry at a higher epoch, which looks like what follows a reset.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

from streamworker.core.data.entries import EntryId
from streamworker.errors import DataLoss
from streamworker.redisio.data import ackedlog
from streamworker.redisio.keys import GroupKeys
from streamworker.spark.source.logs import AckedLogs
from streamworker.spark.source.offsets import Position, Slice
from streamworker.spark.source.options import SourceOptions
from tests.redisio.acked import encoded, stored

LOG = "n.5"
NUMBERS = ("rows", "prev", "first", "last")
SCHEMA = pa.schema([("n", pa.int64())])

Fields = Mapping[bytes, bytes]


@dataclass(frozen=True)
class Entry:
    """One entry of a log, with the row that it ends at."""

    end: int
    rows: int
    fields: Fields

    def with_field(self, name: str, value: str) -> "Entry":
        return replace(self, fields={**self.fields, name.encode(): value.encode()})


class Shelf(AckedLogs):
    """Reads entries from a list in place of Redis."""

    def __init__(self, entries: Sequence[tuple[EntryId, Fields]], *, fail: bool = True) -> None:
        self._options = SourceOptions(app="shop", stream="orders", processor="price", fail_on_data_loss=fail)
        self._keys = GroupKeys("shop", "orders", "price")
        self._entries = entries

    def _ranges(
        self, asked: Sequence[tuple[int, int, int]]
    ) -> list[tuple[list[tuple[EntryId, Fields]], str]]:
        return [([e for e in self._entries if e[0].ms >= first][:count], LOG) for _, first, count in asked]

    def tails(self) -> dict[int, Position]:
        return {}

    def _schema(self, fingerprint: str) -> pa.Schema:
        return SCHEMA

    def values(self, part: Slice) -> list[int]:
        return [n for entry in self.read(part) for n in entry.batch["n"].to_pylist()]


@dataclass(frozen=True)
class Forged:
    """A log, and how it is read."""

    entries: list[Entry]
    parts: list[Slice]
    values: list[int]
    """What was committed in these parts."""


@cache
def batch_of(first: int, rows: int) -> ackedlog.AckedBatch:
    batch = pa.record_batch({"n": list(range(first, first + rows))}, SCHEMA)
    return encoded(batch, "none")


def fields_of(first: int, rows: int, prev: int, last: int, epoch: int) -> Fields:
    """Return the fields of an entry as a commit writes it; its source ids are ``prev + 1`` to ``last``."""
    ids = {"prev": prev, "first": prev + 1, "last": last}
    fields = {name.encode(): b"%d-0" % number for name, number in ids.items()}
    return {**stored(batch_of(first, rows)), **fields, b"epoch": b"%d" % epoch, b"owner": b"w", b"at": b"9"}


def committed(rng: random.Random) -> list[Entry]:
    """Return a log as commits write it; its rows are numbered from 0."""
    entries: list[Entry] = []
    checkpoint, epoch, total = rng.randrange(3), 5, 0
    for _ in range(rng.randint(2, 7)):
        if rng.randrange(4) == 0:
            checkpoint += rng.randint(1, 3)  # A commit without rows.
        if rng.randrange(6) == 0:
            epoch += rng.randint(1, 2)  # Another owner.
        if rng.randrange(8) == 0:
            checkpoint, epoch = rng.randint(0, checkpoint), epoch + 1  # A reset.
        rows, last = rng.randint(1, 3), checkpoint + rng.randint(1, 3)
        entries.append(Entry(total + rows, rows, fields_of(total, rows, checkpoint, last, epoch)))
        checkpoint, total = last, total + rows
    return entries


def renumbered(entries: list[Entry]) -> list[Entry]:
    """Return entries with the ids that they would have if they had been committed in this order."""
    total, found = 0, []
    for entry in entries:
        total += entry.rows
        found.append(replace(entry, end=total))
    return found


def changed(rng: random.Random, entry: Entry) -> Entry:
    """Change or drop one of the fields of an entry that say where it belongs."""
    name = rng.choice(NUMBERS)
    if rng.randrange(12) == 0:
        return replace(
            entry, fields={key: value for key, value in entry.fields.items() if key != name.encode()}
        )
    number = int(entry.fields.get(name.encode(), b"0").partition(b"-")[0]) + rng.choice((-2, -1, 1, 2, 5))
    return entry.with_field(name, f"{max(0, number)}{'' if name == 'rows' else '-0'}")


def forge(rng: random.Random, entries: list[Entry]) -> list[Entry]:
    at, other = rng.randrange(len(entries)), rng.randrange(len(entries))
    less = [*entries[:at], *entries[at + 1 :]] or entries
    match rng.randrange(8):
        case 0:
            swapped = list(entries)
            swapped[at], swapped[other] = swapped[other], swapped[at]
            return renumbered(swapped)
        case 1:
            return renumbered([*entries[:at], entries[other], *entries[at:]])
        case 2:
            return renumbered([*entries[:at], entries[other], *entries[at + 1 :]])
        case 3:
            return renumbered(less)
        case 4:
            return renumbered([*less[:other], entries[at], *less[other:]])
        case 5:  # A copy that is laid over others, and one that is moved.
            copy = replace(entries[at], end=max(1, entries[other].end + rng.randint(-2, 4)))
            kept = entries if rng.randrange(2) else less
            return sorted([*(entry for entry in kept if entry.end != copy.end), copy], key=lambda e: e.end)
        case 6:
            foreign = replace(entries[at], fields={b"foo": b"bar"})
            return [*entries[:at], foreign, *entries[at + 1 :]]
        case _:
            return [*entries[:at], changed(rng, entries[at]), *entries[at + 1 :]]


def make(rng: random.Random) -> Forged:
    """Make a log, forge it, and choose how it is read: from where, and in how many micro-batches."""
    true = committed(rng)
    entries, end = list(true), true[-1].end
    if rng.randrange(10) == 0:
        at = rng.randrange(len(entries))
        entries[at] = entries[at].with_field("epoch", str(rng.randint(3, 9)))
    else:
        for _ in range(rng.randrange(4)):
            entries = forge(rng, entries)
    since = Slice(0, LOG, 0, end)
    if rng.randrange(2):  # It was read up to the end of an entry, before anybody forged it.
        read = true[rng.randrange(len(true) - 1)]
        last, epoch = read.fields[b"last"].decode(), int(read.fields[b"epoch"])
        since = Slice(0, LOG, read.end, end, last, epoch)
        if rng.randrange(2):
            entries = [entry for entry in entries if entry.end > read.end]
    return Forged(entries, cut(rng, since), list(range(since.start, end)))


def cut(rng: random.Random, whole: Slice) -> list[Slice]:
    start, end = whole.start, whole.end
    cuts = sorted({start, end, *(rng.randint(start, end) for _ in range(rng.randrange(3)))})
    parts = [replace(whole, start=a, end=b, last="", epoch=0) for a, b in pairwise(cuts)]
    return [replace(parts[0], last=whole.last, epoch=whole.epoch), *parts[1:]]


def check(log: Forged) -> bool:
    """Read a log; returns whether it had an answer."""
    whole = replace(log.parts[0], end=log.parts[-1].end)
    entries = [(EntryId(entry.end, 0), entry.fields) for entry in log.entries]
    anyway = Shelf(entries, fail=False).values(whole)
    assert anyway == sorted(set(anyway)), f"a row came twice or too late: {anyway}"
    reader, found = Shelf(entries), list[Any]()
    try:
        for part in log.parts:
            found += reader.values(part)
    except DataLoss:
        return False
    assert found == log.values, f"{found} came, and {log.values} was committed"
    return True
