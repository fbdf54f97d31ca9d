"""A Spark query's calls to Redis: it reads the acked logs of one processor.

A query writes positions to the group's ``readers`` hash, a batch read to ``holds``, and reads everything
else. It uses no consumer group, so any number of queries read the same logs, each at its own pace. The
lock hashes hold the row counts of their logs, so a query fetches no payload to find the end of a log.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from streamworker.core.data import readers
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.placement import Placement
from streamworker.core.data.readers import ReaderPosition, read_position
from streamworker.errors import BackendRefused, ConfigurationError, DataLoss
from streamworker.redisio.data import ackedlog
from streamworker.redisio.data.ackedlog import ChainLink
from streamworker.redisio.keys import GroupKeys, StreamKeys, map_in, whole
from streamworker.redisio.wire.info import ms_of
from streamworker.spark.source.connection import Connection
from streamworker.spark.source.offsets import START, Offset, Position, Slice
from streamworker.spark.source.options import SourceOptions

log = logging.getLogger(__name__)

NO_STREAM = "There is no stream"
"""Begins the message of an error after which a pipeline waits, since a worker may declare the stream
later."""

CHUNK_BYTES = 2 * 1024 * 1024
"""Approximate size of one ``XRANGE`` answer: large against the cost of a round trip, small against the
server's output buffer and an executor's memory."""
FIRST_COUNT, FIRST_MOST, MOST_COUNT = 4, 16, 1_000
"""Entries of the first range of a slice: while nothing is known of them, and at most. And entries of any
range at most."""
ENTRY_BYTES = CHUNK_BYTES // 128
"""What an entry of a first range counts at least, since a log may have larger ones than the log before."""
_OF_LOCK = ("rows", "log", "checkpoint", "tail", "done")
SLICES_MAX = 16
"""Slices that are asked for in one answer."""

_schemas: dict[str, pa.Schema] = {}
"""Cache by fingerprint, a digest of the schema. Spark uses a Python process for many tasks."""
_means: dict[str, tuple[int, int]] = {}
"""Mean bytes and rows of an entry in the last range of a processor's logs, by a key of the processor."""

Entries = list[tuple[EntryId, Mapping[bytes, bytes]]]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """The rows of one entry that lie in a reader's slice."""

    partition: int
    end: int
    """Row number of the last row in ``batch``."""
    batch: pa.RecordBatch
    last: str
    """Last source entry id of the whole entry."""
    epoch: int
    at_ms: int
    """When it was committed, by the server's clock."""

    @property
    def start(self) -> int:
        """Number of rows in the log before the first row in ``batch``."""
        return self.end - int(self.batch.num_rows)


