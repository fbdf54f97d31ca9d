"""The sink into a Delta table, by delta-rs.

Each micro-batch is one commit of the table, which names the query's id and the number of the batch as an
*application transaction*. A batch of which the table has the transaction is not written again. A table in
an object store is the same: delta-rs puts each commit only if there is none of its number yet.

The rows of a batch pass through the driver as Arrow, all at once: ``maxRowsPerTrigger`` is their limit.
Imports deltalake and pyarrow where they are used, since with a remote Spark this module runs on the server.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from streamworker.errors import ArchiveUnavailable, ConfigurationError
from streamworker.spark.sinks.postgres import quoted
from streamworker.spark.sinks.sink import OncePerBatch, refuse_files

PLACE = "streamworker_place"
"""The column that numbers the rows of a batch."""


@dataclass(frozen=True, kw_only=True)
class DeltaLake(OncePerBatch):
    """Appends each batch to a Delta table, puts its rows in the place of their keys', or replaces all."""

    upsert: tuple[str, ...] = ()
    """Columns of the key, if a row replaces the one of its key."""
    partition_by: tuple[str, ...] = ()
    whole: bool = False
    """Whether a batch is the whole result."""
    needs: ClassVar[str] = "deltalake"

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Return the table as it is; None if there is none. What a store does not do may be tried again."""
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError, TableNotFoundError

        try:
            try:  # Not ``is_deltatable``, in which no other thread runs until the store answers.
                table = DeltaTable(self.path, storage_options=self._options)
            except TableNotFoundError:
                table = None
            yield table
        except (CommitFailedError, OSError) as error:
            if self._options is None:
                raise
            raise ArchiveUnavailable(
                f"The Delta table {self.path} was not written: {' '.join(str(error).split())[:300]}",
                remedy="The batch is tried again; look at the store, its credentials and rights.",
            ) from None

    @property
    def _options(self) -> dict[str, str] | None:
        return {"allow_http": "true"} if "://" in self.path else None

    def last(self, table: Any, query: str) -> int | None:
        """Ask the table for the query's last transaction; where there is none, a new query refuses files."""
        if table is not None:
            version: int | None = table.transaction_version(query)
            return version
        if not query:  # A kill cannot have left them.
            refuse_files(self.path)
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
            DeltaTable.create(
                self.path, schema, "ignore", by, storage_options=self._options, commit_properties=once(-1)
            )
            table = DeltaTable(self.path, storage_options=self._options)
            if self._check(table, query, batch) == batch:
                return
        elif not self.whole:
            self._check_types(table, rows)
        if self.upsert and rows.num_rows:  # A MERGE of no rows commits nothing, and so not the batch.
            same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self.upsert)
            merger = table.merge(
                self._last_of_each_key(rows), same, source_alias="s", target_alias="t", merge_schema=True,
                streamed_exec=False, commit_properties=once(batch),
            )  # fmt: skip
            merger.when_matched_update_all().when_not_matched_insert_all().execute()
            return
        write_deltalake(
            table,
            rows,
            mode="overwrite" if self.whole else "append",
            schema_mode="overwrite" if self.whole else "merge",
            partition_by=list(self.partition_by) or None,
            commit_properties=once(batch),
        )

    def _last_of_each_key(self, rows: Any) -> Any:
        """Return the rows without those whose key comes again: a MERGE takes one row for each.

        Refuse a null in a key: it equals no other, so each batch would add one more row.
        """
        import pyarrow as pa

        key = rows.select(self.upsert)
        for name in self.upsert:
            if key[name].null_count:
                raise ConfigurationError(
                    f"Column {name!r} of upsert has a null in the batch for the table {self.path}.",
                    remedy="Fill or filter it in the pipeline's function.",
                )
        key = key.append_column(PLACE, pa.array(range(key.num_rows)))
        last = key.group_by(list(self.upsert), use_threads=False).aggregate([(PLACE, "max")])[f"{PLACE}_max"]
        return rows if len(last) == rows.num_rows else rows.take(last)

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
