"""Each planted mistake fits the code, and a test looks for it; those that one test finds are found."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable

import pytest

from tests.planting import PLANTS, ROOT, Plant, each_found_by, files_of_checks, homes, put_in, read


def test_each_planted_mistake_fits_the_code_and_a_test_looks_for_it() -> None:
    """A change of a script or a function would else leave its mistakes behind, until the full run."""
    checks, faults = files_of_checks(), list[str]()
    for plant in PLANTS.values():
        try:
            put_in(plant)()
        except (ValueError, SyntaxError, ImportError) as fault:
            faults.append(str(fault))
        if not plant.found_by or not plant.found_by.keys() <= checks.keys():
            faults.append(f"No test looks for the planted mistake {plant.name!r} by {list(plant.found_by)}.")
    assert not faults, "\n\n".join(faults)


def test_no_mistake_no_promise_and_no_fault_is_without_a_home() -> None:
    """And the tests that are named exist: ``python -m tests.planting`` prints where each is proven."""
    proven = {name: tests for name, _, tests in homes()}
    assert [name for name, tests in proven.items() if not tests] == []
    promises = [f"I{n}" for n in range(1, 11)]
    assert proven.keys() == {*PLANTS, *promises, *(f"F{n}" for n in range(1, 41))}
    assert all(f"::test_{name.lower()}_" in proven[name][0] for name in promises)
    for name in {name for tests in proven.values() for name in tests if "::" in name}:
        path, test = re.split(r"::|\[", name)[:2]
        text = (ROOT / path).read_text("utf-8")
        assert re.search(rf"^(?:(?:async )?def )?{test}\b", text, re.MULTILINE), name


def test_a_mistake_that_no_longer_fits_is_named() -> None:
    """With its file, and with the text that is not there."""
    (plant,) = read("in tests/planting.py\n\n# a slip\nfound by test: a\n- no such\n+ text")
    with pytest.raises(ValueError, match=r"'a slip' no longer fits tests/planting.py.* 0 times.*\nno such"):
        put_in(plant)


def outcome(tests: Iterable[str], *options: str) -> int:
    """Run some tests; return 0 if they pass, and 1 if one fails."""
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.planting")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = (*pytest_, "-m", "not soak and not full", *options, *tests)
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode


@pytest.mark.full("runs a test of others")
def test_a_run_without_a_mistake_passes() -> None:
    """Else the next test would prove nothing. The suite runs the tests that it names, too."""
    assert outcome(["tests/contract/test_packs.py", "tests/core/test_outbox.py"]) == 0


@pytest.mark.slow
@pytest.mark.full("runs a test of others for each mistake")
@pytest.mark.slow
@pytest.mark.timeout(300)  # A mistake by which something never happens is found when the wait for it ends.
@each_found_by("test")
def test_a_planted_mistake_is_found(plant: Plant) -> None:
    """The test fails with it."""
    assert outcome([plant.found_by["test"]], "--plant", plant.name) == 1
