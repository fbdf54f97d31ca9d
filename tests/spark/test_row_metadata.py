"""The key, the time and the headers of the record that a row was made of: ``log_metadata``."""

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from streamworker import App, Context, Retry
from streamworker.errors import ConfigurationError
from streamworker.testing import local_worker
from tests.spark.conftest import Connect
from tests.spark.reading import read


class Order(msgspec.Struct):
    customer: str
    n: int


class Line(msgspec.Struct):
    n: int


async def later(order: Order) -> Line:
    order.customer = "somebody else"
    await asyncio.sleep(0)
    return Line(order.n)


def at_once(order: Order) -> Line:
    return Line(order.n)


async def twice(order: Order, ctx: Context) -> Line | None:
    if ctx.attempt < 2 and order.n == 1:
        raise ValueError("not now")
    ctx.forward(Line(order.n))
    return Line(order.n)


OPTIONS = {"app": "shop", "stream": "orders", "processor": "lines"}
ALL = {**OPTIONS, "includeMetadata": "true", "includeHeaders": "true"}


def shop(url: str, function: Callable[..., Any], **options: Any) -> App:
    app = App("shop", redis_url=url)
    orders = app.stream("orders", Order, key="customer", partitions=2)
    app.processor(orders, name="lines", errors=Retry(backoff=0.01), **options)(function)
    return app


async def handle(app: App, first: int, count: int) -> None:
    orders = app.registry.streams["orders"]
    async with local_worker(app, url=app.settings.redis_url) as worker:
        for n in range(first, first + count):
            await orders.send(Order(f"c{n}", n), headers={"n": str(n)} if n % 2 else None)
        await worker.until_drained()


@pytest.mark.parametrize(
    ("function", "options", "each"),
    [(later, {}, 1), (at_once, {}, 1), (twice, {}, 2), (later, {"concurrency": 8}, 1)],
    ids=["async", "def", "forwards and fails", "concurrent"],
)
def test_a_row_has_the_key_time_and_headers_of_its_record(
    redis_url: str,
    connect: Connect,
    function: Callable[..., Any],
    options: dict[str, Any],
    each: int,
) -> None:
    """Rows from before it was asked for have none; a query that does not ask sees the rows alone."""
    connect("default", redis_url)
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    asyncio.run(handle(shop(redis_url, function, **options), 0, 2))
    with pytest.raises(ConfigurationError, match="log_metadata=True"):
        read(ALL)
    asyncio.run(handle(shop(redis_url, function, log_metadata=True, **options), 2, 20))

    assert read(OPTIONS).column_names == ["n"]
    assert read({**OPTIONS, "includeMetadata": "true"}).column_names[-2:] == ["_key", "_sent_at"]
    found = read(ALL).sort_by("n").to_pylist()
    assert [row["n"] for row in found] == [n for n in range(22) for _ in range(each)]
    for row in found:
        n, headers = row["n"], row["_headers"]
        if n < 2:
            assert (row["_key"], row["_sent_at"], headers) == (None, None, None)
            continue
        assert (row["_key"], headers and dict(headers)) == (f"c{n}", {"n": str(n)} if n % 2 else None)
        assert before <= row["_sent_at"] <= row["_acked_at"]
