"""Reading the acked logs of one processor: what a Spark query asks of Redis.

Only reads, but for one field: the reader's own position in the group's ``readers`` hash.
No consumer group is used, so any number of queries read the same logs, each at its pace.
Positions come from the lock hashes, which count the rows of their log, so no payload is
fetched to learn how far a log goes.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streamworker.core.entries import EntryId
from streamworker.errors import ConfigurationError, DataLoss
from streamworker.redisio import ackedlog
from streamworker.redisio.keys import GroupKeys, StreamKeys, partitions_in, whole
from streamworker.spark.connection import Client, Connection
from streamworker.spark.offsets import START, Offset, Position, Slice
from streamworker.spark.options import SourceOptions

log = logging.getLogger(__name__)

NO_STREAM = "There is no stream"
"""How the message begins that a pipeline waits on, since a worker may declare it later."""

CHUNK_BYTES = 2 * 1024 * 1024
"""About what one ``XRANGE`` brings: large enough to hide the round trip, small enough that
neither the server's output buffer nor an executor notices."""
FIRST_COUNT, MOST_COUNT = 4, 1_000
"""Entries of the first range, before their size is known, and of any."""

_schemas: dict[str, pa.Schema] = {}
"""By fingerprint, which is a digest of what they are. Spark uses a Python process for many tasks."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """The part of one entry that a reader asked for."""

    partition: int
    end: int
    """Row number of the last row in ``batch``."""
    batch: pa.RecordBatch
    last: str
    """Last source id of the whole entry."""
    epoch: int
    at_ms: int
    """When it was committed, by the server's clock."""

    @property
    def start(self) -> int:
        """Rows of the log before the first row in ``batch``."""
        return self.end - int(self.batch.num_rows)


