"""The sink into a Delta table, by delta-rs.

Each micro-batch is one commit of the table, which names the query's id and the number of the batch as an
*application transaction*. A batch of which the table has the transaction is not written again.

The rows of a batch pass through the driver as Arrow, all at once: ``maxRowsPerTrigger`` is their limit.
Imports deltalake and pyarrow where they are used, since with a remote Spark this module runs on the server.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from streamworker.errors import ConfigurationError
from streamworker.spark.source.sink import OncePerBatch, refuse_files


@dataclass(frozen=True, kw_only=True)
class DeltaLake(OncePerBatch):
    """Appends each batch to a Delta table, or replaces the whole result."""

    partition_by: tuple[str, ...] = ()
    whole: bool = False
    """Whether a batch is the whole result."""
    needs: ClassVar[str] = "deltalake"

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Return the table as it is; None if there is none."""
        from deltalake import DeltaTable

        yield DeltaTable(self.path) if DeltaTable.is_deltatable(self.path) else None

    def last(self, table: Any, query: str) -> int | None:
        """Ask the table for the query's last transaction; where there is none, a new query refuses files."""
        if table is not None:
            version: int | None = table.transaction_version(query)
            return version
        if not query:  # A kill cannot have left them.
            refuse_files(Path(self.path))
        return -1

    def write(self, table: Any, result: Any, query: str, batch: int) -> None:
        """Write the rows and the number of the batch in one commit."""
        import pyarrow as pa
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake

        def once(number: int) -> CommitProperties:
            return CommitProperties(app_transactions=[Transaction(query, number)])

        rows = result.toArrow()
        for n, field in enumerate(rows.schema):
            if pa.types.is_duration(field.type):  # As Spark writes it to Parquet: Delta has no type for it.
                rows = rows.set_column(n, field.name, rows[n].cast(pa.int64()))
        if table is None:
            # A write by path looks at no transaction, so a driver that is still there would write it again.
            schema, by = Schema.from_arrow(rows.schema), list(self.partition_by) or None
            DeltaTable.create(self.path, schema, "ignore", by, commit_properties=once(-1))
            table = DeltaTable(self.path)
            if self._check(table, query, batch) == batch:
                return
        elif not self.whole:
            self._check_types(table, rows)
        write_deltalake(
            table,
            rows,
            mode="overwrite" if self.whole else "append",
            schema_mode="overwrite" if self.whole else "merge",
            partition_by=list(self.partition_by) or None,
            commit_properties=once(batch),
        )

    def _check_types(self, table: Any, rows: Any) -> None:
        """Refuse a column of another type: delta-rs would cast it, and 1.5 becomes 1 among whole numbers."""
        from deltalake import Schema

        has = {field.name: field.type for field in table.schema().fields}
        for field in Schema.from_arrow(rows.schema).fields:
            if has.get(field.name, field.type) != field.type:
                raise ConfigurationError(
                    f"Column {field.name!r} of the table {self.path} is {has[field.name]}, and that of the "
                    f"pipeline is {field.type}.",
                    remedy="Cast it in the pipeline's function; or give the pipeline a new path and name.",
                )
