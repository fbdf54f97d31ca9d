"""A segment: the records of one partition between two ids, as one Parquet object.

    ============  ============================  =========================================================
    ``_time``     timestamp in ms, UTC          the milliseconds of the record's id
    ``_seq``      int64                         the sequence number of its id
    ``_headers``  map of texts to bytes         null without headers
    ``_payload``  bytes                         the record as it is encoded; null where ``_entry`` is set,
                                                and with ``codec="arrow"``
    ``_entry``    list of names and values      an entry that is no plain record, as Redis had it; an empty
                                                list is one of its records but the last
    ...           as the record's type          its fields; null if the record cannot be read
    ============  ============================  =========================================================

So DuckDB, Polars, pandas and Spark read a directory as it is, and a worker reads again what Redis held: the
same ids, headers and payloads in the same order. What cannot be decoded is archived as it is, and fails again
then. Only the packing of records into entries may differ. Each segment is one row group: several take a third
more bytes and a third more time to read (measured).
"""

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamworker.core.data.archives import COLUMNS, Footer
from streamworker.core.data.entries import Entry, EntryId
from streamworker.errors import ArchiveConflict, ConfigurationError, DecodeError
from streamworker.records.entries import Entries
from streamworker.records.packs import (
    _BINARY,
    FIRST,
    HEADER_PREFIX,
    READ_BYTES_MAX,
    Pack,
    as_binary,
    msgpack_array,
)
from streamworker.records.rows import NumberedRows

Packing = Literal["", "json", "msgpack", "arrow", "binary"]

META = pa.schema(
    [
        pa.field("_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("_seq", pa.int64(), nullable=False),
        pa.field("_headers", pa.map_(pa.string(), pa.binary())),
        pa.field("_payload", pa.binary()),
        pa.field("_entry", pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))),
    ]
)
PREFIX = "sw."
"""Of the keys of the footer's metadata."""
LEVEL = 3
"""Of zstd."""
RUN_RECORDS = 500
"""How many records a replayed entry holds at most."""
RUN_BYTES = 256 * 1024
"""How many bytes of records that is, about."""
RUN_ROWS = 8_000
"""How many rows a replayed entry of columns holds at most."""
_encode = msgspec.msgpack.Encoder().encode
_PART: list[Any] = []
"""``_entry`` of a record that belongs to an entry which stands at a later record."""

Columns = Callable[[Entries], pa.RecordBatch]
"""Makes the columns of some records, with null where one cannot be read."""


def table_of(
    entries: Entries,
    packing: Packing,
    columns: Columns | None,
    batch_of: Callable[[Entry], pa.RecordBatch] | None = None,
) -> pa.Table:
    """Return the rows of a segment for some records.

    ``columns`` makes the columns of records that are no rows already; ``batch_of`` reads an entry of rows.
    """
    rows = _Rows(packing)
    made: list[pa.RecordBatch] = []
    begun = 0
    """The first record that has no columns yet."""
    for index, n, origin in entries.runs():
        if isinstance(origin, NumberedRows):
            if columns is not None and begun < index:
                made.append(columns(entries[begun:index]))
            begun = index + 1
            made.append(rows.add_rows(entries[index], origin, batch_of))
        else:
            rows.add(entries.id_at(index), n, origin)
    if columns is not None and begun < len(entries):
        made.append(columns(entries[begun:]))
    table = rows.table()
    if not made:
        return table
    more = pa.concat_tables([pa.Table.from_batches([each]) for each in made], promote_options="default")
    for field in more.schema:
        table = table.append_column(field.with_nullable(True), more[field.name])
    return table