class AckedLogs:
    """The acked logs of one processor on one stream.

    Every method raises ``BackendUnavailable`` if Redis gives no answer within the query's
    ``retryTimeout``.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = o = options
        self._title = f"processor {o.processor!r} on stream {o.stream!r} of app {o.app!r}"
        self._connection = Connection(options.connection, options.retry_timeout_ms)
        self._stream_keys = StreamKeys(options.app, options.stream)
        self._keys = GroupKeys(options.app, options.stream, options.processor)
        self.placement = Placement(1)
        """The partitions in the last answer; one before the first."""
        self.finished: Mapping[int, int] = {}
        """The rows of each log that gets no more: its partition is sealed, and the group is done with it."""
        self.late_rows = 0
        """Rows that were trimmed before this reader began; kept in Redis with its position."""
        self.batch_ms = 0
        """How long its last micro-batch took; kept there, too."""
        self._dropped_rows = 0
        """What the driver had counted beside its position at the last look at the tails."""
        self._before = read_position(b"")
        """The position that the reader had in Redis when its query began."""

    def tails(self) -> dict[int, Position]:
        """Return the end of each partition's log: 0 rows and no log where the group has acked nothing yet."""
        return self.tails_and_time()[0]

    def tails_and_time(self) -> tuple[dict[int, Position], int]:
        """Return :meth:`tails` and the server's clock in ms, in one round trip; the first call takes two."""
        while True:
            looked_at = self.placement.all
            of_locks = [("HMGET", self._keys.lock(p), *_OF_LOCK) for p in looked_at]
            reader = self._options.reader
            of_reader = [("HGET", self._keys.readers, reader)] if reader else []
            count, *locks, time = self._connection.pipeline(
                [("HGET", self._stream_keys.meta, "partitions"), *of_reader, *of_locks, ("TIME",)]
            )
            if of_reader:
                self._dropped_rows = read_position(locks.pop(0) or b"").dropped_rows
            if count is None:
                raise ConfigurationError(
                    f"{NO_STREAM} {self._options.stream!r} of app {self._options.app!r} in Redis.",
                    remedy="A worker or a producer declares it when it starts; check the names, and that "
                    f"connection {self._options.connection!r} is the right server and database.",
                )
            if (counts := map_in(count)) != self.placement.counts:
                self.placement = Placement(*counts)
                continue
            tails = {p: _tail(*lock[:4]) for p, lock in zip(looked_at, locks, strict=True)}
            self.finished = {p: tails[p].rows for p, lock in zip(looked_at, locks, strict=True) if lock[4]}
            return tails, ms_of(time)

    def wait(self, after: Offset, at_most_ms: int) -> bool:
        """Wait until a log has rows after an offset, or for a time; return whether there may be some."""
        ends = {self._keys.acked(p): f"{position.rows}-0" for p, position in after.items()}
        try:
            return self._connection.wait_for(ends, at_most_ms)
        except BackendRefused:  # ACL files made by earlier versions do not allow it.
            time.sleep(at_most_ms / 1000)
            return True

    def entry_from(self, p: int, row: int) -> tuple[int, int, int, int] | None:
        """Return rows before the first entry from a row on, and up to its end, its time in ms, its bytes."""
        ((entries, _),) = self._ranges([(p, row, 1)])
        if not entries:
            return None
        (end, fields), *_ = entries
        before, size = end.ms - ackedlog.entry_rows(end, fields), len(fields.get(b"batch", b""))
        return before, end.ms, whole(fields.get(b"at", b"")) or 0, size

    def current_schema(self, *, retry: bool = True) -> pa.Schema | None:
        """Return the newest schema of the rows that the processor forwards; None if it stored none yet."""
        fingerprint = self._read_hash(self._keys.schemas, "current", retry=retry)
        return None if fingerprint is None else self._schema(fingerprint.decode("ascii", "replace"))

    def schema(self) -> pa.Schema:
        """Return :meth:`current_schema`; if there is none, the error says why."""
        if (current := self.current_schema()) is not None:
            return current
        if any(tail.log for tail in self.tails().values()):
            raise ConfigurationError(
                f"The {self._title} has not forwarded any rows yet.",
                remedy="Only a processor that returns records (or has forward=True) has rows for Spark. "
                "Let a worker process a batch first, or give the reader a schema with .schema(...).",
            )
        raise ConfigurationError(
            f"There is no {self._title} in Redis.",
            remedy="Check the names, and that a worker for it has been started once.",
        )

    def _read_hash(self, key: str, field: str, *, retry: bool = True) -> bytes | None:
        value: bytes | None = self._connection.call(lambda redis: redis.hget(key, field), retry=retry)
        return value

    def _schema(self, fingerprint: str) -> pa.Schema:
        if fingerprint not in _schemas:
            data = self._read_hash(self._keys.schemas, fingerprint)
            if data is None:
                raise DataLoss(
                    f"The schema {fingerprint} of the {self._title} is not in Redis.",
                    remedy=f"Restore the key {self._keys.schemas}, or let a worker of that version run once.",
                )
            _schemas[fingerprint] = ackedlog.deserialize_schema(data, fingerprint)
        return _schemas[fingerprint]

    def register(
        self, offset: Offset, at_ms: int, *, begins: bool = False, behind: bool = False, retry: bool
    ) -> None:
        """Write this reader's position to Redis: it does not need the rows before it any more.

        Workers do not trim rows that a reader has not passed. Does nothing for a query without a reader
        name. ``begins``: this is the query's first position, so no row was read under the name yet.
        ``behind``: there are rows after it. A failure then stays beside the position that it left. What the
        driver has counted there stays.
        """
        if self._options.reader is not None:
            position = position_of(offset, at_ms, begins=begins, late_rows=self.late_rows)
            position = replace(position, batch_ms=self.batch_ms, dropped_rows=self._dropped_rows)
            if behind and position.rows == self._before.rows:
                position = replace(position, failed=self._before.failed, failed_ms=self._before.failed_ms)
            self._write(self._keys.readers, self._options.reader, position, retry=retry)

    def renew(self, name: str, hold: ReaderPosition, *, retry: bool) -> None:
        """Keep the rows after a batch read's start from being trimmed, for ``HOLD_MS`` from now on.

        It writes the whole hold, whether or not it is still there: a task that begins late, or runs again,
        protects the rows that are left.
        """
        (time,) = self._connection.pipeline([("TIME",)], retry=retry)
        now_ms = ms_of(time)
        hold = replace(hold, at_ms=now_ms, until_ms=now_ms + readers.HOLD_MS)
        self._write(self._keys.holds, name, hold, retry=retry)

    def _write(self, key: str, name: str, position: ReaderPosition, *, retry: bool) -> None:
        self._connection.call(lambda redis: redis.hset(key, name, position.text()), retry=retry)

    def registered(self) -> tuple[dict[int, Position], bool]:
        """Return the last position in Redis of a query's reader, and whether it was the query's first.

        The position is empty if the reader has none, or one that cannot be parsed.
        """
        stored = read_position(self._read_hash(self._keys.readers, str(self._options.reader)) or b"")
        self._before = stored
        self.late_rows = stored.late_rows
        rows = {p: Position(n, stored.logs[p]) for p, n in stored.rows.items() if p in stored.logs}
        return rows, stored.begins

    def read(self, *parts: Slice) -> Iterator[LogEntry]:
        """Yield the rows of slices in order; one answer has the first rows of as many as fit in.

        Checks that no rows are missing, that each entry follows the one before it, and that the log is
        the one of the slice. A retried call repeats one range only, so an outage neither loses nor
        repeats rows. Missing or damaged rows, or another log, are a DataLoss; with
        ``failOnDataLoss=false`` the method logs a warning and skips these rows.
        """
        left = [*parts]
        while left:
            asked = _first_ranges(left, _means.get(self._keys.schemas))
            for part, (_, _, count), found in zip(left, asked, self._ranges(asked), strict=False):
                yield from self._read(part, count, *found)
            del left[: len(asked)]

    def _read(self, part: Slice, count: int, entries: Entries, identity: str) -> Iterator[LogEntry]:
        """Yield the rows of a slice, of which the first range is given."""
        position, before, next_id = part.start, _before(part), part.start
        while entries:
            _means[self._keys.schemas] = size, _ = _mean(entries, next_id)
            for entry_id, fields in entries:
                next_id = entry_id.ms + 1
                link = self._link(part, entry_id, fields, before)
                if link is None:
                    continue
                before = link
                if link.id.ms <= position:
                    continue
                for found in self.elsewhere(part, position, min(link.start, part.end)):
                    position = found.end
                    yield found
                if position >= part.end:
                    break
                its = self._rows_of(part, link, fields, position)
                position = min(link.id.ms, part.end)
                if its is not None:
                    yield its
                if position >= part.end:
                    break
            if position >= part.end:
                break
            count = _count(size, count * 8)
            ((entries, identity),) = self._ranges([(part.partition, next_id, count)])
        for found in self.elsewhere(part, position, part.end):
            position = found.end
            yield found
        if position < part.end:
            self._report_missing(part, position, part.end, max(next_id, part.end))
        if identity != part.log:
            self._report_loss(f"{self._where(part).capitalize()} was deleted or replaced while it was read.")

    def elsewhere(self, part: Slice, after: int, end: int) -> Iterator[LogEntry]:  # noqa: ARG002
        """Yield rows of a slice that Redis does not hold, from where they are; none here."""
        return iter(())

    def _ranges(self, asked: Sequence[tuple[int, int, int]]) -> list[tuple[Entries, str]]:
        """Return entries of each partition from a row on, so many, and its log's identity after that."""
        acked, lock = self._keys.acked, self._keys.lock
        commands = [
            (("XRANGE", acked(p), f"{row}-0", "+", "COUNT", n), ("HGET", lock(p), "log"))
            for p, row, n in asked
        ]
        answers = iter(self._connection.pipeline([*chain(*commands)]))
        return [
            ([(EntryId.parse(at), fields) for at, fields in found], (log or b"").decode("utf-8", "replace"))
            for found, log in zip(answers, answers, strict=True)
        ]

    def _link(
        self, part: Slice, id: EntryId, fields: Mapping[bytes, bytes], before: ChainLink | None
    ) -> ChainLink | None:
        """Return an entry's link in the chain; None, after a warning, for an entry to skip."""
        where = self._where(part)
        try:
            link = ackedlog.link_of(id, fields)
        except DataLoss as loss:
            self._report_loss(
                f"{loss.message} The log is {self._keys.acked(part.partition)}.", remedy=INSPECT_REMEDY
            )
            return None
        if before is None:
            return link
        if id.ms <= part.start:
            if link[-2:] != before[-2:] if before.epoch else link.last > before.last:
                self._report_loss(
                    f"{where.capitalize()} was rolled back and has grown again: row {part.start} came from "
                    f"source entries up to {before.last} when it was read, and now up to {link.last} "
                    f"(epoch {link.epoch})."
                )
        elif misfit := link.misfit(before):
            self._report_loss(
                f"Entry {id} of {where} does not follow entry {before.id}: {misfit}.", remedy=INSPECT_REMEDY
            )
            return None  # The next entry must follow the last good one.
        return link

    def _rows_of(
        self, part: Slice, link: ChainLink, fields: Mapping[bytes, bytes], position: int
    ) -> LogEntry | None:
        """Return the rows of an entry that lie in the slice and after ``position``."""
        try:
            if link.start > position:
                self._report_missing(part, position, min(link.start, part.end), link.id.ms)
            if link.start >= part.end:
                return None
            fingerprint = ackedlog.schema_of(link.id, fields)
            batch = ackedlog.decode_entry(link.id, fields, {fingerprint: self._schema(fingerprint)})
        except DataLoss as loss:
            if self._options.fail_on_data_loss:
                raise
            log.warning("Rows up to %d of %s are skipped: %s", link.id.ms, self._where(part), loss.message)
            return None
        begin = max(position, link.start)
        rows = batch.slice(begin - link.start, min(link.id.ms, part.end) - begin)
        at_ms = whole(fields.get(b"at", b"")) or 0
        return LogEntry(part.partition, min(link.id.ms, part.end), rows, str(link.last), link.epoch, at_ms)

    def _report_missing(self, part: Slice, after: int, end: int, next_id: int) -> None:
        """Report missing rows as trimmed if the same log begins no earlier than at ``next_id``."""
        missing = f"Rows {after + 1} to {end} are missing from {self._where(part)}"
        ((entries, identity),) = self._ranges([(part.partition, 0, 1)])
        first = entries[0][0].ms if entries else self.tails().get(part.partition, START).rows
        if identity != part.log or first < next_id:
            self._report_loss(f"{missing}.")
        else:
            why = "workers trim what all readers with a name have read"
            self._report_loss(f"{missing}: they were trimmed ({why}).", remedy=TRIMMED_REMEDY)

    def _report_loss(self, message: str, **other: str) -> None:
        report_loss(message, fail=self._options.fail_on_data_loss, **other)

    def _where(self, part: Slice) -> str:
        return f"the acked log {self._keys.acked(part.partition)}"


