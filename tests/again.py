"""Run pytest as CI does: what fails is run three times more, each time in a process of its own.

``python -m tests.again ARGUMENTS`` runs ``pytest ARGUMENTS``. If each test that failed then passes three
times, the run passes, and the names are appended to the file that ``FLAKY_TESTS`` names. All stages of
``.ci/run`` share that file. It holds :data:`FORGIVEN` names at most: one more fails the run. Errors in
fixtures and crashed workers of xdist count as failures of their test. What names no test is not forgiven:
an error of the collection, an internal error, a run that was stopped.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

VARIABLE = "FLAKY_TESTS"
"""Names the file of all flaky tests of this run of ``.ci/run``."""

RESULT = "FLAKY_TESTS_RESULT"
"""Names the file to which the plugin, which is this module too, writes what became of the tests."""

FORGIVEN = 3
TIMES = 3

_failed: list[str] = []
_passed: list[str] = []
_unnamed: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that failed, also in a fixture or with its process, and one that passed."""
    if report.failed and report.nodeid not in _failed:
        _failed.append(report.nodeid)
    if report.passed and report.when == "call":
        _passed.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be collected: nobody knows which tests it has."""
    if report.failed:
        _unnamed.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what became of the tests, in the process that has all reports."""
    if not hasattr(session.config, "workerinput"):
        stopped = str(session.shouldstop or session.shouldfail or "")
        result = {"failed": _failed, "passed": _passed, "unnamed": [*_unnamed, *filter(None, [stopped])]}
        Path(os.environ[RESULT]).write_text(json.dumps(result), "utf-8")


def main(arguments: Sequence[str]) -> int:
    """Run pytest, and what failed once more; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        code, result = _run(arguments, Path(folder))
        failed = result["failed"]
        if code != pytest.ExitCode.TESTS_FAILED or result["unnamed"] or not failed:
            return code
        flaky = Path(os.environ[VARIABLE])
        before = flaky.read_text("utf-8").splitlines() if flaky.exists() else []
        if len(before) + len(failed) > FORGIVEN:
            _tell(f"{len(before) + len(failed)} tests have failed, and {FORGIVEN} may.")
            return code
        for name in failed:
            _tell(f"{name} failed: it is run {TIMES} times more by itself.")
            if not all(_passes(name, arguments, Path(folder)) for _ in range(TIMES)):
                _tell(f"{name} failed again.")
                return code
        with flaky.open("a", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in failed)
    return 0


def _passes(name: str, arguments: Sequence[str], folder: Path) -> bool:
    """Run one test as it was selected. pytest takes its name from its own record of what failed last."""
    record = folder / "v" / "cache" / "lastfailed"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps({name: True}), "utf-8")
    alone = ["--last-failed", "--last-failed-no-failures=none", "-o", f"cache_dir={folder}", "-n", "0"]
    code, result = _run([*arguments, *alone], folder)
    return code == pytest.ExitCode.OK and result["passed"] == [name]


def _run(arguments: Sequence[str], folder: Path) -> tuple[int, dict[str, list[str]]]:
    path = folder / "result.json"
    path.unlink(missing_ok=True)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.again", *arguments],
        env={**os.environ, RESULT: str(path)},
        check=False,
    )
    if not path.exists():
        return run.returncode or 1, {"failed": [], "passed": [], "unnamed": ["pytest ended without a result"]}
    result: dict[str, list[str]] = json.loads(path.read_text("utf-8"))
    return run.returncode, result


def _tell(text: str) -> None:
    print(f"--- {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
