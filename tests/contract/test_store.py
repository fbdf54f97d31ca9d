"""The simulator's store runs the scripts that ship as real servers do."""

from collections.abc import Iterator

import pytest

from tests.contract.sequences import Judge
from tests.contract.support import Raw
from tests.planting import Plant, each_found_by, planted

pytestmark = pytest.mark.one_server

STEPS = 45
SEEDS_FOR_A_MISTAKE = 400


@pytest.fixture
def judge(raw: Raw, small_nodes: None) -> Iterator[Judge]:
    """A server that runs sequences; it forgets what other programs have written into our keys."""
    yield Judge(raw)
    raw.flushall()


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(0, 30, id="thirty"),
        pytest.param(30, 270, id="three_hundred", marks=pytest.mark.full("takes twenty seconds")),
        # Three of them, since several parts of `make nightly` share them.
        *(
            pytest.param(first, 1_000, id=f"thousand_{n}", marks=[pytest.mark.soak, pytest.mark.timeout(0)])
            for n, first in enumerate((10_000, 11_000, 12_000))
        ),
    ],
)
def test_the_store_replies_and_keeps_what_a_server_does(judge: Judge, first: int, count: int) -> None:
    """Of all scripts, with values of other programs, repeated calls, and a clock that goes back."""
    found = [judge.difference(seed, STEPS) for seed in range(first, first + count)]
    assert list(filter(None, found)) == []


@pytest.mark.full("draws sequences for each mistake")
@each_found_by("sequences")
def test_each_planted_mistake_of_the_store_shows(judge: Judge, plant: Plant) -> None:
    """Else the comparison would be blind to it."""
    with planted(plant):
        assert any(judge.difference(seed, STEPS) for seed in range(SEEDS_FOR_A_MISTAKE)), "nobody noticed"
