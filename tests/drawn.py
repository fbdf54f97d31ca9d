"""Runs drawn schedules of faults: of chains, of growths, of archives."""

from collections import Counter
from collections.abc import Callable

from tests.planting import Plant, planted

Violation = Callable[[int], tuple[str, Counter[str]]]
"""Runs the schedule of a seed; returns what it broke, or nothing, and how often each thing happened."""


def violations(violation: Violation, first: int, schedules: int) -> tuple[dict[int, str], Counter[str]]:
    """Run some schedules; return what they broke by their seeds, and how often each thing happened."""
    broken, seen = dict[int, str](), Counter[str]()
    for seed in range(first, first + schedules):
        why, its = violation(seed)
        seen += its
        if why:
            broken[seed] = why
    return broken, seen


def is_found(violation: Violation, plant: Plant, first: int, schedules: int) -> bool:
    """Return whether one of some schedules finds a planted mistake."""
    with planted(plant):
        for seed in range(first, first + schedules):
            if why := violation(seed)[0]:
                print(f"{plant.name}: found by schedule {seed - first + 1} from seed {first}: {why}")
                return True
    return False
