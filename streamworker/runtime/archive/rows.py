"""What the archiver reads of acked logs in Redis: how far they are, and their commits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio
import pyarrow as pa

from streamworker.archive.logs import Commit, union_of
from streamworker.core.data.archives import GROUP, Archive
from streamworker.core.data.entries import EntryId
from streamworker.core.data.readers import ReaderPosition, read_position
from streamworker.errors import ArchiveConflict
from streamworker.redisio.data import ackedlog
from streamworker.redisio.keys import GroupKeys, number
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import ms_of, pairs_of
from streamworker.redisio.wire.link import Argument

CHUNK_BYTES = 2 * 1024 * 1024
FIRST_COUNT, MOST_COUNT = 4, 1_000
"""About the size of one answer; entries of the first, while nothing is known of them, and of any."""
TAILS_COUNT = 100

Entries = Sequence[tuple[EntryId, Mapping[bytes, bytes]]]


@dataclass(frozen=True, slots=True)
class Log:
    """One partition's log, as its lock says."""

    partition: int
    identity: str
    rows: int
    now_ms: int
    """When this was asked, by the server's clock."""


@dataclass(slots=True)
class End:
    """Up to where one partition is archived."""

    rows: int
    identity: str
    tail: str
    """As in a footer, of the last archived row; empty if none is."""
    next: "Next | None" = None
    """Once it is known."""


class Next(NamedTuple):
    """The first commit that is not archived."""

    at_ms: int
    rows: int
    size: int
    """Bytes of its rows."""


