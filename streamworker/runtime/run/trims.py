"""Decides when to trim a partition: at the interval of the settings, and not if it would drop nothing.

A trim reads the checkpoints of all groups of the stream. Without this, a thousand partitions with little
traffic were trimmed a thousand times a second, with one call each, and mostly nothing was dropped.
"""

from collections.abc import Mapping

from structlog.stdlib import BoundLogger

from streamworker.errors import BackendError
from streamworker.redisio.data import streams
from streamworker.redisio.data.streams import Keep
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.run.keeping import Keeping

NODE_ENTRIES, NODE_BYTES = 100, 4096
"""Maximum entries and bytes of a stream node. A trim drops whole nodes, so it drops nothing if less than
this was committed since the last trim."""
LEFT_OUT_MAX = 30
"""How many trims may be skipped in a row: a server may be configured with smaller nodes."""


class Trims:
    """The trims of one partition while one runner has it, at least ``interval_ms`` apart."""

    def __init__(self, interval_ms: int, acked_limit: int = 0) -> None:
        self._interval_ms = interval_ms
        self._acked_limit = acked_limit
        self._at_ms = monotonic_ms()
        self._left_out = 0
        self._entries = self._bytes = 0
        self._total = self._total_bytes = 0
        self._seen = (0, 0)
        self._known: tuple[int, int] | None = None
        self._kept = Keep()
        self.acked_rows = 0
        """Rows of the acked log that every reader has committed, as far as known; 0 trims nothing. Negative
        if retention keeps them."""
        self.acked_limit = acked_limit
        """How many entries of the acked log may wait for its readers; 0 for any number."""

    def committed(self, entries: int, size: int) -> None:
        """Count a confirmed commit."""
        self._entries += entries
        self._bytes += size
        self._total += entries
        self._total_bytes += size

    def with_commit(self) -> bool:
        """Whether the next commit should trim as well."""
        at_ms = monotonic_ms()
        if at_ms - self._at_ms < self._interval_ms or self._kept.events_ms is not None:
            return False  # A commit does not know what retention keeps.
        self._at_ms = at_ms
        in_vain = self._entries < NODE_ENTRIES and self._bytes < NODE_BYTES
        if in_vain and self._left_out < LEFT_OUT_MAX:
            self._left_out += 1
            return False
        self._left_out = self._entries = self._bytes = 0
        return True

    def keep(self, rows: int, keep: Keep, *, is_read: bool) -> None:
        """Note what is kept: ``rows`` were read by every reader of the log, if it has any."""
        self._kept = keep
        self.acked_rows = 0 if not is_read else rows if keep.acked_ms is None else -rows
        self.acked_limit = self._acked_limit if is_read else 0

    def without_commit(self, rows: int) -> bool:
        """Whether to trim without a commit; called once an interval.

        A partition with few commits is trimmed by those commits, so it needs no other trim unless its
        readers have committed further. A partition whose commits have stopped needs one more, and a
        partition with many commits needs more than its commits drop. ``rows`` is how many rows of the acked
        log every reader has committed.
        """
        done = (self._total, self._total_bytes)
        if done == self._seen and self._known == (self._total, rows):
            return False  # A shortcut: with a thousand idle partitions this runs for each every two seconds.
        entries, size = (now - before for now, before in zip(done, self._seen, strict=True))
        self._seen = done
        a_little = 0 < entries < NODE_ENTRIES and size < NODE_BYTES
        known = self._known
        if known is not None and known[1] == rows and (a_little or known[0] == self._total):
            return False
        self._known = (self._total, rows)
        return True


async def trim_once(
    backend: Backend, keeping: Keeping, partitions: Mapping[int, Trims], log: BoundLogger
) -> None:
    """Trim what every reader has committed and no retention keeps in these partitions.

    It asks Redis only for partitions whose checkpoint or readers have moved, or of which retention may
    have ended for some entries.
    """
    try:
        await keeping.look()
        keeps = {partition: keeping.take(partition) for partition in partitions}
        moved: dict[int, int] = {}
        for partition, trims in partitions.items():
            rows = keeping.rows.get(partition, 0)
            trims.keep(rows, keeps[partition], is_read=keeping.is_read)
            if trims.without_commit(rows) or keeping.is_due(partition):
                moved[partition] = rows
        if moved:
            for partition, trimmed in (
                await streams.trim_many(backend, keeping.keys, moved, keeps.__getitem__)
            ).items():
                keeping.trimmed(partition, trimmed)
                tell_of_deleted(log.bind(partition=partition), trimmed.gone)
    except BackendError as error:
        log.warning("trim_failed", error=str(error))


def tell_of_deleted(log: BoundLogger, entries: int) -> None:
    """Log that another program has deleted entries that the group had not committed."""
    if entries:
        log.error(
            "entries_deleted",
            entries=entries,
            reason="another program deleted them before they were committed",
        )
