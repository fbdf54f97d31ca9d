"""What may be a record, what its fields are, and how its key is found."""

import collections
import pickle
from typing import Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import msgspec
import pyarrow as pa
import pydantic
import pytest

from streamworker.errors import ConfigurationError
from streamworker.records import RecordType
from tests.records.kinds import KINDS

T = TypeVar("T")


class Order(msgspec.Struct):
    order_id: int
    customer: str
    region: str | None = None
    weight: float | None = None


class Partial(TypedDict):
    number: int
    note: NotRequired[str]


class Legacy(NamedTuple):
    number: int
    name: str


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_have_the_same_fields(kind: Any) -> None:
    """However a record is declared, its fields are those written down, in that order."""
    record_type = RecordType.of(kind)
    assert record_type.fields == tuple(KINDS[0].__struct_fields__)  # type: ignore[attr-defined]
    assert record_type.name == kind.__name__


NO_CLASS = r"is not a record type\..*pydantic model"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        *((kind, NO_CLASS) for kind in (dict, dict[str, int], int, str, list[Order], tuple)),
        *((value, NO_CLASS) for value in ("Order", None, Order(1, "a"))),
        (msgspec.defstruct("Empty", []), "Empty has no fields"),
    ],
)
def test_what_is_no_record_class_or_has_no_fields_is_refused(other: object, why: str) -> None:
    """The error says what to use."""
    with pytest.raises(ConfigurationError, match=why):
        RecordType.of(other)


def test_two_record_types_of_one_class_are_equal() -> None:
    """They compare by class, and pickle as it."""
    assert RecordType.of(Order) == RecordType.of(Order)
    assert RecordType.of(Order) != RecordType.of(Legacy)
    assert pickle.loads(pickle.dumps(RecordType.of(Order))) == RecordType.of(Order)
    assert len({RecordType.of(Order), RecordType.of(Order)}) == 1


# -- keys ------------------------------------------------------------------------------------


def test_a_key_is_a_field_some_fields_a_function_or_none() -> None:
    """All the ways to say what keeps records in order."""
    orders = RecordType.of(Order)
    order = Order(7, "ann", "north")
    assert orders.key_function("customer")(order) == "ann"
    assert orders.key_function(("region", "customer"))(order) == ("north", "ann")
    assert orders.key_function(["region"])(order) == ("north",)
    assert orders.key_function(lambda o: o.order_id % 2)(order) == 1
    assert orders.key_function(None)(order) is None


def test_a_key_that_a_record_leaves_out_is_none() -> None:
    """Records without the key are spread, as those of a stream without one."""
    key = RecordType.of(Partial).key_function("note")
    assert key({"number": 1}) is None
    assert key({"number": 1, "note": "x"}) == "x"


async def _later(order: Order) -> str:
    return order.customer


MISSPELT = r"Did you mean 'customer'\?.*order_id, customer, region"


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("custmer", MISSPELT),
        (("region", "custmer"), MISSPELT),
        (("customer", "weight"), "'weight' of Order is a float"),
        ((), "an empty list of fields"),
        ((1,), "no field 1"),
        (_later, "is async"),
    ],
)
def test_a_key_that_cannot_work_is_refused_when_declared(key: Any, why: str) -> None:
    """A misspelt field with the nearest and with all; a float, since other languages write it otherwise."""
    with pytest.raises(ConfigurationError, match=why):
        RecordType.of(Order).key_function(key)


# -- hints -----------------------------------------------------------------------------------


def test_an_untyped_named_tuple_is_a_record_without_types() -> None:
    """It can be sent; only its form in Arrow needs types."""
    Point = collections.namedtuple("Point", "x y")  # noqa: PYI024
    points = RecordType.of(Point)
    payload = points.encoder("json")(Point(1, 2))
    assert isinstance(payload, bytes)
    assert points.decoder("json")({b"v": payload}) == Point(1, 2)
    with pytest.raises(ConfigurationError, match="'x' of Point is Any"):
        points.arrow_schema()


def test_a_generic_pydantic_model_is_a_record() -> None:
    """A model whose type parameter is filled in has that type."""

    class Envelope(pydantic.BaseModel, Generic[T]):
        content: T

    envelopes = RecordType.of(Envelope[int])
    assert envelopes.arrow_schema() == pa.schema([pa.field("content", pa.int64(), nullable=False)])
