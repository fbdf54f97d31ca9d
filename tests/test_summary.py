"""What a run of the tests selects, and what it says about the rest."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full("collects tests in a process of its own")

SOAK = "tests/rebalance/test_many_workers.py"
"""Has full tests and soak tests."""


def collected(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environ = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(command, env={**environ, "PATH": ""}, check=False, capture_output=True, text=True)


def test_without_redis_server_its_tests_are_skipped_for_one_reason_that_is_printed_once() -> None:
    """Whether a parameter or a fixture asks for it, and however many files do."""
    run = collected(
        "-q", "-k", "redis7 or too_old", "tests/dev/test_server.py", "tests/durability/test_waiting.py"
    )
    (count,) = re.findall(r"^SKIPPED \[(\d+)\] There is no redis-server", run.stdout, re.MULTILINE)
    assert int(count) > 1 and f"\n{count} skipped" in run.stdout, run.stdout
    assert run.stdout.count("There is no redis-server") == 1
    assert run.returncode == 0


def test_what_is_named_is_run_but_for_the_soak_and_the_run_says_so() -> None:
    run = collected("--collect-only", SOAK)
    assert "soak tests are left out" in run.stdout and 'run them with -m "soak or not soak"' in run.stdout
    assert "1/4 tests collected (3 deselected)" in run.stdout


def test_a_soak_test_that_is_named_is_run() -> None:
    name = f"{SOAK}::test_a_thousand_partitions_are_balanced_among_ten_workers_within_two_seconds"
    assert "1 test collected" in collected("--collect-only", name).stdout


@pytest.mark.parametrize("arguments", [(), ("-n", "1")])
def test_the_slowest_are_told_behind_whole_runs_only(arguments: tuple[str, ...]) -> None:
    assert "slowest" not in collected(*arguments, "tests/core/test_units.py").stdout
