"""Every known mistake is found: a checker that has caught nothing is not trusted."""

import re
from pathlib import Path

import pytest

from streamworker.testing.planted import PLANTS
from streamworker.testing.simulation import Schedule, run

MOST = 1_000


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_found(name: str) -> None:
    """Within a thousand schedules, in which the right thing makes no mistake."""
    plant = PLANTS[name]
    for seed in range(MOST):
        schedule = Schedule(seed=seed, faults=plant.faults)
        outcome = run(schedule, plant)
        if outcome.violations:
            print(f"{name}: found after {seed + 1} schedules: {outcome.violations[0]}")
            assert run(schedule).violations == ()
            return
    pytest.fail(f"not found in {MOST} schedules: {name}")


def test_the_table_in_the_docs_has_all_of_them_and_how_many_schedules_each_needed() -> None:
    """``python docs/planted.py`` writes it."""
    page = Path(__file__, "../../../docs/protocols/simulated.md").resolve().read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \| [a-z,]+ \| (\d+) \| \w+ \|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == list(PLANTS)
    assert all(1 <= int(schedules) <= MOST for _, schedules in rows)


def test_there_are_enough_of_them() -> None:
    """At least the fifteen that were asked for."""
    assert len(PLANTS) >= 20
