"""Makes entries of a stream from rows of columns, as the stream's producers make them from records."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from streamworker.core.data.placement import RoundRobin
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import ConfigurationError, DecodeError, RecordError
from streamworker.records.lists import Run, make_list_encoder
from streamworker.redisio.data.streams import records_args
from streamworker.redisio.wire.link import Argument
from streamworker.runtime.send.arrowtables import TablePacker
from streamworker.runtime.send.lane import ROWS_PER_ENTRY_MAX, Encoded, bytes_of
from streamworker.runtime.send.producer import header_fields
from streamworker.runtime.send.quick import CHUNK_BYTES
from streamworker.runtime.send.refusals import too_large

HEADERS = "_headers"
"""The column of a result that holds the headers of each row."""
CHUNK_ROWS = 2_000
"""Rows of one chunk, as ``send_many`` sends them; in a stream of columns a chunk is one entry."""


class Chunk(NamedTuple):
    """Some rows of one partition, as the script takes them."""

    rows: int
    args: list[Argument]
    size: int
    """About how many bytes they have."""


class Encoder:
    """Encodes rows for one stream: each becomes what ``send`` would make of its record."""

    def __init__(self, spec: StreamSpec, entry_bytes_max: int) -> None:
        self._spec, self._bytes_max = spec, entry_bytes_max
        # A partition takes a chunk whole: one that needs much of its room might wait for ever.
        self._rows_max = max(1, spec.records_max // 10) if spec.records_max else ROWS_PER_ENTRY_MAX
        self._many = (
            make_list_encoder(spec.record, spec.codec, validate=spec.validate, as_run=bool(spec.packing))
            if spec.codec != "arrow"
            else None
        )

    @cached_property
    def _one(self) -> Any:
        codec = self._spec.codec
        assert codec != "arrow"
        return self._spec.record.encoder(codec, validate=self._spec.validate)

    @cached_property
    def _packer(self) -> TablePacker:
        return TablePacker(self._spec, RoundRobin(), self._bytes_max)

    def check(self, schema: pa.Schema) -> None:
        """Refuse a result whose columns are not those of the stream's records, before the first row."""
        spec = self._spec
        if HEADERS in schema.names:
            kind = schema.field(HEADERS).type
            texts = (pa.string(), pa.binary())
            if not pa.types.is_map(kind) or kind.key_type != texts[0] or kind.item_type not in texts:
                raise ConfigurationError(
                    f"Column {HEADERS!r} is {kind}, and headers are a map from text to text or binary.",
                    remedy="Make it with create_map(lit('name'), value).",
                )
            if spec.codec == "arrow":
                raise ConfigurationError(
                    f"The result has a column {HEADERS!r}, and stream {spec.name!r} has entries of columns, "
                    "which have no headers.",
                    remedy="Drop the column, or declare the stream with another codec.",
                )
        try:
            self.fit(pa.RecordBatch.from_pylist([], schema=schema))
        except RecordError as error:
            raise ConfigurationError(error.message, remedy=error.remedy) from None
        keys = (spec.key_fields,) if isinstance(spec.key_fields, str) else spec.key_fields
        for field in spec.record.declared:
            is_left_out = field.factory is not None and field.name not in schema.names
            if is_left_out and (keys is None or field.name in keys):
                raise ConfigurationError(
                    f"The result has no column {field.name!r}, which the key of stream {spec.name!r} may "
                    "read: its default is computed, and another attempt would send the row elsewhere.",
                    remedy="Give the result that column.",
                )

    def fit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None]:
        """Return rows in the columns of the stream's records, and their headers if they have any.

        A value that does not fit is a RecordError, which names its column and row.
        """
        headers = batch.column(HEADERS) if HEADERS in batch.schema.names else None
        if headers is not None:
            batch = batch.drop_columns([HEADERS])
        return self._spec.record.fit_arrow(batch), headers

    def chunks(self, partition: int, rows: pa.RecordBatch, headers: pa.Array | None) -> Iterator[Chunk]:
        """Return rows of one partition that :meth:`fit` has returned, in order."""
        if self._spec.codec == "arrow":
            for _, entries, size, count in self._packer.pieces(partition, rows, self._rows_max):
                yield Chunk(count, records_args(entries, "arrow"), size)
            return
        try:
            records = self._spec.record.from_arrow(rows)
        except DecodeError as error:
            raise RecordError(
                error.message, remedy="Correct the values in the pipeline's function."
            ) from None
        its = None if headers is None else list(map(header_fields, each_headers(headers, len(records))))
        most = min(CHUNK_ROWS, self._rows_max)
        for start in range(0, len(records), most):
            end = start + most
            yield from self._encoded(records[start:end], None if its is None else its[start:end])

    def _encoded(self, records: Sequence[Any], headers: Sequence[Any] | None) -> Iterator[Chunk]:
        entries: Sequence[Encoded] | None = None
        if headers is None and self._many is not None and len(records) > 1:
            entries = self._many(records)
        if entries is None:  # A value is wrong or unusual: this names it.
            each = zip(map(self._one, records), headers or [None] * len(records), strict=True)
            entries = [
                payload if head is None and isinstance(payload, bytes) else (payload, head)
                for payload, head in each
            ]
        size = entries.size if isinstance(entries, Run) else sum(map(_size, entries))
        if size <= min(CHUNK_BYTES, self._bytes_max) or (len(records) == 1 and size <= self._bytes_max):
            yield Chunk(len(records), records_args(entries, self._spec.packing), size)
            return
        if len(records) == 1:
            raise too_large("record", self._spec, size, self._bytes_max)
        half = len(records) // 2
        for part in (slice(half), slice(half, None)):
            yield from self._encoded(records[part], None if headers is None else headers[part])


def each_headers(headers: pa.Array | None, rows: int) -> list[dict[str, Any] | None]:
    """Return the headers of each row; None for a row without any."""
    return [None] * rows if headers is None else [dict(each or ()) or None for each in headers.to_pylist()]


def _size(entry: Encoded) -> int:
    payload, headers = (entry, None) if isinstance(entry, bytes) else entry
    return (len(payload) if isinstance(payload, bytes) else bytes_of(payload)) + bytes_of(headers or {})
