"""Type checkers pass windows and functions at ends as users write them, and find each wrong use."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT

WRONG = """
from windows import Hourly, Mail, Order, Visit, app, follow, hourly, mails, orders, seen, visits

from streamworker import Window

per_hour = app.window(orders, every="1 hour", by="placed_at", late="10 minutes", into=hourly)


@per_hour  # wrong: the row
def other_row(total: Visit | None, order: Order, window: Window) -> Visit: raise NotImplementedError


@per_hour  # wrong: the record
def other_record(total: Hourly | None, order: Mail, window: Window) -> Hourly: raise NotImplementedError


@per_hour  # wrong: the first total
def forgets_none(total: Hourly, order: Order, window: Window) -> Hourly: raise NotImplementedError


@visits.closed(into=mails)  # wrong: the row at the close
def not_a_mail(visit: Visit, window: Window) -> Hourly: raise NotImplementedError


@visits.closed(into=mails)  # wrong: the total at the close
def not_the_total(visit: Hourly, window: Window) -> Mail: raise NotImplementedError


@follow.expired(seen, into=mails)  # wrong: the key
async def not_the_key(customer: int, visit: Visit) -> Mail | None: raise NotImplementedError


@visits.merge  # wrong: what is merged
def not_merged(one: Visit, other: Mail) -> Visit: raise NotImplementedError


app.window(orders, every="1 hour", by="placed_at")  # wrong: without lateness
"""
"""A line that ends with "wrong" and a reason is one."""


@pytest.mark.full("runs mypy")
def test_a_type_checker_finds_each_wrong_use_and_no_other(tmp_path: Path) -> None:
    """Lateness has no default, and what goes into a stream is what it holds."""
    shutil.copy(ROOT / "tests" / "target" / "windows.py", tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG, "utf-8")
    checked = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        os.devnull,
        "windows.py",
        "wrong.py",
    ]
    done = subprocess.run(checked, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {tuple(line.split(":")[:2]) for line in done.stdout.splitlines() if ": error:" in line}
    lines = enumerate(WRONG.splitlines(), 1)
    assert found == {("wrong.py", str(n)) for n, line in lines if "# wrong" in line}, done.stdout
