"""Growth keeps its promises in each drawn schedule of faults, and each planted mistake is found.

``world.py`` says what a schedule is. Rare mistakes need tens of thousands: the soak runs 100,000.
"""

import multiprocessing
import os
import time
from collections import Counter

import pytest

from tests.drawn import is_found, violations
from tests.model.world import violation
from tests.nightly import TURN
from tests.planting import Plant, each_found_by

PART = 200
SOAK, CHUNK = 50_000, 500
SEARCHED, SEARCHED_AT_NIGHT = 400, 20_000
"""Schedules in which a planted mistake must be found."""
TOLD = ("append SEALED", "growths", "failovers", "commit OK", "fill OK", "move_messages OK", "late")


@pytest.mark.parametrize(
    "part",
    [0, *(pytest.param(n, marks=pytest.mark.full("a further part of the schedules")) for n in range(1, 6))],
)
def test_no_schedule_of_growths_breaks_a_promise(part: int) -> None:
    """And all that can happen does."""
    broken, seen = violations(violation, part * PART, PART)
    assert broken == {}
    assert min(seen[name] for name in TOLD) > PART / 10
    assert seen["append SEALED"] > PART / 2
    assert seen["growths"] > PART


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("half", [1, 2])
def test_no_schedule_of_very_many_growths_breaks_a_promise(half: int) -> None:
    """A hundred thousand in both halves, others at each turn of this part of `make nightly`."""
    began_s = time.monotonic()
    first = (2 * int(os.environ.get(TURN, "0")) + half) * SOAK
    with multiprocessing.get_context("fork").Pool(1) as pool:
        parts = pool.starmap(
            violations, ((violation, seed, CHUNK) for seed in range(first, first + SOAK, CHUNK)), 1
        )
    seen = sum((its for _, its in parts), Counter[str]())
    figures = ", ".join(f"{seen[name]:,} {name}" for name in TOLD)
    print(f"{SOAK:,} schedules from seed {first:,} in {time.monotonic() - began_s:.0f} s: {figures}")
    assert {seed: why for broken, _ in parts for seed, why in broken.items()} == {}


@each_found_by("growth from seed")
def test_a_planted_mistake_breaks_a_promise(plant: Plant) -> None:
    """A check that never fails proves nothing."""
    assert is_found(violation, plant, int(plant.found_by["growth from seed"]), 10)


@pytest.mark.full("runs hundreds of schedules for each mistake")
@each_found_by("growth in full from seed")
def test_a_mistake_that_is_seldom_seen_breaks_a_promise(plant: Plant) -> None:
    assert is_found(violation, plant, int(plant.found_by["growth in full from seed"]), SEARCHED)


@pytest.mark.soak
@pytest.mark.timeout(900)
@each_found_by("growth at night from seed")
def test_a_mistake_that_is_hardly_ever_seen_breaks_a_promise(plant: Plant) -> None:
    assert is_found(violation, plant, int(plant.found_by["growth at night from seed"]), SEARCHED_AT_NIGHT)
