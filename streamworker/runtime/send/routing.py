"""Routes each row of a table to the partition of its record, without creating the record.

The router computes each distinct key once, however many rows have it: its canonical bytes and their CRC-32
cost a microsecond in Python. All other steps work on columns.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamworker.core.data.partitioner import RoundRobin, canonical_key, partition_for
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import RecordError


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
        dealt = pa.array([self._deal.next(self._spec.partitions) for _ in range(chunks)], pa.int32())
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
        return None if key is None else partition_for(key, self._spec.partitions)


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
