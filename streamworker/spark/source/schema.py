"""The schema that a query declares, and the conversion of every batch to it.

Spark checks only the first batch of a task against the declared schema: a later batch that differs ends
in an error without a hint. So this module casts every batch. Every declared column is nullable, since a
processor's type may gain fields that older entries lack.

A query keeps the schema that it was started with, while workers of a newer version may forward a column
more. The query must not write such rows without the column: Spark would never read them again. So it ends,
and takes up the newest schema when it is started again.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from streamworker.errors import ConfigurationError, RecordError, SchemaChanged
from streamworker.redisio.data.ackedlog import STORED
from streamworker.spark.source.logs import LogEntry
from streamworker.spark.source.options import SourceOptions

BATCH_ROWS, BATCH_BYTES = 10_000, 16 * 1024 * 1024
"""Entries are joined up to about this size, since each batch that goes to the JVM has a fixed cost, and
so has each conversion."""

METADATA = (
    StructField("_partition", IntegerType()),
    StructField("_offset", LongType()),
    StructField("_acked_at", TimestampType()),
    StructField("_entry_id", StringType()),
    StructField("_epoch", LongType()),
)
"""Columns that ``includeMetadata`` adds: the partition; the row's number in its log, from 1;
when it was committed, by the server's clock; the last source entry of its batch; the epoch."""


def declared_schema(arrow: pa.Schema) -> StructType:
    """Return a schema in Spark's types; a column that Spark has no type for is a ConfigurationError."""
    try:
        return from_arrow_schema(pa.schema([_plain(field) for field in arrow])).toNullable()
    except Exception as error:  # noqa: BLE001, pyspark raises several kinds
        raise ConfigurationError(
            f"Spark has no type for a column: {error}",
            remedy="Forward or store another type, such as text or a number.",
        ) from None


def spark_schema(
    arrow: pa.Schema, options: SourceOptions, metadata: Sequence[StructField] = METADATA
) -> StructType:
    """Return the schema that a query declares for forwarded rows, or with its ``metadata`` for a table.

    A column named like one that the options add is a ConfigurationError, and so are headers that the log
    does not have.
    """
    declared = declared_schema(arrow)
    stored = [field for field in declared if _is_asked(field.name, options)]
    if options.include_headers and not any(STORED[field.name] == "_headers" for field in stored):
        raise ConfigurationError(
            "Option includeHeaders is given, and the acked log has no headers.",
            remedy="Declare the processor with log_metadata=True, and let its workers start once.",
        )
    columns = [field for field in declared if field.name not in STORED]
    added = [StructField(STORED[field.name], field.dataType) for field in stored]
    added = [*(metadata if options.include_metadata else ()), *added]
    taken = sorted({field.name for field in added} & {field.name for field in columns})
    if taken:
        option = "includeHeaders" if taken[0] == "_headers" else "includeMetadata"
        raise ConfigurationError(
            f"The rows have a column {taken[0]!r}, which {option} adds.",
            remedy=f"Rename the field, or leave {option} out.",
        )
    return StructType([*columns, *added])


def _is_asked(column: str, options: SourceOptions) -> bool:
    """Return whether a query shows a column of the log beside those of its rows."""
    if STORED.get(column) == "_headers":
        return options.include_headers
    return column in STORED and options.include_metadata


def _plain(field: pa.Field) -> pa.Field:
    """Return a field with a type that Spark has: Spark has no unsigned integers."""
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    kind = pa.decimal128(20, 0) if field.type == pa.uint64() else wider.get(field.type, field.type)
    return pa.field(field.name, kind)


