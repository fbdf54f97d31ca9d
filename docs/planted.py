"""Counts how many schedules each planted fault needs, and writes them down: ``python docs/planted.py``.

Takes some minutes on two cores. tests/simulation/test_planted.py compares the names in docs/planted.json
with the faults that there are.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from tests.planting import PLANTS, planted  # noqa: E402
from tests.simulator.simulation import Schedule, run  # noqa: E402

RESULTS = DOCS / "planted.json"
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


def main() -> None:
    """Write the results anew."""
    with ProcessPoolExecutor() as pool:
        found = dict(zip(FAULTS, pool.map(needed, FAULTS), strict=True))
    results = {name: {"schedules": after, "promise": promise} for name, (after, promise) in found.items()}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
