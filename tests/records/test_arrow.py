"""What Spark gets is what the records held: every type, every value, or an error by name."""

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.errors import ConfigurationError, RecordError
from streamworker.records import Precision, RecordType
from streamworker.records.arrow import schema_changes
from tests.helpers import drawn
from tests.records.kinds import KINDS, VALUES, Colour, Level, Place


def one_field(hint: Any) -> type:
    return msgspec.defstruct("Probe", [("x", hint)])


def column(hint: Any, *values: Any) -> pa.Array:
    probe = one_field(hint)
    return RecordType.of(probe).to_arrow([probe(value) for value in values]).column(0)


def plain(value: Any) -> Any:
    if isinstance(value, Place):
        return {"city": value.city, "zip_code": value.zip_code}
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


# -- round trip ------------------------------------------------------------------------------


@drawn(25)
@given(rows=st.lists(VALUES, max_size=8))
def test_every_kind_of_record_comes_back_from_arrow(rows: list[dict[str, Any]]) -> None:
    """Rows have the values that their records had, and become the same records, which are validated."""
    for kind in KINDS:
        record_type, records = RecordType.of(kind), [kind(**values) for values in rows]
        batch = record_type.to_arrow(records)
        batch.validate(full=True)
        assert batch.schema == record_type.arrow_schema()
        absent = {"place": None, "places": None if kind is KINDS[4] else ()}
        expected = [{name: plain(value) for name, value in (absent | values).items()} for values in rows]
        assert batch.to_pylist() == expected
        found = record_type.from_arrow(record_type.fit_arrow(batch))
        if kind is KINDS[4]:  # A key that is left out is null, and so is one that is None.
            assert record_type.to_arrow(found).equals(batch)
        else:
            assert found == records


class Tone(enum.StrEnum):
    LOUD = "loud"


class Leaf(msgspec.Struct):
    at: dt.datetime | None
    sizes: list[int | None]


class Branch(msgspec.Struct):
    leaves: list[Leaf | None] | None
    by_name: dict[str, list[Leaf]]
    one: Leaf | None


LEAVES = st.builds(
    Leaf,
    st.none() | st.datetimes(timezones=st.just(dt.UTC)),
    st.lists(st.none() | st.integers(-5, 5), max_size=3),
)
BRANCHES = st.builds(
    Branch,
    st.none() | st.lists(st.none() | LEAVES, max_size=3),
    st.dictionaries(st.text("ab", max_size=2), st.lists(LEAVES, max_size=2), max_size=2),
    st.none() | LEAVES,
)


@drawn(50)
@given(st.lists(BRANCHES, max_size=6))
def test_nested_records_come_back_at_any_depth(branches: list[Branch]) -> None:
    """Nulls between lists, structs and maps stay where they were."""
    batch = RecordType.of(Branch).to_arrow(branches)
    batch.validate(full=True)
    for branch, row in zip(branches, batch.to_pylist(), strict=True):
        expected = msgspec.to_builtins(branch, builtin_types=(dt.datetime,))
        assert row | {"by_name": dict(row["by_name"])} == expected


def test_a_moment_keeps_its_instant_in_every_time_zone() -> None:
    """Also where an hour comes twice, in a night in October (PEP 495), and in zones that had odd seconds."""
    paris = ZoneInfo("Europe/Paris")
    first = dt.datetime(2024, 10, 27, 2, 30, tzinfo=paris)
    assert column(dt.datetime, first, first.replace(fold=1)).to_pylist() == [
        dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC),
        dt.datetime(2024, 10, 27, 1, 30, tzinfo=dt.UTC),
    ]
    assert column(dt.datetime, dt.datetime(1900, 1, 1, tzinfo=paris)).to_pylist() == [
        dt.datetime(1899, 12, 31, 23, 50, 39, tzinfo=dt.UTC)
    ]


def test_an_unset_field_is_null() -> None:
    """Msgspec's UNSET has no other form in Arrow."""
    assert column(int | msgspec.UnsetType, 1, msgspec.UNSET).to_pylist() == [1, None]
    assert column(list[int] | msgspec.UnsetType, [1], msgspec.UNSET).to_pylist() == [[1], None]


