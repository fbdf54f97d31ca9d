"""What a function returns is committed with its checkpoint, into the acked log."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from streamworker import App, ConfigurationError, Context, Records
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    customer: str
    amount: Decimal
    at: datetime


class Line(msgspec.Struct):
    customer: str
    half: Decimal


AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


async def test_rows_are_typed_by_the_return_annotation(redis_url: str) -> None:
    """Decimals, times with a zone and optional fields keep their meaning on the way to Spark."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=2)

    @app.processor(orders, batch=10)
    async def keep(batch: list[Order]) -> list[Order]:
        return batch

    async with local_worker(app, url=redis_url) as worker:
        await orders.send(Order("ann", Decimal("1.50"), AT))
        await worker.until_drained()
        rows = await worker.rows(keep)

    assert rows == [{"customer": "ann", "amount": Decimal("1.50"), "at": AT}]


async def test_one_record_may_become_many_rows_or_none(redis_url: str) -> None:
    """`ctx.forward` adds rows one at a time; the order of the records stays."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)

    @app.processor(orders, output=Line, forward=True)
    async def halve(order: Order, ctx: Context) -> None:
        if order.amount > 0:
            for _ in range(2):
                ctx.forward(Line(order.customer, order.amount / 2))

    async with local_worker(app, url=redis_url) as worker:
        for customer, amount in (("ann", 4), ("bob", 0), ("cid", 6)):
            await orders.send(Order(customer, Decimal(amount), AT))
        await worker.until_drained()
        rows = await worker.rows(halve)

    assert [(row["customer"], row["half"]) for row in rows] == [
        ("ann", 2),
        ("ann", 2),
        ("cid", 3),
        ("cid", 3),
    ]


def test_a_type_without_an_arrow_form_is_refused_when_the_app_is_made() -> None:
    """Not when the first batch is committed; the message names the field."""
    app = App("shop")

    class Strange(msgspec.Struct):
        customer: str
        anything: object

    orders = app.stream("orders", Order, key="customer", partitions=1)
    with pytest.raises(ConfigurationError, match="anything"):

        @app.processor(orders)
        async def odd(order: Order) -> Strange:
            return Strange(order.customer, order)


@pytest.mark.parametrize("takes", [list[Order], Records[Order], Order])
def test_rows_of_no_one_record_cannot_have_its_metadata(takes: Any) -> None:
    """A function that takes several records, and one whose rows go to no acked log, is refused by name."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer")

    async def keep(given: Any) -> None:
        """Return nothing."""

    keep.__annotations__ = {"given": takes, "return": None}
    forward = None if takes is Order else True
    with pytest.raises(ConfigurationError, match=r"keep.* has log_metadata.*drop log_metadata"):
        app.processor(orders, log_metadata=True, forward=forward)(keep)
