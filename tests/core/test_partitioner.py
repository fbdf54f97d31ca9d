"""A key always goes to the same partition, whoever sends it, in whatever language."""

import datetime as dt
import enum
import zlib
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.placement import (
    Placement,
    RoundRobin,
    canonical_key,
)
from streamworker.errors import RecordError
from tests.core.vectors import VECTORS


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.Enum):
    HIGH = 3


SCALARS = (
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.integers()
    | st.booleans()
    | st.uuids()
    | st.dates()
    | st.datetimes()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.none()
)


@pytest.mark.parametrize(("key", "data", "crc", "partition"), VECTORS)
def test_the_published_vectors_hold(key: Any, data: bytes, crc: int, partition: int) -> None:
    """Each vector's bytes, checksum and partition are what the specification says."""
    assert canonical_key(key) == data
    assert zlib.crc32(data) == crc
    assert Placement(16).partition_of(data) == partition


def test_the_checksum_follows_from_its_written_description() -> None:
    """CRC-32 computed bit by bit from the module's own words is what zlib gives."""

    def crc32(data: bytes) -> int:
        register = 0xFFFFFFFF
        for byte in data:
            register ^= byte
            for _ in range(8):
                register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
        return register ^ 0xFFFFFFFF

    assert [crc32(data) for _, data, _, _ in VECTORS] == [crc for _, _, crc, _ in VECTORS]


def test_a_string_and_its_enum_member_are_the_same_key() -> None:
    """An enumeration's member is routed by its value."""
    assert canonical_key(Colour.RED) == canonical_key("red")
    assert canonical_key(Level.HIGH) == canonical_key(3)


@given(st.datetimes(timezones=st.timezones(), min_value=dt.datetime(1900, 1, 1)))  # noqa: DTZ001
def test_one_moment_is_one_key_in_every_time_zone(moment: dt.datetime) -> None:
    """A key that is a time does not depend on the zone in which it was written."""
    assert canonical_key(moment) == canonical_key(moment.astimezone(dt.UTC))


@given(st.decimals(-(10**15), 10**15, places=4))
def test_equal_decimals_are_one_key(number: Decimal) -> None:
    """Trailing zeros and exponents do not change a key."""
    key = canonical_key(number)
    assert key == canonical_key(number.normalize())
    assert key is not None
    assert Decimal(key.decode()) == number


@given(st.tuples(SCALARS, SCALARS), st.tuples(SCALARS, SCALARS))
def test_different_pairs_are_different_keys(one: Any, other: Any) -> None:
    """Parts cannot run into one another: ("a", "bc") is not ("ab", "c")."""
    same_parts = [canonical_key(part) for part in one] == [canonical_key(part) for part in other]
    assert (canonical_key(one) == canonical_key(other)) == same_parts


@given(SCALARS, st.integers(1, 1000))
def test_every_key_has_a_partition(value: Any, partitions: int) -> None:
    """A canonical key is None or bytes, and bytes lead to a partition that exists."""
    key = canonical_key(value)
    assert (key is None) == (value is None)
    if key is not None:
        assert 0 <= Placement(partitions).partition_of(key) < partitions


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        float("nan"),
        [1],
        {"a": 1},
        object(),
        Decimal("NaN"),
        Decimal("1E+999999999"),
        1 << 4000,
        "\ud800",
        ("a", 1.5),
        dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=5))),
    ],
)
def test_a_value_without_an_agreed_form_is_refused(value: object) -> None:
    """What other languages would write differently is an error that says what to use."""
    with pytest.raises(RecordError) as caught:
        canonical_key(value)
    assert caught.value.remedy


def test_records_without_a_key_are_dealt_in_turn() -> None:
    """Each partition gets as many keyless records as the others, also when the number changes."""
    deal = RoundRobin(start=2)
    assert [deal.next(range(3)) for _ in range(6)] == [2, 0, 1, 2, 0, 1]
    assert 0 <= deal.next(range(2)) < 2
