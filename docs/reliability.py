"""Measures rows of the fault matrix, and writes the table of docs/reliability.md.

    python docs/reliability.py                  write the table from docs/reliability.json
    python docs/reliability.py --row F1 F8      measure rows at their full counts, and write the table
    python docs/reliability.py --row F1 --short run them as `make test-full` does, and keep nothing

``STREAMWORKER_SEED`` repeats a run. The rows of tests/chaos together take about an hour; most of it is waiting.
F17 and F35 to F39 are measured by the tests of Sentinel, Cluster and Spark, which have seeds and counts of their
own (``FAILOVERS``, ``SENTINEL_FAILOVERS``), and by their limits of time may take two hours each.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from tests.chaos.figures import VARIABLE  # noqa: E402
from tests.chaos.rows import ROWS  # noqa: E402

PAGE, RESULTS = DOCS / "reliability.md", DOCS / "reliability.json"
BEGIN, END = "<!-- measured by docs/reliability.py -->\n", "<!-- end of what was measured -->\n"
NONE = "0 violations"
"""What the page says once, of all rows."""


def _ms(value: float) -> str:
    return f"{value / 1000:.2f} s" if value >= 1_000 else f"{value:.0f} ms"


def table() -> str:
    """Return the table as Markdown. No row may have a violation."""
    results = json.loads(RESULTS.read_text("utf-8"))
    lines = ["| | what happens | times | target | p50, p99 | result |", "|---|---|---:|---|---|---|"]
    for name, row in ROWS.items():
        head, target = f"{name} | {row.fault}:{f' {row.how};' if row.how else ''}", ""
        for figure in results[name]:
            times = f"{_ms(figure['p50_ms'])}, {_ms(figure['p99_ms'])}" if "p50_ms" in figure else ""
            said = [f"**{figure['verdict']}**"] if figure["verdict"] == "missed" else []
            said += [figure[key] for key in ("said", "why") if key in figure]
            said = [each for text in said for each in text.split("; ") if each != NONE]
            wanted = figure["target"].removeprefix(f"{NONE}; ") if figure["target"] != target else ""
            what = f"{head} {figure['what']} | {figure['times']:,} | {wanted}"
            lines.append(f"| {what} | {times} | {'; '.join(said)} |")
            head, target = "|", figure["target"]
    return "\n".join([*lines, ""])


def page() -> str:
    """Return the page with its table made anew."""
    text = PAGE.read_text("utf-8")
    return re.sub(f"{BEGIN}.*{END}", lambda _: BEGIN + "\n" + table() + "\n" + END, text, flags=re.DOTALL)


def measure(rows: Sequence[str], *, short: bool) -> int:
    """Run the tests that measure rows."""
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise SystemExit(f"There is no row {unknown[0]}; there are F1 to F40.")
    tests = dict.fromkeys(test for row in rows for test in tests_of(row))
    which = ["-m", "not soak"] if short else ["-m", "soak or not soak", "-k", "not small"]
    kept = {} if short else {VARIABLE: str(RESULTS)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rP", *which, *tests], cwd=ROOT, env={**os.environ, **kept}
    ).returncode


def tests_of(row: str) -> list[str]:
    """Return the tests that measure a row, in small or not: those of files that record it."""
    return [test for test in ROWS[row].tests if _records(test.partition("::")[0], row)]


def _records(path: str, row: str) -> bool:
    text = (ROOT / path).read_text("utf-8")
    return "record(" in text and f'"{row}"' in text


def main() -> int:
    """Measure what is asked for, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs="+", default=[], metavar="F1", help="measure these rows")
    parser.add_argument("--short", action="store_true", help="in seconds; nothing is kept")
    given = parser.parse_args()
    code = measure(given.row, short=given.short) if given.row else 0
    PAGE.write_text(page(), "utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
