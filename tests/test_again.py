"""CI forgives three tests that fail once, names them, and forgives nothing else."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import again

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SUITE = """
import os
from pathlib import Path

import pytest

def runs(name):
    with Path(name).open("a") as file:
        file.write(f"{os.getpid()}\\n")
    return len(Path(name).read_text().split())

def test_passes():
    pass
"""

FAILS_ONCE = """
@pytest.mark.parametrize("case", range(COUNT))
def test_once(case):
    assert runs(f"once-{case}") > 1
"""

ODD = """
@pytest.mark.parametrize("case", ["a b::c[é]\\\\n'", "other"])
def test_odd(case):
    assert case == "other" or runs("odd") > 1

@pytest.fixture
def broken():
    yield
    assert runs("broken") > 1

@pytest.mark.other
def test_with_a_fixture(broken):
    pass

def test_that_is_deselected():
    assert False
"""

FAILS_TWICE = """
def test_twice():
    assert runs("twice") > 2
"""

CRASHES_ONCE = """
def test_crash():
    if runs("crash") == 1:
        os._exit(1)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run ``python -m tests.again`` on a suite of these parts."""

    def run(*parts: str, arguments: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "pytest.ini").write_text(
            "[pytest]\naddopts = -p no:asyncio -p no:valkey\nmarkers =\n    other: is run\n", "utf-8"
        )
        (tmp_path / "test_suite.py").write_text(SUITE + "".join(parts), "utf-8")
        root = str(Path(__file__).parents[1])
        environ = {**os.environ, "PYTHONPATH": root, again.VARIABLE: str(tmp_path / "flaky")}
        return subprocess.run(
            [sys.executable, "-m", "tests.again", "-q", *arguments],
            cwd=tmp_path, env=environ, check=False, capture_output=True, text=True,
        )  # fmt: skip

    return run


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


@pytest.mark.full("starts pytest nine times")
def test_what_fails_once_is_run_three_times_more_each_by_itself_and_named(run: Run, tmp_path: Path) -> None:
    """Whatever its parameters are called, and as it was selected: the deselected test would fail."""
    done = run(ODD, arguments=("-k", "not deselected"))
    assert done.returncode == 0, done.stdout
    odd, broken = lines(tmp_path / "flaky")
    assert odd.startswith("test_suite.py::test_odd[a b::c[")
    assert broken == "test_suite.py::test_with_a_fixture"
    for name in ("odd", "broken"):
        assert len(set(lines(tmp_path / name))) == len(lines(tmp_path / name)) == 4
    assert done.stdout.count("1 passed") == 6


@pytest.mark.full("starts pytest again after a crash")
def test_a_test_whose_process_died_is_run_again(run: Run, tmp_path: Path) -> None:
    done = run(CRASHES_ONCE, arguments=("-n", "1"))
    assert done.returncode == 0, done.stdout
    assert lines(tmp_path / "flaky") == ["test_suite.py::test_crash"]


def test_a_test_that_fails_again_fails_the_run_at_once(run: Run, tmp_path: Path) -> None:
    done = run(FAILS_TWICE, FAILS_ONCE.replace("COUNT", "1"))
    assert done.returncode == 1
    assert lines(tmp_path / "flaky") == []
    assert len(lines(tmp_path / "twice")) == 2 and len(lines(tmp_path / "once-0")) == 1
    assert "test_suite.py::test_twice failed again" in done.stdout


@pytest.mark.full("starts pytest twice")
@pytest.mark.parametrize(("before", "now"), [(0, 4), (3, 1)])
def test_a_fourth_fails_the_run_in_whichever_stage(run: Run, tmp_path: Path, before: int, now: int) -> None:
    (tmp_path / "flaky").write_text("test_before.py::test\n" * before, "utf-8")
    done = run(FAILS_ONCE.replace("COUNT", str(now)))
    assert done.returncode == 1
    assert len(lines(tmp_path / "flaky")) == before and len(lines(tmp_path / "once-0")) == 1


@pytest.mark.full("starts pytest three times")
@pytest.mark.parametrize("arguments", [(), ("-n", "1"), ("--continue-on-collection-errors",)])
def test_an_error_that_names_no_test_is_not_forgiven(
    run: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "test_broken.py").write_text("import a_module_that_is_not_there", "utf-8")
    done = run(FAILS_ONCE.replace("COUNT", "1"), arguments=arguments)
    assert done.returncode not in {0, 5}
    assert len(lines(tmp_path / "once-0")) <= 1 and lines(tmp_path / "flaky") == []


@pytest.mark.full("starts pytest")
def test_an_internal_error_is_not_forgiven(run: Run, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_runtest_logfinish():\n    raise OSError", "utf-8")
    done = run(FAILS_ONCE.replace("COUNT", "1"))
    assert done.returncode not in {0, 1} and lines(tmp_path / "flaky") == []
