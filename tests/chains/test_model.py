"""Sends and chains keep their promises in each drawn schedule of faults, and each planted mistake is found.

``model.py`` says what a schedule is. Rare mistakes need tens of thousands: the soak runs 250,000.
"""

import multiprocessing

import pytest

from tests.chains.model import violation
from tests.drawn import is_found, violations
from tests.planting import Plant, each_found_by

PART = 500
SOAK, CHUNK = 250_000, 2_500
SEARCHED = 20_000
"""Schedules in which a planted mistake must be found."""


@pytest.mark.parametrize(
    "part",
    [0, *(pytest.param(n, marks=pytest.mark.full("a further part of the histories")) for n in range(1, 6))],
)
def test_no_schedule_of_faults_breaks_a_promise(part: int) -> None:
    """And each answer of the scripts is given often."""
    broken, seen = violations(violation, part * PART, PART)
    assert broken == {}
    assert set(seen) == {"OK", "DUP", "FULL", "OTHER"}
    assert min(seen.values()) > PART / 10


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_no_schedule_of_very_many_breaks_a_promise() -> None:
    """On all cores: two of them take some minutes."""
    with multiprocessing.get_context("fork").Pool() as pool:
        parts = pool.starmap(violations, ((violation, first, CHUNK) for first in range(0, SOAK, CHUNK)), 1)
    assert {seed: why for broken, _ in parts for seed, why in broken.items()} == {}


@each_found_by("chains from seed")
def test_a_planted_mistake_breaks_a_promise(plant: Plant) -> None:
    """A check that never fails proves nothing."""
    assert is_found(violation, plant, int(plant.found_by["chains from seed"]), SEARCHED)
