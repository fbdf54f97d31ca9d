"""Processed records as a Spark table.

A pipeline is a function from DataFrame to DataFrame over the rows that a processor forwarded. Spark
reads the acked logs by row number, without a consumer group, and continues from its own checkpoint
directory after a crash. In production `streamworker spark 06_spark_pipeline:app` runs the pipeline;
here `run_pipelines(..., once=True)` reads the present rows and ends. Spark needs Java 17 or later.
"""
# prints: ann 30.0, bob 70.0

import tempfile
from pathlib import Path

import anyio
import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from streamworker import App
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.testing import EmbeddedServer, local_worker, quiet_logs

app = App("shop")
lake = Path(tempfile.mkdtemp(prefix="lake-"))


class Order(msgspec.Struct):
    customer: str
    amount: float


orders = app.stream("orders", Order, key="customer", partitions=2)


@app.processor(orders, batch=100)
async def check(batch: list[Order]) -> list[Order]:
    return [order for order in batch if order.amount > 0]


@app.pipeline(check, trigger="10 seconds", path=str(lake / "revenue"), mode="complete")
def revenue(checked: DataFrame) -> DataFrame:
    return checked.groupBy("customer").agg(sf.sum("amount").alias("revenue"))


async def main() -> None:
    with EmbeddedServer() as server:
        async with local_worker(app, url=server.url) as worker:
            await orders.send_many(
                [Order("ann", 10.0), Order("bob", 70.0), Order("ann", 20.0), Order("bob", -1.0)]
            )
            await worker.until_drained()
            await anyio.to_thread.run_sync(lambda: run_pipelines(app, master="local[2]", once=True))
    table = pq.read_table(lake / "revenue").sort_by("customer").to_pylist()
    print(", ".join(f"{row['customer']} {row['revenue']}" for row in table))


if __name__ == "__main__":
    quiet_logs()
    anyio.run(main)
