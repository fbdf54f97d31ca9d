"""What the decorators read from a function's annotations, and what they refuse."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pytest

from streamworker import App, ConfigurationError, Context, RecordError, Records
from streamworker.core.data.placement import Placement, canonical_key
from streamworker.declaring.options import Options, ProcessorOptions
from streamworker.declaring.specs import FunctionMode
from streamworker.records.statetables import TableForm


class Order(msgspec.Struct):
    customer: str
    amount: float
    number: int = 0


class Total(msgspec.Struct):
    orders: int = 0


class Priced(msgspec.Struct):
    customer: str
    price: float


async def one(order: Order) -> None:
    """Take a record."""


async def some(orders: list[Order], ctx: Context) -> list[Priced]:
    """Take a batch and a context, and forward rows."""
    return []


async def all_of_them(records: Records[Order]) -> None:
    """Take the stream."""


def blocking(order: Order) -> Priced | None:
    """Filter in a thread."""
    return None


def bare(order, ctx):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Say nothing."""


@pytest.fixture
def app() -> App:
    """An app that connects to nothing."""
    return App("shop", redis_url="redis://localhost:1/0")


@pytest.mark.parametrize(
    ("function", "options", "expected"),
    [
        (one, {}, (FunctionMode.RECORD, True, False, False)),
        (some, {}, (FunctionMode.BATCH, True, True, True)),
        (all_of_them, {}, (FunctionMode.STREAM, True, False, False)),
        (blocking, {}, (FunctionMode.RECORD, False, False, True)),
        (bare, {}, (FunctionMode.RECORD, False, True, False)),
        (bare, {"batch": 10}, (FunctionMode.BATCH, False, True, False)),
        (one, {"forward": True}, (FunctionMode.RECORD, True, False, True)),
    ],
)
def test_annotations_say_how_records_come_and_what_is_forwarded(
    app: App,
    function: Callable[..., Any],
    options: dict[str, Any],
    expected: tuple[FunctionMode, bool, bool, bool],
) -> None:
    """Mode, async or not, context or not, forwarding or not."""
    orders = app.stream("orders", Order, key="customer", partitions=4)
    spec = app.processor(orders, **options)(function).spec
    assert expected == (spec.mode, spec.is_async, spec.takes_context, spec.forward)


def test_calls_overlap_only_where_it_is_asked_for(app: App) -> None:
    """By key then, unless no order is wanted at all."""
    orders = app.stream("orders", Order, key="customer")
    plain = app.processor(orders)(one).spec
    wide = app.processor(orders, name="wide", concurrency=64)(blocking).spec
    loose = app.processor(orders, name="loose", concurrency=8, ordered_by="none")(one).spec
    assert [(spec.options.concurrency, spec.options.ordered_by) for spec in (plain, wide, loose)] == [
        (1, "key"),
        (64, "key"),
        (8, "none"),
    ]


def in_columns(rows: pa.RecordBatch) -> None:
    """Take columns."""


def to_columns(rows: pa.Table, ctx: Context) -> pa.RecordBatch | None:
    """Take columns and return some."""


@pytest.mark.parametrize("codec", ["json", "arrow"])
def test_columns_are_forwarded_as_the_streams_records_or_as_output_says(
    app: App, codec: Literal["json", "arrow"]
) -> None:
    """What they are called does not say which record type they are."""
    orders = app.stream("orders", Order, codec=codec)
    silent = app.processor(orders)(in_columns).spec
    assert (silent.mode, silent.takes, silent.forward, silent.batch) == (
        FunctionMode.BATCH, "record_batch", False, 10_000,
    )  # fmt: skip
    own = app.processor(orders, batch=7)(to_columns).spec
    assert (own.takes, own.forward, own.batch, own.output) == ("table", True, 7, orders.spec.record)
    other = app.processor(orders, name="other", output=Priced)(to_columns).spec
    assert other.output is not None
    assert other.output.python_type is Priced
    came = app.processor(orders, name="came")(in_columns)
    app.pipeline(came, name="table", path="lake/orders")(lambda df: df)
    assert came.spec.forward
    assert came.spec.output is orders.spec.record


class Vague(msgspec.Struct):
    """A field that is no column."""

    thing: int | str


def test_records_without_columns_are_refused_where_columns_are_asked_for(app: App) -> None:
    """By the field, when they are declared."""
    with pytest.raises(ConfigurationError, match="'thing' of Vague"):
        app.stream("columns", Vague, codec="arrow")
    with pytest.raises(ConfigurationError, match=r"takes columns of Vague, .* 'thing'"):
        app.processor(app.stream("records", Vague))(in_columns)


def test_a_decorated_function_is_still_a_function(app: App) -> None:
    """A unit test calls it as if it had no decorator."""
    orders = app.stream("orders", Order)

    @app.processor(orders)
    def double(order: Order) -> Priced:
        """Double it."""
        return Priced(order.customer, 2 * order.amount)

    assert double(Order("ann", 1.5)) == Priced("ann", 3.0)
    assert double.__doc__ == "Double it."
    assert double.spec.output is not None
    assert double.spec.output.python_type is Priced


def takes_too_much(a: Order, b: Context, c: int) -> None:
    """Take three things."""


def takes_something_else(order: Order, number: int) -> None:
    """Take a number for a context."""


