"""Entries of columns: the ids of their rows, and some rows of an entry.

An entry of columns stays one item on its way through a worker, whatever its rows: a partition may hold
millions. Its rows have ids as the records of other entries of many have, up to the id of the entry. An entry
that another program wrote or copied has no ids for its rows: they all have its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from streamworker.core.data.entries import Entry, EntryId
from streamworker.errors import ConfigurationError

ROWS = b"n"
"""Field with the number of rows."""

_ROWS_AT = 5
"""Index of that number among names and values."""


class NumberedRows(list[bytes]):
    """Names and values of an entry whose rows have ids. Those up to a checkpoint may be cut off."""

    __slots__ = ("first", "last", "start")

    def __init__(self, flat: Sequence[bytes], first: EntryId, last: EntryId, start: int = 0) -> None:
        super().__init__(flat)
        self.first = first
        self.last = last
        self.start = start
        """Index of the first row that is not cut off."""

    @classmethod
    def of(cls, text: bytes, flat: Sequence[bytes]) -> "Self | Sequence[bytes]":
        """Read an entry as Redis returned it; return it unchanged if its rows have no ids."""
        try:
            first, last, count = EntryId.parse(flat[1]), EntryId.parse(text), _number(flat[_ROWS_AT])
        except (ConfigurationError, IndexError):
            return flat
        has_ids = first.ms == last.ms and last.seq - first.seq + 1 == count > 0
        return cls(flat, first, last) if has_ids else flat

    def after(self, position: EntryId) -> "NumberedRows":
        """Return the entry without the rows up to a position."""
        if not self.first <= position < self.last:
            return self
        return NumberedRows(self, self.first, self.last, position.seq - self.first.seq + 1)


@dataclass(frozen=True, slots=True)
class RowsEntry(Entry):
    """Some rows of an entry; its fields are those of the whole entry."""

    start: int = 0
    end: int = 0


def bounds(entry: Entry) -> tuple[int, int]:
    """Return the index of the first row, and of the row after the last one, in the entry that Redis holds."""
    if isinstance(entry, RowsEntry):
        return entry.start, entry.end
    count = max(1, _number(entry.fields.get(ROWS, b"")))
    return (entry.origin.start if isinstance(entry.origin, NumberedRows) else 0), count


def rows_in(entry: Entry) -> int:
    """Return how many rows an entry has; 1 if it declares no valid number."""
    start, end = bounds(entry)
    return end - start


def records_in(entry: Entry) -> int:
    """Return how many records an entry counts for: its rows, if they have ids, or 1."""
    return rows_in(entry) if isinstance(entry.origin, NumberedRows) else 1


def ids_of_rows(entry: Entry) -> Iterator[EntryId]:
    """Return the id of each row."""
    return (_id(entry, index) for index in range(*bounds(entry)))


def first_id(entry: Entry) -> EntryId:
    """Return the id of the first row, or of the only record."""
    return _id(entry, bounds(entry)[0])


def cut(entry: Entry, start: int, end: int) -> Entry:
    """Return the rows from ``start`` to ``end`` of an entry, counted from its first one."""
    rows, (first, _) = rows_in(entry), bounds(entry)
    if end - start == rows:
        return entry
    start, end = first + start, first + end
    size = max(1, entry.size * (end - start) // rows)
    return RowsEntry(_id(entry, end - 1), entry.fields, size, entry.origin, start, end)


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 10 else 0


def _id(entry: Entry, index: int) -> EntryId:
    if not isinstance(entry.origin, NumberedRows):
        return entry.id
    ms, first = entry.origin.first
    return EntryId(ms, first + index)