class AckedLogs:
    """The acked logs of one processor on one stream.

    Every method answers with what Redis said, or raises ``BackendUnavailable`` when it said
    nothing for the query's ``retryTimeout``.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection = Connection(options.connection, options.retry_timeout_ms)
        self._stream_keys = StreamKeys(options.app, options.stream)
        self._keys = GroupKeys(options.app, options.stream, options.processor)
        self._partitions = 0
        """As many as there were at the last look."""

    @property
    def _title(self) -> str:
        o = self._options
        return f"processor {o.processor!r} on stream {o.stream!r} of app {o.app!r}"

    # -- planning ----------------------------------------------------------------------------

    def tails(self) -> dict[int, Position]:
        """Return the end of each partition's log, in one round trip; in two at the first look.

        A partition in which the group has never acked anything is at row 0 of no log.

        Raises
        ------
        ConfigurationError
            If there is no such stream.
        """
        return self.tails_and_time()[0]

    def tails_and_time(self) -> tuple[dict[int, Position], int]:
        """Return :meth:`tails` and the server's clock in ms."""
        while True:
            looked_at = range(self._partitions)
            count, *locks, (seconds, micros) = self._connection.call(self._look)
            if count is None:
                raise ConfigurationError(
                    f"{NO_STREAM} {self._options.stream!r} of app {self._options.app!r} in Redis.",
                    remedy="A worker or a producer declares it when it starts; check the names, and that "
                    f"connection {self._options.connection!r} is the right server and database.",
                )
            self._partitions = partitions_in(count)
            if self._partitions == len(looked_at):
                break
        tails = {p: _tail(*fields) for p, fields in zip(looked_at, locks, strict=True)}
        return tails, int(seconds) * 1000 + int(micros) // 1000

    def _look(self, redis: Client) -> list[Any]:
        pipe = redis.pipeline(transaction=False)
        pipe.hget(self._stream_keys.meta, "partitions")
        for p in range(self._partitions):
            pipe.hmget(self._keys.lock(p), "rows", "log", "checkpoint")
        # redis-py has no time() in the pipeline of a Cluster.
        pipe.execute_command("TIME")
        return list(pipe.execute())

    def first_positions(self, tails: Offset) -> dict[int, Position]:
        """Return the position before the oldest row that each log still holds.

        Not 0: after a trim, 0 would be a gap. Reads one entry of each log, so it is for the
        start of a query.
        """
        found: dict[int, Position] = {}
        for p, tail in tails.items():
            # One at a time: an entry may be megabytes, and a stream may have many partitions.
            entries, _ = self._range(p, 0, 1)
            if entries:
                entry_id, fields = entries[0]
                before = entry_id.ms - ackedlog.entry_rows(entry_id, fields)
                found[p] = Position(min(before, tail.rows), tail.log)
            else:
                found[p] = tail if tail.rows else START
        return found

    def schema(self) -> pa.Schema:
        """Return the schema of the rows that the processor forwards now.

        Raises
        ------
        ConfigurationError
            If it has not forwarded anything yet, or there is no such processor.
        """
        fingerprint: bytes | None = self._connection.call(
            lambda redis: redis.hget(self._keys.schemas, "current")
        )
        if fingerprint is None:
            known = any(tail.log for tail in self.tails().values())
            raise ConfigurationError(
                f"The {self._title} has not forwarded any rows yet."
                if known
                else f"There is no {self._title} in Redis.",
                remedy="Only a processor that returns records (or has forward=True) has rows for Spark. "
                "Let a worker process a batch first, or give the reader a schema with .schema(...)."
                if known
                else "Check the names, and that a worker for it has been started once.",
            )
        return self._schema(fingerprint.decode("ascii", "replace"))

    def _schema(self, fingerprint: str) -> pa.Schema:
        """Return a schema by fingerprint; asks Redis for those not met before."""
        if fingerprint not in _schemas:
            data: bytes | None = self._connection.call(
                lambda redis: redis.hget(self._keys.schemas, fingerprint)
            )
            if data is None:
                raise DataLoss(
                    f"The schema {fingerprint} of the {self._title} is not in Redis.",
                    remedy=f"Restore the key {self._keys.schemas}, or let a worker of that version run once.",
                )
            _schemas[fingerprint] = ackedlog.deserialize_schema(data, fingerprint)
        return _schemas[fingerprint]

    # -- registering -------------------------------------------------------------------------

    def register(self, offset: Offset, at_ms: int, *, begins: bool = False, retry: bool) -> None:
        """Say in Redis up to where this reader needs nothing any more.

        Trimming of the acked logs waits for it. Does nothing for a reader without a name.

        Parameters
        ----------
        begins
            Whether the query is at its very first position: nothing was read under the name.
        """
        if self._options.reader is not None:
            self._tell(self._options.reader, offset, at_ms, begins=begins, retry=retry)

    def hold(self, readers: Sequence[str], tails: Offset, at_ms: int, *, retry: bool) -> None:
        """Say for each of these readers that has said nothing yet that it begins at the first row.

        One that comes in between may be set back by that, never forward, and tells its position again.
        """
        key = self._keys.readers

        def ask(redis: Client) -> list[Any]:
            pipe = redis.pipeline(transaction=False)
            for name in readers:  # Not HMGET, which users of ACL files made earlier may not.
                pipe.hget(key, name)
            return list(pipe.execute())

        told = self._connection.call(ask, retry=retry)
        silent = [name for name, value in zip(readers, told, strict=True) if value is None]
        firsts = self.first_positions(tails) if silent else {}
        for name in silent:
            self._tell(name, firsts, at_ms, begins=True, retry=retry)

    def _tell(self, reader: str, offset: Offset, at_ms: int, *, begins: bool, retry: bool) -> None:
        value = {
            "p": {str(p): position.rows for p, position in sorted(offset.items())},
            "log": {str(p): position.log for p, position in sorted(offset.items())},
            "at": at_ms,
        }
        text = json.dumps(value | ({"begins": True} if begins else {}))
        self._connection.call(lambda redis: redis.hset(self._keys.readers, reader, text), retry=retry)

    def registered(self) -> tuple[dict[int, Position], bool]:
        """Return what this reader has said last, and whether it was about to begin.

        Empty for one that has said nothing, or nothing that can be read.
        """
        reader = self._options.reader
        if reader is None:
            return {}, False
        value: bytes | None = self._connection.call(lambda redis: redis.hget(self._keys.readers, reader))
        try:
            told = json.loads(value or b"{}")
            rows = {int(p): Position(int(n), str(told["log"][p])) for p, n in told.get("p", {}).items()}
            return rows, told.get("begins") is True
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            return {}, False

    # -- reading -----------------------------------------------------------------------------

    def read(self, part: Slice) -> Iterator[LogEntry]:
        """Yield the rows of a slice in order, checked for gaps and against the log's identity.

        Asking again after a failure goes on behind the last entry that was yielded, so a
        short outage in the middle neither loses nor repeats rows.

        Raises
        ------
        DataLoss
            If rows are missing or damaged or the log is another one, unless the query said
            ``failOnDataLoss=false``; then it is a warning, and reading goes on behind them.
        """
        position = part.start
        # The entry that ends where the slice begins tells whether this is still the log that
        # was read up to here; it costs one entry more.
        next_id = part.start if part.last else part.start + 1
        count, identity = FIRST_COUNT, part.log
        while position < part.end:
            entries, identity = self._range(part.partition, next_id, count)
            if not entries:
                break
            count = _next_count(entries, count)
            for entry_id, fields in entries:
                next_id = entry_id.ms + 1
                if entry_id.ms <= part.start:
                    self._check_boundary(part, entry_id, fields)
                    continue
                found = self._take(part, entry_id, fields, position)
                position = min(entry_id.ms, part.end)
                if found is not None:
                    yield found
                if position >= part.end:
                    break
        if position < part.end:
            self._lost(f"Rows {position + 1} to {part.end} are missing from {self._where(part)}.")
        if identity != part.log:
            self._lost(f"{self._where(part).capitalize()} was deleted or replaced while it was read.")

    def _range(
        self, p: int, first: int, count: int
    ) -> tuple[list[tuple[EntryId, Mapping[bytes, bytes]]], str]:
        """Return entries of a log, and which log it was after they were read."""

        def ask(redis: Client) -> list[Any]:
            pipe = redis.pipeline(transaction=False)
            pipe.xrange(self._keys.acked(p), min=f"{first}-0", count=count)
            pipe.hget(self._keys.lock(p), "log")
            return list(pipe.execute())

        found, identity = self._connection.call(ask)
        entries = [(EntryId.parse(entry_id), fields) for entry_id, fields in found]
        return entries, (identity or b"").decode("utf-8", "replace")

    def _take(
        self, part: Slice, id: EntryId, fields: Mapping[bytes, bytes], position: int
    ) -> LogEntry | None:
        """Return the rows of an entry that lie in the slice and behind ``position``."""
        try:
            rows = ackedlog.entry_rows(id, fields)
            if id.ms - rows > position:
                missing = f"Rows {position + 1} to {min(id.ms - rows, part.end)}"
                self._lost(f"{missing} are missing from {self._where(part)}.")
            if part.last and position == part.start and id.ms - rows < part.start:
                self._lost(
                    f"{self._where(part).capitalize()} was rolled back and has grown again: row {part.start} "
                    f"was the last of an entry when it was read, and now lies within entry {id}."
                )
            if id.ms - rows >= part.end:
                return None
            fingerprint = ackedlog.schema_of(id, fields)
            batch = ackedlog.decode_entry(id, fields, {fingerprint: self._schema(fingerprint)})
        except DataLoss as loss:
            if self._options.fail_on_data_loss:
                raise
            log.warning("Rows up to %d of %s are skipped: %s", id.ms, self._where(part), loss.message)
            return None
        return LogEntry(
            partition=part.partition,
            end=min(id.ms, part.end),
            batch=ackedlog.slice_rows(batch, id.ms, position, part.end),
            last=_text(fields, b"last"),
            epoch=int(_text(fields, b"epoch") or 0),
            at_ms=int(_text(fields, b"at") or 0),
        )

    def _check_boundary(self, part: Slice, id: EntryId, fields: Mapping[bytes, bytes]) -> None:
        last = _text(fields, b"last")
        if id.ms == part.start and last and EntryId.parse(last) > EntryId.parse(part.last):
            self._lost(
                f"{self._where(part).capitalize()} was rolled back and has grown again: row {part.start} "
                f"came from source entries up to {part.last} when it was read, and now up to {last}."
            )

    def _lost(self, message: str) -> None:
        lose(message, fail=self._options.fail_on_data_loss)

    def _where(self, part: Slice) -> str:
        return f"the acked log {self._keys.acked(part.partition)}"


