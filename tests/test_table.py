"""What a declaration of a table says, and what is refused when the program is imported."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from streamworker import App, ConfigurationError, RecordError
from streamworker.core.data.partitioner import canonical_key, partition_for
from streamworker.records.statetables import TableForm


class Order(msgspec.Struct):
    customer: str
    number: int


class Total(msgspec.Struct):
    orders: int = 0


@pytest.fixture
def app() -> App:
    """An app that connects to nothing."""
    return App("shop", redis_url="redis://localhost:1/0")


async def handle(order: Order) -> None:
    """Handle an order."""


def in_a_thread(order: Order) -> None:
    """Handle an order in a thread."""


WRONG: list[tuple[Callable[[App], Any], str]] = [
    (lambda app: [app.table("t", int), app.table("t", int)], "has two tables named 't'"),
    (lambda app: app.table("a:b", int), "The table name 'a:b' has ':'"),
    (lambda app: app.table("t", int, key=float), "Table 't' has key=<class 'float'>"),
    (lambda app: app.table("t", int, ttl="1 month"), "ttl='1 month' is no duration"),
    (lambda app: app.table("t", object()), "Table 't' cannot hold values of type"),  # type: ignore[call-overload]
    (lambda app: app.table("t", int).spec, "No processor writes table 't'"),
]


@pytest.mark.parametrize(("declare", "message"), WRONG)
def test_a_wrong_table_is_refused(app: App, declare: Callable[[App], Any], message: str) -> None:
    """By its name, and with what to write."""
    with pytest.raises(ConfigurationError) as raised:
        declare(app)
    assert message in str(raised.value)
    assert raised.value.remedy


WRITERS: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (handle, {"key": None}, {}, "stream 'orders' has no key"),
    (handle, {}, {"concurrency": 4}, "has tables and concurrency=4"),
    (in_a_thread, {}, {}, "is no async function"),
    (handle, {"key": "number"}, {}, "Table 'totals' has key=str, and stream 'orders' has the key number"),
    (handle, {"key": ("customer", "number")}, {}, "has the key customer, number"),
]


@pytest.mark.parametrize(("function", "of_stream", "of_processor", "message"), WRITERS)
def test_a_processor_that_cannot_write_a_table_is_refused(
    app: App, function: Any, of_stream: dict[str, Any], of_processor: dict[str, Any], message: str
) -> None:
    """A stream without a key, calls that overlap, a function that cannot await, keys of another type."""
    orders = app.stream("orders", Order, **({"key": "customer"} | of_stream))
    totals = app.table("totals", Total)
    with pytest.raises(ConfigurationError) as raised:
        app.processor(orders, tables=[totals], **of_processor)(function)
    assert message in str(raised.value)


def test_a_table_has_one_writer_of_its_own_app(app: App) -> None:
    """A second one, or one of another app, is named."""
    orders = app.stream("orders", Order, key="customer")
    totals = app.table("totals", Total)
    app.processor(orders, tables=[totals])(handle)
    with pytest.raises(ConfigurationError, match="'again' writes table 'totals', and so does 'handle'"):
        app.processor(orders, name="again", tables=[totals])(handle)
    strange = App("other", redis_url="redis://localhost:1/0").table("totals", Total)
    with pytest.raises(ConfigurationError, match="names table 'totals' of another app"):
        app.processor(orders, name="third", tables=[strange])(handle)


@pytest.mark.parametrize(
    ("of_stream", "of_table", "fits"),
    [
        ("customer", ("customer", "hour"), True),
        ("customer", ("customer",), True),
        ("customer", ("hour", "customer"), False),
        (("customer", "number"), ("customer", "number"), True),
        (("customer", "number"), ("customer", "number", "hour"), True),
        (("customer", "number"), ("customer", "hour"), False),
        (lambda order: order.customer, ("customer", "hour"), True),
    ],
)
def test_a_key_of_several_parts_begins_with_the_key_of_the_stream(
    app: App, of_stream: Any, of_table: tuple[str, ...], fits: bool
) -> None:
    """Else its values would be in other partitions than the records."""
    orders = app.stream("orders", Order, key=of_stream)
    totals = app.table("totals", Total, key=of_table)
    if not fits:
        with pytest.raises(ConfigurationError, match="names of a key that begins with it"):
            app.processor(orders, tables=[totals])(handle)
        return
    app.processor(orders, tables=[totals])(handle)
    stream_key = ("ann", 7) if isinstance(of_stream, tuple) else "ann"
    of_record = canonical_key(stream_key)
    assert of_record is not None
    key = ("ann", 7, 12)[: len(of_table)]
    assert totals.spec.partition_of(key, totals.spec.form.field(key)) == partition_for(of_record, 8)


def test_the_form_of_a_value_refuses_what_could_not_be_read_again() -> None:
    """A field of another type would fail each later call with its key."""
    form = TableForm("totals", str, Total)
    with pytest.raises(RecordError, match="cannot be stored: Expected `int`, got `str`"):
        form.body("ann", Total(orders="many"))  # type: ignore[arg-type]
