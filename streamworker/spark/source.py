"""``format("streamworker")``: the acked logs as a batch and a streaming source of Spark.

Exactly once in Spark's sinks rests on three things. The rows of a log never change, and an
offset names them exactly, so a micro-batch that is run again reads the same rows. A position
is told to Redis only when Spark has it in its commit log, so trimming keeps what a restart
needs. And a log that is not the one that was read (deleted, made again, rolled back by a
restore) is noticed, and never read past in silence.

Spark calls ``commit(end)`` for a batch only when it plans the next one, and so never for its
last. But the ``start`` of ``latestOffset(start, limit)`` is always a committed offset. So the
position is told from both.

So a query that begins anew under a reader's name, or before the position that is kept there, is not
the one that was there: its checkpoint directory was lost, or is an older copy. Its rows would be in
the table twice, or left out: Spark's file sink skips a batch whose number it has. It is refused.

Examples
--------
>>> rows = (                                                        # doctest: +SKIP
...     spark.readStream.format("streamworker")
...     .option("app", "shop").option("stream", "orders").option("processor", "price")
...     .load()
... )
"""

# Spark gives the methods their names.
# ruff: noqa: N802

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

from streamworker.errors import BackendError, ConfigurationError
from streamworker.spark import offsets
from streamworker.spark.logs import AckedLogs, lose
from streamworker.spark.offsets import START, Position, Slice
from streamworker.spark.options import Offsets, SourceOptions, Where, parse_options
from streamworker.spark.schema import METADATA_NAMES, Coalescer, Conformer, arrow_target, spark_schema

log = logging.getLogger(__name__)

FORMAT = "streamworker"

REGISTER_INTERVAL_S = 5.0
"""A position that does not move is still told this often, so that a live reader can be told
from one that is gone."""

HEARD_S = 2.5
"""After so long all workers have heard of a new reader: longer than their ``trim_interval_ms``, 2 s unless
it is set. Until then they trim by the readers that they know of, and would take its first rows. Only a
query that begins in a log that was trimmed already waits for it, once."""


@dataclass
class Task(InputPartition):
    """What one Spark task reads. Not a partition of the stream, but parts of some of them."""

    parts: tuple[Slice, ...]


