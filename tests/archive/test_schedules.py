"""The chain of an archive is the log in each drawn schedule of faults, and each planted mistake is found."""

import pytest

from tests.archive.schedules import AFTER_MS, EVERY_MS, World, quiet_segments, violation
from tests.drawn import is_found, violations
from tests.planting import Plant, each_found_by

SCHEDULES, AT_NIGHT = 40, 10_000
SEARCHED, SEARCHED_IN_FULL = 60, 300
TOLD = ("puts refused", "failovers", "commit GAP", "commit FENCED", "deaths", "store away", "deleted")


def test_the_chain_is_the_log_in_each_schedule() -> None:
    """And all that can happen does."""
    broken, seen = violations(violation, 0, SCHEDULES)
    assert broken == {}
    assert min(seen[name] for name in TOLD) > SCHEDULES / 5
    assert seen["archived"] > 50 * SCHEDULES


def test_nothing_is_archived_that_a_failover_may_still_lose() -> None:
    """However much waits: it must first be as old as ``after`` says."""
    world = World(0)
    assert quiet_segments(world, AFTER_MS - 20) == 0
    assert quiet_segments(world, 2 * EVERY_MS) == 1


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_the_chain_is_the_log_in_very_many_schedules() -> None:
    broken, seen = violations(violation, 1_000_000, AT_NIGHT)
    print(dict(seen))
    assert broken == {}


@each_found_by("archive from seed")
def test_a_planted_mistake_breaks_the_chain(plant: Plant) -> None:
    """A check that never fails proves nothing."""
    assert is_found(violation, plant, int(plant.found_by["archive from seed"]), SEARCHED)


@pytest.mark.full("runs hundreds of schedules for each mistake")
@each_found_by("archive in full from seed")
def test_a_mistake_that_is_seldom_seen_breaks_the_chain(plant: Plant) -> None:
    assert is_found(violation, plant, int(plant.found_by["archive in full from seed"]), SEARCHED_IN_FULL)
