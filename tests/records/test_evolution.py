"""A change of a record type is compared with what the decoders do with entries of the old type."""

from typing import Any, Literal

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
