"""Reads as Spark makes them, in this process: the source's planner and its tasks, without a JVM."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from streamworker.spark.source.datasource import (
    LogBatchReader,
    LogStreamReader,
    ReadTask,
    StreamworkerDataSource,
)
from streamworker.spark.source.options import parse_options
from streamworker.spark.source.schema import arrow_target, spark_schema
from tests.spark.acked import ORDER


def stream_reader(options: Mapping[str, str]) -> LogStreamReader:
    """Return what Spark calls for a streaming query over rows of ``tests.spark.acked``."""
    parsed = parse_options(options, streaming=True)
    return LogStreamReader(parsed, spark_schema(ORDER, parsed))


def batch_reader(options: Mapping[str, str]) -> LogBatchReader:
    """Return what Spark calls for a batch read of them."""
    parsed = parse_options(options, streaming=False)
    return LogBatchReader(parsed, spark_schema(ORDER, parsed))


def numbers_of(reader: LogBatchReader | LogStreamReader, tasks: Sequence[ReadTask]) -> list[int]:
    """Return the numbers of the rows of tasks, in the order in which they are read."""
    return [n for task in tasks for batch in reader.read(task) for n in batch["n"].to_pylist()]


def read(options: Mapping[str, str], schema: StructType | None = None) -> pa.Table:
    """Return the rows of a batch read, with a schema of its own or the columns that Spark is told of."""
    source = StreamworkerDataSource({**options})
    schema = schema or source.schema()
    reader: Any = source.reader(schema)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return pa.Table.from_batches(batches, arrow_target(schema))


class Query:
    """A streaming query: its position, which Spark keeps in the checkpoint directory, and its table.

    With the position of another query it goes on from there.
    """

    def __init__(self, options: Mapping[str, str], position: dict[str, Any] | None = None) -> None:
        self.reader = stream_reader(options)
        self.position = self.reader.initialOffset() if position is None else position
        self.table: list[int] = []

    def batch(self, limit: ReadLimit | None = None) -> list[int]:
        """Do a micro-batch, of all rows but for a limit; return the numbers of its rows."""
        end = self.reader.latestOffset(self.position, limit or self.reader.getDefaultReadLimit())
        rows = numbers_of(self.reader, self.reader.partitions(self.position, end))
        self.position = end
        self.table += rows
        return rows

    def run(self) -> list[int]:
        """Read what is there now, as with trigger ``availableNow``; return the numbers in the table."""
        self.reader.prepareForTriggerAvailableNow()
        while self.batch():
            pass
        return sorted(self.table)
