"""A record that a processor sends carries the headers of the record that it was made of."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from streamworker import App, Context, Records
from streamworker.runtime.send.producer import HEADERS_MAX
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


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

    async def run(self, count: int = 3) -> None:
        """Send orders, of which those with an even number have headers, and wait for the last function."""
        async with local_worker(self.app) as worker:
            for n in range(count):
                await self.orders.send(Order(n), headers=None if n % 2 else {"trace": f"t{n}", "who": "ann"})
            await worker.until_drained()


def of_mode(mode: str, its: Chain) -> Callable[..., Any]:
    """Return a function that sends each order on, and an alert besides if it has a context."""

    async def plain(order: Order) -> Order:
        return order

    def thread(order: Order) -> Order:
        return order

    async def context(order: Order, ctx: Context) -> list[Order]:
        ctx.send(its.alerts, Alert(order.n))
        return [order]

    def thread_context(order: Order, ctx: Context) -> Order:
        ctx.send(its.alerts, Alert(order.n))
        return order

    async def stream(orders: Records[Order], ctx: Context) -> None:
        async for order in orders:
            ctx.send(its.alerts, Alert(order.n))
            ctx.forward(order)

    async def batch(orders: list[Order]) -> list[Order]:
        return orders

    named = {f.__name__: f for f in (plain, thread, context, thread_context, stream, batch)}
    return named.get(mode, context)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "thread": {},
    "context": {},
    "thread_context": {},
    "keyed": {"concurrency": 4},
    "stream": {"output": Order},
    "batch": {"batch": 1},
    "logged": {"log_metadata": True},
}


CASES = [(mode, "json") for mode in OPTIONS]
CASES += [(mode, "arrow") for mode in ("plain", "thread", "context", "thread_context", "batch")]
"""How a function is called, and the codec of the stream that it reads."""


@pytest.mark.parametrize(("mode", "codec"), CASES)
async def test_each_kind_of_function_passes_on_the_headers_of_its_record(mode: str, codec: str) -> None:
    """A record without headers gives none, although its neighbours have some."""
    its = Chain(codec)
    its.app.processor(its.orders, name="price", into=its.priced, **OPTIONS[mode])(of_mode(mode, its))
    await its.run()
    expected = [{"trace": "t0", "who": "ann"}, {}, {"trace": "t2", "who": "ann"}]
    assert [its.seen["priced", n] for n in range(3)] == expected
    if mode not in ("plain", "thread", "batch"):
        assert [its.seen["alerts", n] for n in range(3)] == expected


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
        await its.orders.schedule(Order(4), id="later", after="5 minutes", headers={"trace": "t4"})
        await worker.advance(301)
        await worker.until_drained()
    assert its.seen == {("priced", 4): {"trace": "t4"}}