class _Rows:
    """The columns of ids, headers, payloads and entries, as they grow."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._is_valid = _checks.get(packing)
        self._ids = _Ids()
        self._headers: list[Any] = []
        self._payloads: list[bytes | None] = []
        self._raw: list[Any] = []

    def add(self, first: EntryId, n: int, origin: Any) -> None:
        """Add the records of an entry, or some of them."""
        self._ids.add(first.ms, first.seq, n)
        if isinstance(origin, Pack):
            start = first.seq - origin.first.seq
            found = _payloads_in(origin, start, start + n, self._packing)
            if found is None:
                self._add_raw(n, origin.flat, is_last=start + n == origin.count)
                return
            self._payloads += found
            self._raw += [None] * n
            if origin.has_headers:
                its = origin.headers[start : start + n]
                self._headers += [list(each.items()) if each else None for each in its]
            else:
                self._headers += [None] * n
        elif (alone := _plain(origin)) and (self._is_valid is None or self._is_valid(alone[0])):
            self._payloads.append(alone[0])
            self._headers.append(alone[1])
            self._raw.append(None)
        else:
            self._add_raw(1, origin, is_last=True)

    def add_rows(
        self, entry: Entry, origin: NumberedRows, batch_of: Callable[[Entry], pa.RecordBatch] | None
    ) -> pa.RecordBatch:
        """Add the rows of an entry of columns, and return their columns."""
        n = origin.last.seq - origin.first.seq + 1 - origin.start
        self._ids.add(origin.first.ms, origin.first.seq + origin.start, n)
        rows = _rows_in(entry, batch_of)
        if rows is None:
            self._add_raw(n, origin, is_last=True)
            return pa.RecordBatch.from_struct_array(pa.nulls(n, pa.struct([])))
        self._headers += [None] * n
        self._payloads += [None] * n
        self._raw += [None] * n
        return rows

    def _add_raw(self, n: int, flat: Sequence[bytes], *, is_last: bool) -> None:
        pairs = zip(flat[::2], flat[1::2], strict=True)
        whole = [{"name": name, "value": value} for name, value in pairs]
        self._headers += [None] * n
        self._payloads += [None] * n
        self._raw += [*[_PART] * (n - is_last), *[whole] * is_last]

    def table(self) -> pa.Table:
        """Return all that was added."""
        headers = _array(self._headers, META.field("_headers").type)
        raw = _array(self._raw, META.field("_entry").type)
        arrays = [*self._ids.arrays(), headers, pa.array(self._payloads, pa.binary()), raw]
        return pa.Table.from_arrays(arrays, schema=META)


class _Ids:
    """The ids of runs of records, without an object for each record."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, int]] = []

    def add(self, ms: int, seq: int, n: int) -> None:
        if ms >= 2**63 or seq + n >= 2**63:
            raise ArchiveConflict(
                f"Record {ms}-{seq} has an id above 2**63, which no segment can hold.",
                remedy="Another program chose the id. Delete the entry, or end the archive of the stream.",
            )
        self._runs.append((ms, seq, n))

    def arrays(self) -> tuple[pa.Array, pa.Array]:
        ms: list[int] = []
        seqs: list[int] = []
        for its_ms, seq, n in self._runs:
            ms += [its_ms] * n
            seqs += range(seq, seq + n)
        return pa.array(ms, pa.int64()).cast(META.field("_time").type), pa.array(seqs, pa.int64())


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind) if any(each is not None for each in values) else pa.nulls(len(values), kind)


def _payloads_in(pack: Pack, start: int, end: int, packing: Packing) -> Sequence[bytes] | None:
    try:
        raws = pack.raws[start:end]
        _ = pack.headers if pack.has_headers else ()
    except DecodeError:
        return None
    if (packing == "json") != (raws[0][0] < 0x80):  # A record in msgpack is no text.
        return None
    if raws[0][:1] in _BINARY:
        return [pack.fields_of(index)[b"v"] for index in range(start, end)]
    return raws


def _check_of(decoder: Any) -> Callable[[bytes], bool]:
    """Return what tells whether a payload may stand in an array with others."""

    def is_valid(payload: bytes) -> bool:
        try:
            decoder.decode(payload)
        except (ValueError, RecursionError):  # It may be nested more deeply than can be read.
            return False
        return True

    return is_valid


_checks = {
    "json": _check_of(msgspec.json.Decoder(msgspec.Raw)),
    "msgpack": _check_of(msgspec.msgpack.Decoder(msgspec.Raw)),
}


def _plain(flat: Sequence[bytes]) -> tuple[bytes, Any] | None:
    """Return payload and headers of an entry that is a plain record; None of another."""
    if not flat or flat[0] != b"v":
        return None
    if len(flat) == 2:
        return flat[1], None
    names = flat[2::2]
    if not all(name.startswith(HEADER_PREFIX) for name in names) or len(set(names)) < len(names):
        return None
    try:
        its = [name[len(HEADER_PREFIX) :].decode() for name in names]
    except UnicodeDecodeError:
        return None
    return flat[1], list(zip(its, flat[3::2], strict=True))


