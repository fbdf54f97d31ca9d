"""Every known mistake is found: a checker that has caught nothing is not trusted."""

import re
from pathlib import Path

import pytest

from tests.simulation.planted import PLANTS
from tests.simulator.simulation import Schedule, run

pytestmark = pytest.mark.full("runs schedules for each mistake until one finds it")

MOST = 1_000
PAGE = Path(__file__, "../../../docs/protocols/simulated.md").resolve()


def rows_of_the_table() -> dict[str, int]:
    """Return how many schedules each mistake needed when ``python docs/planted.py`` was run."""
    rows = re.findall(r"^\| (.+?) \| [a-z,]+ \| (\d+) \| \w+ \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {name: int(schedules) for name, schedules in rows}


def seeds(name: str) -> list[int]:
    """Return the thousand seeds, first of all that which found the mistake before: it mostly does again."""
    known = rows_of_the_table().get(name, 1) - 1
    return [known, *(seed for seed in range(MOST) if seed != known)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_found(name: str) -> None:
    """Within a thousand schedules, in which the right thing makes no mistake."""
    plant = PLANTS[name]
    for seed in seeds(name):
        schedule = Schedule(seed=seed, faults=plant.faults)
        outcome = run(schedule, plant)
        if outcome.violations:
            print(f"{name}: found by seed {seed}: {outcome.violations[0]}")
            assert run(schedule).violations == ()
            return
    pytest.fail(f"not found in {MOST} schedules: {name}")


def test_the_table_in_the_docs_has_all_of_them_and_how_many_schedules_each_needed() -> None:
    """``python docs/planted.py`` writes it."""
    rows = rows_of_the_table()
    assert list(rows) == list(PLANTS)
    assert all(1 <= schedules <= MOST for schedules in rows.values())


def test_there_are_enough_of_them() -> None:
    """At least the fifteen that were asked for."""
    assert len(PLANTS) >= 20
