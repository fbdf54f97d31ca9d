"""Short ways to run queries over an acked log, for tests."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.helpers import wait_for


def rows(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.readStream.format("streamworker").options(**options).load()


def batch(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("streamworker").options(**options).load()


def start(
    frame: DataFrame, folder: Path, *, trigger: Mapping[str, Any] | None = None, mode: str = "append"
) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").outputMode(mode)
    writer = writer.option("path", str(folder / "table")).option("checkpointLocation", str(folder / "ck"))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def run(spark: SparkSession, options: Mapping[str, str], folder: Path) -> StreamingQuery:
    query = start(rows(spark, options), folder)
    query.awaitTermination()
    return query


def table(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.n for row in spark.read.parquet(str(folder / "table")).select("n").collect())


def wait_for_rows(query: StreamingQuery, count: int) -> None:
    def arrived() -> bool:
        error = query.exception()
        assert error is None, str(error)
        return sum(int(event["numInputRows"]) for event in query.recentProgress) >= count

    wait_for(arrived, f"the query has written {count} rows", timeout_s=60)


def wait_for_stuck(query: StreamingQuery, seconds: float) -> None:
    """Wait until a query has been in one and the same trigger for so long, without ending."""
    since = time.monotonic()

    def is_stuck() -> bool:
        nonlocal since
        assert query.exception() is None, str(query.exception())
        if not query.status["isTriggerActive"]:
            since = time.monotonic()
        return time.monotonic() - since > seconds

    wait_for(is_stuck, f"the query has waited for {seconds} s", timeout_s=30)