def takes_records(records: Records[Order]) -> None:
    """Take the stream without being async."""


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (takes_too_much, {}, "`c: int`, which nothing fills"),
        (takes_something_else, {}, "number"),
        (takes_records, {}, "async"),
        (one, {"batch": 5}, "list\\[Order\\]"),
        (one, {"tables": ["totals"]}, "'one' has tables=.*app.table"),
        (one, {"tables": 5}, "'one' has tables=5"),
        (one, {"timeout": 0}, "timeout"),
        (all_of_them, {"timeout": 1.0}, "timeout"),
        (one, {"name": "a b"}, "a b"),
        (one, {"errors": "panic"}, "'one' .*errors='panic' is no policy"),
        (one, {"concurrency": 4, "ordered_by": "customer"}, "key, none"),
        (some, {"concurrency": 4}, "one record at a time.*as Order"),
        (all_of_them, {"concurrency": 4}, "one record at a time"),
        (bare, {"batch": 10, "concurrency": 4}, "one record at a time"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_processors_name(
    app: App, function: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    """At import, before anything runs."""
    orders = app.stream("orders", Order)
    with pytest.raises(ConfigurationError, match=said):
        app.processor(orders, **options)(function)


def test_a_module_without_a_list_and_a_codec_that_is_a_class_are_refused(app: App) -> None:
    """The letters of a text are no modules, and a class has nobody to encode for it."""
    with pytest.raises(ConfigurationError, match=r"Write include=\['shop.mail'\]"):
        App("shop", include="shop.mail")

    class Own:
        name = "own"

        encode = msgspec.json.encode
        decode = msgspec.json.decode

    codec: Any = Own
    with pytest.raises(ConfigurationError, match="has codec=<class"):
        app.stream("orders", Order, codec=codec)


def test_two_of_one_name_are_refused(app: App) -> None:
    """Streams, processors and pipelines each have names of their own."""
    orders = app.stream("orders", Order)
    app.processor(orders)(one)
    with pytest.raises(ConfigurationError, match="two processors named 'one'"):
        app.processor(orders)(one)
    with pytest.raises(ConfigurationError, match="two streams named 'orders'"):
        app.stream("orders", Order)


def test_a_type_checker_knows_each_option_of_a_processor() -> None:
    """``Options`` tells it what ``ProcessorOptions`` has, and ``help()`` shows what both name."""
    assert Options.__annotations__ == ProcessorOptions.__annotations__
    shown = inspect.signature(App.processor).parameters
    assert shown.keys() == {"self", "stream", "into", "tables"} | Options.__annotations__.keys()
    assert all(shown[option.name].default == option.default for option in fields(ProcessorOptions))


# -- tables ----------------------------------------------------------------------------------------

TABLES: list[tuple[Callable[[App], Any], str]] = [
    (lambda app: [app.table("t", int), app.table("t", int)], "has two tables named 't'"),
    (lambda app: app.table("a:b", int), "The table name 'a:b' has ':'"),
    (lambda app: app.table("t", int, key=float), "Table 't' has key=<class 'float'>"),
    (lambda app: app.table("t", int, ttl="1 month"), "ttl='1 month' is no duration"),
    (lambda app: app.table("t", object()), "Table 't' cannot hold values of type"),  # type: ignore[call-overload]
    (lambda app: app.table("t", int).spec, "No processor writes table 't'"),
]


@pytest.mark.parametrize(("declare", "message"), TABLES)
def test_a_wrong_table_is_refused(app: App, declare: Callable[[App], Any], message: str) -> None:
    """By its name, and with what to write."""
    with pytest.raises(ConfigurationError) as raised:
        declare(app)
    assert message in str(raised.value)
    assert raised.value.remedy


WRITERS: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (one, {"key": None}, {}, "stream 'orders' has no key"),
    (one, {}, {"concurrency": 4}, "has tables and concurrency=4"),
    (blocking, {}, {}, "is no async function"),
    (one, {"key": "number"}, {}, "Table 'totals' has key=str, and stream 'orders' has the key number"),
    (one, {"key": ("customer", "number")}, {}, "has the key customer, number"),
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
    app.processor(orders, tables=[totals])(one)
    with pytest.raises(ConfigurationError, match="'again' writes table 'totals', and so does 'one'"):
        app.processor(orders, name="again", tables=[totals])(one)
    strange = App("other", redis_url="redis://localhost:1/0").table("totals", Total)
    with pytest.raises(ConfigurationError, match="names table 'totals' of another app"):
        app.processor(orders, name="third", tables=[strange])(one)


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
            app.processor(orders, tables=[totals])(one)
        return
    app.processor(orders, tables=[totals])(one)
    stream_key = ("ann", 7) if isinstance(of_stream, tuple) else "ann"
    of_record = canonical_key(stream_key)
    assert of_record is not None
    key = ("ann", 7, 12)[: len(of_table)]
    assert totals.spec.partition_of(key, totals.spec.form.field(key)) == Placement(8).partition_of(of_record)


def test_the_form_of_a_value_refuses_what_could_not_be_read_again() -> None:
    """A field of another type would fail each later call with its key."""
    form = TableForm("totals", str, Total)
    with pytest.raises(RecordError, match="cannot be stored: Expected `int`, got `str`"):
        form.body("ann", Total(orders="many"))  # type: ignore[arg-type]
