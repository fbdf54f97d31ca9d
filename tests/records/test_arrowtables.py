"""Tables of other people fit a record type, or are refused by name; and rows become records."""

import dataclasses
import datetime as dt
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pytest

from streamworker.errors import DecodeError, RecordError
from streamworker.records import RecordType
from tests.records.kinds import Colour, Level


class Line(msgspec.Struct, rename="camel"):
    """A record within another, whose payload has other names."""

    unit_price: float
    part_ids: list[int] = []


class Pair(msgspec.Struct, array_like=True):
    """One that is written as an array."""

    left: int
    right: str | None = None


class Order(msgspec.Struct, rename="camel"):
    order_id: int
    customer: str
    lines: list[Line | None] = []
    pairs: dict[str, Pair] | None = None
    note: str | None = None
    currency: str = "EUR"


ORDERS = RecordType.of(Order)


def one_column(hint: Any, array: pa.Array) -> pa.RecordBatch:
    """Fit one column to a field of this type."""
    probe = RecordType.of(msgspec.defstruct("Probe", [("x", hint)]))
    return probe.fit_arrow(pa.record_batch({"x": array}))


def test_records_in_records_come_back_by_the_names_that_payloads_have() -> None:
    """Renamed fields, records written as arrays, and nulls among them."""
    records = [
        Order(1, "ann", [Line(2.5, [1, 2]), None], {"a": Pair(1), "b": Pair(2, "x")}),
        Order(2, "bob", [], None, note="late"),
    ]
    assert ORDERS.from_arrow(ORDERS.to_arrow(records)) == records
    assert ORDERS.from_arrow(ORDERS.to_arrow(records).slice(1)) == records[1:]


class Sparse(TypedDict):
    """A key that may be left out, and a value that may not be None."""

    n: int
    label: NotRequired[str]


def test_a_key_that_was_left_out_stays_out() -> None:
    """A null in its column is no value that the type has."""
    sparse = RecordType.of(Sparse)
    records = [{"n": 1}, {"n": 2, "label": "x"}]
    assert sparse.from_arrow(sparse.to_arrow(records)) == records


@dataclasses.dataclass
class WithDefaults:
    """One default is made anew for each record."""

    n: int
    tags: list[str] = dataclasses.field(default_factory=lambda: ["new"])
    label: str = "none"
    maybe: int | None = None


def test_columns_that_are_missing_get_the_defaults_of_their_fields() -> None:
    """So that entries of the last release can be read by this one."""
    fitted = RecordType.of(WithDefaults).fit_arrow(pa.record_batch({"n": [1, 2]}))
    assert fitted.to_pylist() == [{"n": n, "tags": ["new"], "label": "none", "maybe": None} for n in (1, 2)]


@pytest.mark.parametrize(
    "hint, array",
    [
        (str, pa.array(["a", "b"], pa.large_string())),
        (str, pa.array(["a", "b"]).dictionary_encode()),
        (bytes, pa.array([b"ab", b"cd"], pa.binary(2))),
        (int, pa.array([1, 2], pa.uint8())),
        (float, pa.array([1, 2], pa.int16())),
        (float, pa.array([1.5, 2.5], pa.float32())),
        (Decimal, pa.array([Decimal("1.5")], pa.decimal128(5, 1))),
        (dt.date, pa.array([dt.date(2024, 2, 29)], pa.date64())),
        (dt.datetime, pa.array([1_000], pa.timestamp("ns", "Europe/Berlin"))),
        (Annotated[dt.datetime, msgspec.Meta(tz=False)], pa.array([1], pa.timestamp("s"))),
        (dt.timedelta, pa.array([1], pa.duration("s"))),
        (int | None, pa.nulls(2)),
        (list[int], pa.array([[1], [2, 3]], pa.large_list(pa.int8()))),
        (dict[str, int], pa.array([[("a", 1)]], pa.map_(pa.large_string(), pa.int8()))),
        (Pair | None, pa.array([None, {"left": 1, "right": None}])),
        (Pair, pa.array([{"right": "x", "left": 1}], pa.struct({"right": pa.string(), "left": pa.int8()}))),
    ],
)
def test_what_keeps_every_value_is_cast(hint: Any, array: pa.Array) -> None:
    """The same values, as the record type has them."""
    fitted = one_column(hint, array)
    assert fitted.schema == RecordType.of(msgspec.defstruct("Probe", [("x", hint)])).arrow_schema()
    assert fitted.column(0).to_pylist() == array.to_pylist() or hint is dt.datetime


