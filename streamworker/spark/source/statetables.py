"""Tables of state as a batch source: all keys and values of each partition at one moment.

A partition of a table is one hash. One command reads it at one moment, as ``Table.scan`` does, and its answer
is decoded in pages while it arrives. So a task needs memory for a page, and the server for that part of the
answer which was not read yet (docs/decisions/0072-a-table-is-read-as-it-arrives.md).

While a stream grows, a key is where it was until the partition that it goes to is open
(``redisio/data/statetables.py``).

A worker has stored the table's columns, with what their decoder needs (``TableForm.schema``): executors do
not import the program whose type the values have.
"""

import datetime as dt
import os
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, StructField, StructType, TimestampType

from streamworker.core.data.inheriting import LOCK_FIELDS, Where, where_now
from streamworker.core.data.placement import Placement, key_parts, leading_key
from streamworker.errors import BackendUnavailable, DecodeError, RecordError
from streamworker.redisio.keys import GroupKeys, StreamKeys, map_in
from streamworker.spark.source import offsets
from streamworker.spark.source.connection import Connection
from streamworker.spark.source.offsets import Slice
from streamworker.spark.source.options import SourceOptions
from streamworker.spark.source.schema import BATCH_ROWS, arrow_target

PAGE_BYTES = 4 * 1024 * 1024
"""Keys and values that are decoded together, of at most ``BATCH_ROWS`` rows."""

METADATA = (StructField("_partition", IntegerType()), StructField("_expires_at", TimestampType()))
"""Columns that ``includeMetadata`` adds; ``_expires_at`` is null for a value that never expires."""

Row = tuple[bytes, bytes, int | None]
"""A key, a value as it is stored, without its expiry, and its expiry in ms."""


