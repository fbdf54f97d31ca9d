"""Entry ids."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.entries import SEQUENCE_MAX, ZERO, EntryId
from streamworker.errors import ConfigurationError

numbers = st.integers(min_value=0, max_value=SEQUENCE_MAX)
ids = st.builds(EntryId, numbers, numbers)


@given(ids)
def test_an_id_comes_back_as_it_was_printed(entry_id: EntryId) -> None:
    """As text, and as the bytes that Redis sends."""
    assert EntryId.parse(str(entry_id)) == entry_id
    assert EntryId.parse(str(entry_id).encode()) == entry_id


@given(ids, ids)
def test_ids_are_ordered_as_redis_orders_them(one: EntryId, other: EntryId) -> None:
    """By time, then by sequence, as numbers; not as text."""
    assert (one < other) == ((one.ms, one.seq) < (other.ms, other.seq))
    assert EntryId.parse("10-1") > EntryId.parse("9-1")


@given(ids.filter(lambda each: each.ms < SEQUENCE_MAX))
def test_nothing_fits_between_an_id_and_its_successor(entry_id: EntryId) -> None:
    """Either the next sequence number, or the first of the next millisecond."""
    after = entry_id.successor()
    assert after > entry_id
    assert after in (EntryId(entry_id.ms, entry_id.seq + 1), EntryId(entry_id.ms + 1, 0))
    assert after.seq <= SEQUENCE_MAX


def test_an_id_without_a_sequence_is_the_first_of_its_millisecond() -> None:
    """As Redis reads it."""
    assert EntryId.parse("5") == EntryId(5, 0)
    assert EntryId.parse("0-1") > ZERO


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "-",
            "5-",
            "-5",
            "a-1",
            "1-a",
            "1-2-3",
            "1.5-0",
            "+1-0",
            " 1-0",
            "1-0\n",
            "٣-0",
            "$",
            b"\xff-1",
        ),
        *("9" * 21, f"{SEQUENCE_MAX + 1}-0", f"0-{SEQUENCE_MAX + 1}", "9" * 5_000),
    ],
)
def test_what_is_no_id_is_refused_with_an_example(text: str | bytes) -> None:
    """A user types ids after ``reset --to``. Both halves are unsigned 64-bit integers."""
    with pytest.raises(ConfigurationError, match=r"is not an entry id.*such as 1732186412345-0"):
        EntryId.parse(text)


@given(st.text() | st.binary())
def test_any_text_is_an_id_or_a_configuration_error(text: str | bytes) -> None:
    """Nothing else comes out of it."""
    with suppress(ConfigurationError):
        assert EntryId.parse(text) >= ZERO