def _rows_in(entry: Entry, batch_of: Callable[[Entry], pa.RecordBatch] | None) -> pa.RecordBatch | None:
    try:
        return None if batch_of is None else batch_of(entry)
    except Exception:  # noqa: BLE001 - whatever cannot be read is archived as it is
        return None


# -- as Parquet ------------------------------------------------------------------------------


def encoded(table: pa.Table, footer: Footer) -> bytes:
    """Return a segment as bytes."""
    sink = io.BytesIO()
    own = [name for name in table.schema.names if name not in COLUMNS]
    encodings = dict.fromkeys(("_time", "_seq", "_offset"), "DELTA_BINARY_PACKED")
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=LEVEL,
        use_dictionary=[name for name in own if name not in encodings],
        column_encoding={name: how for name, how in encodings.items() if name in table.schema.names},
        write_page_index=True,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.add_key_value_metadata({PREFIX + name: value for name, value in footer.fields().items()})
    return sink.getvalue()


def footer_in(tail: bytes, name: str) -> Footer:
    """Return the footer of a segment from its end; raise ArchiveConflict if it has none."""
    try:
        found = pq.read_metadata(io.BytesIO(tail)).metadata or {}
        fields = {key.decode(): value.decode() for key, value in found.items()}
        return Footer.of({k.removeprefix(PREFIX): v for k, v in fields.items() if k.startswith(PREFIX)})
    except (pa.ArrowException, OSError, KeyError, ValueError, ConfigurationError) as error:
        raise unreadable(name, error) from None


def unreadable(name: str, error: Exception) -> ArchiveConflict:
    """Return the error for an object that is no segment, or a damaged one."""
    return ArchiveConflict(
        f"{name} is no segment: {' '.join(str(error).split())[:200]}",
        remedy="Restore it from the store's versions, or remove it if another program put it there.",
    )


def whole_of(file: pq.ParquetFile, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return all rows of a segment; raise ArchiveConflict if a page is damaged."""
    try:
        return file.read(columns)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(name, error) from None


def parts_of(
    file: pq.ParquetFile, name: str, rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a segment, some at a time; raise ArchiveConflict if a page is damaged."""
    try:
        for batch in file.iter_batches(rows, columns=columns):
            yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError) as error:
        raise unreadable(name, error) from None


def opened(body: bytes, name: str) -> tuple[pq.ParquetFile, Footer]:
    """Return a segment to read, and its footer; raise ArchiveConflict if it is none."""
    footer = footer_in(body, name)
    return pq.ParquetFile(pa.BufferReader(body), page_checksum_verification=True), footer


def ids_above(table: pa.Table, position: EntryId) -> pa.ChunkedArray:
    """Return for each row of a table whether its id is above a position."""
    ms = table["_time"].cast(pa.int64())
    its_ms, seq = (min(each, 2**63 - 1) for each in position)  # A time begins behind the last id before it.
    return pc.or_(
        pc.greater(ms, its_ms),
        pc.and_(pc.equal(ms, its_ms), pc.greater(table["_seq"], seq)),
    )


# -- as entries ------------------------------------------------------------------------------


def entries_in(
    table: pa.Table, packing: Packing, fields_of: Callable[[pa.RecordBatch], dict[bytes, bytes]] | None = None
) -> Entries:
    """Return records of a segment as Redis would return them; ``fields_of`` makes an entry of rows."""
    return Entries.of([*_reply(table, packing, fields_of)])


