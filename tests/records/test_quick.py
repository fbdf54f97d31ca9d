"""The quick way to an array and the general one: equal arrays, or the same error."""

import datetime as dt
import enum
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.errors import RecordError
from streamworker.records import RecordType
from streamworker.records.columns import Column, Leaf
from tests.helpers import drawn


class Number(enum.IntEnum):
    ONE = 1


class Tone(enum.StrEnum):
    LOUD = "loud"


class Whole(int):
    """A subclass that a column accepts."""


class Shouted(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


class Id(uuid.UUID):
    def __str__(self) -> str:
        return "not what the digits say"


class Moment(dt.datetime):
    pass


class Index:
    def __index__(self) -> int:
        return 3


class Odd(dt.tzinfo):
    """A zone whose offset has a fraction of a second, which claims to be UTC."""

    def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=1, microseconds=1)

    dst = tzname = lambda *_: None

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


TEN = range(1, 11)
USUAL: dict[Any, tuple[list[Any], st.SearchStrategy[Any]]] = {
    int: ([*TEN], st.integers(-(2**63), 2**63 - 1)),
    float: ([n / 2 for n in TEN], st.floats()),
    str: ([str(n) for n in TEN], st.text(max_size=9)),
    bytes: ([b"%d" % n for n in TEN], st.binary(max_size=9)),
    bool: ([n > 5 for n in TEN], st.booleans()),
    dt.datetime: (
        [dt.datetime(2024, 1, n, tzinfo=dt.UTC) for n in TEN],
        st.datetimes(timezones=st.just(dt.UTC)),
    ),
    Annotated[dt.datetime, msgspec.Meta(tz=False)]: (
        [dt.datetime(2024, 1, n) for n in TEN],  # noqa: DTZ001
        st.datetimes(),
    ),
    dt.date: ([dt.date(2024, 1, n) for n in TEN], st.dates()),
    Decimal: ([Decimal(n) for n in TEN], st.decimals(-(10**9), 10**9, places=2)),
    uuid.UUID: ([uuid.UUID(int=n) for n in TEN], st.uuids()),
    list[int]: ([[n] for n in TEN], st.lists(st.integers(-9, 9), max_size=3)),
    dict[str, float]: (
        [{"a": n / 2} for n in TEN],
        st.dictionaries(st.text(max_size=2), st.floats(), max_size=2),
    ),
}
"""Ten values of each type, as many as the quick way of UUIDs needs, and what draws others."""

# fmt: off
ODD = [
    None, msgspec.UNSET, True, 1, 0, -0.0, 2**53 + 1, 2**60, 2**63, -(2**63) - 1, 2**2000, 1.5, 1.0,
    float("nan"), float("inf"), "1", "\ud800", "é", "", b"1", b"\xff", bytearray(b"1"), memoryview(b"1"),
    Number.ONE, Tone.LOUD, Whole(7), Shouted("a"), Index(), Decimal(1), Decimal("1e30"), Fraction(1, 2),
    uuid.UUID(int=0), Id(int=1), dt.timedelta(1), dt.date(2024, 1, 1), dt.time(1),
    dt.datetime(2024, 1, 1), dt.datetime(1, 1, 1), dt.datetime(2024, 1, 1, tzinfo=Odd()),  # noqa: DTZ001
    *(dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1, 1969, 2024, 9999)),
    *(dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=h))) for h in (0, 1)),
    Moment(2024, 1, 1, tzinfo=dt.UTC), Moment(2024, 1, 1),
    [], [1, None], (1, 2), {1}, [True], {"a": 1.0}, {"a": 1}, {1: 1.0}, {"a": None}, object(),
]
# fmt: on


def outcome(record_type: RecordType, records: list[Any]) -> object:
    """Return the bytes of the batch, or the error."""
    try:
        return bytes(record_type.to_arrow(records).serialize().to_pybytes())
    except RecordError as error:
        return str(error)


def assert_alike(hint: Any, nullable: bool, values: list[Any]) -> None:
    """Insist that the quick way and the general way give the same bytes, or the same words."""
    probe = msgspec.defstruct("Probe", [("x", hint | None if nullable else hint)])
    record_type, records = RecordType.of(probe), [probe(value) for value in values]
    found = outcome(record_type, records)
    with patch.object(Leaf, "build", Column.build):
        assert found == outcome(record_type, records)


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("hint", USUAL, ids=str)
def test_one_odd_value_is_taken_or_refused_as_by_the_general_way(hint: Any, nullable: bool) -> None:
    usual, _ = USUAL[hint]
    for odd in ODD:
        assert_alike(hint, nullable, [*usual[:4], odd, *usual[4:]])


@pytest.mark.parametrize("hint", USUAL, ids=str)
@drawn(25)
@given(data=st.data(), nullable=st.booleans())
def test_the_quick_way_gives_what_the_general_way_gives(hint: Any, data: Any, nullable: bool) -> None:
    """Values of the usual type, with odd ones at any place."""
    _, drawn_values = USUAL[hint]
    values = data.draw(st.lists(drawn_values, max_size=12))
    for odd in data.draw(st.lists(st.sampled_from(ODD), max_size=2)):
        values.insert(data.draw(st.integers(0, len(values))), odd)
    assert_alike(hint, nullable, values)


@pytest.mark.parametrize("name", ["number", "_n", "class", "None", "ﬁ", "ä", "record"])
def test_a_field_of_any_name_is_read(name: str) -> None:
    """Also one that is no identifier, or that Python would spell another way."""
    probe = msgspec.defstruct("Probe", [(name, int)])
    assert RecordType.of(probe).to_arrow([probe(1), probe(2)]).to_pylist() == [{name: 1}, {name: 2}]


def test_a_property_that_raises_stop_iteration_loses_no_row() -> None:
    """The error says which field did; the rows are not taken for fewer."""

    class Lazy(msgspec.Struct, dict=True):
        number: int

        def __getattribute__(self, name: str) -> Any:
            if name == "number":
                raise StopIteration
            return super().__getattribute__(name)

    with pytest.raises(RuntimeError, match=r"Lazy\.number raised StopIteration"):
        RecordType.of(Lazy).to_arrow([Lazy(1)])
