"""``python -m benchmarks.spark_history``: how Spark reads an archived log, beside plain Parquet.

A processor forwards rows of four columns, most of which are archived. Spark then reads all rows in four ways,
in turn: plain Parquet that it wrote itself, the segments alone, ``history`` (segments and log), and the
source alone. Each is a ratio to plain Parquet in the same round.
"""

import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
import typer

from streamworker import App, Archive
from streamworker.cli.output import say
from streamworker.dev.server import EmbeddedServer
from streamworker.log import get_logger
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.archive.logs import LogArchiver
from streamworker.spark import history
from streamworker.spark.driver.session import open_session, register
from streamworker.testing import local_worker, quiet_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = GroupKeys("lake", "orders", "price")
PARTITIONS = 2
AT_ONCE = 10_000
FACTS = ("count(*)", "sum(order_id)", "count(distinct order_id)", "sum(hash(*))")


class Order(msgspec.Struct):
    """A row."""

    order_id: int
    customer: str
    amount: float
    note: str


async def fill(url: str, lake: str, first: int, end: int) -> None:
    """Let a worker commit rows of random contents; it archives nothing meanwhile."""
    app, rng = App("lake", redis_url=url), random.Random(1)
    orders = app.stream("orders", Order, key="customer", partitions=PARTITIONS)
    archive = Archive(lake, every="1 day", size="1 TB")

    @app.processor(orders, batch=1000, log_archive=archive, log_retention="7 days")
    async def price(batch: list[Order]) -> list[Order]:
        return batch

    def order(number: int) -> Order:
        return Order(number, f"c{rng.randrange(1000)}", rng.random() * 100, f"note {rng.randrange(10**6)}")

    async with local_worker(app, url=url) as worker:
        for start in range(first, end, AT_ONCE):
            await orders.send_many([order(number) for number in range(start, min(end, start + AT_ONCE))])
        await worker.until_drained(3_600)


async def archive_all(url: str, lake: str, rows: int) -> float:
    """Archive what is there; return the seconds of CPU."""
    archive = Archive(lake, every="100ms", size="64 MB", after="0 seconds")
    async with Backend.open(url, name="benchmark") as backend:
        archiver = LogArchiver(backend, KEYS, archive, "json", rows, random.Random(1), get_logger("bench"))
        begun = time.process_time()
        while await archiver.archive_once(dict.fromkeys(range(PARTITIONS))):
            pass
        return time.process_time() - begun


def ways(spark: "SparkSession", url: str, lake: str, folder: Path) -> Mapping[str, "DataFrame"]:
    """Return what reads the rows, and compare that each reads the same."""
    options = {"app": "lake", "stream": "orders", "processor": "price"}
    log = spark.read.format("streamworker").options(**options).load()
    log.repartition(PARTITIONS).write.parquet(str(folder / "plain"))
    plain = spark.read.parquet(str(folder / "plain"))
    both = history(spark, app="lake", processor="price", redis_url=url)
    assert plain.selectExpr(*FACTS).collect() == both.selectExpr(*FACTS).collect()
    segments = spark.read.schema(plain.schema).parquet(*map(str, sorted(Path(lake).rglob("*.parquet"))))
    return {"plain Parquet": plain, "archive": segments, "archive and log": both, "log": log}


def seconds(frame: Any) -> float:
    """Read a frame whole."""
    begun = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - begun


def main(
    rows: Annotated[int, typer.Option(help="Rows of the log.")] = 1_200_000,
    part: Annotated[float, typer.Option(help="How much of them is archived.")] = 0.98,
    runs: Annotated[int, typer.Option(help="Rounds.")] = 5,
) -> None:
    """Read the rows of an archived log in four ways."""
    quiet_logs()
    with tempfile.TemporaryDirectory(prefix="bench") as temporary, EmbeddedServer(port=0) as server:
        folder, lake = Path(temporary), str(Path(temporary) / "lake")
        archived = int(rows * part)
        anyio.run(fill, server.url, lake, 0, archived)
        cpu_s = anyio.run(archive_all, server.url, lake, rows)
        anyio.run(fill, server.url, lake, archived, rows)
        size = sum(each.stat().st_size for each in Path(lake).rglob("*.parquet"))
        say(f"archiving: {cpu_s / archived * 1e6:.2f} µs of CPU and {size / archived:.1f} bytes a row")
        with open_session("benchmark", master="local[2]", redis_url=server.url) as session:
            register(session.spark)
            frames = ways(session.spark, server.url, lake, folder)
            share = {name: archived / rows if name == "archive" else 1.0 for name in frames}
            for frame in frames.values():
                seconds(frame)
            rounds = [{name: seconds(frame) for name, frame in frames.items()} for _ in range(runs)]
    for name in frames:
        rates = [rows * share[name] / each[name] for each in rounds]
        ratios = [share[name] * each["plain Parquet"] / each[name] for each in rounds]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        say(f"{name}: {median(rates):,.0f} rows a second, {spread} of plain Parquet")


if __name__ == "__main__":
    typer.run(main)