def _reply(
    table: pa.Table, packing: Packing, fields_of: Callable[[pa.RecordBatch], dict[bytes, bytes]] | None
) -> Iterator[list[Any]]:
    count = table.num_rows
    ms = table["_time"].combine_chunks().cast(pa.int64()).to_numpy()
    seqs = table["_seq"].combine_chunks().to_numpy()
    raw, heads = table["_entry"], table["_headers"]
    raws = None if raw.null_count == count else raw.to_pylist()
    headers = None if heads.null_count == count else heads.to_pylist()
    payloads = table["_payload"].combine_chunks()
    edges = _edges(ms, seqs, raws, _most(payloads, packing))
    joined = _joined(payloads, edges, packing)
    own = table.select([name for name in table.schema.names if name not in COLUMNS])

    def alone(at: int) -> list[Any]:
        flat = [b"v", payloads[at].as_py()]
        for name, value in (headers[at] or ()) if headers is not None else ():
            flat += (HEADER_PREFIX + name.encode(), value)
        return [b"%d-%d" % (ms[at], seqs[at]), flat]

    for index, (at, stop) in enumerate(pairwise(edges)):
        first, n = (int(ms[at]), int(seqs[at])), stop - at
        if raws is not None and raws[at] is not None:
            if raws[at]:
                flat = [part for each in raws[at] for part in (each["name"], each["value"])]
                yield [b"%d-%d" % first, flat]
        elif packing == "arrow":
            if fields_of is None:
                raise DecodeError("Rows of an archive are read without their type.")
            yield _rows_entry(first, n, fields_of(own.slice(at, n).combine_chunks().to_batches()[0]))
        elif n == 1:
            yield alone(at)
        else:
            its = None if headers is None else headers[at:stop]
            value, more = _packed(n, joined[index], packing, its)
            if len(value) <= READ_BYTES_MAX:
                yield _pack_entry(first, n, value, more)
            else:
                yield from map(alone, range(at, stop))


def _most(payloads: pa.Array, packing: Packing) -> int:
    """Return how many records an entry holds at most."""
    if packing == "arrow":
        return RUN_ROWS
    mean = payloads.nbytes // max(1, len(payloads))
    return min(RUN_RECORDS, RUN_BYTES // max(1, mean)) or 1 if packing else 1


def _edges(ms: Any, seqs: Any, raws: list[Any] | None, most: int) -> list[int]:
    """Return where the entries begin, and the end: their ids are consecutive, and some stand alone."""
    count = len(ms)
    breaks = ((ms[1:] != ms[:-1]) | (seqs[1:] != seqs[:-1] + 1)).nonzero()[0] + 1
    edges = [0, *breaks.tolist(), count] if count else []
    if raws is not None:
        alone = [index for index, each in enumerate(raws) if each is not None]
        edges = sorted({*edges, *alone, *(index + 1 for index in alone)})
    cut = [at for start, end in pairwise(edges) for at in range(start, end, most)]
    return [*cut, count] if count else []


def _joined(payloads: pa.Array, edges: list[int], packing: Packing) -> list[Any]:
    """Return the payloads of each entry as the inside of an array."""
    if packing not in ("json", "msgpack") or not edges:
        return [payloads.slice(at, stop - at) for at, stop in pairwise(edges)]
    lists = pa.ListArray.from_arrays(pa.array(edges, pa.int32()), payloads)
    found: list[Any] = pc.binary_join(lists, b"," if packing == "json" else b"").to_pylist()
    return found


def _packed(n: int, inside: Any, packing: Packing, headers: list[Any] | None) -> tuple[bytes, list[bytes]]:
    """Return the value of an entry of many records, and its further fields."""
    if packing == "binary":
        inside = b"".join(as_binary(inside.to_pylist()))
    value = b"[%b]" % inside if packing == "json" else msgpack_array(n) + inside
    if headers is None or not any(headers):
        return value, []
    packed = msgpack_array(n) + b"".join(b"\xc0" if not each else _encode(dict(each)) for each in headers)
    return value + packed, [b"h", b"%d" % len(packed)]


def _pack_entry(first: tuple[int, int], n: int, value: bytes, more: list[bytes]) -> list[Any]:
    ms, seq = first
    flat = [FIRST, b"%d-%d" % (ms, seq), b"extra", b"0", b"n", b"%d" % n, b"codec", b"none"]
    flat += [b"size", b"%d" % len(value), b"crc", b"%d" % zlib.crc32(value), b"v", value, *more]
    return [b"%d-%d" % (ms, seq + n - 1), flat]


def _rows_entry(first: tuple[int, int], n: int, fields: dict[bytes, bytes]) -> list[Any]:
    ms, seq = first
    flat = [FIRST, b"%d-%d" % (ms, seq), b"extra", b"0"]
    flat += [part for pair in fields.items() for part in pair]
    return [b"%d-%d" % (ms, seq + n - 1), flat]
