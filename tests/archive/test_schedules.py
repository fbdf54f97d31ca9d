"""The chain of an archive is the log in each drawn schedule of faults, and each planted mistake is found."""

from collections import Counter

import pytest

from tests.archive.schedules import violation
from tests.planting import Plant, each_found_by, planted

SCHEDULES, AT_NIGHT = 40, 10_000
SEARCHED = 300
TOLD = ("puts refused", "failovers", "commit GAP", "commit FENCED", "deaths", "store away", "deleted")


def violations(first: int, schedules: int) -> tuple[dict[int, str], Counter[str]]:
    """Run some schedules; return what they broke by their seeds, and how often each thing happened."""
    broken, seen = dict[int, str](), Counter[str]()
    for seed in range(first, first + schedules):
        why, its = violation(seed)
        seen += its
        if why:
            broken[seed] = why
    return broken, seen


def test_the_chain_is_the_log_in_each_schedule() -> None:
    """And all that can happen does."""
    broken, seen = violations(0, SCHEDULES)
    assert broken == {}
    assert min(seen[name] for name in TOLD) > SCHEDULES / 5
    assert seen["archived"] > 50 * SCHEDULES


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_the_chain_is_the_log_in_very_many_schedules() -> None:
    broken, seen = violations(1_000_000, AT_NIGHT)
    print(dict(seen))
    assert broken == {}


def is_found(plant: Plant, first: int, schedules: int) -> bool:
    with planted(plant):
        for seed in range(first, first + schedules):
            if why := violation(seed)[0]:
                print(f"{plant.name}: found by schedule {seed - first + 1} from seed {first}: {why}")
                return True
    return False


@each_found_by("archive from seed")
def test_a_planted_mistake_breaks_the_chain(plant: Plant) -> None:
    """A check that never fails proves nothing."""
    assert is_found(plant, int(plant.found_by["archive from seed"]), 10)


@pytest.mark.full("runs hundreds of schedules for each mistake")
@each_found_by("archive in full from seed")
def test_a_mistake_that_is_seldom_seen_breaks_the_chain(plant: Plant) -> None:
    assert is_found(plant, int(plant.found_by["archive in full from seed"]), SEARCHED)
