"""An app whose rows go from Redis through workers, Spark and Redis to workers again."""

import os
import random

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker import App
from tests.spark.into import in_order


class Order(msgspec.Struct):
    n: int
    customer: str


class Score(msgspec.Struct):
    n: int
    customer: str
    score: float


class Seen(msgspec.Struct):
    orders: int = 0
    last: int = -1


app = App("shop")
orders = app.stream("orders", Order, key="customer", partitions=3)
scores = app.stream("scores", Score, key="customer", partitions=4)
decisions = app.stream("decisions", Score, key="customer", partitions=2)
seen = app.table("seen", Seen)


@app.processor(orders, batch=50)
async def price(batch: list[Order]) -> list[Order]:
    return batch


@app.pipeline(
    price, into=scores, trigger="100 milliseconds", options={"maxRowsPerTrigger": "300"},
    checkpoint=os.environ.get("CHECKPOINT"),
)  # fmt: skip
def rate(frame: DataFrame) -> DataFrame:
    """Return a score for each order; customers lie together otherwise at each start."""
    spread = F.xxhash64("customer", F.lit(random.getrandbits(32)))
    scored = frame.select("n", "customer", (F.col("n") / 2).alias("score"))
    return scored.repartition(random.randrange(2, 6), spread).mapInArrow(in_order, scored.schema)


@app.processor(scores, batch=50, into=decisions, tables=[seen])
async def decide(batch: list[Score]) -> list[Score]:
    known = await seen.get_many({score.customer for score in batch})
    for score in batch:
        its = known.setdefault(score.customer, Seen())
        its.orders += 1
        its.last = score.n
    seen.set_many(known)
    return batch
