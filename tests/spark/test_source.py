"""The source on real Spark: every row of the logs once, in every way of asking."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.acked import AckedLog


def test_a_stream_written_to_parquet_equals_the_log(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """Every row that was acked is in the table once."""
    acked.fill(0, [3, 5, 1000])
    acked.fill(1, [7])
    query = (
        spark.readStream.format("streamworker")
        .options(**acked.options())
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "table"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "table")).orderBy("n").collect()
    assert [row.n for row in rows] == acked.numbers()
    assert rows[0].user == "user-0"