@pytest.mark.parametrize(
    "hint, array, wrong",
    [
        (int, pa.array([1.0]), "'x' of the table is double, and Probe needs int64"),
        (int, pa.array(["1"]), "is string, and Probe needs int64"),
        (str, pa.array([1]), "is int64, and Probe needs string"),
        (bool, pa.array([1]), "is int64, and Probe needs bool"),
        (int, pa.array([2**63], pa.uint64()), "does not become int64"),
        (float, pa.array([2**60 + 1]), "does not become double"),
        (dt.datetime, pa.array([1], pa.timestamp("us")), "Give the times a zone"),
        (dt.datetime, pa.array([1], pa.timestamp("ns", "UTC")), "would lose data"),
        (int, pa.array([1, None]), "Row 1 .* column 'x' of Probe is null"),
        (list[int], pa.array([[1], [2, None]]), r"Row 1 .* column 'x\[\]' of Probe is null"),
        (dict[str, int], pa.array([[], [("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int64())),
         r"Row 2 .* column 'x\{\}' of Probe is null"),
        (Pair | None, pa.array([None, {"left": 1, "right": ""}, {"left": None, "right": ""}]),
         r"Row 2 .* column 'x.left' of Probe is null"),
        (Colour, pa.array(["red", "pink"]), "Row 1 .* is the str 'pink'; Colour has 'red', 'blue'"),
        (Level, pa.array([1, 3]), "Row 1 .* is the int 3; Level has 1, 2"),
        (Literal["a", "b"], pa.array(["a", "c"]), "Row 1 .* it must be one of 'a', 'b'"),
        (uuid.UUID, pa.array([str(uuid.UUID(int=1)), "x"]), "Row 1 .* a UUID is 36 characters"),
        (list[Pair], pa.array([1]), "is int64, and Probe needs list"),
    ],
)  # fmt: skip
def test_what_would_change_a_value_is_refused_by_name(hint: Any, array: pa.Array, wrong: str) -> None:
    """The column, and the row where it is one value."""
    with pytest.raises(RecordError, match=wrong):
        one_column(hint, array)


def test_a_table_with_other_columns_is_refused() -> None:
    """One that is missing, one too many, and one that is there twice."""
    with pytest.raises(RecordError, match="no column 'customer', which Order needs"):
        ORDERS.fit_arrow(pa.record_batch({"order_id": [1]}))
    extra = pa.record_batch({"order_id": [1], "customer": ["ann"], "x": [1]})
    with pytest.raises(RecordError, match="a column 'x', and Order has no such field"):
        ORDERS.fit_arrow(extra)
    assert ORDERS.fit_arrow(extra, extra="drop").schema == ORDERS.arrow_schema()
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["order_id", "order_id"])
    with pytest.raises(RecordError, match="2 columns 'order_id'"):
        ORDERS.fit_arrow(twice)


@pytest.mark.parametrize(
    ("hint", "array", "wrong"),
    [
        (Annotated[int, msgspec.Meta(ge=0)], pa.array([1, -1]), "Row 1 .* is no Probe: Expected `int` >= 0"),
        (
            dt.datetime,
            pa.array([2**62], pa.timestamp("us", "UTC")),
            "Column 'x' holds a value that Python does not have",
        ),
    ],
    ids=["a rule of its type", "a time that Python does not have"],
)
def test_a_row_whose_value_arrow_can_hold_and_its_type_cannot_is_no_record(
    hint: Any, array: pa.Array, wrong: str
) -> None:
    """It is named, as an entry of JSON would be."""
    probe = RecordType.of(msgspec.defstruct("Probe", [("x", hint)]))
    batch = probe.fit_arrow(pa.record_batch({"x": array}))
    with pytest.raises(DecodeError, match=wrong):
        probe.from_arrow(batch)
