"""The table of the rows F1-F40 in docs/reliability.md: none is missing, and each has figures."""

import json
from pathlib import Path

from docs import reliability
from tests.chaos.figures import keep, percentile, record
from tests.chaos.rows import ROWS

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
VERDICTS = {"met", "missed", "shown", "refused"}


def test_there_are_forty_rows_and_each_has_figures() -> None:
    """A figure that missed its target says why."""
    results = json.loads((DOCS / "reliability.json").read_text("utf-8"))
    assert list(ROWS) == [f"F{number}" for number in range(1, 41)]
    assert set(results) == set(ROWS), "a row was not measured"
    for row, figures in results.items():
        for figure in figures:
            assert figure["verdict"] in VERDICTS, row
            assert figure["times"] > 0 and figure["target"], row
            assert figure["verdict"] != "missed" or figure.get("why"), f"{row} does not say why it was missed"


def test_each_figure_names_a_file_that_is_run_to_measure_its_row_or_says_where_it_is_from() -> None:
    """What was written down by hand says so, on the page too."""
    for row, figures in json.loads((DOCS / "reliability.json").read_text("utf-8")).items():
        files = {name.partition("::")[0] for name in reliability.tests_of(row)}
        assert files, f"{row} is measured by nobody"
        for figure in figures:
            assert ("by" in figure) != ("from" in figure), f"{row}, {figure['what']}"
            assert figure.get("by", min(files)) in files, f"{row} does not name {figure['by']}"


def test_a_figure_keeps_the_file_that_measured_it() -> None:
    assert record("F1", "a", times=1, target="b", verdict="met")["by"] == "tests/chaos/test_rows_table.py"


def test_the_table_is_current() -> None:
    """Else: python docs/reliability.py."""
    assert reliability.page() == reliability.PAGE.read_text("utf-8")


def test_a_percentile_is_one_of_the_values_and_no_less_than_so_many() -> None:
    assert percentile([3], 99) == 3
    assert percentile(range(1, 1_001), 99) == 990
    assert percentile([1, 2, 3, 1000], 99) == 1000


def test_a_figure_replaces_the_one_of_the_same_measurement_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    keep(path, "F10", {"what": "a", "times": 1})
    keep(path, "F2", {"what": "a", "times": 2})
    keep(path, "F10", {"what": "b", "times": 3})
    keep(path, "F10", {"what": "a", "times": 4})
    kept = json.loads(path.read_text("utf-8"))
    assert list(kept) == ["F2", "F10"]
    assert {each["what"]: each["times"] for each in kept["F10"]} == {"a": 4, "b": 3}
