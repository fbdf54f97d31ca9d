"""``format("streamworker")``: the acked logs as a batch and a streaming source of Spark.

Exactly-once delivery to Spark's sinks depends on three rules. The rows of a log never change, and an
offset names them exactly, so a micro-batch that runs again reads the same rows. The source registers a
position in Redis only when it is in Spark's commit log, so workers do not trim rows that a restart
needs. And the source detects a log that is not the one that was read (deleted, recreated, or rolled back
by a restore), and never skips rows silently.

Spark calls ``commit(end)`` for a batch only when it plans the next batch, so never for the last one. But
the ``start`` of ``latestOffset(start, limit)`` is always a committed offset. So the source registers
positions in both methods.

The source refuses a query that begins anew under a registered reader name, or continues before the
registered position: its checkpoint directory was lost, or is an older copy. Rows would be in the table
twice, or missing, since Spark's file sink skips a batch whose number it has.
"""

# Spark's interface fixes the names of the methods.
# ruff: noqa: N802

import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from streamworker.core.data import readers
from streamworker.core.data.readers import ReaderPosition
from streamworker.core.units import moment
from streamworker.errors import BackendError, BackendRefused, ConfigurationError
from streamworker.spark.source import offsets, statetables
from streamworker.spark.source.archived import ArchivedLogs
from streamworker.spark.source.declared import find_columns, find_stream
from streamworker.spark.source.logs import TRIMMED_REMEDY, LogEntry, report_loss
from streamworker.spark.source.offsets import START, Position, Slice
from streamworker.spark.source.options import Offsets, SourceOptions, Where, parse_options
from streamworker.spark.source.schema import (
    Conformer,
    arrow_target,
    declared_schema,
    spark_schema,
    together,
    widen,
)
from streamworker.spark.source.table import check_holds

log = logging.getLogger(__name__)

FORMAT = "streamworker"

REGISTER_INTERVAL_S = 5.0
"""Interval at which a position that does not move is registered again, so that a live reader can be
distinguished from one that has stopped."""

READER_KNOWN_S = 2.5
"""How long a new reader waits until all workers know it: longer than their ``trim_interval_ms``, 2 s by
default. Until then workers trim by the readers that they know, and could trim the new reader's first
rows. Only a query or batch read that begins in a log that was trimmed before waits, once."""

Hold = tuple[str, ReaderPosition]
"""The name of a batch read's hold, and where the read begins."""


@dataclass
class ReadTask(InputPartition):
    """The input of one Spark task: slices of one or more partitions of the stream."""

    parts: tuple[Slice, ...]
    hold: Hold | None = None
    """The hold of the whole read: each running task renews it for those that have not begun."""


