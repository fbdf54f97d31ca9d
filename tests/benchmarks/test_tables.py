"""``python -m benchmarks.tables``, with few keys."""

import subprocess
import sys

import pytest


@pytest.mark.full("measures for seconds")
def test_a_table_is_measured_beside_a_loop_by_hand() -> None:
    """Both count all events; the figures are printed, and not judged here."""
    asked = ("--keys", "2000", "--updates", "5000", "--partitions", "2")
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.tables", *asked], capture_output=True, text=True, check=True
    )
    lines = told.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["ours", "by hand", "ratio"]
    assert all("updates/s" in line for line in lines[:2])
