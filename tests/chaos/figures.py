"""What the rows F1-F40 of the fault matrix came to: one place to write it down, one to read it.

Tests call :func:`record` with what they measured. It is printed, and where the variable
``STREAMWORKER_FIGURES`` names a file (docs/reliability.py does so) kept there. Only such a run
repeats a fault as often as the page says; a night repeats it less often.
"""

import fcntl
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

VARIABLE = "STREAMWORKER_FIGURES"
BUSY = 2
"""A load of more than so many processes a core means that each waits for others most of the time."""
Verdict = Literal["met", "missed", "shown", "refused"]
"""``shown``: the target has no figure. ``refused``: it is not offered, and said so loudly."""


def repeats(full: int, nightly: int) -> int:
    """Return how often a soak test repeats its fault: in full for the page, else as one night has room."""
    return full if VARIABLE in os.environ else nightly


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def record(
    row: str,
    what: str,
    *,
    times: int,
    target: str,
    verdict: Verdict,
    samples_ms: Sequence[float] = (),
    said: str = "",
    why: str = "",
    seed: int | None = None,
    caller: int = 1,
) -> dict[str, Any]:
    """Print what was measured of a row, and keep it where it is to be kept, with the file that measured it.

    ``what`` says which measurement of the row it is, and replaces the one of the same name; ``times`` is how
    often the fault was injected; ``said`` is a result that is no time; ``why`` tells why a target was missed,
    or on what a figure depends; ``caller`` is how many calls further up the test is whose file is named.
    """
    by = sys._getframe(caller).f_globals["__name__"].replace(".", "/") + ".py"
    figure: dict[str, Any] = {"what": what, "by": by, "times": times, "target": target, "verdict": verdict}
    if samples_ms:
        figure |= {
            name: round(percentile(samples_ms, percent)) for name, percent in (("p50_ms", 50), ("p99_ms", 99))
        }
        figure["most_ms"] = round(max(samples_ms))
    figure |= {
        key: value for key, value in (("said", said), ("why", why), ("seed", seed)) if value not in ("", None)
    }
    if verdict == "missed" and not why and _load() > BUSY * (os.cpu_count() or 1):
        figure["why"] = f"a load of {_load()} on {os.cpu_count()} cores, most of it other work"
    print(f"{row} {json.dumps(figure)}")
    if path := os.environ.get(VARIABLE):
        keep(Path(path), row, figure)
    return figure


def insist(figure: Mapping[str, Any]) -> None:
    """Fail where a target was missed; its figure has been printed and kept all the same."""
    assert figure["verdict"] == "met", f"missed: {json.dumps(figure)}"


def _load() -> float:
    return round(os.getloadavg()[0], 1)


def _commit() -> str:
    """Return which commit is measured; empty where there is no repository."""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def keep(path: Path, row: str, figure: dict[str, Any]) -> None:
    """Write a figure into the file; others may do so at the same time."""
    figure = {**figure, "on": time.strftime("%Y-%m-%d"), "of": _commit(), "load": _load()}
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        rows = json.loads(file.read() or "{}")
        others = [each for each in rows.get(row, []) if each["what"] != figure["what"]]
        rows[row] = [*others, figure]
        ordered = {name: rows[name] for name in sorted(rows, key=lambda each: int(each[1:]))}
        file.seek(0)
        file.truncate()
        file.write(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
