"""What `into=` takes, and what it refuses when the program is imported; type checkers see the same."""

from typing import Any

import msgspec
import pytest

from streamworker import App, Context
from streamworker.errors import ConfigurationError


class Order(msgspec.Struct):
    n: int


class Priced(msgspec.Struct):
    n: int


class Alert(msgspec.Struct):
    n: int


app = App("shop")
orders = app.stream("orders", Order)
priced = app.stream("priced", Priced)
alerts = app.stream("alerts", Alert)
elsewhere = App("other").stream("priced", Priced)


@app.processor(orders, into=priced)
async def one(order: Order) -> Priced:
    return Priced(order.n)


@app.processor(orders, into=priced, batch=10, concurrency=1)
async def many(batch: list[Order], ctx: Context) -> list[Priced]:
    ctx.send(alerts, Alert(1), headers={"a": "b"})
    return [Priced(order.n) for order in batch]


@app.processor(orders, into=priced)
def some(order: Order) -> Priced | None:
    return Priced(order.n) if order.n else None


@app.processor(orders, into={Priced: priced, Alert: alerts})
async def either(order: Order) -> list[Priced | Alert] | None:
    return None


def test_a_function_keeps_its_type_and_forwards_rows_of_one_type_to_its_log() -> None:
    """Rows of several types go to their streams alone."""
    assert some(Order(7)) == Priced(7)
    assert [each.spec.forward for each in (one, many, some)] == [True] * 3
    assert (either.spec.forward, either.spec.output) == (False, None)
    assert [spec.name for spec in either.spec.targets] == ["priced", "alerts"]


def test_a_type_checker_refuses_what_does_not_go_there() -> None:
    """A type checker runs over this file and insists that each of these ignores is needed."""

    async def wrong(order: Order) -> Alert:
        return Alert(order.n)

    def also_wrong(order: Order, ctx: Context) -> None:
        ctx.send(priced, Alert(order.n))  # type: ignore[misc]

    with pytest.raises(ConfigurationError, match="returns Alert, and into= takes Priced"):
        app.processor(orders, name="wrong", into=priced)(wrong)  # type: ignore[arg-type]
    app.processor(orders, name="also-wrong")(also_wrong)


async def _returns_an_int(order: Order) -> int:
    return order.n


async def _returns_both(order: Order) -> Priced | Alert:
    return Priced(order.n)


@pytest.mark.parametrize(
    ("function", "into", "message"),
    [
        (_returns_an_int, priced, "returns int, and into= takes Priced"),
        (_returns_both, priced, "returns Alert, and into= takes Priced"),
        (_returns_both, {Priced: priced}, "returns Alert, and into= takes Priced"),
        (_returns_both, {Priced: alerts}, "sends Priced into stream 'alerts', which holds Alert"),
        (one, elsewhere, "of app 'other'"),
        (one, "priced", "into='priced' names no stream"),
        (one, {Priced: "priced"}, "into=.* names no stream"),
    ],
)
def test_what_does_not_fit_is_refused_at_import(function: Any, into: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        app.processor(orders, name="refused", into=into)(function)


def test_rows_of_several_types_have_no_acked_log_and_so_no_pipeline() -> None:
    """The message says where to read them instead."""
    with pytest.raises(ConfigurationError, match=r"^Processor 'refused' forwards .* holds rows of one type"):
        app.processor(orders, name="refused", into={Priced: priced, Alert: alerts}, forward=True)(
            _returns_both
        )
    with pytest.raises(ConfigurationError, match="holds rows of one type"):
        app.pipeline(either, name="lake", path="lake")(lambda frame: frame)


def test_a_pipeline_reads_what_a_silent_function_sends() -> None:
    """Nothing says what it returns, but the stream that takes it."""
    processor = app.processor(orders, name="untold", into=priced)(lambda order: Priced(order.n))
    assert not processor.spec.forward
    app.pipeline(processor, name="lake", path="lake")(lambda frame: frame)
    assert processor.spec.output == priced.spec.record
