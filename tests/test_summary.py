"""What a run of the tests selects, and says where a server is missing."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ALONE, FULL, SPARK, STAYS, TESTS


@pytest.mark.full  # collects all tests in a process of its own
def test_without_redis_server_its_tests_are_skipped_for_one_reason_that_is_printed_once() -> None:
    """Whether a parameter or a fixture asks for it, and however many files do."""
    environ = {name: value for name, value in os.environ.items() if name != "CI"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not soak",
         "-k", "redis7 or too_old", "tests/dev/test_server.py", "tests/durability/test_waiting.py"],
        env={**environ, "PATH": ""}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    (count,) = re.findall(r"^SKIPPED \[(\d+)\] There is no redis-server", run.stdout, re.MULTILINE)
    assert int(count) > 1 and f"\n{count} skipped" in run.stdout, run.stdout
    assert run.stdout.count("There is no redis-server") == 1
    assert run.returncode == 0


@pytest.mark.parametrize("place", sorted({*ALONE, *FULL, *SPARK, *STAYS}))
def test_what_the_tables_of_conftest_name_is_there(place: str) -> None:
    """A test that was renamed would run in `make test` again, or no more."""
    path, _, name = place.partition("::")
    assert (TESTS / path).exists()
    assert not name or f"def {name}(" in (TESTS / path).read_text("utf-8")