@dataclass(eq=False)
class LogRows:
    """The acked logs of one processor, for its archiver."""

    backend: Backend
    keys: GroupKeys
    archive: Archive
    entries_max: int
    """Commits that may wait at most, lest the log is full."""
    _schemas: dict[str, pa.Schema] = field(default_factory=dict)
    _mean_bytes: int = CHUNK_BYTES // FIRST_COUNT
    """Of an entry in the last answer."""

    async def look(self, partitions: Iterable[int]) -> tuple[list[Log], ReaderPosition]:
        """Return the logs that these partitions have, and how far the archiver has come."""
        asked = sorted(partitions)
        commands: list[tuple[Argument, ...]] = [("TIME",), ("HGET", self.keys.readers, GROUP)]
        commands += [("HMGET", self.keys.lock(p), "rows", "log") for p in asked]
        time, reader, *locks = all_answered(await self.backend.pipeline(commands))
        found = [
            Log(p, log.decode("utf-8", "replace"), number(rows), ms_of(time))
            for p, (rows, log) in zip(asked, locks, strict=True)
            if log
        ]
        return found, read_position(reader or b"")

    async def first_row(self, log: Log) -> int:
        """Return the number of rows before the oldest that Redis has."""
        entries, _ = await self._range(log, 0, 1)
        return entries[0][0].ms - ackedlog.entry_rows(*entries[0]) if entries else log.rows

    async def is_due(self, log: Log, end: End) -> bool:
        """Whether the oldest row has waited for ``every``, or so much waits that it is about ``size``."""
        if log.rows <= end.rows:
            return False
        if end.next is None:
            entries, identity = await self._range(log, end.rows + 1, 1)
            if identity != log.identity:
                return False
            if not entries:
                raise self._missing(log, end.rows, log.rows)
            size = max(1, number(entries[0][1].get(b"size")))
            end.next = Next(_at_ms(entries[0][1]), ackedlog.entry_rows(*entries[0]), size)
        old_ms = log.now_ms - self.archive.after_ms
        if end.next.at_ms <= min(old_ms, log.now_ms - self.archive.every_ms):
            return True
        commits = max(1, min(self.archive.size_bytes // end.next.size, self.entries_max))
        most = end.rows + commits * end.next.rows
        if end.next.at_ms > old_ms or log.rows < most:
            return False
        entries, _ = await self._range(log, most, 1)
        return bool(entries) and _at_ms(entries[0][1]) <= old_ms

    async def read(self, log: Log, end: End) -> list[Commit]:
        """Return the next commits that are old enough, about ``size``; empty if the log is another by now."""
        commits: list[Commit] = []
        schema: pa.Schema | None = None
        at, size, next_row = end.rows, 0, end.rows
        old_ms = log.now_ms - self.archive.after_ms
        while at < log.rows and size < self.archive.size_bytes:
            count = max(FIRST_COUNT, min(CHUNK_BYTES // self._mean_bytes, MOST_COUNT))
            entries, identity = await self._range(log, max(next_row, 1), count)
            if identity != log.identity:
                return []
            if not entries:
                raise self._missing(log, at, log.rows)
            in_all = sum(len(fields.get(b"batch", b"")) for _, fields in entries)
            self._mean_bytes = max(1, in_all // len(entries))
            await self._fetch_schemas(entries)
            for commit, its_bytes in await anyio.to_thread.run_sync(self._decoded, entries):
                next_row = commit.end + 1
                if commit.end <= at:
                    if end.tail and commit.end == end.rows and commit.tail != end.tail:
                        raise self.other_rows(log.partition, end.rows)
                    continue
                if commit.end > log.rows or commit.at_ms > old_ms or size >= self.archive.size_bytes:
                    return commits
                if commit.start > at:
                    raise self._missing(log, at, commit.start)
                if commit.start < at:  # Redis was rolled back, and its commits end elsewhere.
                    raise self.other_rows(log.partition, at)
                both = commit.rows.schema if schema is None else union_of(schema, commit.rows.schema)
                if both is None:
                    return commits
                schema, at, size = both, commit.end, size + its_bytes
                commits.append(commit)
        return commits

    async def tails(self, log: Log, after: int, end: int) -> dict[int, str]:
        """Return which commits Redis has after a row and up to another, by the numbers of their last rows."""
        found: dict[int, str] = {}
        row = after
        while row < end:
            entries, _ = await self._range(log, row + 1, TAILS_COUNT)
            links = [ackedlog.link_of(*each) for each in entries]
            found |= {each.id.ms: f"{each.last} {each.epoch}" for each in links if each.start < end}
            row = links[-1].id.ms if links else end
        return found

    def _decoded(self, entries: Entries) -> list[tuple[Commit, int]]:
        found = []
        for at, fields in entries:
            link = ackedlog.link_of(at, fields)
            rows = ackedlog.decode_entry(at, fields, self._schemas)
            commit = Commit(at.ms, rows, str(link.last), link.epoch, _at_ms(fields))
            found.append((commit, number(fields.get(b"size"))))
        return found

    async def _fetch_schemas(self, entries: Entries) -> None:
        for name in {ackedlog.schema_of(*each) for each in entries} - self._schemas.keys():
            if data := await self.backend.execute("HGET", self.keys.schemas, name):
                self._schemas[name] = ackedlog.deserialize_schema(data, name)

    async def _range(self, log: Log, row: int, count: int) -> tuple[Entries, str]:
        """Return entries of a log from a row on, and its identity after that."""
        acked, lock = self.keys.acked(log.partition), self.keys.lock(log.partition)
        asked: list[tuple[Argument, ...]] = [("XRANGE", acked, f"{row}-0", "+", "COUNT", count)]
        found, identity = all_answered(await self.backend.pipeline([*asked, ("HGET", lock, "log")]))
        entries = [(EntryId.parse(at), pairs_of(fields)) for at, fields in found]
        return entries, (identity or b"").decode("utf-8", "replace")

    def _missing(self, log: Log, after: int, end: int) -> ArchiveConflict:
        return ArchiveConflict(
            f"Rows {after + 1} to {end} of the acked log of partition {log.partition} are neither in Redis "
            f"nor in the archive {self.archive.url}.",
            remedy="Somebody trimmed them, or had the reader 'archive' forgotten. Restore Redis, or give "
            "log_archive= another URL: a chain has no gap.",
        )

    def other_rows(self, partition: int, row: int) -> ArchiveConflict:
        """Return the error for a log that has grown again where the archive has rows."""
        return ArchiveConflict(
            f"The archive {self.archive.url} has other rows up to {row} of partition {partition} than its "
            "acked log.",
            remedy="Redis lost the end of the log, and it has grown again. Nothing is trimmed meanwhile; "
            "restore Redis, or give log_archive= another URL (docs: archive).",
        )


def _at_ms(fields: Mapping[bytes, bytes]) -> int:
    return number(fields.get(b"at"))
