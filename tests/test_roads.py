"""How many files of the package one warm action enters; and that the page tells the real road."""

import re

import pytest

from tests.roads import ROADS, entered
from tests.test_docs import ROOT

LONGEST = {"record": 35, "hop": 41, "table write": 37, "tick": 32}
"""The most files that an action may enter. A change that makes a road longer says why, here.

``runtime/run/failures.py`` is on each: a call that raises nothing is judged by what it leaves entered. A
timer is named while it runs, by the three files of risks: otherwise its death would accuse records. A hop
enters ``runtime/forward/moving.py``, so that no row overtakes what waits for a partition that is sealed."""


@pytest.mark.parametrize("road", ROADS)
def test_a_road_does_not_grow(road: str) -> None:
    """Who follows an action through the code opens that many files at most."""
    assert len(entered(road)) <= LONGEST[road]


def test_the_page_tells_the_road_that_a_record_takes() -> None:
    """Each station is entered, but the scripts and the reader of the log, which run elsewhere."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    road = page.partition("## The road of one record")[2].partition("\n## ")[0]
    told = set(re.findall(r"^\| \d+ \| `([\w/]+\.py)`", road, re.MULTILINE))
    assert len(told) == 8
    assert told - {"spark/source/datasource.py"} <= entered("record").keys()
