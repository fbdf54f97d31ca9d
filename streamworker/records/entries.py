"""The records of one read. An :class:`Entry` object is created only when a caller asks for it.

To create three objects for every entry took more time than to decode it. A handler of batches needs
only the payloads, and a commit only the ids of the first and the last entry.

An entry that holds many records appears here as so many entries, each with the id of its record. An entry of
columns appears as one (``rows``).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, overload

from streamworker.core.data.entries import Entry, EntryId
from streamworker.errors import DecodeError
from streamworker.records.packs import CRC, ENTRY_RECORDS_MAX, FIRST, HEADER_PREFIX, Pack
from streamworker.records.rows import NumberedRows

REPLAYED_FOR = b"sw:replayed-for"
"""First field of a replayed dead letter. Its value is the group that handles the entry; other groups skip
the entry."""

TAG_BYTES_MAX = 64 * 1024
"""Bytes of an entry up to which a commit compares its content; Redis takes 2 us a kB for that (measured)."""


class StoredEntry(NamedTuple):
    """An entry as a commit names it: by id and content."""

    id: EntryId
    tag: str
    """Hash of its content, or the CRC of an entry of many records; empty if it is not compared."""


class Entries(Sequence[Entry]):
    """Records of one stream, in order. A slice is an ``Entries`` object too.

    For each entry of one record, ``ids`` has the id as Redis returns it, ``flats`` the names and values of
    its fields, alternating, and ``sizes`` the bytes of all these. For each record of an entry of many,
    ``ids`` has its index in the entry, ``flats`` the entry's ``Pack``, and ``sizes`` the mean size.

    >>> entries = Entries.of([[b"5-0", [b"v", b"{}"]], [b"5-1", [b"v", b"[1]"]]])
    >>> entries[1].id, entries[1].fields, entries.sizes
    (EntryId(ms=5, seq=1), {b'v': b'[1]'}, [3, 4])
    >>> entries.payloads(b"v")
    [b'{}', b'[1]']
    """

    __slots__ = ("_flats", "_ids", "has_packs", "may_have_headers", "sizes", "stored")

    def __init__(
        self,
        ids: Sequence[bytes | int],
        flats: Sequence[Any],
        sizes: Sequence[int],
        *,
        has_packs: bool = False,
        may_have_headers: bool = False,
        stored: int | None = None,
    ) -> None:
        self._ids = ids
        self._flats = flats
        self.sizes = sizes
        self.has_packs = has_packs
        """Whether it may have records of entries of many."""
        self.may_have_headers = may_have_headers
        """Whether one of the records may have headers: an entry has several fields."""
        self.stored = len(ids) if stored is None else stored
        """How many entries Redis returned, if this is what it returned."""

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Self:
        """Create it from Redis' reply for one stream: ``[id, [name, value, ...]]`` for each entry."""
        flats = [flat for _, flat in reply]
        try:
            sizes = [len(name) + len(value) for name, value in flats]
        except ValueError:  # An entry has several fields.
            if any(flat[0] == FIRST for flat in flats):
                return cls._of_packs(reply)
            sizes = [sum(map(len, flat)) for flat in flats]
            return cls([text for text, _ in reply], flats, sizes, may_have_headers=True)
        return cls([text for text, _ in reply], flats, sizes)

    @classmethod
    def _of_packs(cls, reply: Sequence[Any]) -> Self:
        ids: list[bytes | int] = []
        flats: list[Any] = []
        sizes: list[int] = []
        has_headers = False
        for text, flat in reply:
            if flat[0] != FIRST or flat[-2] == b"schema":
                ids.append(text)
                flats.append(flat if flat[0] != FIRST else NumberedRows.of(text, flat))
                sizes.append(sum(map(len, flat)))
                has_headers = has_headers or len(flat) > 2
            else:
                pack = Pack(text, flat)
                has_headers = has_headers or pack.has_headers
                ids += _PLACES[: pack.count]
                flats += [pack] * pack.count
                sizes += [pack.size] * pack.count
        return cls(ids, flats, sizes, has_packs=True, may_have_headers=has_headers, stored=len(reply))

    def payloads(self, field: bytes) -> list[bytes] | None:
        """Return the values of a field that must be the first of each entry; None if it is not.

        All entries must hold one record.
        """
        try:
            found = [value for name, value in self._flats if name == field]
        except ValueError:  # An entry has several fields.
            found = [flat[1] for flat in self._flats if flat[0] == field and field not in flat[2::2]]
        return found if len(found) == len(self._flats) else None

    def decoded(
        self, load_one: Callable[[bytes], Any], load_all: Callable[[bytes], list[Any]], field: bytes
    ) -> list[Any] | None:
        """Decode the payloads; None if an entry has not the field first."""
        if not self.has_packs:
            payloads = self.payloads(field)
            return None if payloads is None else list(map(load_one, payloads))
        records: list[Any] = []
        index, count = 0, len(self._ids)
        while index < count:
            flat, start = self._flats[index], self._ids[index]
            if isinstance(start, int):
                end = min(flat.count, start + count - index)
                records += flat.decoded(load_all, start, end)
                index += end - start
            elif len(flat) < 2 or flat[0] != field or field in flat[2::2]:
                return None
            else:
                records.append(load_one(flat[1]))
                index += 1
        return records

    def id_at(self, index: int) -> EntryId:
        """Return the id of an entry without creating the :class:`Entry`."""
        return _id_of(self._ids[index], self._flats[index])

    def origin_at(self, index: int) -> tuple[EntryId, Any]:
        """Return the id of the entry that Redis holds, and its content as in ``Entry.origin``."""
        flat = self._flats[index]
        return (flat.last if isinstance(flat, Pack | NumberedRows) else self.id_at(index)), flat

    def after(self, position: EntryId) -> "Entries":
        """Return the records after a position, which may lie within the first entry."""
        pack = self._flats[0]
        if isinstance(pack, NumberedRows):
            flats = [pack.after(position), *self._flats[1:]]
            return self._with(self._ids, flats, self.sizes)
        if not isinstance(pack, Pack) or not pack.first <= position < pack.last:
            return self
        return self[position.seq - self.id_at(0).seq + 1 :]

    def runs(self) -> Iterator[tuple[int, int, Any]]:
        """Yield the records of each entry: index of the first, their number, and the entry.

        The entry is its names and values, or the ``Pack`` or ``NumberedRows`` that it is read as. Of a pack
        the records may be a part.
        """
        index, count = 0, len(self._ids)
        while index < count:
            flat, place = self._flats[index], self._ids[index]
            n = min(flat.count - place, count - index) if isinstance(place, int) else 1
            yield index, n, flat
            index += n

    def arrivals_ms(self) -> list[int]:
        """Return the time in the id of each record, and create no id for it."""
        found: list[int] = []
        for index, n, _ in self.runs():
            found += [self.id_at(index).ms] * n  # The records of one entry share it.
        return found

    def each_headers(self) -> Iterator[Mapping[bytes, bytes]]:
        """Yield the headers of each record, and create no :class:`Entry` for it."""
        for place, flat in zip(self._ids, self._flats, strict=True):
            if isinstance(place, int):
                found = flat.headers[place] if flat.has_headers else None
                yield {name.encode(): value for name, value in found.items()} if found else {}
            else:
                pairs = zip(flat[::2], flat[1::2], strict=True)
                yield {n[len(HEADER_PREFIX) :]: v for n, v in pairs if n.startswith(HEADER_PREFIX)}

    def _with(self, ids: Sequence[bytes | int], flats: Sequence[Any], sizes: Sequence[int]) -> "Entries":
        """Return some of its records."""
        may_have = self.may_have_headers
        return Entries(ids, flats, sizes, has_packs=self.has_packs, may_have_headers=may_have)

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> "Entries": ...
    def __getitem__(self, index: int | slice) -> "Entry | Entries":
        if isinstance(index, slice):
            return self._with(self._ids[index], self._flats[index], self.sizes[index])
        return _entry(self._ids[index], self._flats[index], self.sizes[index])

    def __iter__(self) -> Iterator[Entry]:
        return map(_entry, self._ids, self._flats, self.sizes)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"Entries({list(self)})"


