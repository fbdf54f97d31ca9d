"""A record that a processor sends carries the headers of the record that it was made of."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import msgspec
import pytest

from streamworker import App, Context
from streamworker.runtime.send.producer import HEADERS_MAX
from streamworker.testing import local_worker
from tests.ways import declare

pytestmark = pytest.mark.anyio

HEADERS: list[dict[str, str]] = [{"trace": "t0", "who": "ann"}, {}, {"trace": "t2", "who": "ann"}]
"""Of the orders that are sent."""


class Order(msgspec.Struct):
    n: int


class Alert(msgspec.Struct):
    n: int


class Chain:
    """Orders, what a processor makes of them, and the headers that the last processor sees."""

    def __init__(self, codec: Any = "json", target: Any = "json") -> None:
        self.app = App("shop")
        self.orders = self.app.stream("orders", Order, key="n", partitions=1, codec=codec)
        self.priced = self.app.stream("priced", Order, key="n", partitions=2, codec=target)
        self.alerts = self.app.stream("alerts", Alert, key="n", partitions=1)
        self.seen: dict[tuple[str, int], dict[str, str]] = {}
        self.app.processor(self.priced, forward=False)(self._end("priced"))
        self.app.processor(self.alerts, forward=False)(self._end("alerts"))

    def _end(self, name: str) -> Callable[..., Any]:
        async def see(order: Any, ctx: Context) -> None:
            self.seen[name, order.n] = ctx.headers[0]

        see.__name__ = f"see_{name}"
        see.__annotations__["order"] = Order if name == "priced" else Alert
        return see

    async def run(self) -> None:
        """Send an order with each of ``HEADERS``, and wait for the last function."""
        async with local_worker(self.app) as worker:
            for n in range(len(HEADERS)):
                await self.orders.send(Order(n), headers=HEADERS[n])
            await worker.until_drained()


async def plain(order: Order) -> Order:
    return order


def plain_thread(order: Order) -> Order:
    return order


async def plain_batch(orders: list[Order]) -> list[Order]:
    return orders


PLAIN: dict[str, Callable[..., Any]] = {"record": plain, "thread": plain_thread, "batch": plain_batch}
"""Functions that ask for no context, so that a worker makes none."""


@pytest.mark.parametrize(("way", "codec"), [*product(PLAIN, ["json", "arrow"])])
async def test_a_function_without_a_context_passes_on_the_headers_of_its_record(way: str, codec: str) -> None:
    """A record without headers gives none, although its neighbours have some."""
    its = Chain(codec)
    options: Any = {"batch": 1} if way == "batch" else {}
    its.app.processor(its.orders, name="price", into=its.priced, **options)(PLAIN[way])
    await its.run()
    assert [its.seen["priced", n] for n in range(3)] == HEADERS


@pytest.mark.parametrize(
    ("way", "codec", "options"),
    [
        *((way, "json", {}) for way in ("record", "thread", "keyed", "stream")),
        ("record", "json", {"log_metadata": True}),
        *((way, "arrow", {}) for way in ("record", "thread")),
    ],
)
async def test_what_a_function_sends_besides_has_the_headers_of_its_record(
    way: str, codec: str, options: Any
) -> None:
    its = Chain(codec)

    def price(orders: Sequence[Order], ctx: Context) -> Sequence[Order]:
        for order in orders:
            ctx.send(its.alerts, Alert(order.n))
        return orders

    declare(its.app, its.orders, way, price, returns=Order, name="price", into=its.priced, **options)
    await its.run()
    for name in ("priced", "alerts"):
        assert [its.seen[name, n] for n in range(3)] == HEADERS


async def test_what_a_function_sets_takes_precedence() -> None:
    its = Chain()

    @its.app.processor(its.orders)
    async def price(order: Order, ctx: Context) -> None:
        ctx.send(its.alerts, Alert(order.n), headers={"who": "bob", "own": "1"})

    await its.run()
    assert its.seen["alerts", 0] == {"trace": "t0", "who": "bob", "own": "1"}
    assert its.seen["alerts", 1] == {"who": "bob", "own": "1"}


async def test_rows_of_a_batch_carry_nothing() -> None:
    """Nothing tells which record of the batch a row was made of."""
    its = Chain()

    @its.app.processor(its.orders, batch=3, within=60, into={Order: its.priced, Alert: its.alerts})
    async def price(orders: list[Order]) -> list[Order | Alert]:
        return [*orders, *(Alert(order.n) for order in orders)]

    await its.run()
    assert its.seen == {(name, n): {} for name in ("priced", "alerts") for n in range(3)}


async def test_rows_of_several_types_carry_the_headers_of_their_record() -> None:
    its = Chain()

    @its.app.processor(its.orders, into={Order: its.priced, Alert: its.alerts})
    async def price(order: Order) -> list[Order | Alert]:
        return [order, Alert(order.n)]

    await its.run()
    for name in ("priced", "alerts"):
        assert [its.seen[name, n].get("trace") for n in range(3)] == ["t0", None, "t2"]


async def test_a_stream_of_columns_takes_records_without_what_they_carry() -> None:
    """Its entries hold many rows. The headers end there, and the record goes on."""
    its = Chain(target="arrow")

    @its.app.processor(its.orders, into=its.priced)
    async def price(order: Order) -> Order:
        return order

    await its.run()
    assert its.seen == {("priced", n): {} for n in range(3)}


async def test_a_record_sends_no_more_headers_than_a_record_may_have() -> None:
    """Its own headers go before those that it carries."""
    its = Chain()
    own = {f"own{n}": "" for n in range(10)}

    @its.app.processor(its.orders)
    async def price(order: Order, ctx: Context) -> None:
        ctx.send(its.alerts, Alert(order.n), headers=own)

    async with local_worker(its.app) as worker:
        await its.orders.send(Order(0), headers={f"h{n}": "x" for n in range(HEADERS_MAX)})
        await worker.until_drained()
    found = its.seen["alerts", 0]
    assert len(found) == HEADERS_MAX
    assert own.items() <= found.items()


async def test_a_record_that_is_sent_later_has_its_headers_and_passes_them_on() -> None:
    its = Chain()

    @its.app.processor(its.orders, into=its.priced)
    async def price(order: Order) -> Order:
        return order

    async with local_worker(its.app, clock="virtual") as worker:
        await its.orders.schedule(Order(4), id="later", after="2 seconds", headers={"trace": "t4"})
        await worker.advance(3)
        await worker.until_drained()
    assert its.seen == {("priced", 4): {"trace": "t4"}}
