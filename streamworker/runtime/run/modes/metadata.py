"""Calls for ``log_metadata``: each row goes to the acked log with the metadata of its record."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from streamworker.context import Sending
from streamworker.core.data.entries import Entry
from streamworker.core.data.placement import canonical_key
from streamworker.records.entries import headers_of
from streamworker.redisio.data.ackedlog import ROW_METADATA, log_schema
from streamworker.runtime.forward.routing import Routed
from streamworker.runtime.run.invoke import Effects, Invoker


class _Row(NamedTuple):
    """A row, and the values of ``ROW_METADATA`` of its record."""

    row: Any
    metadata: tuple[str | None, int, list[tuple[str, str]] | None]


class MetadataInvoker(Invoker):
    """Calls a function with one record, and keeps beside each row what the record was."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.plain = None
        self._schema = log_schema(self.spec)

    async def _await(
        self, argument: Any, entries: Sequence[Entry], records: Sequence[Any], attempt: int
    ) -> Effects:
        metadata = self._metadata(entries[0], argument)
        return _beside(await super()._await(argument, entries, records, attempt), metadata)

    def call_here(
        self, argument: Any, entries: Sequence[Entry], records: Sequence[Any], attempt: int
    ) -> Effects:
        """Call a ``def`` function in this thread."""
        metadata = self._metadata(entries[0], argument)
        return _beside(super().call_here(argument, entries, records, attempt), metadata)

    def _metadata(self, entry: Entry, record: Any) -> Any:
        """Return a record's metadata; the call may change the record."""
        key = canonical_key(self.spec.stream.key(record))
        text = None if key is None else key.decode("utf-8", "backslashreplace")
        return text, entry.id.ms * 1000, list(headers_of(entry).items()) or None

    def convert(self, outputs: Sequence[Any]) -> tuple[pa.RecordBatch | None, Routed]:
        """Convert what calls have put out, as ``Invoker.convert`` does, with the metadata of each row."""
        metadata = [each.metadata for each in outputs if isinstance(each, _Row)]
        rows, sends = super().convert([each.row if isinstance(each, _Row) else each for each in outputs])
        if rows is None:
            return None, sends
        columns = map(pa.array, zip(*metadata, strict=True), ROW_METADATA.types)
        return pa.RecordBatch.from_arrays([*rows.columns, *columns], schema=self._schema), sends


def _beside(effects: Effects, metadata: Any) -> Effects:
    if not effects.outputs:
        return effects
    each = [row if isinstance(row, Sending) else _Row(row, metadata) for row in effects.outputs]
    return effects._replace(outputs=each)
