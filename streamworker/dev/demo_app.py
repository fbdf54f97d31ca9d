"""The app that the demo runs: flights in, every leg and the delays of each day out.

It is an app like any other, and can be run like one::

    streamworker run streamworker.dev.demo_app:app
    streamworker spark streamworker.dev.demo_app:app

``STREAMWORKER_REDIS_URL`` says where Redis is, ``STREAMWORKER_DEMO_DIR`` where the tables go.
"""

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streamworker import App, Context
from streamworker.dev.flights import Flight

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 12
TABLES = Path(os.environ.get("STREAMWORKER_DEMO_DIR", "streamworker-demo"))


class Leg(msgspec.Struct, frozen=True):
    """A flight as the processor forwards it, with its place in its partition."""

    partition: int
    position: int
    """Counted from 1 in each partition, across all workers that ever owned it."""
    scheduled: dt.datetime
    day: dt.date
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None
    air_time: int | None
    distance: int
    cancelled: bool


app = App("demo")

flights = app.stream("flights", Flight, key="tailnum", partitions=PARTITIONS)


@app.processor(flights, batch=500, within=0.2)
async def legs(batch: list[Flight], ctx: Context) -> list[Leg]:
    """Give the flights of a partition their numbers.

    The count lives in the partition's state, which is committed with the legs: a worker that
    dies takes neither with it, and the next one goes on with the number after the last.
    """
    before: int = ctx.state.get("legs", 0)
    ctx.state["legs"] = before + len(batch)
    return [
        Leg(
            partition=ctx.partition,
            position=position,
            cancelled=flight.dep_delay is None,
            **{name: getattr(flight, name) for name in Flight.__struct_fields__},
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
