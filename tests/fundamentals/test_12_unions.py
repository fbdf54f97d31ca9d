"""One stream may hold records of several classes: a union of Structs that have tags."""

import pickle
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest

from streamworker import App, ConfigurationError, RecordError, Records, Stream
from streamworker.records import RecordType
from streamworker.records.evolution import changes, json_schema
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct, tag=True):
    customer: str
    amount: float


class Refund(msgspec.Struct, tag=True):
    customer: str
    reason: str = ""


class Plain(msgspec.Struct):
    customer: str


class SameTag(msgspec.Struct, tag="Order"):
    customer: str


class OtherField(msgspec.Struct, tag_field="kind", tag="other"):
    customer: str


Event = Order | Refund
SENT: list[Event] = [Order("ann", 3.5), Refund("bob"), Order("bob", 1.0), Refund("ann", "broken")]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
async def test_records_of_both_classes_keep_their_order_by_key_and_go_on_to_a_stream_of_both(
    redis_url: str, codec: Literal["json", "msgpack"]
) -> None:
    app = App("shop", redis_url=redis_url)
    events: Stream[Event] = app.stream("events", Event, key="customer", partitions=2, codec=codec)
    checked: Stream[Event] = app.stream("checked", Order | Refund, key=lambda event: event.customer)
    seen: list[Event] = []

    @app.processor(events, into=checked)
    async def check(event: Order | Refund) -> Order | Refund | None:
        return None if isinstance(event, Order) and event.amount > 3 else event

    @app.processor(checked)
    async def audit(batch: list[Order | Refund]) -> None:
        seen.extend(batch)

    async with local_worker(app, url=redis_url) as worker:
        await events.send(SENT[0])
        await events.send_many(SENT[1:])
        await worker.until_drained()

    assert [each for each in seen if each.customer == "ann"] == [SENT[3]]
    assert [each for each in seen if each.customer == "bob"] == SENT[1:3]


async def test_a_sender_is_told_of_a_class_that_is_none_of_the_union_and_of_a_wrong_field(
    redis_url: str,
) -> None:
    app = App("shop", redis_url=redis_url)
    events: Stream[Event] = app.stream("events", Event, key="customer")
    wrong: Any = Plain("ann")
    async with app:
        with pytest.raises(RecordError, match=r"takes records of type Order \| Refund, and got a Plain"):
            await events.send(wrong)
        with pytest.raises(RecordError, match=r"This is no Order \| Refund: Expected `float`, got `str`"):
            await events.send(Order("ann", "much"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("union", "told"),
    [
        (Order | Plain, r"Order \| Plain cannot be told apart.*class Order\(msgspec.Struct, tag=True\)"),
        (Order | SameTag, r"Order \| SameTag cannot be told apart.*a tag of its own"),
        (Order | OtherField, r"Order \| OtherField cannot be told apart.*tag=True"),
        (Order | None, r"NoneType is not a record type"),
    ],
)
def test_a_union_whose_records_cannot_be_told_apart_is_refused_with_the_remedy(union: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        App("shop").stream("events", union)


def price(takes: Any = Event, returns: Any = None) -> Any:
    """Return a function that takes and returns so."""

    async def price(event: Any) -> Any: ...

    price.__annotations__ = {"event": takes, "return": returns}
    return price


def lake(rows: Any) -> Any: ...


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (
            lambda app, _: app.stream("others", Event, key="reason"),
            r"Order \| Refund has no field 'reason' to be its key. Its fields are customer",
        ),
        (
            lambda app, _: app.stream("others", Event, codec="fields"),
            r"""Order \| Refund is a union, and codec="fields" has the fields of one class""",
        ),
        (
            lambda app, _: app.stream("others", Event, codec="arrow"),
            r"Order \| Refund is a union, and a table has the fields of one class",
        ),
        (
            lambda app, events: app.processor(events)(price(Order)),
            r"takes Order, and stream 'events' holds Order \| Refund.*as Order \| Refund",
        ),
        (
            lambda app, events: app.processor(events)(price(returns=Event)),
            r"forwards Order \| Refund, which has no Arrow form: .* is a union",
        ),
        (
            lambda app, events: app.pipeline(app.processor(events)(price()), path="lake")(lake),
            r"is a union, and the acked log that pipeline 'lake' reads has the fields of one class",
        ),
        (
            lambda app, events: app.processor(events, into=events)(price(returns=Plain)),
            r"returns Plain, and into= takes Order, Refund",
        ),
    ],
)
def test_what_a_union_cannot_do_is_refused_at_import(declare: Callable[..., Any], told: str) -> None:
    app = App("shop")
    events: Stream[Event] = app.stream("events", Event)
    with pytest.raises(ConfigurationError, match=told):
        declare(app, events)


async def test_records_without_a_common_field_are_routed_by_a_function_and_iterated_over(
    redis_url: str,
) -> None:
    class Opened(msgspec.Struct, tag="opened"):
        id: int

    class Closed(msgspec.Struct, tag="closed"):
        ticket: int

    app = App("desk", redis_url=redis_url)
    tickets: Stream[Opened | Closed] = app.stream(
        "tickets", Opened | Closed, key=lambda each: each.id if isinstance(each, Opened) else each.ticket
    )
    seen: list[Opened | Closed] = []

    @app.processor(tickets)
    async def watch(records: Records[Opened | Closed]) -> None:
        seen.extend([record async for record in records])

    async with local_worker(app, url=redis_url) as worker:
        await tickets.send_many([Opened(1), Closed(1)])
        await worker.until_drained()

    assert seen == [Opened(1), Closed(1)]


def test_a_schema_check_tells_what_a_change_of_a_union_breaks() -> None:
    both, orders = json_schema(RecordType.of(Event)), json_schema(RecordType.of(Order))
    shrunk: Any = msgspec.defstruct("Refund", [("reason", int, 0)], tag=True)

    assert [(each.what, each.breaks) for each in changes(orders, both, "Order | Refund")] == [
        ("Order | Refund: Order -> Order | Refund", False)
    ]
    assert [(each.what, each.breaks) for each in changes(both, orders, "Order")] == [
        ("Order: Order | Refund -> Order", True)
    ]
    changed = changes(both, json_schema(RecordType.of(Order | shrunk)), "Order | Refund")
    assert [(each.what, each.breaks) for each in changed] == [
        ("Refund loses `customer`", False),
        ("Refund.reason: str -> int", True),
    ]


def test_a_union_is_the_same_in_any_order_and_survives_a_pickle() -> None:
    assert RecordType.of(Order | Refund) == RecordType.of(Refund | Order)
    assert pickle.loads(pickle.dumps(RecordType.of(Event))) == RecordType.of(Event)
