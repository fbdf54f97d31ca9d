"""The schema that a query declares, and the conversion of every batch to it.

Spark checks only the first batch of a task against the declared schema: a later batch that differs ends
in an error without a hint. So this module casts every batch. Every declared column is nullable, since a
processor's type may gain fields that older entries lack.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from streamworker.errors import ConfigurationError, RecordError
from streamworker.spark.source.logs import LogEntry

BATCH_ROWS = 10_000
"""Small batches are joined up to about this size, since each batch that goes to the JVM has a fixed
cost."""

METADATA = (
    StructField("_partition", IntegerType()),
    StructField("_offset", LongType()),
    StructField("_acked_at", TimestampType()),
    StructField("_entry_id", StringType()),
    StructField("_epoch", LongType()),
)
"""Columns that ``includeMetadata`` adds: the partition; the row's number in its log, from 1;
when it was committed, by the server's clock; the last source entry of its batch; the epoch."""

METADATA_NAMES = tuple(field.name for field in METADATA)


def spark_schema(arrow: pa.Schema, *, include_metadata: bool = False) -> StructType:
    """Return the schema that a query declares for forwarded rows.

    A column that Spark has no type for, or one named like a metadata column, is a ConfigurationError.
    """
    try:
        declared = from_arrow_schema(pa.schema([_plain(field) for field in arrow])).toNullable()
    except Exception as error:  # noqa: BLE001, pyspark raises several kinds
        raise ConfigurationError(
            f"Spark has no type for a forwarded column: {error}",
            remedy="Forward another type, such as text or a number.",
        ) from None
    if not include_metadata:
        return declared
    taken = sorted(set(METADATA_NAMES) & set(declared.names))
    if taken:
        raise ConfigurationError(
            f"The forwarded rows have a column {taken[0]!r}, which includeMetadata adds.",
            remedy="Rename the field, or leave includeMetadata out.",
        )
    return StructType([*declared.fields, *METADATA])


def _plain(field: pa.Field) -> pa.Field:
    """Return a field with a type that Spark has: Spark has no unsigned integers."""
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    kind = pa.decimal128(20, 0) if field.type == pa.uint64() else wider.get(field.type, field.type)
    return pa.field(field.name, kind)


def arrow_target(declared: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches for a declared schema."""
    return to_arrow_schema(declared, timezone="UTC")


class Conformer:
    """Converts the rows of log entries to one declared schema.

    Columns that an entry lacks are null; columns that the query did not declare are left out.
    """

    def __init__(self, target: pa.Schema, *, include_metadata: bool) -> None:
        self._target = target
        self._include_metadata = include_metadata
        self._fitting: pa.Schema | None = None
        """The last schema that needed no cast."""

    def conform(self, entry: LogEntry) -> pa.RecordBatch:
        """Return an entry's rows in the declared schema; a column that cannot be cast is a RecordError."""
        rows, schema = entry.batch.num_rows, entry.batch.schema
        if not self._include_metadata and self._fits(schema):
            return pa.RecordBatch.from_arrays(entry.batch.columns, schema=self._target)
        found = {name: entry.batch.column(i) for i, name in enumerate(schema.names)}
        if self._include_metadata:
            found |= _metadata(entry)
        columns = [
            self._cast(found[field.name], field, entry) if field.name in found else pa.nulls(rows, field.type)
            for field in self._target
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._target)

    def _fits(self, schema: pa.Schema) -> bool:
        """Return whether names and types are those declared; nullability does not matter."""
        if self._fitting is None or not schema.equals(self._fitting):
            if (schema.names, schema.types) != (self._target.names, self._target.types):
                return False
            self._fitting = schema
        return True

    def _cast(self, column: pa.Array, field: pa.Field, entry: LogEntry) -> pa.Array:
        if column.type == field.type:
            return column
        try:
            return pc.cast(column, field.type)
        except pa.ArrowException as error:
            raise RecordError(
                f"Column {field.name!r} is {column.type} in rows up to {entry.end} of partition "
                f"{entry.partition}, and does not fit the query's {field.type}: {error}",
                remedy="Start the query again, so that it takes up the processor's new type; if the older "
                "rows do not fit it either, give the field a new name.",
            ) from None


def _metadata(entry: LogEntry) -> dict[str, pa.Array]:
    rows = entry.batch.num_rows

    def repeat(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), rows)

    return {
        "_partition": repeat(entry.partition, pa.int32()),
        "_offset": pa.array(range(entry.start + 1, entry.end + 1), pa.int64()),
        "_acked_at": repeat(entry.at_ms * 1000, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "_entry_id": repeat(entry.last, pa.string()),
        "_epoch": repeat(entry.epoch, pa.int64()),
    }


def coalesce(batches: Iterable[pa.RecordBatch], rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Join small batches into batches of about this many rows, in order."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            count += batch.num_rows
        if count >= rows:
            yield from _joined(waiting)
            waiting, count = [], 0
    yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())