class StreamworkerDataSource(DataSource):
    """The rows that a processor forwarded, or a table's state (docs: spark-reference)."""

    _stream = ""
    """The stream that was found. Spark sends this object, and so the name, from one planner to the next."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the current schema of the rows that the processor forwards, or of the table."""
        options = self._parsed()
        if options.table:
            return spark_schema(find_columns(options), options, statetables.METADATA)
        logs = ArchivedLogs(options)
        if options.record_schema is None:
            return spark_schema(logs.schema(), options)
        # The driver waits for this answer, and starts the query again if Redis is away.
        try:
            schema = arrow_target(StructType.fromJson(json.loads(options.record_schema)))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Option recordSchema is no schema: {error}", remedy="It is what StructType.json() returns."
            ) from None
        if (current := logs.current_schema(retry=False)) is not None:
            schema = widen(schema, arrow_target(declared_schema(current)))
        return spark_schema(schema, options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""
        options = self._parsed(streaming=False)
        if options.table:
            return statetables.TableReader(options, find_columns(options), schema)
        return LogBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> "LogStreamReader":
        """Return the reader for ``spark.readStream``."""
        return LogStreamReader(self._parsed(streaming=True), schema)

    def _parsed(self, *, streaming: bool | None = None) -> SourceOptions:
        options = parse_options(self.options, streaming=streaming)
        if options.table or not options.stream:
            self._stream = self._stream or find_stream(options)
        return replace(options, stream=self._stream or options.stream)


def locate(options: SourceOptions, logs: ArchivedLogs, wanted: Offsets) -> dict[int, Position]:
    """Convert ``startingOffsets`` or ``endingOffsets`` to positions."""
    tails = logs.tails()
    unknown = sorted(set(wanted.each) - set(tails))
    if unknown:
        raise ConfigurationError(
            f"Offsets are given for partition {unknown[0]}, and the stream has {len(tails)} partitions.",
            remedy=f"They are numbered 0 to {len(tails) - 1}.",
        )
    firsts = logs.first_positions({p: tail for p, tail in tails.items() if wanted.of(p) != "latest"})
    if (at_ms := wanted.at_ms) is not None:
        return {p: _position_at(logs, p, firsts.get(p, START), tail, at_ms) for p, tail in tails.items()}
    return {p: _position(options, p, wanted.of(p), firsts.get(p, START), tail) for p, tail in tails.items()}


def _position_at(logs: ArchivedLogs, p: int, first: Position, tail: Position, at_ms: int) -> Position:
    """Return the position before the first row that was committed at a time or later.

    Ids count rows, so the time is found by bisection: some 20 reads of an entry.
    """
    here = logs.first_in_redis(p, tail).rows
    if first.rows < here:
        row = logs.archived_row_at(p, tail.log, at_ms)
        if row is not None and row < here:
            return Position(row, tail.log) if row else START
    low, high = here, tail.rows  # rows up to `low` are too old, and those after `high` are not
    while low < high:
        middle = (low + high) // 2
        entry = logs.entry_from(p, middle + 1)
        if entry is None or entry[1] > tail.rows:
            high = middle
        elif entry[2] < at_ms:
            low = entry[1]
        else:
            high = min(middle, entry[0])
    return tail if high == tail.rows > 0 else Position(high, tail.log) if high else START


def _position(options: SourceOptions, p: int, where: Where, first: Position, tail: Position) -> Position:
    if where == "earliest":
        return first
    if where == "latest":
        where = tail.rows
    if where == tail.rows:
        return tail if tail.rows else START
    if where > tail.rows:
        raise ConfigurationError(
            f"Offset {where} is given for partition {p}, whose acked log has {tail.rows} rows.",
            remedy="Use latest, or -1 for this partition.",
        )
    if where < first.rows:
        report_loss(
            f"Offset {where} is given for partition {p}, whose rows up to {first.rows} were trimmed.",
            fail=options.fail_on_data_loss,
            remedy=TRIMMED_REMEDY,
        )
        return first
    return Position(where, tail.log)


class _RowReader:
    """Shared by batch and stream readers: planning tasks, and reading the rows of one on an executor."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._of = f"{options.app}.{options.stream}:{options.processor}"
        self._logs = ArchivedLogs(options)
        self._target = arrow_target(schema)

    def _tasks(self, parts: list[Slice], hold: Hold | None = None) -> list[ReadTask]:
        """Split and pack slices into tasks, by their rows, ``minPartitions`` and ``maxPartitions``."""
        options = self._options
        at_least, at_most = options.min_partitions, options.max_partitions
        at_a_time = options.parallelism or os.cpu_count() or 1
        planned = offsets.plan(parts, at_a_time, at_least=at_least, at_most=at_most)
        return [ReadTask(task, hold) for task in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task in the declared schema; Spark may run a task more than once."""
        conformer = Conformer(self._target, self._options)
        task = cast(ReadTask, partition)
        entries = self._logs.read(*task.parts)
        return map(conformer.conform, together(_renewing(self._logs, task.hold, entries)))

    def _tell_late(self, start: offsets.Offset, tails: offsets.Offset) -> None:
        """Tell of rows that were trimmed before a query that is to read from the first row, or a time, on."""
        o, wanted = self._options, self._options.starting_offsets
        whole = [p for p in sorted(start) if wanted.of(p) == "earliest"]
        late = {p: start[p].rows for p in whole if start[p].rows}
        oldest = {p: entry for p in late if (entry := self._logs.entry_from(p, 0)) is not None}
        if wanted.at_ms is not None:
            # Rows before the time are none that it lacks: it is late where the oldest row is younger.
            late = {
                p: late[p]
                for p, (before, _, at_ms, _) in oldest.items()
                if min(before, tails[p].rows) == late[p] and at_ms > wanted.at_ms
            }
        rows, told = sum(late.values()), self._logs.late_rows
        if rows <= told:
            return
        self._logs.late_rows = rows
        left = "no row of these partitions is left"
        if times := [oldest[p][2] for p in late if p in oldest]:
            since = moment(min(times))
            left = f"the oldest row that is left was committed at {since:%Y-%m-%d %H:%M:%S} UTC"
        report_loss(
            f"The query begins late: {rows} of {sum(tail.rows for tail in tails.values())} rows of "
            f"{o.app}.{o.stream} ({o.processor}) were trimmed before, by partition {late}; {left}.",
            fail=o.fail_on_late_start,
            remedy="Restore them, or begin with what is left: failOnDataLoss=false.",
        )


def _renewing(logs: ArchivedLogs, hold: Hold | None, entries: Iterator[LogEntry]) -> Iterator[LogEntry]:
    """Yield entries, and renew a hold before the first one and three times within its limit."""
    due_s = time.monotonic()
    while True:
        if hold is not None and time.monotonic() >= due_s:
            try:
                logs.renew(*hold, retry=False)
            except BackendError as error:
                log.warning("The hold of a batch read could not be renewed in Redis: %s", error)
            due_s = time.monotonic() + readers.HOLD_MS / 3000
        if (entry := next(entries, None)) is None:
            return
        yield entry


class LogBatchReader(_RowReader, DataSourceReader):
    """Reads the logs once, from ``startingOffsets`` to ``endingOffsets``.

    Workers keep its rows while it runs: it has no reader name, and so a hold that it renews.
    """

    def partitions(self) -> Sequence[ReadTask]:
        """Return the tasks. They end at the current end of the logs at most; later rows are left out."""
        start = locate(self._options, self._logs, self._options.starting_offsets)
        end = locate(self._options, self._logs, self._options.ending_offsets)
        hold = self._hold(offsets.slices(start, end))
        if hold is not None:
            firsts = self._logs.first_positions({p: start[p] for p in hold[1].rows})
            if any(first.rows for first in firsts.values()):
                time.sleep(READER_KNOWN_S)
                # Rows may have been trimmed during the wait. From here on workers know the hold.
                start = locate(self._options, self._logs, self._options.starting_offsets)
        if any(at.rows for at in start.values()):
            self._tell_late(start, self._logs.tails())
        return self._tasks(offsets.slices(start, end), hold) or [ReadTask((), hold)]

    def _hold(self, parts: Sequence[Slice]) -> Hold | None:
        """Register where the read begins; return None for a read without rows, or if Redis refuses."""
        rows, identities = {part.partition: part.start for part in parts}, {p.partition: p.log for p in parts}
        hold = f"batch-{uuid.uuid4().hex[:8]}", ReaderPosition(rows, identities, 0)
        try:
            if parts:
                self._logs.renew(*hold, retry=True)
                return hold
        except BackendRefused as error:  # ACL files made by earlier versions do not allow it.
            log.warning("Rows may be trimmed while this batch read runs: %s", error)
        return None


class LogStreamReader(_RowReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the logs as they grow.

    The planner process of a query keeps one instance; ``read`` runs in executors, on copies.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._tails: dict[int, Position] = {}
        self._target_offset: dict[int, Position] | None = None
        self._planned: dict[str, Any] | None = None
        """The end of the last batch that ``latestOffset`` planned."""
        self._planned_at_s: float | None = None
        """When it planned that batch; None if it has no rows, or has ended."""
        self._registered: dict[str, Any] | None = None
        self._registered_at_s = 0.0
        self._is_checked = options.reader is None
        """Whether the query is known to continue from its reader's registered position."""
        self._first: dict[int, Position] | None = None
        """The first position of a new query."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset of a new query, and register it, so that workers keep its rows."""
        start = locate(self._options, self._logs, self._options.starting_offsets)
        tails, now_ms = self._logs.tails_and_time()
        self._check_is_new(tails)
        self._tell_late(start, tails)
        self._first = start
        self._register(start, (tails, now_ms), must=True)
        if self._options.reader and any(0 < at.rows < tails[p].rows for p, at in start.items()):
            # Workers trim these logs up to the positions of other readers, which may be far ahead.
            time.sleep(READER_KNOWN_S)
        # Rows may have been trimmed during the wait. From here on workers know this reader.
        again = locate(self._options, self._logs, self._options.starting_offsets)
        self._first = {p: again[p] if again[p].rows > at.rows else at for p, at in start.items()}
        self._tell_late(self._first, tails)
        return offsets.to_json(self._first, self._of)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxRowsPerTrigger``."""
        limit = self._options.max_rows_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a query with the trigger ``availableNow`` at the current end of the logs."""
        self._target_offset = self._logs.tails()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, at most ``limit`` rows after ``start``.

        Without new rows the call waits: Spark would call it again at once, a thousand times a second.

        If a log is not the one that was read up to ``start``, or is shorter, this is a DataLoss.
        """
        position = offsets.from_json(start, self._of)
        if self._planned_at_s is not None and start == self._planned:
            self._logs.batch_ms = round((time.monotonic() - self._planned_at_s) * 1000)
        self._planned_at_s = None
        tails, now_ms = self._logs.tails_and_time()
        waits_ms = self._options.idle_wait_ms if self._target_offset is None else 0
        is_idle = waits_ms and not any(offsets.lag(position, tails).values())
        if is_idle and self._logs.wait(position, waits_ms):
            tails, now_ms = self._logs.tails_and_time()
        self._tails = tails
        self._check(position, position, tails)
        self._register(position, (tails, now_ms), must=self._registered is None)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        until = offsets.at_most(tails, self._target_offset)
        if self._logs.placement.base:
            until = offsets.parents_first(position, until, self._logs.placement, self._logs.finished)
        if (bytes_max := self._options.max_bytes_per_trigger) is not None:
            fit = self._rows_within(bytes_max, position, until)
            rows = fit if rows is None else min(rows, fit)
        end = offsets.advance(position, until, rows)
        self._planned = start if end == position else offsets.to_json(end, self._of)
        self._planned_at_s = None if end == position else time.monotonic()
        return self._planned

    def _rows_within(self, bytes_max: int, position: offsets.Offset, until: offsets.Offset) -> int:
        """Return how many rows have about so many bytes, by the entry of each partition that comes next."""
        waiting = {p: rows for p, rows in offsets.lag(position, until).items() if rows}
        # One partition at a time, since an entry may have megabytes; the batch reads these entries anyway.
        looked = {p: self._logs.entry_from(p, until[p].rows - rows + 1) for p, rows in waiting.items()}
        sizes = {p: each[3] / max(1, each[1] - each[0]) for p, each in looked.items() if each is not None}
        return offsets.rows_within(bytes_max, waiting, sizes)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the logs, so that progress events show the lag in rows."""
        return offsets.to_json(self._tails) if self._tails else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ReadTask]:
        """Return the tasks of a micro-batch.

        After a restart Spark also calls this for the interrupted batch, without ``latestOffset``; then
        this method checks the logs.
        """
        since, until = offsets.from_json(start, self._of), offsets.from_json(end)
        parts = offsets.slices(since, until)
        if not parts:
            return []
        if end != self._planned:
            self._check(since, until, self._logs.tails())
        return self._tasks(parts)

    def _check(self, since: offsets.Offset, until: offsets.Offset, tails: offsets.Offset) -> None:
        """Refuse to go on from ``since`` if the table, a log or the reader's position does not fit.

        The rows up to ``until`` may have been read already.
        """
        o = self._options
        if o.sink is not None:
            check_holds(*o.sink, {p: at.rows for p, at in sorted(since.items())})
        for p, loss in offsets.find_losses(until, tails).items():
            report_loss(
                f"The acked log of partition {p} of {o.app}.{o.stream} ({o.processor}) was read up to row "
                f"{until[p].rows}, and {loss.value}.",
                fail=o.fail_on_data_loss,
            )
        if self._is_checked:
            return
        registered, _ = self._logs.registered()
        for p, before in offsets.find_stepped_back(since, registered, tails).items():
            here = since.get(p, START)
            self._refuse(f"was at row {before.rows} of partition {p}", f"goes on from row {here.rows}")
        self._is_checked = True

    def _check_is_new(self, tails: offsets.Offset) -> None:
        """Refuse to begin anew under the name of a reader that has read rows.

        If the reader had registered its first position only, Spark was ended before it stored the first
        offset, and the query may begin.
        """
        if self._is_checked:
            return
        registered, begins = self._logs.registered()
        read = [p for p, at in registered.items() if at.log and at.log == tails.get(p, START).log]
        if read and not begins:
            self._refuse(f"was at row {registered[read[0]].rows} of partition {read[0]}", "begins anew")
        self._is_checked = True

    def _refuse(self, was: str, now: str) -> None:
        o = self._options
        report_loss(
            f"Reader {o.reader!r} {was} of {o.app}.{o.stream} ({o.processor}), and its query {now}: the "
            "checkpoint directory was lost or is an older one, or another query has the same name.",
            fail=o.fail_on_data_loss,
            remedy="Restore the checkpoint directory. Or begin anew: give the query a new checkpoint "
            "directory and a new table, and another reader name, or have this one forgotten (streamworker "
            f"repair APP --forget-reader {o.reader}).",
        )

    def commit(self, end: dict[str, Any]) -> None:
        """Register ``end`` in Redis: no row up to it is needed again. A failure only delays this.

        Usually ``latestOffset`` has already registered this position as its ``start``.
        """
        self._register(offsets.from_json(end), must=False)

    def _register(
        self, position: offsets.Offset, looked: tuple[offsets.Offset, int] | None = None, *, must: bool
    ) -> None:
        """Register a position; ``looked`` are the logs' tails and the server's time, if they are known."""
        document = offsets.to_json(position)
        is_fresh = time.monotonic() - self._registered_at_s < REGISTER_INTERVAL_S
        if is_fresh and document == self._registered:
            return
        try:
            tails, now_ms = looked or self._logs.tails_and_time()
            if self._registered is None and self._options.siblings:
                # The siblings first: as soon as this reader is registered, workers trim up to its position.
                self._logs.hold(self._options.siblings, tails, now_ms, retry=must)
            behind = any(tail.rows > position.get(p, START).rows for p, tail in tails.items())
            begins = position == self._first
            self._logs.register(position, now_ms, begins=begins, behind=behind, retry=must)
        except BackendError as error:
            if must:
                raise
            log.warning("The reader's position could not be registered in Redis: %s", error)
            return
        self._registered, self._registered_at_s = document, time.monotonic()
