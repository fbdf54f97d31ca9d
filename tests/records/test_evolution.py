"""A change of a record type is compared with what the decoders do with entries of the old type."""

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given

from streamworker.core.data.entries import Entry, EntryId
from streamworker.errors import DecodeError
from streamworker.records import RecordType
from streamworker.records.evolution import changes, json_schema, may_hold
from streamworker.records.types import RecordKind
from tests.helpers import drawn
from tests.records.decoding import decoded
from tests.records.kinds import KINDS, VALUES

CODECS: tuple[Literal["json", "msgpack"], ...] = ("json", "msgpack")


class Line(msgspec.Struct):
    sku: str
    count: int


class Line2(msgspec.Struct):
    sku: str
    count: str


def _struct(*fields: tuple[str, Any] | tuple[str, Any, Any]) -> Any:
    return msgspec.defstruct("Order", fields)


ONE: Any
TWO: Any
OTHER: Any
ONE, TWO, OTHER = (
    enum.Enum("Colour", {"RED": "red"}),
    enum.Enum("Colour", {"RED": "red", "BLUE": "blue"}),
    enum.Enum("Paint", {"RED": "red"}),
)


def _line(kind: type) -> Any:
    return msgspec.defstruct("Line", [("n", kind)])


CASES: dict[str, tuple[list[Any], list[Any], dict[str, Any], list[str]]] = {
    "nothing": ([("n", int)], [("n", int)], {"n": 1}, []),
    "gains a default": (
        [("n", int)],
        [("n", int), ("m", str | None, None)],
        {"n": 1},
        ["Order gains `m: str | None = None`"],
    ),
    "gains a need": ([("n", int)], [("n", int), ("m", str)], {"n": 1}, ["Order gains `m: str`"]),
    "loses": ([("n", int), ("m", str)], [("n", int)], {"n": 1, "m": "x"}, ["Order loses `m`"]),
    "widens": ([("n", int)], [("n", float)], {"n": 1}, ["Order.n: int -> float"]),
    "narrows": ([("n", float)], [("n", int)], {"n": 1.5}, ["Order.n: float -> int"]),
    "may be None": ([("n", int)], [("n", int | None)], {"n": 1}, ["Order.n: int -> int | None"]),
    "may not be None": ([("n", int | None)], [("n", int)], {"n": None}, ["Order.n: int | None -> int"]),
    "in a list": ([("n", list[int])], [("n", list[str])], {"n": [1]}, ["Order.n: list[int] -> list[str]"]),
    "in a record": (
        [("n", Line)],
        [("n", Line2)],
        {"n": {"sku": "a", "count": 1}},
        ["Order.n: Line -> Line2"],
    ),
    "an enum gains": ([("n", ONE)], [("n", TWO)], {"n": "red"}, ["Order.n gains 'blue'"]),
    "an enum loses": ([("n", TWO)], [("n", ONE)], {"n": "blue"}, ["Order.n loses 'blue'"]),
    "an enum has another name": ([("n", ONE)], [("n", OTHER)], {"n": "red"}, []),
    "an enum becomes a text": ([("n", TWO)], [("n", str)], {"n": "red"}, ["Order.n: Colour -> str"]),
    "a Literal gains": ([("n", Literal["s"])], [("n", Literal["s", "m"])], {"n": "s"}, ["Order.n gains 'm'"]),
    "a Literal loses": ([("n", Literal["s", "m"])], [("n", Literal["s"])], {"n": "m"}, ["Order.n loses 'm'"]),
    "a Literal becomes a text": ([("n", Literal["s"])], [("n", str)], {"n": "s"}, ["Order.n: 's' -> str"]),
    "a text becomes a Literal": ([("n", str)], [("n", Literal["s"])], {"n": "m"}, ["Order.n: str -> 's'"]),
    "an enum in a list": (
        [("n", list[TWO])],
        [("n", list[ONE])],
        {"n": ["blue"]},
        ["Order.n[] loses 'blue'"],
    ),
    "an enum may be None": (
        [("n", ONE)],
        [("n", ONE | None)],
        {"n": "red"},
        ["Order.n: Colour -> Colour | None"],
    ),
    "a text becomes bytes": ([("n", str)], [("n", bytes)], {"n": "?"}, ["Order.n: str -> bytes"]),
    "a tuple of more": (
        [("n", tuple[int, int])],
        [("n", tuple[int, int, int])],
        {"n": [1, 2]},
        ["Order.n: 2 -> 3 values"],
    ),
    "a tuple of others": (
        [("n", tuple[int, int])],
        [("n", tuple[int, str])],
        {"n": [1, 2]},
        ["Order.n[1]: int -> str"],
    ),
    "in a record of the same name": (
        [("lines", list[_line(int)])],  # type: ignore[misc]
        [("lines", list[_line(str)])],  # type: ignore[misc]
        {"lines": [{"n": 1}]},
        ["Order.lines[].n: int -> str"],
    ),
}


