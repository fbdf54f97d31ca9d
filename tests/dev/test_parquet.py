"""Reading a table of Spark's file sink: only what is committed."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streamworker.dev.parquet import committed_files, count_rows, read_table


def write_batch(table: Path, batch: str, rows: dict[str, list[int]]) -> None:
    """Write files and the log entry that names them, as Spark's file sink does."""
    log = table / "_spark_metadata"
    log.mkdir(parents=True, exist_ok=True)
    lines = ["v1"]
    for name, values in rows.items():
        pq.write_table(pa.table({"n": values}), table / name)
        lines.append(json.dumps({"path": f"file://{table}/{name}", "size": 1, "action": "add"}))
    (log / batch).write_text("\n".join(lines))


def test_a_file_that_no_batch_names_is_not_read(tmp_path: Path) -> None:
    """A micro-batch that was interrupted leaves files that do not count, until a batch names them."""
    write_batch(tmp_path, "0", {"a.parquet": [1, 2]})
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "left-over.parquet")

    assert [file.name for file in committed_files(tmp_path)] == ["a.parquet"]
    assert read_table(tmp_path)["n"].to_pylist() == [1, 2]
    before = count_rows(tmp_path)
    write_batch(tmp_path, "1", {"left-over.parquet": [3]})
    assert (before, count_rows(tmp_path)) == (2, 3)


def test_a_compacted_log_stands_for_all_before_it(tmp_path: Path) -> None:
    """9.compact names the files of 0 to 9; 10 comes on top."""
    write_batch(tmp_path, "9.compact", {"a.parquet": [1], "b%20c.parquet": [2]})
    write_batch(tmp_path, "10", {"d.parquet": [3, 4]})
    (tmp_path / "_spark_metadata" / ".11.tmp").write_text("half")
    (tmp_path / "b%20c.parquet").rename(tmp_path / "b c.parquet")

    assert sorted(read_table(tmp_path)["n"].to_pylist()) == [1, 2, 3, 4]


def test_a_directory_without_a_log_is_a_whole_result(tmp_path: Path) -> None:
    """All its Parquet files are the table."""
    pq.write_table(pa.table({"n": [5]}), tmp_path / "part-0.parquet")

    assert read_table(tmp_path, columns=["n"])["n"].to_pylist() == [5]


def test_a_table_that_is_not_there_yet_has_no_rows(tmp_path: Path) -> None:
    """Before Spark's first micro-batch."""
    assert read_table(tmp_path / "not-yet").num_rows == 0
    assert count_rows(tmp_path / "not-yet") == 0