class TableReader(DataSourceReader):
    """Reads a table of state once, its partitions in parallel."""

    def __init__(self, options: SourceOptions, columns: pa.Schema, schema: StructType) -> None:
        self._options = options
        self._keys = StreamKeys(options.app, options.stream)
        self._connection = Connection(options.connection, options.retry_timeout_ms)
        self._parts = int(columns.metadata[b"parts"])
        """Of how many parts a key is; 0 if it is one value."""
        self._key_names = columns.names[: max(self._parts, 1)]
        self._fields = list(columns)[len(self._key_names) :]
        self._is_record = b"record" in columns.metadata
        self._target = arrow_target(schema)
        about = columns.metadata
        self._leading = int(about.get(b"leading", b"0"))
        self._group = GroupKeys(options.app, options.stream, about.get(b"processor", b"unknown").decode())

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks: some partitions of the table each, balanced by their keys."""
        options, placement = self._options, self._read_map()
        there = placement.active if placement else ()
        sizes = self._connection.pipeline([("HLEN", self._keys.table(p, options.table)) for p in there])
        # What is not open yet may have nothing, and is read elsewhere.
        least = 1 if placement and placement.base else 0
        parts = [Slice(p, "", 0, max(size, least)) for p, size in zip(there, sizes, strict=True)]
        parts = [part for part in parts if part.rows]
        tasks = offsets.plan(
            parts, options.parallelism or os.cpu_count() or 1, at_most=options.max_partitions
        )
        return [InputPartition([part.partition for part in task]) for task in tasks or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task in the declared schema, a page at a time."""
        import msgspec

        kind = pa.struct(self._fields) if self._is_record else self._fields[0].type
        decode = msgspec.msgpack.Decoder(_python_type(kind)).decode
        for p in partition.value:
            for page in self._pages(p):
                yield self._batch(p, page, self._decoded(decode, page))

    def _read_map(self) -> Placement | None:
        (counts,) = self._connection.pipeline([("HGET", self._keys.meta, "partitions")])
        return None if counts is None else Placement(*map_in(counts))

    def _where(self, p: int, *, is_parent: bool = False) -> Where:
        (lock,) = self._connection.pipeline([("HMGET", self._group.lock(p), *LOCK_FIELDS)])
        return where_now(lock, is_parent=is_parent)

    def _holders(self, placement: Placement, p: int, *, is_parent: bool = False) -> Iterator[int]:
        """Yield the partitions that have keys of one now."""
        where = self._where(p, is_parent=is_parent)
        if where is Where.HERE or (where is Where.AFTER and (is_parent or p >= placement.base)):
            yield p
            return
        beside = placement.parents_of if where is Where.BEFORE else placement.children_of
        for other in beside(p):
            yield from self._holders(placement, other, is_parent=where is Where.BEFORE)

    def _pages(self, p: int) -> Iterator[list[Row]]:
        placement = self._read_map()
        assert placement is not None
        for holder in dict.fromkeys(self._holders(placement, p)):
            now_ms, pairs = self._connection.read_hash(self._keys.table(holder, self._options.table))
            if self._where(holder, is_parent=True) is Where.AFTER:
                raise BackendUnavailable(
                    f"Values of table {self._options.table!r} have moved while they were read.",
                    remedy="Run the query again: the stream grows.",
                )
            if holder != p:
                pairs = (pair for pair in pairs if p in placement.path_of(self._routed(pair[0])))
            yield from self._paged(now_ms, pairs)

    def _routed(self, field: bytes) -> bytes:
        return leading_key(field, self._leading) or b""

    @staticmethod
    def _paged(now_ms: int, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[list[Row]]:
        page, size = list[Row](), 0
        for field, stored in pairs:
            expiry, _, body = stored.partition(b" ")
            expires_ms = int(expiry) if expiry.isdigit() else None
            if expires_ms is not None and expires_ms <= now_ms:
                continue
            # What another program wrote stays whole, and is no value of the table's type.
            page.append((field, stored if expiry and expires_ms is None else body, expires_ms))
            size += len(field) + len(stored)
            if len(page) >= BATCH_ROWS or size >= PAGE_BYTES:
                yield page
                page, size = [], 0
        if page:
            yield page

    def _decoded(self, decode: Callable[[bytes], Any], page: list[Row]) -> list[Any]:
        values, parts = [], self._parts
        for field, body, _ in page:
            try:
                values.append(decode(body[parts:]))
            except ValueError as error:
                raise DecodeError(
                    f"Table {self._options.table!r} holds no value of its type for key {field!r}: {error}.",
                    remedy="Give new fields defaults, so that values that were stored before can be read.",
                ) from None
        return values

    def _batch(self, p: int, page: list[Row], values: list[Any]) -> pa.RecordBatch:
        keys = zip(*(key_parts(field) if self._parts else (field,) for field, _, _ in page), strict=True)
        found: dict[str, Any] = dict(zip(self._key_names, keys, strict=True))
        for place, field in enumerate(self._fields):
            column = [getattr(value, f"f{place}") for value in values] if self._is_record else values
            has_inner = field.type.num_fields > 0
            found[field.name] = [_plain(each, field.type) for each in column] if has_inner else column
        found["_partition"] = [p] * len(page)
        found["_expires_at"] = [None if at is None else at * 1000 for _, _, at in page]
        columns = [self._column(found.get(field.name), field, len(page)) for field in self._target]
        return pa.RecordBatch.from_arrays(columns, schema=self._target)

    def _column(self, found: Sequence[Any] | None, field: pa.Field, rows: int) -> pa.Array:
        """Return a column of the target; a part of the key is a tuple of its canonical texts."""
        if found is None:
            return pa.nulls(rows, field.type)
        try:
            if not isinstance(found, tuple):
                return pa.array(found, field.type)
            texts = pa.array(found, pa.binary())
            return texts if field.type == pa.binary() else pc.cast(texts.cast(pa.string()), field.type)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise RecordError(
                f"Column {field.name!r} of table {self._options.table!r} does not fit {field.type}: {error}",
                remedy="Read it with a type that its values have: .schema(...).",
            ) from None


_TYPES: dict[pa.DataType, Any] = {
    pa.bool_(): bool,
    pa.int64(): int,
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): dt.date,
    pa.duration("us"): dt.timedelta,
}


def _python_type(kind: pa.DataType) -> Any:
    """Return the type with which msgspec decodes stored values of an Arrow type, or null."""
    import msgspec

    made: Any
    if pa.types.is_struct(kind):
        about = {f"f{i}": (field.metadata, _python_type(field.type)) for i, field in enumerate(kind)}
        fields = [
            (name, its, msgspec.json.decode(data.get(b"default", b"null"), type=its))
            for name, (data, its) in about.items()
        ]
        wire = {name: data[b"wire"].decode() for name, (data, _) in about.items()}
        tag = kind.field(0).metadata.get(b"tag") if fields else None
        made = msgspec.defstruct(
            "Stored", fields, rename=wire, array_like=tag is not None, tag=tag and msgspec.json.decode(tag)
        )
    elif pa.types.is_list(kind):
        made = list[_python_type(kind.value_type)]  # type: ignore[misc]
    elif pa.types.is_map(kind):
        made = dict[_python_type(kind.key_type), _python_type(kind.item_type)]  # type: ignore[misc]
    elif pa.types.is_timestamp(kind):
        made = Annotated[dt.datetime, msgspec.Meta(tz=kind.tz is not None)]
    else:
        made = _TYPES.get(kind, Decimal)
    return made | None


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a decoded value with dicts in the place of records, for pyarrow."""
    if value is None or not kind.num_fields:
        return value
    if pa.types.is_struct(kind):
        return {field.name: _plain(getattr(value, f"f{i}"), field.type) for i, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return [(key, _plain(item, kind.item_type)) for key, item in value.items()]
    return [_plain(item, kind.value_type) for item in value]
