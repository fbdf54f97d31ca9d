"""Tables that were sent, handled and forwarded as columns, as Spark's tasks read them."""

import asyncio
import datetime as dt
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamworker import App
from streamworker.testing import local_worker
from tests.spark.conftest import Connect
from tests.spark.reading import read


@dataclass
class Ride:
    n: int
    user: str
    fare: float
    at: dt.datetime
    tip: Decimal | None = None
    tags: list[str] | None = None


@dataclass
class Priced:
    n: int
    total: float


def rides(count: int) -> pa.Table:
    """Return rows with nulls, decimals, times and lists."""
    at = dt.datetime(2024, 2, 29, tzinfo=dt.UTC)
    return pa.table(
        {
            "n": pa.array(range(count), pa.int32()),
            "user": pa.array([f"user-{n % 7}" for n in range(count)], pa.large_string()),
            "fare": [n / 4 for n in range(count)],
            "at": [at + dt.timedelta(seconds=n) for n in range(count)],
            "tip": pa.array([None if n % 3 else Decimal(n) for n in range(count)], pa.decimal128(10, 2)),
            "tags": [None if n % 2 else ["x", str(n)] for n in range(count)],
        }
    )


@pytest.mark.anyio
async def test_columns_go_through_a_worker_into_spark(redis_url: str, connect: Connect) -> None:
    """As they came, and as a function made them anew."""
    connect("default", redis_url)
    app = App("shop", redis_url=redis_url)
    stream = app.stream("rides", Ride, key="user", partitions=2, codec="arrow")

    @app.processor(stream, forward=True)
    async def keep(rows: pa.RecordBatch) -> None:
        assert rows.num_rows

    @app.processor(stream, output=Priced)
    async def price(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"n": rows["n"], "total": pc.multiply(rows["fare"], 2)})

    sent = rides(5_000)
    async with local_worker(app, url=redis_url) as worker:
        await stream.send_table(sent, rows_per_entry=700)
        await worker.until_drained()
    options = {"app": "shop", "stream": "rides"}
    kept = await asyncio.to_thread(read, {**options, "processor": "keep"})
    assert kept.sort_by("n").to_pylist() == sent.to_pylist()
    priced = await asyncio.to_thread(read, {**options, "processor": "price"})
    assert priced.sort_by("n").to_pylist() == [{"n": n, "total": n / 2} for n in range(5_000)]