LOSS_REMEDY = (
    "If Redis lost data, restore it; otherwise give the query a new checkpoint directory, a new table "
    "and another reader name, or accept the loss with failOnDataLoss=false."
)
TRIMMED_REMEDY = (
    "Redis lost nothing. Run a batch read again: it begins with the rows that are left. Give a streaming "
    "query a reader name (option reader): then trimming waits for it. Or go on without these rows: "
    "failOnDataLoss=false."
)
INSPECT_REMEDY = (
    "Redis went back to an older state, or another program wrote to the log. Look at the entries with XRANGE "
    "<log> <id> <id>: owner, epoch, first and last say who committed what. Delete nothing: the log holds "
    "committed rows. " + LOSS_REMEDY
)


def report_loss(message: str, *, fail: bool, remedy: str = LOSS_REMEDY) -> None:
    """Raise :class:`DataLoss`; with ``failOnDataLoss=false`` log a warning instead."""
    if fail:
        raise DataLoss(message, remedy=remedy)
    log.warning("%s The query goes on without them; failOnDataLoss=true would end it.", message)


def position_of(offset: Offset, at_ms: int, *, begins: bool, late_rows: int = 0) -> ReaderPosition:
    """Return an offset as Redis keeps the position of a reader."""
    rows, logs = ({p: at.rows for p, at in offset.items()}, {p: at.log for p, at in offset.items()})
    return ReaderPosition(rows, logs, at_ms, begins, late_rows)


