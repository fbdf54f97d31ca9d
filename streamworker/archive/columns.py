"""The columns of a segment beside its payloads: the fields of the records, null where one cannot be read."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from streamworker.archive.segments import Columns, Packing
from streamworker.core.data.entries import Entry
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import ConfigurationError
from streamworker.records.entries import REPLAYED_FOR, Entries, readable_fields
from streamworker.records.rows import bounds
from streamworker.redisio.data.columns import Packer, unpacked

AT_ONCE = 2_000
"""Records that are objects at the same time."""


def columns_for(stream: StreamSpec) -> Columns | None:
    """Return what makes the columns of a stream's records; None if Parquet does not take such."""
    record = stream.record
    schema = _schema(stream)
    if schema is None or stream.codec == "arrow":
        return None
    decode_all, decode_one = record.batch_decoder(stream.codec), record.decoder(stream.codec)

    def one(entry: Entry) -> Any:
        try:
            fields = {name: v for name, v in readable_fields(entry).items() if name != REPLAYED_FOR}
            found = decode_one(fields)
            record.to_arrow([found])
        except Exception:  # noqa: BLE001 - whatever the code of the user's type raises
            return None
        return found

    def batch(entries: Sequence[Entry]) -> pa.RecordBatch:
        try:
            return record.to_arrow(decode_all(entries))
        except Exception:  # noqa: BLE001 - one of them cannot be read
            found = [one(entry) for entry in entries]
        good = [each for each in found if each is not None]
        places = iter(range(len(good)))
        indexes = pa.array([None if each is None else next(places) for each in found], pa.int64())
        loose = pa.schema([field.with_nullable(True) for field in schema])
        arrays = [column.take(indexes) for column in record.to_arrow(good).columns]
        return pa.RecordBatch.from_arrays(arrays, schema=loose)

    def columns(entries: Entries) -> pa.RecordBatch:
        parts = [batch(entries[at : at + AT_ONCE]) for at in range(0, len(entries), AT_ONCE)]
        loose = pa.schema([field.with_nullable(True) for field in schema])
        tables = [pa.Table.from_arrays(each.columns, schema=loose) for each in parts]
        return pa.concat_tables(tables).combine_chunks().to_batches()[0]

    return columns


def rows_reader(stream: StreamSpec) -> Callable[[Entry], pa.RecordBatch] | None:
    """Return what reads an entry of rows; None if the stream has none, or Parquet does not take them."""
    if stream.codec != "arrow" or _schema(stream) is None:
        return None

    def batch_of(entry: Entry) -> pa.RecordBatch:
        start, end = bounds(entry)
        # Of a newer release's rows no column may be lost: what has more is archived as it is.
        return stream.record.fit_arrow(unpacked(entry.fields)[start:end])

    return batch_of


def rows_writer(batch: pa.RecordBatch) -> dict[bytes, bytes]:
    """Return the fields of an entry with some rows."""
    return Packer(batch.schema).fields(batch, "none")


def packing_of(stream: StreamSpec) -> Packing:
    """Return how records of a stream stand together in a replayed entry."""
    return stream.packing if stream.codec != "fields" else ""


def _schema(stream: StreamSpec) -> pa.Schema | None:
    """Return the record's columns, if it has some and Parquet takes them."""
    try:
        schema = stream.record.arrow_schema()
        pa.parquet.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except (ConfigurationError, pa.ArrowException):
        return None
    return schema
