"""Pipelines into a Delta table: each batch once, whatever was killed, lost or changed before."""

import datetime as dt
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker.errors import ConfigurationError, DataLoss
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.session import Session
from streamworker.spark.sinks.deltalake import DeltaLake
from tests.spark.acked import AckedLog
from tests.spark.arrow import Rows
from tests.spark.running import run_once
from tests.spark.specs import pipeline, same

pytestmark = pytest.mark.usefixtures("in_tmp_path")

TABLE = Path("lake/priced")
LIMIT = {"maxRowsPerTrigger": "5"}
LAST = dt.datetime(9999, 12, 31, 3, 30, tzinfo=dt.UTC)


def delta(function: Any = same, **given: Any) -> Any:
    return pipeline(function, **{"format": "deltalake", "path": str(TABLE), "options": LIMIT, **given})


def numbers() -> list[int]:
    return sorted(DeltaTable(TABLE).to_pyarrow_table()["n"].to_pylist())


def of_time(frame: DataFrame) -> DataFrame:
    """Return rows with a time, a partition and an interval."""
    at = F.lit(LAST).cast("timestamp")
    return frame.withColumns({"at": at, "lasts": F.expr("interval 1 second"), "odd": F.col("n") % 2})


def test_a_delta_table_is_the_same_for_every_reader(spark_session: Session, acked: AckedLog) -> None:
    """With partitions, times of any year, and a column that newer workers forward."""
    spec = delta(of_time, options={**LIMIT, "partitionBy": "odd"})
    acked.fill(0, [9])
    assert run_once(spark_session, spec) == (0, "")
    assert DeltaTable(TABLE).metadata().partition_columns == ["odd"]
    newer = pa.record_batch({"n": [100], "user": ["u"], "amount": [1.0], "extra": [7]})
    acked.append(0, newer)
    assert run_once(spark_session, spec) == (0, "")
    files = DeltaTable(TABLE).file_uris()
    rows = DeltaTable(TABLE).to_pyarrow_table()
    read: dict[str, list[dict[str, Any]]] = {
        "pyarrow": rows.to_pylist(),
        "pandas": DeltaTable(TABLE).to_pandas().to_dict("records"),
        "polars": pl.read_delta(str(TABLE)).to_dicts(),
        "duckdb": duckdb.from_arrow(rows).to_arrow_table().to_pylist(),
        "spark": [row.asDict() for row in spark_session.spark.read.parquet(*files).collect()],
    }
    for name, found in read.items():
        assert sorted(row["n"] for row in found) == acked.numbers(), name
    for name in ("pyarrow", "polars", "duckdb"):
        assert {row["at"] for row in read[name]} == {LAST}, name
        assert {row["lasts"] for row in read[name]} == {1_000_000}, name
        assert {row["n"]: row["extra"] for row in read[name] if row["extra"]} == {100: 7}, name


def test_a_batch_of_a_delta_table_that_runs_again_changes_nothing(
    spark_session: Session, tmp_path: Path
) -> None:
    """Also one without rows; a batch whose predecessor the table lacks is refused."""
    (checkpoint := tmp_path / "ck").mkdir()
    (checkpoint / "metadata").write_text('{"id": "12345678-aaaa"}')
    spark, each = spark_session.spark, DeltaLake(path=str(TABLE), checkpoint=str(checkpoint))
    TABLE.mkdir(parents=True)
    (TABLE / "part-0.parquet").write_bytes(b"of a first batch that was killed")
    for frame, batch in ((spark.range(3), 0), (spark.range(9), 0), (spark.range(0), 1), (spark.range(9), 1)):
        each(frame.withColumnRenamed("id", "n"), batch)
    assert numbers() == [0, 1, 2]
    with pytest.raises(DataLoss, match="does not hold batch 2"):
        each(spark.range(9), 3)
    with pytest.raises(ConfigurationError, match=r"Column 'n' of the table .*long.*double"):
        each(spark.range(1).select(F.lit(1.5).alias("n")), 2)
    assert numbers() == [0, 1, 2]


