"""The examples run as a reader would run them, and say what they promise to say."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
ENDS = [
    pytest.param(
        path,
        marks=(pytest.mark.spark("runs it"), pytest.mark.full("starts Spark"))
        if "spark" in path.stem
        else (),
    )
    for path in EXAMPLES
]
LINES_MAX = 60
SHOP = Path(__file__).parent.parent / "examples" / "shop"


def promised(path: Path) -> str:
    """Return the last line that an example says it prints."""
    match = re.search(r"^# prints: (.+)$", path.read_text("utf-8"), re.MULTILINE)
    assert match, f"{path.name} has no line '# prints: ...'"
    return match[1]


@pytest.mark.slow
@pytest.mark.full("starts servers and workers")
@pytest.mark.parametrize("path", ENDS, ids=lambda path: path.stem)
def test_an_example_ends_with_the_line_that_it_promises(path: Path, tmp_path: Path) -> None:
    """Each example is a program of its own that starts what it needs and cleans up."""
    result = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == promised(path), result.stdout + result.stderr


@pytest.mark.full("runs seven tests and mypy")
@pytest.mark.parametrize(
    "command",
    [("pytest", "-q", "-p", "no:cacheprovider"), ("mypy", "--strict", "--follow-imports=silent", ".")],
    ids=["tests", "types"],
)
def test_a_whole_application_passes_its_own_tests_and_strict_types(command: Sequence[str]) -> None:
    """As its authors run them, in its own folder: a chain, a table, timers, errors and a killed worker."""
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=SHOP, capture_output=True, text=True, timeout=110, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_its_app_can_be_run_by_the_command_line(path: Path) -> None:
    """At most 60 lines, numbered in reading order, with an `app` at the top of the module."""
    lines = path.read_text("utf-8").splitlines()
    assert len(lines) <= LINES_MAX
    assert any(line.startswith("app = App(") for line in lines)
    numbers = [int(example.name[:2]) for example in EXAMPLES]
    assert numbers == list(range(1, len(EXAMPLES) + 1))
