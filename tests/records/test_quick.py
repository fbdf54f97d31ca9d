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

from streamworker.errors import RecordError
from streamworker.records import RecordType
from streamworker.records.columns import Column, Leaf


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
USUAL: dict[Any, list[Any]] = {
    int: [*TEN],
    float: [n / 2 for n in TEN],
    str: [str(n) for n in TEN],
    bytes: [b"%d" % n for n in TEN],
    bool: [n > 5 for n in TEN],
    dt.datetime: [dt.datetime(2024, 1, n, tzinfo=dt.UTC) for n in TEN],
    Annotated[dt.datetime, msgspec.Meta(tz=False)]: [dt.datetime(2024, 1, n) for n in TEN],  # noqa: DTZ001
    dt.date: [dt.date(2024, 1, n) for n in TEN],
    Decimal: [Decimal(n) for n in TEN],
    uuid.UUID: [uuid.UUID(bytes=bytes(range(n, 16 * n + n, n))) for n in TEN],
    list[int]: [[n] for n in TEN],
    dict[str, float]: [{"a": n / 2} for n in TEN],
}
"""Ten values of each type, as many as the quick way of UUIDs needs."""

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
    """What is usual comes back, of any value, in test_arrow.py."""
    usual = USUAL[hint]
    for odd in ODD:
        assert_alike(hint, nullable, [*usual[:4], odd, *usual[4:]])


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
