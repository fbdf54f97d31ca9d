"""The flights in the demo's archive, read by programs that know nothing of streamworker."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds


def read_flights(folder: Path, schema: pa.Schema) -> pa.Table:
    """Return the archived flights with the types of the data set."""
    found = ds.dataset(folder, format="parquet", partitioning="hive")
    return found.to_table(columns=schema.names).cast(schema)


def counted(folder: Path) -> str:
    """Return a line that counts the archived records, and what it says: of DuckDB, if that is installed."""
    if find_spec("duckdb") is None:
        line = f"pyarrow.dataset.dataset({str(folder)!r}).count_rows()"
        return f"{line}\n  {ds.dataset(folder, format='parquet').count_rows():,}"
    import duckdb

    query = f"SELECT count(*) FROM '{folder}/*/*.parquet'"  # noqa: S608 - a folder of our own
    found: Any = duckdb.sql(query)
    ((rows,),) = found.fetchall()
    return f'duckdb.sql("{query}")\n  {rows:,}'