def _before(part: Slice) -> ChainLink | None:
    """Return the link of the entry before a slice, as it was when that entry was read."""
    try:
        return ChainLink(EntryId(part.start, 0), part.start, ZERO, EntryId.parse(part.last), part.epoch)
    except ConfigurationError:  # The entry id is empty, or another program wrote to the lock.
        return None


def _tail(
    rows: bytes | None, identity: bytes | None, checkpoint: bytes | None, tail: bytes | None
) -> Position:
    if rows is None or identity is None:
        return START
    count = whole(rows)
    if count is None:
        raise DataLoss(
            f"A lock says that its log has {rows[:40]!r} rows.",
            remedy="Another program wrote to it. A worker that commits writes the right number there.",
        )
    log_id, last, epoch = identity.decode("utf-8", "replace"), checkpoint or b"", 0
    match (tail or b"").split():
        case [at, end, number] if at == rows:  # Otherwise ``tail`` describes an earlier entry.
            last, epoch = end, whole(number) or 0
    return Position(count, log_id, last.decode("ascii", "replace"), epoch)


def _first_ranges(parts: Sequence[Slice], mean: tuple[int, int] | None) -> list[tuple[int, int, int]]:
    """Return the first range of one or more slices, as many as one chunk has room for.

    A slice is asked for alone while the mean bytes and rows of its entries are not known. Its range begins
    with the entry that ends where the slice begins: that shows whether the log is still the one that was read
    up to here, and the next entry must follow it. This costs one entry more.
    """
    if mean is None:
        return [(part.partition, part.start, min(FIRST_COUNT, part.rows + 1)) for part in parts[:1]]
    size, rows = max(mean[0], ENTRY_BYTES), mean[1]
    asked, room = list[tuple[int, int, int]](), CHUNK_BYTES
    for part in parts[:SLICES_MAX]:
        count = _count(size, min(FIRST_MOST, part.rows // rows + 2))
        room -= count * size
        if asked and room < 0:
            break
        asked.append((part.partition, part.start, count))
    return asked


def _mean(entries: Entries, since: int) -> tuple[int, int]:
    """Return the mean bytes and rows of entries that were read from a row on; an id numbers the last row."""
    size = sum(len(fields.get(b"batch", b"")) for _, fields in entries)
    return max(size // len(entries), 1), max((entries[-1][0].ms - since) // len(entries), 1)


def _count(size: int, at_most: int) -> int:
    """Return how many entries of a mean size make about one chunk."""
    return max(1, min(CHUNK_BYTES // size, MOST_COUNT, at_most))
