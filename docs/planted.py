"""Counts how many schedules each planted fault needs, and writes the table: ``python docs/planted.py``.

Takes some minutes on two cores. tests/simulation/test_planted.py compares the names in the table
with the faults that there are.
"""

import re
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from tests.planting import PLANTS, planted  # noqa: E402
from tests.simulator.simulation import Schedule, run  # noqa: E402

PAGE = DOCS / "protocols" / "simulated.md"
BEGIN, END = "<!-- made by docs/planted.py -->\n", "<!-- end of planted -->\n"
MOST = 1_000
FAULTS = {
    name: plant.found_by["schedules with"]
    for name, plant in PLANTS.items()
    if "schedules with" in plant.found_by
}
"""The faults that reveal each mistake soonest."""


def needed(name: str) -> tuple[int, str]:
    """Return how many schedules it took until a planted fault was found, and which promise it broke."""
    with planted(PLANTS[name]):
        for seed in range(MOST):
            outcome = run(Schedule(seed=seed, faults=FAULTS[name]))
            if outcome.violations:
                return seed + 1, outcome.violations[0].promise
    raise SystemExit(f"Not found in {MOST} schedules: {name}")


def table(found: Mapping[str, tuple[int, str]]) -> str:
    """Return the table as Markdown."""
    rows = [f"| {name} | {schedules} | {promise} |" for name, (schedules, promise) in found.items()]
    return "\n".join(["| planted fault | schedules | seen as |", "|---|---:|---|", *rows, ""])


def main() -> None:
    """Write the table anew."""
    with ProcessPoolExecutor() as pool:
        found = dict(zip(FAULTS, pool.map(needed, FAULTS), strict=True))
    text = PAGE.read_text("utf-8")
    made = re.sub(f"{BEGIN}.*{END}", lambda _: BEGIN + table(found) + END, text, flags=re.DOTALL)
    PAGE.write_text(made, "utf-8")


if __name__ == "__main__":
    main()
