"""The acked logs of one processor together with their archive, if they have one.

Ids count rows, so the rows that Redis does not hold any more are in the archive under the same numbers: a
query's offsets do not change, and it reads each row once, wherever that is when it is read. A slice is read
from Redis, and from the archive where Redis lacks its rows.

Whether there is an archive is looked up where a query begins, and where rows are missing. Its modules are
imported only then: Python on a Spark Connect server may have none of them.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from streamworker.errors import ConfigurationError
from streamworker.spark.source.logs import AckedLogs, LogEntry, position_of
from streamworker.spark.source.offsets import START, Offset, Position, Slice

if TYPE_CHECKING:
    from streamworker.archive.chain import Chain

log = logging.getLogger(__name__)

LISTS = 16
"""How many partitions of an archive are listed at a time."""


class ArchivedLogs(AckedLogs):
    """The acked logs of one processor, and behind them the archive."""

    def archive(self) -> str:
        """Return the URL of the archive that the processor has declared; empty for none."""
        field = f"archive:{self._options.processor}"
        return (self._read_hash(self._stream_keys.meta, field) or b"").decode("utf-8", "replace")

    def first_positions(self, tails: Offset) -> dict[int, Position]:
        """Return the position before the oldest row of each log: not 0 after a trim without an archive.

        The method reads one entry of each log, so a query calls it only when it starts.
        """
        found = {p: self.first_in_redis(p, tail) for p, tail in tails.items()}
        trimmed = [p for p, at in found.items() if at.rows]
        if trimmed and (url := self.archive()):
            with ThreadPoolExecutor(LISTS) as threads:
                chains = [self._chain(url, p) for p in trimmed]
                firsts = threads.map(_first_row, chains, [tails[p].log for p in trimmed])
            for p, first in zip(trimmed, firsts, strict=True):
                if first is not None and first < found[p].rows:
                    found[p] = Position(first, tails[p].log)
        return found

    def first_in_redis(self, p: int, tail: Position) -> Position:
        """Return the position before the oldest row that Redis has of a log."""
        # One partition at a time: an entry may have megabytes, and there may be many partitions.
        if (entry := self.entry_from(p, 0)) is not None:
            return Position(min(entry[0], tail.rows), tail.log)
        return tail if tail.rows else START

    def archived_row_at(self, p: int, log: str, at_ms: int) -> int | None:
        """Return the number of rows before the first archived one that was committed at a time or later."""
        chain = self._chain(url, p) if (url := self.archive()) else None
        if chain is None or _first_row(chain, log) is None:
            return None
        from streamworker.archive.logs import row_at

        return row_at(chain, at_ms)

    def elsewhere(self, part: Slice, after: int, end: int) -> Iterator[LogEntry]:
        """Yield rows of a slice that Redis does not hold, as far as the archive has them."""
        chain = self._chain(url, part.partition) if after < end and (url := self.archive()) else None
        if chain is None:
            return
        from streamworker.archive.logs import read_rows

        for each in read_rows(chain, part.log, after, end):
            yield LogEntry(part.partition, each.end, each.rows, each.last, each.epoch, each.at_ms)

    def _chain(self, url: str, partition: int) -> "Chain | None":
        try:
            from streamworker.archive.chain import Chain
            from streamworker.archive.store import store_at

            return Chain(store_at(url), partition)
        except (ImportError, ConfigurationError) as error:
            log.warning("The archive %s is not read: %s", url, error)
            return None

    def hold(self, readers: Sequence[str], tails: Offset, at_ms: int, *, retry: bool) -> None:
        """Register each of these readers that has no position in Redis yet at the first row.

        If such a reader registers itself at the same moment, this call may overwrite its position with
        an earlier one, never with a later one; the reader writes its position again.
        """
        # No HMGET: ACL files made by earlier versions do not allow it.
        asked = [("HGET", self._keys.readers, name) for name in readers]
        stored = self._connection.pipeline(asked, retry=retry)
        missing = [name for name, value in zip(readers, stored, strict=True) if value is None]
        firsts = self.first_positions(tails) if missing else {}
        for name in missing:
            self._write(self._keys.readers, name, position_of(firsts, at_ms, begins=True), retry=retry)


def _first_row(chain: "Chain | None", log: str) -> int | None:
    """Return the number of rows before the first archived one of a log; None if there is none.

    An archive of an earlier log has other rows under its numbers.
    """
    if chain is None or not (segments := chain.segments()):
        return None
    footer = chain.footer(segments[0].after)
    return footer.after.ms if footer is not None and footer.log == log else None
