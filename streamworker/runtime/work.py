"""What is done and waits to be committed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streamworker.core.entries import Entry, EntryId
from streamworker.records.entries import id_at, size_of
from streamworker.redisio.ackedlog import AckedBatch
from streamworker.redisio.commit import DeadLetter
from streamworker.runtime.state import Changes


@dataclass(slots=True)
class Work:
    """Entries that are done, in order, and what goes into the acked log with them."""

    entries: Sequence[Entry] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    """Rows to forward that are not in Arrow's form yet."""
    rows: pa.RecordBatch | None = None
    packed: AckedBatch | None = None
    """``rows``, where they need not be encoded for the commit."""
    dead: list[DeadLetter] = field(default_factory=list)
    state: Changes = field(default_factory=dict)

    @property
    def first(self) -> EntryId:
        """Id of the first entry."""
        return id_at(self.entries, 0)

    @property
    def last(self) -> EntryId:
        """Id of the last entry: the checkpoint once this is committed."""
        return id_at(self.entries, -1)

    @property
    def size(self) -> int:
        """Bytes of the entries."""
        return size_of(self.entries)


def span(entries: Sequence[Entry]) -> str:
    """Name entries by their ids, for messages."""
    if len(entries) == 1:
        return f"entry {entries[0].id}"
    return f"entries {entries[0].id} to {entries[-1].id}"


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Put record batches of one schema together; None where there is no row."""
    batches = [batch for batch in batches if batch.num_rows]
    if len(batches) < 2:
        return batches[0] if batches else None
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