_PLACES = tuple(range(ENTRY_RECORDS_MAX))
"""Shared by all entries: an int of its own for each record would take most of their memory."""

_tuple_new = tuple.__new__
_object_new = object.__new__
_set_id, _set_fields, _set_size, _set_origin = (
    vars(Entry)[name].__set__ for name in ("id", "fields", "size", "origin")
)


def _id_of(text: bytes | int, flat: Any) -> EntryId:
    if isinstance(text, int):
        found: EntryId = flat.id_of(text)
        return found
    ms, _, seq = text.partition(b"-")
    return _tuple_new(EntryId, (int(ms), int(seq)))


def _entry(text: bytes | int, flat: Any, size: int) -> Entry:
    """Create an entry.

    A handler of single records needs an entry for each, so this function bypasses the constructors of
    ``Entry`` and ``EntryId``: it takes half their time and creates equal objects.
    """
    entry = _object_new(Entry)
    _set_id(entry, _id_of(text, flat))
    if isinstance(text, int):
        _set_fields(entry, flat.fields_of(text))
    elif len(flat) == 2:
        _set_fields(entry, {flat[0]: flat[1]})
    else:
        _set_fields(entry, dict(zip(flat[::2], flat[1::2], strict=True)))
    _set_size(entry, size)
    _set_origin(entry, flat)
    return entry