LOST = (
    "If Redis lost data, restore it; otherwise give the query a new checkpoint directory, a new table "
    "and another reader name, or accept the loss with failOnDataLoss=false."
)


def lose(message: str, *, fail: bool, remedy: str = LOST) -> None:
    """Raise :class:`DataLoss`, or warn where the query said ``failOnDataLoss=false``."""
    if not fail:
        log.warning("%s Going on, since failOnDataLoss is false.", message)
        return
    raise DataLoss(message, remedy=remedy)


def _tail(rows: bytes | None, identity: bytes | None, checkpoint: bytes | None) -> Position:
    if rows is None or identity is None:
        return START
    count = whole(rows)
    if count is None:
        raise DataLoss(
            f"A lock says that its log has {rows[:40]!r} rows.",
            remedy="Another program wrote to it. A worker that commits writes the right number there.",
        )
    last = (checkpoint or b"").decode("ascii", "replace")
    return Position(count, identity.decode("utf-8", "replace"), last)


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")


def _next_count(entries: list[tuple[EntryId, Mapping[bytes, bytes]]], count: int) -> int:
    """Return how many entries make up about one chunk, judging by the last one."""
    size = sum(len(fields.get(b"batch", b"")) for _, fields in entries) // len(entries)
    return max(1, min(CHUNK_BYTES // max(size, 1), MOST_COUNT, count * 8))
