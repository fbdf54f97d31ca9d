"""Every known mistake is found: a checker that has caught nothing is not trusted."""

import json
from pathlib import Path

import pytest

from tests.planting import PLANTS, Plant, each_found_by, planted
from tests.simulator.simulation import Schedule, run

MOST = 1_000
RESULTS = Path(__file__, "../../../docs/planted.json").resolve()


def needed() -> dict[str, int]:
    """Return how many schedules each mistake needed when ``python docs/planted.py`` was run."""
    return {name: each["schedules"] for name, each in json.loads(RESULTS.read_text("utf-8")).items()}


def seeds(name: str) -> list[int]:
    """Return the thousand seeds, first of all that which found the mistake before: it mostly does again."""
    known = needed().get(name, 1) - 1
    return [known, *(seed for seed in range(MOST) if seed != known)]


@pytest.mark.full("runs schedules for each mistake until one finds it")
@pytest.mark.slow
@pytest.mark.timeout(600)
@each_found_by("schedules with")
def test_a_planted_mistake_is_found(plant: Plant) -> None:
    """Within a thousand schedules, in which the right thing makes no mistake."""
    schedules = [Schedule(seed=seed, faults=plant.found_by["schedules with"]) for seed in seeds(plant.name)]
    with planted(plant):
        found = next(outcome for outcome in map(run, schedules) if outcome.violations)
    print(f"{plant.name}: found by seed {found.schedule.seed}: {found.violations[0]}")
    assert run(found.schedule).violations == ()


def test_of_all_of_them_is_known_how_many_schedules_each_needed() -> None:
    """``python docs/planted.py`` writes it."""
    rows = needed()
    assert list(rows) == [plant.name for plant in PLANTS.values() if "schedules with" in plant.found_by]
    assert all(1 <= schedules <= MOST for schedules in rows.values())