def origin_at(entries: Sequence[Entry], index: int) -> tuple[EntryId, Any]:
    """Return the id of the entry that holds a record, and its content as in ``Entry.origin``."""
    if isinstance(entries, Entries):
        return entries.origin_at(index)
    entry = entries[index]
    return (entry.origin.last if isinstance(entry.origin, Pack | NumberedRows) else entry.id), entry.origin


def readable_fields(entry: Entry) -> Mapping[bytes, bytes]:
    """Return the fields of a record, to decode; raise DecodeError if its entry of many cannot be read."""
    if isinstance(entry.origin, Pack):
        try:
            _ = entry.origin.raws
        except DecodeError as error:
            raise error.with_traceback(None) from None  # A dead letter names the last line of it.
    return entry.fields


def as_stored(id: EntryId, origin: Any) -> StoredEntry:
    """Return how a commit names an entry with some content, which is as in ``Entry.origin``."""
    flat = origin.flat if isinstance(origin, Pack) else origin or ()
    if isinstance(origin, Pack | NumberedRows):
        # The script takes the CRC for the tag of an entry that begins so, also of one that is refused here.
        crc = flat[CRC] if len(flat) > CRC else b""
        return StoredEntry(id, crc.decode() if crc.isdigit() else "")
    content = b"\0".join(flat)
    if not content or len(content) > TAG_BYTES_MAX or origin[0] == FIRST:
        return StoredEntry(id, "")
    return StoredEntry(id, hashlib.sha1(content, usedforsecurity=False).hexdigest())


def may_have_headers(entries: Sequence[Entry]) -> bool:
    """Return whether one of the records may have headers, without a look at each."""
    return not isinstance(entries, Entries) or entries.may_have_headers


def header_fields_of(entry: Entry) -> dict[bytes, bytes]:
    """Return the headers of the record in an entry by their names."""
    return {
        name[len(HEADER_PREFIX) :]: value
        for name, value in entry.fields.items()
        if name.startswith(HEADER_PREFIX)
    }


def each_headers(entries: Sequence[Entry]) -> Iterator[Mapping[bytes, bytes]]:
    """Yield the headers of each record that has any, by their names."""
    found = entries.each_headers() if isinstance(entries, Entries) else map(header_fields_of, entries)
    return filter(None, found)


def headers_of(entry: Entry) -> dict[str, str]:
    """Return the headers of the record in an entry."""
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in header_fields_of(entry).items()
    }


def id_at(entries: Sequence[Entry], index: int) -> EntryId:
    """Return the id of the entry at an index."""
    return entries.id_at(index) if isinstance(entries, Entries) else entries[index].id


def sizes_of(entries: Sequence[Entry]) -> Sequence[int]:
    """Return the bytes of each entry."""
    return entries.sizes if isinstance(entries, Entries) else [entry.size for entry in entries]


def joined_entries(parts: Sequence[Sequence[Entry]]) -> Sequence[Entry]:
    """Concatenate sequences of entries."""
    if len(parts) == 1:
        return parts[0]
    them = [part for part in parts if isinstance(part, Entries)]
    if not them or len(them) < len(parts):
        return [entry for part in parts for entry in part]
    return Entries(
        [each for part in them for each in part._ids],  # noqa: SLF001
        [each for part in them for each in part._flats],  # noqa: SLF001
        [each for part in them for each in part.sizes],
        has_packs=any(part.has_packs for part in them),
        may_have_headers=any(part.may_have_headers for part in them),
    )
