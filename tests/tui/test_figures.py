"""Numbers and times as short text."""

import doctest

from hypothesis import given
from hypothesis import strategies as st

from streamworker.tui import figures


def test_the_examples_in_the_docstrings_hold() -> None:
    """They are the specification."""
    assert doctest.testmod(figures).failed == 0


@given(st.floats(min_value=0, max_value=9e10))
def test_a_number_never_outgrows_its_column(number: float) -> None:
    """Columns are four or three characters wide, whatever the backlog."""
    assert len(figures.compact(number)) <= 4
    assert len(figures.tight(number)) <= 3


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_bar_is_one_character(value: int, largest: int) -> None:
    """Anything above nothing is visible."""
    drawn = figures.bar(value, largest)
    assert len(drawn) == 1
    assert (drawn == " ") == (value == 0 or largest == 0)