def arrow_target(declared: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches for a declared schema."""
    return to_arrow_schema(declared, timezone="UTC")


def widen(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return a schema that holds the rows of both: with the columns and nested fields of both.

    A column keeps the type that it has in ``schema`` if no type holds both.

    >>> widen(pa.schema({"n": pa.int64()}), pa.schema({"n": pa.float64(), "extra": pa.string()}))
    n: double
    extra: string
    """
    fields = {field.name: field for field in schema}
    for field in other:
        known = fields.setdefault(field.name, field)
        with suppress(pa.ArrowTypeError):
            fields[field.name] = pa.unify_schemas(
                [pa.schema([known]), pa.schema([field])], promote_options="permissive"
            ).field(0)
    return pa.schema(list(fields.values()))


class Conformer:
    """Converts the rows of log entries to one declared schema.

    Columns that an entry lacks are null. An entry with a column or a nested field that the query did not
    declare is a SchemaChanged, unless option ``otherColumns`` says to leave it out.
    """

    def __init__(self, target: pa.Schema, options: SourceOptions) -> None:
        self._target = target
        self._options = options
        self._last: pa.Schema | None = None
        """The schema of the last entry."""
        self._fits = False
        """Whether it has the names and types that are declared; nullability does not matter."""

    def conform(self, entries: Sequence[LogEntry]) -> pa.RecordBatch:
        """Return the rows of entries of one schema in the declared one.

        A column that cannot be cast is a RecordError.
        """
        batches = [entry.batch for entry in entries]
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        rows, schema, target, options = batch.num_rows, batch.schema, self._target, self._options
        if self._last is None or not schema.equals(self._last):
            is_same = (schema.names, schema.types) == (target.names, target.types)
            self._fits = is_same and not options.include_metadata
            if not (self._fits or options.drop_other_columns):
                self._check_covers(schema, entries[0])
            self._last = schema
        if self._fits:
            return pa.RecordBatch.from_arrays(batch.columns, schema=target)
        found = {
            STORED.get(name, name): batch.column(i)
            for i, name in enumerate(schema.names)
            if name not in STORED or _is_asked(name, options)
        }
        if options.include_metadata:
            found |= _metadata(entries)
        columns = [
            self._cast(found[field.name], field, entries)
            if field.name in found
            else pa.nulls(rows, field.type)
            for field in target
        ]
        return pa.RecordBatch.from_arrays(columns, schema=target)

    def _check_covers(self, schema: pa.Schema, entry: LogEntry) -> None:
        has_headers = self._options.include_headers and "sw:headers" in schema.names
        found = arrow_target(spark_schema(schema, replace(self._options, include_headers=has_headers)))
        for field in widen(self._target, found):
            is_planned = field.name in self._target.names
            if is_planned and field.equals(self._target.field(field.name)):
                continue
            planned = f"has it as {self._target.field(field.name).type}" if is_planned else "lacks it"
            raise SchemaChanged(
                f"Column {field.name!r} is {found.field(field.name).type} in rows from {entry.start + 1} of "
                f"partition {entry.partition} on, and the schema of the query {planned}.",
                remedy="Start the query again: it reads these rows whole, from its checkpoint. Option "
                "otherColumns=drop leaves out the columns that a query with a schema of its own lacks.",
            )

    def _cast(self, column: pa.Array, field: pa.Field, entries: Sequence[LogEntry]) -> pa.Array:
        if column.type == field.type:
            return column
        try:
            return pc.cast(column, field.type)
        except pa.ArrowException as error:
            *others, entry = entries
            for each in others and entries:
                self.conform([each])  # It raises for the first entry that does not fit.
            raise RecordError(
                f"Column {field.name!r} is {column.type} in rows up to {entry.end} of partition "
                f"{entry.partition}, and does not fit the query's {field.type}: {error}",
                remedy="Start the query again, so that it takes up the processor's new type; if the older "
                "rows do not fit it either, give the field a new name.",
            ) from None


def _metadata(entries: Sequence[LogEntry]) -> dict[str, pa.Array]:
    rows = [entry.batch.num_rows for entry in entries]
    ends = pa.array(accumulate(rows), pa.int32())

    def repeat(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind)))

    firsts = [entry.end - end for entry, end in zip(entries, ends.to_pylist(), strict=True)]
    return {
        "_partition": repeat([entry.partition for entry in entries], pa.int32()),
        "_offset": pc.add(repeat(firsts, pa.int64()), pa.arange(1, sum(rows) + 1)),
        "_acked_at": repeat([entry.at_ms * 1000 for entry in entries], pa.timestamp("us", "UTC")),
        "_entry_id": repeat([entry.last for entry in entries], pa.string()),
        "_epoch": repeat([entry.epoch for entry in entries], pa.int64()),
    }


def together(entries: Iterable[LogEntry]) -> Iterator[list[LogEntry]]:
    """Group entries of one schema, in order, into batches of about ``BATCH_ROWS`` or ``BATCH_BYTES``."""
    group: list[LogEntry] = []
    schema: pa.Schema = None
    rows = size = 0
    for entry in entries:
        batch = entry.batch
        if group and not (rows < BATCH_ROWS and size < BATCH_BYTES and batch.schema.equals(schema)):
            yield group
            group, rows, size = [], 0, 0
        schema = batch.schema
        if batch.num_rows:
            group.append(entry)
            rows += batch.num_rows
            size += batch.get_total_buffer_size()  # ``nbytes`` takes longer than all else here.
    if group:
        yield group
