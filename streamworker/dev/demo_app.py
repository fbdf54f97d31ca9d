"""The app of the demo: it reads flights, and writes every leg and the delays of each day.

It can be run like any other app::

    streamworker run streamworker.dev.demo_app:app
    streamworker spark streamworker.dev.demo_app:app

``STREAMWORKER_REDIS_URL`` is the URL of Redis, ``STREAMWORKER_DEMO_DIR`` the directory of the tables. With
``STREAMWORKER_DEMO_ARCHIVE`` the flights are archived there, in ``flights``.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streamworker import App, Archive, Context
from streamworker.dev.flights import Flight

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 12
TABLES = Path(os.environ.get("STREAMWORKER_DEMO_DIR", "streamworker-demo"))


class Leg(Flight, frozen=True):
    """A forwarded flight, with its position in its partition."""

    partition: int
    position: int
    """Number of the flight in its partition, from 1; it continues when another worker takes over."""
    cancelled: bool


app = App("demo")

archive = None
if os.environ.get("STREAMWORKER_DEMO_ARCHIVE"):
    archive = Archive(str(TABLES / "flights"), every="2 seconds", after="0 seconds")
flights = app.stream("flights", Flight, key="tailnum", partitions=PARTITIONS, archive=archive)


@app.processor(flights, batch=500, within=0.2)
async def legs(batch: list[Flight], ctx: Context) -> list[Leg]:
    """Number the flights of a partition.

    The count is in the partition's state, which the worker commits together with the legs. So after a
    worker's death the next owner continues with the next number.
    """
    before: int = ctx.state.get("legs", 0)
    ctx.state["legs"] = before + len(batch)
    return [
        Leg(
            partition=ctx.partition,
            position=position,
            cancelled=flight.dep_delay is None,
            **msgspec.structs.asdict(flight),
        )
        for position, flight in enumerate(batch, start=before + 1)
    ]


@app.pipeline(legs, trigger="2 seconds", path=str(TABLES / "every_leg"))
def every_leg(rows: "DataFrame") -> "DataFrame":
    """Append every leg to a Parquet table."""
    return rows


@app.pipeline(legs, trigger="5 seconds", path=str(TABLES / "delays"), mode="complete")
def delays(rows: "DataFrame") -> "DataFrame":
    """Sum up the delays of each carrier and day."""
    from pyspark.sql import functions as f

    return rows.groupBy("carrier", "day").agg(
        f.count("*").alias("flights"),
        f.sum(f.col("cancelled").cast("int")).alias("cancelled"),
        f.sum("dep_delay").alias("dep_delay"),
        f.sum("arr_delay").alias("arr_delay"),
        f.max("dep_delay").alias("dep_delay_max"),
    )