def test_the_first_batch_of_two_drivers_is_there_once(tmp_path: Path) -> None:
    """On a shared mount nothing locks them; and one may be killed when it has made the table."""
    query = "12345678-aaaa"
    (checkpoint := tmp_path / "ck").mkdir()
    (checkpoint / "metadata").write_text(f'{{"id": "{query}"}}')
    rows = Rows(pa.table({"n": [1, 2], "day": ["a", "b"]}))
    for name, given in (("whole", {"whole": True}), ("divided", {"partition_by": ("day",)})):
        each = DeltaLake(path=str(TABLE / name), checkpoint=str(checkpoint), **given)
        with each.opened() as one, each.opened() as other:
            each.write(one, rows, query, 0)
            each.write(other, rows, query, 0)
        assert DeltaTable(str(TABLE / name)).to_pyarrow_table().num_rows == 2
    made = CommitProperties(app_transactions=[Transaction(query, -1)])
    path = str(TABLE / "killed")
    DeltaTable.create(path, Schema.from_arrow(rows.table.schema), commit_properties=made)
    DeltaLake(path=path, checkpoint=str(checkpoint))(rows, 0)
    assert DeltaTable(path).to_pyarrow_table().num_rows == 2


def test_a_delta_table_or_a_checkpoint_that_is_not_the_one_is_refused(
    spark_session: Session, acked: AckedLog
) -> None:
    """Lost, older, another's, or files of which nobody knows the batches."""
    spec = delta()
    checkpoint = TABLE.parent / ".streamworker" / TABLE.name / spec.name / "checkpoint"
    for name in ("older", "newer"):
        acked.fill(0, [4])
        assert run_once(spark_session, spec) == (0, "")
        shutil.copytree(checkpoint, f"{name}-checkpoint")
        shutil.copytree(TABLE, f"{name}-table")
    acked.fill(0, [4])
    for lost in ("other", "older-checkpoint"):
        shutil.rmtree(checkpoint, ignore_errors=True)
        if Path(lost).exists():
            shutil.copytree(lost, checkpoint)
        with pytest.raises(ConfigurationError, match="written from another checkpoint directory"):
            run_pipelines([spec], session=spark_session, once=True)
    for put in ("none", "older-table"):
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.copytree("newer-checkpoint", checkpoint)
        shutil.rmtree(TABLE, ignore_errors=True)
        if Path(put).exists():
            shutil.copytree(put, TABLE)
        code, error = run_once(spark_session, spec)
        assert code == 1
        assert "does not hold batch 1, which its query has committed" in error
    Path("lake/files").mkdir()
    Path("lake/files/some.parquet").write_bytes(b"")
    other = replace(spec, name="other", path="lake/files")
    for wrong, says in (
        (other, "holds files already"),
        (replace(other, path="lake/new", options={"partitionBy": "town"}), "partitionBy with town"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            run_pipelines([wrong], session=spark_session, once=True)
    # The way out that the message tells.
    onward = replace(spec, name="onward", path="lake/onward")
    assert run_once(spark_session, onward) == (0, "")
    found = DeltaTable("lake/onward").to_pyarrow_table()["n"].to_pylist()
    assert sorted(found) == acked.numbers()


def test_an_aggregate_replaces_the_whole_delta_table(spark_session: Session, acked: AckedLog) -> None:
    """In one commit: a reader sees the result of one batch."""
    spec = delta(lambda frame: frame.groupBy("user").agg(F.count("*").alias("orders")))
    acked.fill(0, [7])
    assert run_once(spark_session, spec) == (0, "")
    versions = range(DeltaTable(TABLE).version() + 1)
    totals = [sum(DeltaTable(TABLE, version=v).to_pyarrow_table()["orders"].to_pylist()) for v in versions]
    assert totals == [0, 5, 7], "first the table without rows"
