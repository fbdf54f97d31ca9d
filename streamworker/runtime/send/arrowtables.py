"""Packs Arrow tables and records into the entries of a stream of columns.

The packer cuts a table into windows, so that it never copies a large table as a whole. It sorts the rows of
a window by partition, which keeps their order within each, and packs them into entries of even size.

The router finds the partition of each row without creating its record. It computes each distinct key once,
however many rows have it: its canonical bytes and their CRC-32 cost a microsecond in Python.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamworker.core.data.placement import RoundRobin, canonical_key
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import ConfigurationError, RecordError
from streamworker.records.fitting import make_check
from streamworker.redisio.data.ackedlog import Codec
from streamworker.redisio.data.columns import Packer
from streamworker.runtime.send.lane import ROWS_PER_ENTRY_MAX, Piece, bytes_of
from streamworker.runtime.send.refusals import too_large

WINDOW_BYTES = 64 * 1024 * 1024
"""Bytes that are sorted by partition at a time, and bytes of a table that are in flight meanwhile."""
WINDOW_ENTRIES = 4
"""Entries of each partition in a window, if its bytes allow: the last entry of each is not full."""


class TablePacker:
    """Packs rows of one stream into entries that have ``entry_bytes_max`` at most before compression."""

    def __init__(self, spec: StreamSpec, deal: RoundRobin, entry_bytes_max: int) -> None:
        self._spec = spec
        self._router = Router(spec, deal)
        self._packer = Packer(spec.record.arrow_schema())
        self._check = make_check(spec.record, "arrow") if spec.validate else None
        self._bytes_max = entry_bytes_max
        self._rows_max = spec.records_max or ROWS_PER_ENTRY_MAX

    # -- tables ------------------------------------------------------------------------------

    def windows(self, table: pa.Table, rows_per_entry: int) -> Iterator[pa.RecordBatch]:
        """Cut a table into windows, each of which is packed at a time."""
        bytes_per_row = max(1, _bytes_of(table) // max(1, table.num_rows))
        rows = min(WINDOW_BYTES // bytes_per_row, WINDOW_ENTRIES * rows_per_entry * self._spec.placement.live)
        for start in range(0, table.num_rows, max(1, rows)):
            yield from table.slice(start, max(1, rows)).combine_chunks().to_batches()

    def packets(
        self, window: pa.RecordBatch, rows_per_entry: int, compression: Codec, before: int = 0
    ) -> list[Piece]:
        """Make the entries of a window, in the order of its rows within each partition.

        ``before`` is the number of rows in the table before this window, for messages.
        """
        try:
            batch = self._spec.record.fit_arrow(window)
        except RecordError as error:
            where = f"In the rows from {before}: " if before else ""
            raise RecordError(where + error.message, remedy=error.remedy) from None
        packets: list[Piece] = []
        for partition, rows in self._by_partition(batch, rows_per_entry):
            self._pack(packets, partition, rows, rows_per_entry, compression)
        return packets

    def pieces(self, partition: int, rows: pa.RecordBatch, most: int) -> list[Piece]:
        """Make the entries of rows of one partition, which have the columns of the stream's records."""
        packets: list[Piece] = []
        self._pack(packets, partition, rows, most, "lz4")
        return packets

    def _by_partition(self, batch: pa.RecordBatch, chunk: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        partitions = self._router.partitions_of(batch, chunk)
        counts = sorted((each["values"], each["counts"]) for each in pc.value_counts(partitions).to_pylist())
        if len(counts) > 1:
            # The sort is stable: rows of one partition keep their order.
            batch = batch.take(pc.sort_indices(partitions))
        start = 0
        for partition, count in counts:
            yield partition, batch.slice(start, count)
            start += count

    def _pack(
        self, packets: list[Piece], partition: int, rows: pa.RecordBatch, most: int, compression: Codec
    ) -> None:
        """Pack the rows of one partition into entries of even size."""
        count, most = rows.num_rows, min(most, self._rows_max)
        pieces = max(-(-count // most), -(-rows.nbytes * 10 // (self._bytes_max * 9)))
        pieces = min(pieces, count)
        for piece in range(pieces):
            start, end = count * piece // pieces, count * (piece + 1) // pieces
            part = rows.slice(start, end - start)
            fields = self._packer.fields(part, compression)
            unpacked_bytes = int(fields[b"size"])
            if unpacked_bytes <= self._bytes_max:
                packets.append((partition, [(fields, None)], bytes_of(fields), part.num_rows))
            elif part.num_rows > 1:
                self._pack(packets, partition, part, -(-part.num_rows // 2), compression)
            else:
                raise too_large("row", self._spec, unpacked_bytes, self._bytes_max)

    # -- records -----------------------------------------------------------------------------

    def fields(self, records: Sequence[Any]) -> dict[bytes, bytes]:
        """Return the fields of one entry with these records."""
        return self._packer.fields(self._rows(records), "lz4")

    def of_records(self, routed: Sequence[tuple[int, Any]]) -> list[Piece]:
        """Pack routed records into entries, in the order of the records within each partition."""
        by_partition: dict[int, list[Any]] = {}
        for partition, record in routed:
            by_partition.setdefault(partition, []).append(record)
        packets: list[Piece] = []
        for partition, records in by_partition.items():
            self._pack(packets, partition, self._rows(records), len(records), "lz4")
        return packets

    def _rows(self, records: Sequence[Any]) -> pa.RecordBatch:
        record = self._spec.record
        batch = record.to_arrow(records)
        if self._check is not None:
            self._check(records, record.from_arrow(record.fit_arrow(batch)))
        return batch


def _bytes_of(table: pa.Table) -> int:
    try:
        return int(table.nbytes)
    except pa.ArrowTypeError:  # Before 24.0 pyarrow cannot tell the size of texts as polars has them.
        return int(table.get_total_buffer_size())


def as_table(table: object) -> pa.Table:
    """Convert a table of any library to a pyarrow table."""
    if isinstance(table, pa.Table):
        return table
    if hasattr(table, "__arrow_c_stream__"):
        return pa.table(table)
    raise RecordError(
        f"A {type(table).__name__} is no table.",
        remedy="Send a pyarrow.Table or RecordBatch, or a polars.DataFrame; records go with send_many.",
    )


def check_takes_tables(spec: StreamSpec) -> None:
    """Raise ConfigurationError if the stream takes no tables."""
    if spec.codec != "arrow":
        raise ConfigurationError(
            f"Stream {spec.name!r} is written as {spec.codec_name!r}, and takes records; it takes no tables.",
            remedy='Declare a stream with codec="arrow", or send records with send_many.',
        )


# -- routing ---------------------------------------------------------------------------------


class Router:
    """Routes the rows of a stream; ``deal`` assigns rows without a key."""

    def __init__(self, spec: StreamSpec, deal: RoundRobin) -> None:
        self._spec = spec
        self._deal = deal

    def partitions_of(self, batch: pa.RecordBatch, chunk: int) -> pa.Array:
        """Return the partition of each row; rows without a key are dealt out, ``chunk`` at a time."""
        keyed = self._keyed(batch)
        if not keyed.null_count:
            return keyed
        missing = keyed.is_null()
        indexes = pc.subtract(pc.cumulative_sum(missing.cast(pa.int64())), 1)
        chunks = -(-keyed.null_count // chunk)
        dealt = pa.array([self._deal.next(self._spec.placement.active) for _ in range(chunks)], pa.int32())
        return pc.if_else(missing, dealt.take(pc.divide(pc.max_element_wise(indexes, 0), chunk)), keyed)

    def _keyed(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the partition of each row; null where it has no key."""
        fields = self._spec.key_fields
        if fields == ():
            return pa.nulls(batch.num_rows, pa.int32())
        names = (fields,) if isinstance(fields, str) else fields
        if names is None or any(pa.types.is_nested(batch.column(name).type) for name in names):
            # The key does not come from plain columns, so it must be computed from the records.
            keys = map(self._spec.key, self._spec.record.from_arrow(batch))
            return _table(map(self._partition, keys))
        if isinstance(fields, str):
            codes, known = _distinct(batch.column(fields))
            return _table(map(self._partition, known)).take(codes)
        return self._of_several([batch.column(name) for name in names])

    def _of_several(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the partition of each row whose key is the tuple of some columns' values."""
        keys: list[tuple[Any, ...]] = [()]
        codes = pa.repeat(pa.scalar(0, pa.int64()), len(columns[0]))
        for column in columns:
            own, values = _distinct(column)
            own = pc.fill_null(own.cast(pa.int64()), len(values))
            values.append(None)
            pairs = pc.add(pc.multiply(codes.cast(pa.int64()), len(values)), own)
            codes, distinct = _distinct(pairs)
            keys = [(*keys[pair // len(values)], values[pair % len(values)]) for pair in distinct]
        return _table(map(self._partition, keys)).take(codes)

    def _partition(self, value: object) -> int | None:
        key = canonical_key(value)
        return None if key is None else self._spec.placement.partition_of(key)


def _table(partitions: Iterable[int | None]) -> pa.Array:
    return pa.array(list(partitions), pa.int32())


def _distinct(column: pa.Array) -> tuple[pa.Array, list[Any]]:
    """Return for each row the index of its value among the distinct values, and those values."""
    coded = column.dictionary_encode()
    try:
        return coded.indices, coded.dictionary.to_pylist()
    except (ValueError, OverflowError) as error:
        raise RecordError(
            f"A key is a value that Python does not have: {str(error).rstrip('.')}.",
            remedy="Use a time between the years 1 and 9999.",
        ) from None
