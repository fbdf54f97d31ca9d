"""Our source as most Python sources are written: it hands Spark one tuple for each row."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from streamworker.spark.options import parse_options
from streamworker.spark.source import LogBatchReader, StreamworkerDataSource

NAME = "streamworker_row_by_row"


class RowByRowSource(DataSource):
    """The same rows from the same log, in the same tasks."""

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
    """Takes the record batches of the real reader apart.

    Parameters
    ----------
    reader
        The real one.
    """

    def __init__(self, reader: LogBatchReader) -> None:
        self._reader = reader

    def partitions(self) -> Sequence[InputPartition]:
        """Return the same tasks."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of one task."""
        for batch in self._reader.read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
