"""Entries that are done and wait for their commit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streamworker.core.data.entries import Entry, EntryId
from streamworker.records.entries import id_at, sizes_of
from streamworker.records.rows import first_id, records_in
from streamworker.redisio.data.ackedlog import AckedBatch
from streamworker.redisio.data.commit import DeadEntry
from streamworker.runtime.forward.routing import Routed
from streamworker.runtime.run.state import Changes


@dataclass(slots=True)
class Work:
    """Entries that are done, in order, and the results that their commit writes."""

    entries: Sequence[Entry] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    """Rows to forward that are not converted to Arrow yet."""
    rows: pa.RecordBatch | None = None
    packed: AckedBatch | None = None
    """``rows`` in encoded form, if the commit can use it as it is."""
    dead: list[DeadEntry] = field(default_factory=list)
    sends: Routed = field(default_factory=dict)
    """Rows for other streams, encoded."""
    before: bytes = b""
    """For a timer the value of the first field of ``state`` before; see ``CommitRequest``."""
    state: Changes = field(default_factory=dict)
    holds_rows: bool = False
    """Whether the entries are those of a stream of columns."""

    @property
    def first(self) -> EntryId:
        """Id of the first record."""
        return first_id(self.entries[0]) if self.holds_rows else id_at(self.entries, 0)

    @property
    def last(self) -> EntryId:
        """Id of the last entry: the checkpoint after the commit."""
        return id_at(self.entries, -1)

    @property
    def records(self) -> int:
        """How many records the entries count for."""
        return sum(map(records_in, self.entries)) if self.holds_rows else len(self.entries)

    @property
    def size(self) -> int:
        """Bytes of the entries."""
        return sum(sizes_of(self.entries))


def span(entries: Sequence[Entry]) -> str:
    """Name entries by their ids, for messages."""
    return f"{'entry' if len(entries) == 1 else 'entries'} {ids_of(entries)}"


def ids_of(entries: Sequence[Entry]) -> str:
    """Return the id of an entry, or the first and the last id of several; empty if there are none."""
    if not entries:
        return ""
    first, last = id_at(entries, 0), id_at(entries, -1)
    return str(first) if first == last else f"{first} to {last}"


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Join record batches of one schema; None if there are no rows."""
    batches = [batch for batch in batches if batch.num_rows]
    if len(batches) < 2:
        return batches[0] if batches else None
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
