"""The sink of ``parquet-batches`` into an object store, where nothing can be renamed.

Each micro-batch is one object, whose name says the query and the number of the batch:

    s3://lake/orders/batch=5f0c8e7a-000011/part-00000.parquet
    s3://lake/orders/.last        names the last batch: 5f0c8e7a-000011

An object appears whole, and is put only if there is none of its name. So a batch that runs again after a
kill, with its rows in another order, leaves what readers have seen, and adds nothing. The mark comes after
it, and only in the place of the one that was read: a driver that another has passed cannot set it back. The
first mark, of batch -1, comes before the first object: of two queries one gets the table.

A batch of several objects, such as one for each value of a column, would appear piece by piece, and a value
that changes when the batch runs again would leave a piece too many. So there is one.

The rows pass through the driver as Arrow, all at once. Imports pyarrow and obstore where they are used, since
with a remote Spark this module runs on the server.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from streamworker.errors import ArchiveUnavailable
from streamworker.spark.sinks.sink import (
    BATCH_COLUMN,
    LAST,
    OncePerBatch,
    batch_of,
    name_of,
    refuse_files,
)

if TYPE_CHECKING:
    from streamworker.archive.store import Found, Store


@dataclass(frozen=True, kw_only=True)
class ObjectBatches(OncePerBatch):
    """Adds each batch to a table as one object; ``path`` holds nothing else."""

    needs: ClassVar[str] = "obstore"

    def opened(self) -> AbstractContextManager["Found | None"]:
        """Return the mark, which is replaced only as it was read here; None if there is none."""
        return nullcontext(self._store.get(LAST))

    def last(self, mark: "Found | None", query: str) -> int | None:
        """Read the mark; without one, refuse objects of which nothing tells the batches."""
        if mark is not None:
            return batch_of(mark.body.decode(), query)
        refuse_files(self.path)
        return -1

    def write(self, mark: "Found | None", result: Any, query: str, batch: int) -> None:
        """Put the rows if they are not there, and then the mark."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from streamworker.archive.store import Found

        if mark is None:
            self._store.check_conditions(LAST, name_of(query, -1).encode())
            mark = self._store.get(LAST) or Found(b"", {})  # Another query's, if somebody has removed it.
            if self._check(mark, query, batch) == batch:
                return
        rows = result.toArrow()
        if rows.num_rows:
            body = pa.BufferOutputStream()
            # Without Arrow's schema: it has the session's zone, and intervals that Spark writes as numbers.
            pq.write_table(rows, body, store_schema=False)
            name = f"{BATCH_COLUMN}={name_of(query, batch)}/part-00000.parquet"
            self._store.put_new(name, body.getvalue().to_pybytes())
        if self._store.replace(LAST, name_of(query, batch).encode(), mark.version):
            return
        if self.last(self._store.get(LAST), query) != batch:  # It is, if the answer to the put was lost.
            raise ArchiveUnavailable(
                f"Batch {batch} was not marked in the table {self.path}: another driver changed the mark.",
                remedy="The batch is tried again; make sure that only one driver runs the pipeline.",
            )

    @property
    def _store(self) -> "Store":
        from streamworker.archive.store import store_at

        return store_at(self.path)
