"""Reads from the archive what Redis has trimmed, into the same buffers, so that no mode knows of it.

What the archive holds may be trimmed although a group lags behind it. So a partition is *cold* when records
after its position may be missing in Redis: it is read from the archive then, up to its end, and from Redis
again. Whether a partition is cold is asked when it is added; after each read that brought entries, which are
thrown away if it is; and now and then of those that bring none.

Of a cold partition one segment is open, as it is compressed, and stays so up to its end; of a worker with
many cold partitions some have one at a time, and the others wait for a place.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import anyio.to_thread

from streamworker.archive.chain import BATCH_BYTES, BATCH_RECORDS, READ, Chain, Excerpt
from streamworker.archive.columns import packing_of, rows_writer
from streamworker.archive.segments import entries_in
from streamworker.archive.store import store_at
from streamworker.core.data.batching import ENTRY_OVERHEAD_BYTES
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import ArchiveConflict
from streamworker.log import get_logger
from streamworker.records.entries import REPLAYED_FOR, Entries
from streamworker.runtime.clock import monotonic_s

OPEN_MAX = 8
"""How many partitions have an open segment."""
SHARE = 8 * BATCH_BYTES
LEAST_BYTES = 64 * 1024
"""How much is read at a time at least, of however many partitions."""
RESTS_S = 5.0
"""A segment that nobody has read from for so long gives its place to another partition's."""

log = get_logger("streamworker.fetcher")


class _Open(NamedTuple):
    position: EntryId
    parts: Iterator[Excerpt]
    read_s: float


@dataclass(eq=False)
class ColdReader:
    """The archive of one stream, as the fetcher of a group reads it."""

    stream: StreamSpec
    on_read: Callable[[int], None] | None = None
    """It is told how many records each look has brought."""

    def __post_init__(self) -> None:
        assert self.stream.archive is not None
        self._store = store_at(self.stream.archive.url)
        self._is_arrow = self.stream.codec == "arrow"
        self._open: OrderedDict[int, _Open] = OrderedDict()
        """The partition that was read last is the last one."""

    def is_open(self, partition: int, position: EntryId) -> bool:
        """Whether the next records after a position are of a segment that is open."""
        held = self._open.get(partition)
        return held is not None and held.position == position

    def has_place(self, partition: int) -> bool:
        """Whether a partition may be read now: a segment is opened again for each time that it is closed."""
        if partition in self._open or len(self._open) < OPEN_MAX:
            return True
        return monotonic_s() - next(iter(self._open.values())).read_s >= RESTS_S

    def close(self, partition: int) -> None:
        """Forget the segment of a partition."""
        self._open.pop(partition, None)

    async def next(self, partition: int, position: EntryId, share: int = SHARE) -> Entries | None:
        """Return the next records after a position; None at the end of the archive.

        They take about an eighth of ``share``, the bytes that the partition may hold.

        Raises
        ------
        ArchiveUnavailable
            If the store does not answer.
        ArchiveConflict
            If a segment is missing.
        """
        if not self.is_open(partition, position):
            most = max(LEAST_BYTES, share // 8)
            columns, rows = (None, BATCH_RECORDS) if self._is_arrow else (READ, most // ENTRY_OVERHEAD_BYTES)
            its = position, columns, min(BATCH_RECORDS, rows), min(BATCH_BYTES, most)
            parts = Chain(self._store, partition).read(*its)
            self._keep(partition, position, parts)
        parts = self._open.pop(partition).parts
        found = await anyio.to_thread.run_sync(partial(self._next, parts), abandon_on_cancel=True)
        if found is None:
            return None
        part, entries = found
        if self.on_read is not None:
            self.on_read(len(entries))
        if (begins := part.footer.after) > position > ZERO:
            # The records between were expired before this group had read them.
            log.warning(
                "archive_begins_later", partition=partition, position=str(position), begins=str(begins)
            )
        if part.position < part.footer.last or len(self._open) + 1 < OPEN_MAX:
            self._keep(partition, part.position, parts)
        return entries

    def _keep(self, partition: int, position: EntryId, parts: Iterator[Excerpt]) -> None:
        self._open.pop(partition, None)
        while len(self._open) >= OPEN_MAX:
            self._open.popitem(last=False)
        self._open[partition] = _Open(position, parts, monotonic_s())

    def _next(self, parts: Iterator[Excerpt]) -> tuple[Excerpt, Entries] | None:
        part = next(parts, None)
        if part is None:
            return None
        if not part.table.num_rows:
            # Its last records were erased. A group passes them as it passes a record of another group.
            gone = [REPLAYED_FOR, b"", b"v", b""]
            return part, Entries.of([[str(part.position).encode(), gone]])
        writer = rows_writer if self._is_arrow else None
        return part, entries_in(part.table, packing_of(self.stream), writer)

    @staticmethod
    def ended(partition: int, position: EntryId) -> ArchiveConflict:
        """Return the error for an archive that ends before what Redis says that it holds."""
        return ArchiveConflict(
            f"Partition {partition}: the archive has nothing after {position}, and Redis says that it has.",
            remedy="Was the store emptied or restored? `streamworker archive check` tells (docs: archive).",
        )