def test_subclasses_of_a_type_are_values_of_it() -> None:
    """A str subclass is text, an IntEnum member a number."""
    assert column(str, Tone.LOUD).to_pylist() == ["loud"]
    assert column(int, Level.HIGH).to_pylist() == [2]
    assert column(float, 1, 2.5).to_pylist() == [1.0, 2.5]


# -- schema ----------------------------------------------------------------------------------

UserId = NewType("UserId", int)


class Partial(TypedDict, total=False):
    number: int


class Reference(TypedDict):
    number: NotRequired[int]
    place: Place


ELEMENT = pa.field("element", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (bool, pa.bool_()),
        (int, pa.int64()),
        (UserId, pa.int64()),
        (Annotated[int, msgspec.Meta(gt=0)], pa.int64()),
        (float, pa.float64()),
        (str, pa.string()),
        (bytes, pa.binary()),
        (dt.datetime, pa.timestamp("us", tz="UTC")),
        (Annotated[dt.datetime, msgspec.Meta(tz=True)], pa.timestamp("us", tz="UTC")),
        (Annotated[dt.datetime, msgspec.Meta(tz=False)], pa.timestamp("us")),
        (pydantic.AwareDatetime, pa.timestamp("us", tz="UTC")),
        (pydantic.NaiveDatetime, pa.timestamp("us")),
        (dt.date, pa.date32()),
        (dt.timedelta, pa.duration("us")),
        (Decimal, pa.decimal128(38, 18)),
        (Annotated[Decimal, Precision(10, 2)], pa.decimal128(10, 2)),
        (Annotated[Decimal, msgspec.Meta(description="euro"), Precision(5, 0)], pa.decimal128(5, 0)),
        (uuid.UUID, pa.string()),
        (Colour, pa.string()),
        (Level, pa.int64()),
        (Literal["a", "b"], pa.string()),
        (Literal[1, 2], pa.int64()),
        (list[int], pa.list_(ELEMENT)),
        (set[int], pa.list_(ELEMENT)),
        (frozenset[int], pa.list_(ELEMENT)),
        (tuple[int, ...], pa.list_(ELEMENT)),
        (tuple[int, int], pa.list_(ELEMENT)),
        (list[int | None], pa.list_(ELEMENT.with_nullable(True))),
        (dict[str, int], pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        (dict[int, float | None], pa.map_(pa.int64(), pa.float64())),
        (Place, pa.struct([pa.field("city", pa.string(), nullable=False), pa.field("zip_code", pa.int64())])),
        (Partial, pa.struct([pa.field("number", pa.int64())])),
    ],
)
def test_each_type_has_its_arrow_type(hint: Any, expected: pa.DataType) -> None:
    """The table of the documentation, also where None is allowed."""
    for outer, nullable in ((hint, False), (hint | None, True)):
        schema = RecordType.of(_dataclass(outer)).arrow_schema()
        assert schema == pa.schema([pa.field("x", expected, nullable=nullable)])


def _dataclass(hint: Any) -> type:
    return dataclasses.make_dataclass("Probe", [("x", hint)])


def test_a_key_that_may_be_missing_is_nullable() -> None:
    """NotRequired and total=False are None in Spark."""
    schema = RecordType.of(Reference).arrow_schema()
    assert schema.field("number").nullable
    assert not schema.field("place").nullable


