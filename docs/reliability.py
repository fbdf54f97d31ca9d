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
SCENES = "tests/chaos/test_rows_"
BEGIN, END = "<!-- measured by docs/reliability.py -->\n", "<!-- end of what was measured -->\n"


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1000:.2f} s" if value >= 1_000 else f"{value:.0f} ms"


def _when(figure: Mapping[str, Any]) -> str:
    return str(figure.get("of") or figure.get("on", ""))


def table() -> str:
    """Return the table as Markdown, and below it why a target was missed."""
    results = json.loads(RESULTS.read_text("utf-8"))
    lines = [
        "| row | what happens | how | times | target | p50 | p99 | load | of | verdict |",
        "|---|---|---|---:|---|---:|---:|---:|---|---|",
    ]
    reasons = []
    for name, row in ROWS.items():
        figures = results.get(name)
        if not figures:
            lines.append(f"| {name} | {row.fault} | {row.how} | 0 | | | | | | **not measured** |")
        for figure in figures or ():
            verdict = figure["verdict"] if figure["verdict"] != "missed" else "**missed**"
            said = f"; {figure['said']}" if figure.get("said") else ""
            lines.append(
                f"| {name} | {row.fault} | {row.how}: {figure['what']} | {figure['times']:,} | {figure['target']} "
                f"| {_ms(figure.get('p50_ms'))} | {_ms(figure.get('p99_ms'))} | {figure.get('load', '')} | {_when(figure)} | {verdict}{said} |"
            )
            behind = [figure["why"]] if figure.get("why") else []
            behind += [f"not from the run of a test: {figure['from']}"] if figure.get("from") else []
            if behind:
                reasons.append(f"- {name}, {figure['what']}: {'; '.join(behind)}.")
    lines += ["", "What stands behind single figures:", "", *reasons] if reasons else []
    lines += ["", "| row | shown by |", "|---|---|"]
    for name, row in ROWS.items():
        shown = "<br>".join(f"`{test}`" for test in row.tests)
        lines.append(f"| {name} | {shown or 'see its verdict'} |")
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
    tests = dict.fromkeys(test for row in rows for test in tests_of(row, short=short))
    # Elsewhere one test may have its small form and its full count as parameters.
    elsewhere = [test for test in tests if SCENES not in test]
    here = [test for test in tests if SCENES in test]
    both = "soak or not soak"
    runs = ((both, here), ("not soak" if short else both, elsewhere))
    kept = {} if short else {VARIABLE: str(RESULTS)}
    codes = [
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rP", "-m", marks, *some],
            cwd=ROOT,
            env={**os.environ, **kept},
        ).returncode
        for marks, some in runs
        if some
    ]
    return max(codes)


def tests_of(row: str, *, short: bool) -> list[str]:
    """Return the tests that measure a row.

    In tests/chaos, where there are two, the first is in small. Elsewhere those of files that record the row;
    their markers tell which are in small.
    """
    tests = [test for test in ROWS[row].tests if SCENES in test]
    if tests:
        return tests[:1] if short or len(tests) == 1 else tests[1:]
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
