"""Read the committed rows of Spark's Parquet table, without Spark.

Spark's file sink writes files first and then lists them in ``_spark_metadata``. A file that is not
listed belongs to a micro-batch that did not finish: to read it would count its rows twice. A table
without that directory is a whole result, see ``spark.sink``.
"""

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq


def committed_files(table: Path) -> list[Path]:
    """Return the committed Parquet files of a table; none if there is no table yet."""
    log = table / "_spark_metadata"
    if not log.is_dir():
        return sorted(table.glob("*.parquet"))
    # Every tenth file, such as "9.compact", repeats all before it. Incomplete files are hidden ones.
    batches = (file for file in log.iterdir() if file.stem.isdigit())
    return sorted({table / name for batch in batches for name in _added(batch)})


def _added(log_file: Path) -> list[str]:
    _version, *lines = log_file.read_text("utf-8").splitlines()
    actions = (json.loads(line) for line in lines)
    return [unquote(Path(action["path"]).name) for action in actions if action["action"] == "add"]


def read_table(table: Path, columns: list[str] | None = None) -> pa.Table:
    """Read the committed rows of a table; a table without columns if nothing is committed."""
    parts = [pq.read_table(file, columns=columns, partitioning=None) for file in committed_files(table)]
    return pa.concat_tables(parts) if parts else pa.table({})


def count_rows(table: Path) -> int:
    """Return the number of committed rows, from the metadata of the files."""
    return sum(pq.read_metadata(file).num_rows for file in committed_files(table))
