"""A variant of streamworker's Spark source that returns one tuple for each row, as most Python sources do."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from streamworker.spark.source.datasource import LogBatchReader, StreamworkerDataSource
from streamworker.spark.source.options import parse_options

NAME = "streamworker_row_by_row"


class RowByRowSource(DataSource):
    """Reads the same rows of the same log, in the same tasks."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return NAME

    def schema(self) -> StructType:
        """Return the same schema."""
        return StreamworkerDataSource(dict(self.options)).schema()

    def reader(self, schema: StructType) -> "RowByRowReader":
        """Return the reader behind ``spark.read``."""
        return RowByRowReader(LogBatchReader(parse_options(self.options, streaming=False), schema))


class RowByRowReader(DataSourceReader):
    """Splits the record batches of streamworker's reader into rows."""

    def __init__(self, reader: LogBatchReader) -> None:
        self._reader = reader

    def partitions(self) -> Sequence[InputPartition]:
        """Return the same tasks."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of one task."""
        for batch in self._reader.read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