@pytest.mark.spark("asks Spark")
@pytest.mark.parametrize("kind", [*KINDS, Branch, Reference])
def test_spark_takes_the_schema_without_a_cast(kind: Any) -> None:
    """Spark demands its own form of a schema to the letter; ours is that form."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    schema = RecordType.of(kind).arrow_schema()
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC") == schema


class Node(msgspec.Struct):
    """A record that holds itself."""

    children: list["Node"]


class Mixed(enum.Enum):
    A = 1
    B = "b"


@pytest.mark.parametrize(
    ("hint", "named", "remedy"),
    [
        (Any, "is Any", "Name the field's type"),
        (object, "is object", "Name the field's type"),
        (dt.time, "is time", "str, or a datetime"),
        (complex, "is complex", "two float fields"),
        (list, "is list", "list[str]"),
        (dict, "is dict", "dict[str, int]"),
        (tuple[int, str], "tuple[int, str]", "of one type"),
        (int | str, "several types", "JSON"),
        (int | str | None, "several types", "JSON"),
        (Mixed, "several types", "all str or all int"),
        (Literal[1, "a"], "several types", "all str or all int"),
        (dict[Place, int], "keys of type Place", "str or int"),
        (dict[str | None, int], "keys", "str or int"),
        (Node, "holds Node within Node", "recursive"),
        (list[list[complex]], "'x[][]'", "two float fields"),
        (dict[str, Any], "'x{}'", "Name the field's type"),
        (object(), "object object", "Use bool"),
        (type, "is type", "Use bool"),
    ],
)
def test_a_type_without_an_arrow_form_is_refused_with_what_to_use(hint: Any, named: str, remedy: str) -> None:
    """The error names record, field and type, and says what to use instead."""
    with pytest.raises(ConfigurationError) as caught:
        RecordType.of(_dataclass(hint)).arrow_schema()
    assert "of Probe" in caught.value.message
    assert named in caught.value.message
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(("digits", "scale"), [(0, 0), (39, 2), (10, 11), (10, -1)])
def test_an_impossible_precision_is_refused(digits: int, scale: int) -> None:
    """When it is written, not when the first value comes."""
    with pytest.raises(ConfigurationError, match="Precision"):
        Precision(digits, scale)


# -- values that do not fit ------------------------------------------------------------------

NAIVE = dt.datetime(2024, 1, 1)  # noqa: DTZ001
AWARE = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("hint", "good", "bad", "what"),
    [
        (int, 1, 2**63, "9223372036854775808"),
        (int, 1, None, "None"),
        (int, 1, "1", "'1'"),
        (int, 1, 1.5, "float 1.5"),
        (int, 1, True, "bool True"),
        (int | None, None, 1.0, "float 1.0"),
        (float, 1.0, "1", "'1'"),
        (float, 1.0, 2**60 + 1, "double"),
        (bool, True, 1, "bool"),
        (str, "a", b"a", "bytes"),
        (str, "a", "\ud800", "string"),
        (bytes, b"a", "a", "binary"),
        (dt.datetime, AWARE, NAIVE, "needs a time zone"),
        (dt.datetime | None, None, NAIVE, "needs a time zone"),
        (Annotated[dt.datetime, msgspec.Meta(tz=False)], NAIVE, AWARE, "without a time zone"),
        (dt.datetime, AWARE, dt.date(2024, 1, 1), "date"),
        (dt.date, dt.date(2024, 1, 1), AWARE, "date32"),
        (dt.timedelta, dt.timedelta(1), dt.timedelta.max, "duration"),
        (Decimal, Decimal(1), Decimal("NaN"), "NaN"),
        (Decimal, Decimal(1), Decimal(10) ** 25, "decimal128(38, 18)"),
        (Annotated[Decimal, Precision(4, 2)], Decimal("9.5"), Decimal("1.234"), "1.234"),
        (Annotated[Decimal, Precision(4, 2)], Decimal("9.5"), Decimal(100), "decimal128(4, 2)"),
        (Decimal, Decimal(1), 1.5, "float"),
        (uuid.UUID, uuid.UUID(int=1), "text", "str"),
        (Colour, Colour.RED, "red", "str"),
        (Literal["a", "b"], "a", "c", "one of 'a', 'b'"),
        (list[int], [1], 5, "int 5"),
        (list[str], ["a"], "abc", "str 'abc'"),
        (dict[str, int], {"a": 1}, [1], "list"),
        (Place, Place("Rome"), {"city": "Rome"}, "not a Place"),
        (Place, Place("Rome"), None, "None"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_field_and_record(
    hint: Any, good: Any, bad: Any, what: str
) -> None:
    """The error says which record, which field, and what is wrong with the value."""
    with pytest.raises(RecordError) as caught:
        column(hint, good, good, bad, good)
    assert "Record 2 (counted from 0, of 4): field 'x' of Probe" in caught.value.message
    assert what in caught.value.message


@pytest.mark.parametrize(
    ("hint", "good", "bad", "path"),
    [
        (list[int], [1, 2], [1, None], "x[]"),
        (list[list[int]], [[], [1]], [[], [1, 2.5]], "x[][]"),
        (list[dt.datetime], [], [AWARE, NAIVE], "x[]"),
        (dict[str, int], {"a": 1}, {"a": 1, "b": "c"}, "x{}"),
        (dict[str, int], {"a": 1}, {1: 1}, "x (key)"),
        (Place, Place("Rome"), Place(None), "x.city"),  # type: ignore[arg-type]
        (Place | None, None, Place("Rome", 2**70), "x.zip_code"),
        (list[Place | None], [None], [None, Place("Rome", "x")], "x[].zip_code"),  # type: ignore[arg-type]
        (dict[str, list[Leaf]], {"a": []}, {"a": [], "b": [Leaf(NAIVE, [])]}, "x{}[].at"),
    ],
)
def test_a_nested_value_that_does_not_fit_is_named_by_its_path(
    hint: Any, good: Any, bad: Any, path: str
) -> None:
    """The record and the path lead to the value, through lists, maps and structs with nulls."""
    with pytest.raises(RecordError) as caught:
        column(hint, good, bad, good)
    assert f"Record 1 (counted from 0, of 3): field '{path}' of Probe" in caught.value.message


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize("other", [None, (1, 2), {"left": 1, "right": 2}, Place("Rome")])
def test_an_object_of_another_type_is_named(other: object) -> None:
    """A processor that returns something else learns which record it was."""
    with pytest.raises(RecordError, match=r"Record 1 .*it is"):
        RecordType.of(Pair).to_arrow([Pair(1, 2), other])


def test_a_value_without_a_text_is_named_by_its_type() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(RecordError, match=r"the Silent .*, which does not fit int64"):
        column(int, Silent())


def test_a_missing_key_is_named() -> None:
    """A TypedDict record without a required key says which."""
    with pytest.raises(RecordError, match=r"Record 1 .*'place' of Reference is missing"):
        RecordType.of(Reference).to_arrow([{"place": Place("Rome")}, {}])


# -- change ----------------------------------------------------------------------------------

N = pa.field("n", pa.int64(), nullable=False)


def table(*fields: pa.Field) -> pa.Schema:
    return pa.schema(fields)


def nested(wrap: Any, *fields: pa.Field) -> pa.Schema:
    """Return a schema with a struct of these fields inside something."""
    return pa.schema([pa.field("s", wrap(pa.struct(fields)))])


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        (table(N), table(N), []),
        (table(N), table(N, pa.field("m", pa.string())), []),
        (table(N.with_nullable(True)), table(N), []),
        (table(N, pa.field("m", pa.string())), table(pa.field("m", pa.string()), N), []),
        (table(N), table(pa.field("m", pa.string())), ["field 'n' was removed"]),
        (table(N), table(N.with_type(pa.string())), ["field 'n' was int64 and is string"]),
        (table(N), table(N, N.with_name("m")), ["field 'm' is new and not nullable"]),
        (table(N), table(N.with_nullable(True)), ["field 'n' was not nullable and is"]),
        (nested(lambda s: s, N), nested(lambda s: s, N, pa.field("m", pa.int64())), []),
        (
            nested(lambda s: s, N),
            nested(lambda s: s, N.with_name("m")),
            ["'s.n' was removed", "'s.m' is new"],
        ),
        (nested(pa.list_, N), nested(pa.list_, N.with_type(pa.string())), ["field 's[].n' was int64"]),
        (
            nested(lambda s: pa.map_(pa.string(), s), N),
            nested(lambda s: pa.map_(pa.int64(), s), N.with_type(pa.string())),
            ["'s (key)' was string and is int64", "'s{}.n' was int64 and is string"],
        ),
    ],
)
def test_changes_that_readers_cannot_follow_are_listed(
    old: pa.Schema, new: pa.Schema, changes: list[str]
) -> None:
    """New nullable fields are fine; what is gone, other or demanded anew is named."""
    found = schema_changes(old, new)
    assert len(found) == len(changes)
    for text, expected in zip(found, changes, strict=True):
        assert expected in text
