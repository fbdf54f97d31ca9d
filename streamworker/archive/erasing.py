"""Takes the records of one key out of segments, which keep their names, ids and places in the chain.

Rows vanish, and the footer says how many; ``first``, ``last``, ``after`` and ``total`` stay. A segment is
replaced only if it is still the version that was read, so of two that erase at the same time neither undoes
the other, and one that is killed is run again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streamworker.archive.chain import Chain, Segment, id_at
from streamworker.archive.columns import rows_writer
from streamworker.archive.segments import META, encoded, opened, whole_of
from streamworker.core.data.archives import COLUMNS
from streamworker.core.data.placement import canonical_key
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import ArchiveUnavailable, RecordError
from streamworker.records.codecs import PAYLOAD_FIELD
from streamworker.records.entries import REPLAYED_FOR, Entries, readable_fields
from streamworker.records.rows import NumberedRows, bounds
from streamworker.records.types import read_hint
from streamworker.redisio.data.columns import unpacked

TRIES = 10
"""How often a segment is read again that somebody else has replaced meanwhile."""
KEY = "_key"
"""The column of an archived row with the key of its record."""
AT_ONCE = 10_000
"""Values that are Python objects at the same time."""

Without = Callable[[pa.Table], tuple[pa.Table, int]]
"""Returns a table without the records of a key, and how many it could not read."""


class Erased(NamedTuple):
    """What became of one segment."""

    records: int
    """Records that went, or would go."""
    unreadable: int
    """Records of which nobody can say whether they are of the key; they stay."""


def erase(chain: Chain, segment: Segment, without: Without, *, dry_run: bool = False) -> Erased:
    """Take the records of a key out of a segment. The call may be repeated.

    Raises
    ------
    ArchiveConflict
        If the object is no segment.
    ArchiveUnavailable
        If the store does not answer, or others replace the segment all the time.
    """
    for _ in range(TRIES):
        found = chain.store.get(segment.name)
        if found is None:
            break  # It has expired.
        file, footer = opened(found.body, segment.name)
        table = whole_of(file, segment.name)
        kept, unreadable = without(table)
        gone = table.num_rows - kept.num_rows
        if dry_run or not gone:
            return Erased(gone, unreadable)
        left = footer._replace(records=footer.records - gone, erased=footer.erased + gone)
        if chain.store.replace(segment.name, encoded(kept, left), found.version):
            return Erased(gone, unreadable)
    else:
        raise ArchiveUnavailable(
            f"{segment.name} was replaced by others {TRIES} times meanwhile.", remedy="Run this again."
        )
    return Erased(0, 0)


class Finder:
    """Finds the records of one key of a stream."""

    def __init__(self, stream: StreamSpec, key: bytes) -> None:
        self._stream = stream
        self._key = key
        self._decode = None if stream.codec == "arrow" else stream.record.decoder(stream.codec)

    def without(self, table: pa.Table) -> tuple[pa.Table, int]:
        """Return a segment's table without the records of the key, and how many could not be read."""
        gone: set[int] = set()
        alone: dict[int, Any] = {}
        unreadable = 0
        for at, is_mine in self._looked_at(table, alone):
            if is_mine is None:
                unreadable += 1
            elif is_mine:
                gone.add(at)
        if not gone:
            return table, unreadable
        if split := {at: entry for at, entry in alone.items() if at not in gone}:
            raw = table["_entry"].to_pylist()
            for at, entry in split.items():
                raw[at] = entry
            place = table.schema.get_field_index("_entry")
            table = table.set_column(place, META.field("_entry"), pa.array(raw, META.field("_entry").type))
        keeps = [at for at in range(table.num_rows) if at not in gone]
        return table.take(pa.array(keeps, pa.int64())), unreadable

    def _looked_at(self, table: pa.Table, alone: dict[int, Any]) -> Iterator[tuple[int, bool | None]]:
        """Yield for records whether they are of the key, None for one that cannot be read.

        ``alone`` gets what the records of an entry of many look like, each by itself, if some are to go.
        """
        raws = table["_entry"]
        is_plain = pc.is_null(raws)
        places = pc.indices_nonzero(pc.and_(is_plain, self._may_be(table))).to_pylist()
        for start in range(0, len(places), AT_ONCE):
            its = places[start : start + AT_ONCE]
            yield from zip(its, self._plain(table.take(pa.array(its, pa.int64()))), strict=True)
        for at in pc.indices_nonzero(pc.invert(is_plain)).to_pylist():
            if entry := raws[at].as_py():
                yield from self._raw(at, table, entry, alone)

    def _may_be(self, table: pa.Table) -> Any:
        """Return for each record whether its column of the key's name leaves open that it is of the key."""
        names = self._stream.key_fields
        name = names if isinstance(names, str) else names[0] if names and len(names) == 1 else None
        wire = {field.name: field.wire_name for field in self._stream.record.declared}.get(name or "")
        if name is not None and wire in table.schema.names:
            base = read_hint(self._stream.record.hints[name]).base
            if base is str and isinstance(names, str):
                column = table[wire]
                return pc.or_kleene(
                    pc.is_null(column), pc.equal(column, self._key.decode("utf-8", "replace"))
                )
        return pa.chunked_array([pa.repeat(True, table.num_rows)])

    def _plain(self, table: pa.Table) -> Iterator[bool | None]:
        if self._decode is None:
            own = table.select([name for name in table.schema.names if name not in COLUMNS])
            for batch in own.combine_chunks().to_batches():
                yield from self._rows(batch)
            return
        for payload in table["_payload"].to_pylist():
            yield self._fields({PAYLOAD_FIELD: payload})

    def _rows(self, batch: pa.RecordBatch) -> list[bool | None]:
        record = self._stream.record
        try:
            return [self._is_mine(each) for each in record.from_arrow(record.fit_arrow(batch, extra="drop"))]
        except RecordError:
            return [None] * batch.num_rows

    def _fields(self, fields: Mapping[bytes, bytes]) -> bool | None:
        assert self._decode is not None
        try:
            record = self._decode(fields)
        except Exception:  # noqa: BLE001 - whatever the code of the user's type raises
            return None
        return self._is_mine(record)

    def _is_mine(self, record: Any) -> bool | None:
        try:
            return canonical_key(self._stream.key(record)) == self._key
        except Exception:  # noqa: BLE001 - whatever the user's function of the key raises
            return None

    def _raw(
        self, at: int, table: pa.Table, entry: list[dict[str, bytes]], alone: dict[int, Any]
    ) -> Iterator[tuple[int, bool | None]]:
        """Look at an entry that is archived as it was; its records end at a row."""
        flat = [part for each in entry for part in (each["name"], each["value"])]
        records = Entries.of([[str(id_at(table, at)).encode(), flat]])
        single: Sequence[Mapping[bytes, bytes]]
        try:
            if self._decode is None:
                start, end = bounds(records[0])
                batch = unpacked(records[0].fields)[start:end]
                verdicts = self._rows(batch)
                single = [rows_writer(batch[n : n + 1]) for n in range(batch.num_rows)]
            else:
                single = [_own(readable_fields(each)) for each in records]
                verdicts = [self._fields(fields) for fields in single]
        except RecordError:
            its = records[0].origin
            many = its.last.seq - its.first.seq + 1 if isinstance(its, NumberedRows) else len(records)
            single, verdicts = [], [None] * many
        first = at - len(verdicts) + 1
        if first < 0:  # The segment begins within the entry.
            verdicts = [None] * len(verdicts)
        elif len(verdicts) > 1 and any(verdicts):
            for n, fields in enumerate(single):
                alone[first + n] = [{"name": name, "value": value} for name, value in fields.items()]
        yield from ((max(0, first + n), verdict) for n, verdict in enumerate(verdicts))


def _own(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in fields.items() if name != REPLAYED_FOR}


def rows_without(names: Sequence[str], key: bytes, *, single: bool) -> Without:
    """Return what takes the rows out of a table that have a key in some columns; ``single`` for one value."""

    def is_mine(values: tuple[Any, ...]) -> bool | None:
        try:
            return canonical_key(values[0] if single else values) == key
        except RecordError:
            return None

    def without(table: pa.Table) -> tuple[pa.Table, int]:
        verdicts: list[bool | None] = [None] * table.num_rows
        if names and set(names) <= set(table.schema.names):
            columns = [table[name].to_pylist() for name in names]
            verdicts = [is_mine(values) for values in zip(*columns, strict=True)]
        if KEY in table.schema.names:  # With log_metadata=True the log has it, from the time it was set on.
            text, known = key.decode("utf-8", "replace"), table[KEY].to_pylist()
            verdicts = [
                its if each is None else each == text for its, each in zip(verdicts, known, strict=True)
            ]
        keeps = [at for at, verdict in enumerate(verdicts) if not verdict]
        return table.take(pa.array(keeps, pa.int64())), verdicts.count(None)

    return without