@pytest.mark.parametrize(("old", "new", "stored", "told"), CASES.values(), ids=CASES)
def test_a_change_is_told_to_break_exactly_if_a_stored_record_cannot_be_decoded(
    old: list[Any], new: list[Any], stored: dict[str, Any], told: list[str]
) -> None:
    was, is_now = RecordType.of(_struct(*old)), RecordType.of(_struct(*new))
    payload = was.encoder("json")(msgspec.convert(stored, was.python_type))
    assert isinstance(payload, bytes)

    found = changes(json_schema(was), json_schema(is_now), "Order")

    assert [each.what for each in found] == told
    try:
        decoded(is_now, [Entry(EntryId(1, 0), {b"v": payload}, len(payload))])
        can_be_read = True
    except DecodeError:
        can_be_read = False
    assert any(each.breaks for each in found) is not can_be_read


FIELDS: list[tuple[str, Any]] = [("a", int), ("b", int)]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (_struct(("n", int, 1)), _struct(("n", int)), ("Order.n loses its default", "not judged: ")),
        (
            _struct(("n", int)),
            _struct(("n", Annotated[int, msgspec.Meta(ge=0)])),
            ("Order.n: minimum none -> 0", "not judged: "),
        ),
        (
            _struct(("n", Annotated[int, msgspec.Meta(ge=0)])),
            _struct(("n", int)),
            ("Order.n: minimum 0 -> none", "fine: "),
        ),
        (
            msgspec.defstruct("Order", FIELDS),
            msgspec.defstruct("Order", FIELDS, forbid_unknown_fields=True),
            ("Order: additionalProperties none -> False", "not judged: "),
        ),
        (
            msgspec.defstruct("Order", FIELDS),
            msgspec.defstruct("Order", FIELDS[:1], forbid_unknown_fields=True),
            ("Order loses `b`", "breaks: "),
        ),
        (
            msgspec.defstruct("Order", FIELDS),
            msgspec.defstruct("Order", FIELDS, array_like=True),
            ("Order is stored as object, and read as array", "breaks: "),
        ),
        (
            msgspec.defstruct("Order", FIELDS, array_like=True),
            msgspec.defstruct("Order", [("a", str), ("b", int)], array_like=True),
            ("Order[0]: int -> str", "breaks: "),
        ),
    ],
)
def test_what_is_not_judged_is_named(old: Any, new: Any, told: tuple[str, str]) -> None:
    """A rule that only some stored values keep is no reason to say that all is well."""
    found = changes(json_schema(RecordType.of(old)), json_schema(RecordType.of(new)), "Order")
    last = found[-1]
    assert (last.what, last.effect.startswith(told[1])) == (told[0], True)
    assert last.breaks is (told[1] == "breaks: ")


@drawn(25)
@given(values=VALUES)
def test_no_stored_record_is_taken_for_one_that_its_type_could_not_read(values: dict[str, Any]) -> None:
    """Of each kind and codec, with fields of each type."""
    for kind in KINDS:
        record_type = RecordType.of(kind)
        schema = msgspec.json.decode(msgspec.json.encode(json_schema(record_type)))
        for codec in CODECS:
            payload = record_type.encoder(codec)(kind(**values))
            assert isinstance(payload, bytes)
            value = (msgspec.json if codec == "json" else msgspec.msgpack).decode(payload)
            assert may_hold(schema, value, schema["$defs"], record_type.kind is RecordKind.PYDANTIC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"kind": "Line", "sku": "a", "count": 1}, True),
        ({"kind": "Line", "sku": "a", "count": 1, "more": 2}, True),
        ({"kind": "Line", "sku": "a"}, False),
        ({"kind": "Line", "sku": 1, "count": 1}, False),
        ({"kind": "Lines", "lines": [{"kind": "Line", "sku": "a", "count": 1}]}, True),
        ({"kind": "Lines", "lines": [{"kind": "Line", "sku": "a", "count": None}]}, False),
        ({"kind": "Lines", "lines": [], "note": None}, True),
        ({"kind": "Lines", "lines": [], "note": 1}, False),
        ([], False),
    ],
)
def test_a_record_that_no_version_could_read_is_known_by_its_types_and_fields(
    value: Any, expected: bool
) -> None:
    class Line(msgspec.Struct, tag_field="kind", tag=True):
        sku: str
        count: int

    class Lines(msgspec.Struct, tag_field="kind", tag=True):
        lines: list[Line]
        note: str | None = None

    schema = msgspec.json.schema(Line | Lines)
    assert may_hold(schema, value, schema["$defs"], is_lax=False) is expected
    try:
        msgspec.convert(value, Line | Lines)
    except msgspec.ValidationError:
        assert not expected
