"""The application that `test_masters` runs on every kind of Spark: the shop's pipelines into each sink.

The test copies this file to `app.py` of a folder of its own. `broken` fails for good, and stops no other.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from tasks import put, same  # type: ignore[import-not-found]  # a file beside this one, where it runs

from streamworker import App

app = App("shop")
SETTINGS = "spark.master", "spark.sql.shuffle.partitions", "spark.executor.memory"


@dataclass
class Priced:
    order_id: int
    customer: str
    total: float
    placed_at: datetime


@dataclass
class Alert:
    customer: str
    reason: str


orders = app.stream("orders", Priced, key="customer", partitions=2)
found = app.stream("found", Alert, key="customer", partitions=2)


@app.processor(orders, forward=True)
def price(order: Priced) -> Priced:
    return order


@app.processor(found, forward=True)
def sum_up(alert: Alert) -> Alert:
    return alert


@app.pipeline(price, path="lake/rows", options={"maxRowsPerTrigger": "20000"})
def rows(frame: DataFrame) -> DataFrame:
    """Append each row, with the task that read it; and tell what the session has set."""
    conf = frame.sparkSession.conf
    Path("seen.json").write_text(json.dumps({key: conf.get(key, None) for key in SETTINGS}))
    return frame.withColumn("task", sf.spark_partition_id())


@app.pipeline(price, path="lake/spent")
def spent(frame: DataFrame) -> DataFrame:
    """Sum up without a watermark: a whole result, on every kind of Spark."""
    return frame.groupBy("customer").agg(sf.sum("total").alias("spent"), sf.count("*").alias("orders"))


@app.pipeline(price, path="lake/hourly", mode="append")
def hourly(frame: DataFrame) -> DataFrame:
    return (
        frame.withWatermark("placed_at", "10 minutes")
        .groupBy(sf.window("placed_at", "1 hour"), "customer")
        .agg(sf.sum("total").alias("spent"), sf.count("*").alias("orders"))
    )


@app.pipeline(price, sum_up, path="lake/alerts", options={"includeMetadata": "true"})
def alerts_with_orders(frame: DataFrame, alerts: DataFrame) -> DataFrame:
    left = frame.withWatermark("_acked_at", "5 minutes").alias("row")
    right = alerts.withWatermark("_acked_at", "5 minutes").alias("alert")
    within = "alert._acked_at between row._acked_at and row._acked_at + interval 5 minutes"
    joined = left.join(right, sf.expr(f"row.customer = alert.customer and {within}"))
    return joined.select("row.order_id", "alert.customer", "alert.reason")


@app.pipeline(price, path="lake/batches", format="parquet-batches")
def batches(frame: DataFrame) -> DataFrame:
    """Call a function of a module of the user's own in tasks."""
    if not frame.sparkSession.conf.get("spark.submit.pyFiles", ""):
        frame.sparkSession.addArtifacts("tasks.py", pyfile=True)
    return frame.select("order_id").mapInArrow(same, "order_id long")


@app.pipeline(price, path="lake/delta", format="deltalake")
def to_lake(frame: DataFrame) -> DataFrame:
    return frame.withColumn("day", sf.to_date("placed_at"))


if "WAREHOUSE" in os.environ:

    @app.pipeline(price, format="postgres", dsn_env="WAREHOUSE", table="orders", upsert=["order_id"])
    def warehouse(frame: DataFrame) -> DataFrame:
        return frame.select("order_id", "customer", "total", "placed_at")


@app.pipeline(price, write=put)
def own(frame: DataFrame) -> DataFrame:
    return frame.select("order_id", "placed_at")


@app.pipeline(price, path="lake/broken")
def broken(frame: DataFrame) -> DataFrame:
    def fail(parts: Iterator[pa.RecordBatch]) -> NoReturn:
        raise ModuleNotFoundError("No module named 'nowhere'")

    return frame.select("order_id").mapInArrow(fail, "order_id long")
