"""Each soak test is in one part of ``make nightly``, and each part comes to its turn in CI."""

from collections import Counter

import pytest

from tests.conftest import SOAK_TESTS
from tests.nightly import HERE, PARTS, SLOT_S, due, main, parts_of

DAY_S = 24 * 60 * 60


def test_each_soak_test_is_in_one_part() -> None:
    """Of those that were collected with this one: all, in a run of all tests."""
    assert {test: parts for test in SOAK_TESTS if len(parts := parts_of(test)) != 1} == {}


def test_each_beginning_is_that_of_a_test_file() -> None:
    files = [path.relative_to(HERE).as_posix() for path in HERE.glob("tests/**/test_*.py")]
    beginnings = [each.partition("::")[0] for part in PARTS.values() for each in part]
    assert [each for each in beginnings if not any(file.startswith(each) for file in files)] == []


@pytest.mark.parametrize("pause_s", [3 * 60 * 60, SLOT_S, DAY_S, 7 * DAY_S])
def test_each_part_comes_to_its_turn(pause_s: int) -> None:
    """Whatever the pauses between commits are."""
    turns = Counter(due(number * pause_s) for number in range(4 * len(PARTS)))
    assert turns.keys() == PARTS.keys()


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strom"]) == 2
    assert "There is no part strom. There are: " in capsys.readouterr().err