class StreamworkerDataSource(DataSource):
    """The rows that a processor forwarded; docs/spark.md lists the options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the type of the rows as the processor forwards them now.

        Raises
        ------
        ConfigurationError
            For a wrong option, or a processor that has not forwarded anything yet.
        """
        options = parse_options(self.options)
        return spark_schema(AckedLogs(options).schema(), include_metadata=options.include_metadata)

    def reader(self, schema: StructType) -> "LogBatchReader":
        """Return the reader behind ``spark.read``."""
        return LogBatchReader(parse_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> "LogStreamReader":
        """Return the reader behind ``spark.readStream``."""
        return LogStreamReader(parse_options(self.options, streaming=True), schema)


def read_rows(options: SourceOptions, target: pa.Schema, task: Task) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows in the declared schema; runs on the executors."""
    logs = AckedLogs(options)
    conformer = Conformer(target, include_metadata=options.include_metadata)
    coalescer = Coalescer()
    for part in task.parts:
        for entry in logs.read(part):
            yield from coalescer.add(conformer.conform(entry))
    yield from coalescer.flush()


def plan_tasks(options: SourceOptions, parts: list[Slice]) -> Sequence[Task]:
    """Split and pack slices into the tasks that the options ask for."""
    cut = offsets.split(parts, options.min_partitions)
    return [Task(packed) for packed in offsets.pack(cut, options.max_partitions)]


def locate(options: SourceOptions, logs: AckedLogs, wanted: Offsets) -> dict[int, Position]:
    """Turn ``startingOffsets`` or ``endingOffsets`` into positions.

    Raises
    ------
    ConfigurationError
        For a row that the log does not have yet, or a partition that is not there.
    DataLoss
        For a row that was trimmed, unless the query said ``failOnDataLoss=false``.
    """
    tails = logs.tails()
    unknown = sorted(set(wanted.each) - set(tails))
    if unknown:
        raise ConfigurationError(
            f"Offsets are given for partition {unknown[0]}, and the stream has {len(tails)} partitions.",
            remedy=f"They are numbered 0 to {len(tails) - 1}.",
        )
    firsts = logs.first_positions({p: tail for p, tail in tails.items() if wanted.of(p) != "latest"})
    return {p: _place(options, p, wanted.of(p), firsts.get(p, START), tail) for p, tail in tails.items()}


def _place(options: SourceOptions, p: int, where: Where, first: Position, tail: Position) -> Position:
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
        lose(
            f"Offset {where} is given for partition {p}, whose rows up to {first.rows} were trimmed.",
            fail=options.fail_on_data_loss,
        )
        return first
    return Position(where, tail.log)


class LogBatchReader(DataSourceReader):
    """Reads the logs once, from ``startingOffsets`` to ``endingOffsets``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._target = arrow_target(schema)

    def partitions(self) -> Sequence[Task]:
        """Return the tasks; the end is fixed now, so rows that come later are left out."""
        logs = AckedLogs(self._options)
        start = locate(self._options, logs, self._options.starting_offsets)
        end = locate(self._options, logs, self._options.ending_offsets)
        return plan_tasks(self._options, offsets.slices(start, end)) or [Task(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_rows(self._options, self._target, cast(Task, partition))


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the logs as they grow.

    One lives in the planner process as long as its query; ``read`` runs elsewhere, on copies.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._target = arrow_target(schema)
        self._logs = AckedLogs(options)
        self._tails: dict[int, Position] = {}
        self._target_offset: dict[int, Position] | None = None
        self._planned: dict[str, Any] | None = None
        """The end of the batch that was planned last, by a look at the logs."""
        self._registered: dict[str, Any] | None = None
        self._registered_at_s = 0.0
        self._goes_on = options.reader is None
        """Whether it is known that the query goes on from where its reader was."""
        self._first: dict[int, Position] | None = None
        """Where a new query begins."""

    # -- planning ----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins, and hold trimming there."""
        start = locate(self._options, self._logs, self._options.starting_offsets)
        tails, now_ms = self._logs.tails_and_time()
        self._check_is_new(tails)
        self._first = start
        self._register(start, tails, now_ms, must=True)
        if self._options.reader and any(0 < at.rows < tails[p].rows for p, at in start.items()):
            # Somebody trims these logs, for readers that may be far ahead of this one.
            time.sleep(HEARD_S)
        # What was trimmed in between is not there any more; from here on nothing is.
        again = locate(self._options, self._logs, self._options.starting_offsets)
        self._first = {p: again[p] if again[p].rows > at.rows else at for p, at in start.items()}
        return offsets.to_json(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxRowsPerTrigger``."""
        limit = self._options.max_rows_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a query that reads what is there and stops."""
        self._target_offset = self._logs.tails()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends, at most ``limit`` rows behind ``start``.

        Raises
        ------
        DataLoss
            If a log is not the one that was read up to ``start``, or is shorter, unless the
            query said ``failOnDataLoss=false``.
        """
        position = offsets.from_json(start)
        tails, now_ms = self._logs.tails_and_time()
        self._tails = tails
        self._report(position, tails)
        self._check_goes_on(position, tails)
        self._register(position, tails, now_ms, must=self._registered is None)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = offsets.advance(position, offsets.at_most(tails, self._target_offset), rows)
        self._planned = start if end == position else offsets.to_json(end)
        return self._planned

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the logs, so that progress events show the lag in rows."""
        return offsets.to_json(self._tails) if self._tails else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Task]:
        """Return the tasks of a micro-batch.

        Also called after a restart for the batch that was under way, without
        ``latestOffset``: then the logs are looked at here.
        """
        since, until = offsets.from_json(start), offsets.from_json(end)
        parts = offsets.slices(since, until)
        if not parts:
            return []
        if end != self._planned:
            tails = self._logs.tails()
            self._report(until, tails)
            self._check_goes_on(since, tails)
        return plan_tasks(self._options, parts)

    def _report(self, position: offsets.Offset, tails: offsets.Offset) -> None:
        for p, loss in offsets.find_losses(position, tails).items():
            lose(
                f"The acked log of partition {p} of {self._options.app}.{self._options.stream} "
                f"({self._options.processor}) was read up to row {position[p].rows}, and {loss.value}.",
                fail=self._options.fail_on_data_loss,
            )

    def _check_is_new(self, tails: offsets.Offset) -> None:
        """Refuse to begin where the reader has read already.

        Where it was only about to begin, Spark did not come to write its first offset down.
        """
        if self._goes_on:
            return
        told, begins = self._logs.registered()
        read = [p for p, at in told.items() if at.log and at.log == tails.get(p, START).log]
        if read and not begins:
            self._refuse(f"was at row {told[read[0]].rows} of partition {read[0]}", "begins anew")
        self._goes_on = True

    def _check_goes_on(self, position: offsets.Offset, tails: offsets.Offset) -> None:
        """Refuse to go on before what was told under this reader's name."""
        if self._goes_on:
            return
        told, _ = self._logs.registered()
        for p, before in offsets.find_stepped_back(position, told, tails).items():
            here = position.get(p, START)
            self._refuse(f"was at row {before.rows} of partition {p}", f"goes on from row {here.rows}")
        self._goes_on = True

    def _refuse(self, was: str, now: str) -> None:
        o = self._options
        lose(
            f"Reader {o.reader!r} {was} of {o.app}.{o.stream} ({o.processor}), and its query {now}: the "
            "checkpoint directory was lost or is an older one, or another query has the same name.",
            fail=o.fail_on_data_loss,
            remedy="Restore the checkpoint directory. Or begin anew: give the query a new checkpoint "
            "directory and a new table, and another reader name, or have this one forgotten (streamworker "
            f"repair APP --forget-reader {o.reader}).",
        )

    # -- reading -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; may run more than once for it."""
        return read_rows(self._options, self._target, cast(Task, partition))

    # -- positions ---------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Tell Redis that nothing up to ``end`` is needed again; a failure only delays it.

        Mostly it has been told already: ``latestOffset`` began there.
        """
        if self._is_registered(end):
            return
        try:
            tails, now_ms = self._logs.tails_and_time()
            self._register(offsets.from_json(end), tails, now_ms, must=False)
        except BackendError as error:
            log.warning("The reader's position was not told to Redis: %s", error)

    def _register(self, position: offsets.Offset, tails: offsets.Offset, now_ms: int, *, must: bool) -> None:
        document = offsets.to_json(position)
        if self._is_registered(document):
            return
        try:
            if self._registered is None and self._options.siblings:
                # Before this one says anything: from then on workers trim by what readers have said.
                self._logs.hold(self._options.siblings, tails, now_ms, retry=must)
            self._logs.register(position, now_ms, begins=position == self._first, retry=must)
        except BackendError as error:
            if must:
                raise
            log.warning("The reader's position was not told to Redis: %s", error)
            return
        self._registered, self._registered_at_s = document, time.monotonic()

    def _is_registered(self, document: dict[str, Any]) -> bool:
        fresh = time.monotonic() - self._registered_at_s < REGISTER_INTERVAL_S
        return fresh and document == self._registered


__all__ = ["FORMAT", "METADATA_NAMES", "LogBatchReader", "LogStreamReader", "StreamworkerDataSource"]
