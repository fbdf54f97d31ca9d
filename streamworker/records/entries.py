"""The entries of one read. An :class:`Entry` object is created only when a caller asks for it.

To create three objects for every entry took more time than to decode it. A handler of batches needs
only the payloads, and a commit only the ids of the first and the last entry.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self, overload

from streamworker.core.data.entries import Entry, EntryId

REPLAYED_FOR = b"sw:replayed-for"
"""First field of a replayed dead letter. Its value is the group that handles the entry; other groups skip
the entry."""


class Entries(Sequence[Entry]):
    """Entries of one stream, in order. A slice is an ``Entries`` object too.

    For each entry, ``ids`` has the id as Redis returns it, ``flats`` the names and values of its fields,
    alternating, and ``sizes`` the bytes of all these.

    >>> entries = Entries.of([[b"5-0", [b"v", b"{}"]], [b"5-1", [b"v", b"[1]"]]])
    >>> entries[1].id, entries[1].fields, entries.sizes
    (EntryId(ms=5, seq=1), {b'v': b'[1]'}, [3, 4])
    >>> entries.payloads(b"v")
    [b'{}', b'[1]']
    """

    __slots__ = ("_flats", "_ids", "sizes")

    def __init__(self, ids: Sequence[bytes], flats: Sequence[Sequence[bytes]], sizes: Sequence[int]) -> None:
        self._ids = ids
        self._flats = flats
        self.sizes = sizes

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Self:
        """Create it from Redis' reply for one stream: ``[id, [name, value, ...]]`` for each entry."""
        flats = [flat for _, flat in reply]
        try:
            sizes = [len(name) + len(value) for name, value in flats]
        except ValueError:  # An entry has several fields.
            sizes = [sum(map(len, flat)) for flat in flats]
        return cls([text for text, _ in reply], flats, sizes)

    def payloads(self, field: bytes) -> list[bytes] | None:
        """Return the values of a field that must be the first of each entry; None if it is not."""
        try:
            found = [value for name, value in self._flats if name == field]
        except ValueError:  # An entry has several fields.
            found = [flat[1] for flat in self._flats if flat[0] == field and field not in flat[2::2]]
        return found if len(found) == len(self._flats) else None

    def id_at(self, place: int) -> EntryId:
        """Return the id of an entry without creating the :class:`Entry`."""
        ms, _, seq = self._ids[place].partition(b"-")
        return _tuple_new(EntryId, (int(ms), int(seq)))

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, place: int) -> Entry: ...
    @overload
    def __getitem__(self, place: slice) -> "Entries": ...
    def __getitem__(self, place: int | slice) -> "Entry | Entries":
        if isinstance(place, slice):
            return Entries(self._ids[place], self._flats[place], self.sizes[place])
        return _entry(self._ids[place], self._flats[place], self.sizes[place])

    def __iter__(self) -> Iterator[Entry]:
        return map(_entry, self._ids, self._flats, self.sizes)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"Entries({list(self)})"

    def __add__(self, other: "Entries") -> "Entries":
        return Entries([*self._ids, *other._ids], [*self._flats, *other._flats], [*self.sizes, *other.sizes])


_tuple_new = tuple.__new__
_object_new = object.__new__
_set_id, _set_fields, _set_size = (vars(Entry)[name].__set__ for name in ("id", "fields", "size"))


def _entry(text: bytes, flat: Sequence[bytes], size: int) -> Entry:
    """Create an entry.

    A handler of single records needs an entry for each, so this function bypasses the constructors of
    ``Entry`` and ``EntryId``: it takes half their time and creates equal objects.
    """
    ms, _, seq = text.partition(b"-")
    entry = _object_new(Entry)
    _set_id(entry, _tuple_new(EntryId, (int(ms), int(seq))))
    if len(flat) == 2:
        _set_fields(entry, {flat[0]: flat[1]})
    else:
        _set_fields(entry, dict(zip(flat[::2], flat[1::2], strict=True)))
    _set_size(entry, size)
    return entry


def id_at(entries: Sequence[Entry], place: int) -> EntryId:
    """Return the id of the entry at an index."""
    return entries.id_at(place) if isinstance(entries, Entries) else entries[place].id


def size_of(entries: Sequence[Entry]) -> int:
    """Return the total bytes of the entries."""
    return sum(sizes_of(entries))


def sizes_of(entries: Sequence[Entry]) -> Sequence[int]:
    """Return the bytes of each entry."""
    return entries.sizes if isinstance(entries, Entries) else [entry.size for entry in entries]


def joined_entries(parts: Sequence[Sequence[Entry]]) -> Sequence[Entry]:
    """Concatenate sequences of entries."""
    if len(parts) == 1:
        return parts[0]
    if parts and all(isinstance(part, Entries) for part in parts):
        first, *rest = parts
        for part in rest:
            first = first + part  # type: ignore[operator]
        return first
    return [entry for part in parts for entry in part]
