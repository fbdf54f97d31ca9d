"""``python -m tests.simulator``: no server, no app; a table, a transcript, and what breaks."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from streamworker.cli.exit_codes import ExitCode
from tests.planting import PLANTS, planted
from tests.simulator.__main__ import app

Invoke = Callable[..., Result]
SMALL = ("--workers", "3", "--partitions", "6", "--minutes", "0.1")


@pytest.fixture
def invoke() -> Invoke:
    """Run the command in this process."""
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_a_table_of_figures_is_printed(invoke: Invoke) -> None:
    """One column for the protocol, a row for each figure."""
    result = invoke("--schedules", "4", *SMALL)
    assert result.exit_code == 0, result.output
    for words in ("partitions that moved", "time to balance after the faults", "jumps without cause"):
        assert words in result.stdout
    assert result.stdout.splitlines()[-1].split() == ["violations", "0"]


def test_a_scenario_is_played(invoke: Invoke, tmp_path: Path) -> None:
    """What is written happens, and the transcript and the result are added."""
    path = tmp_path / "incident.txt"
    path.write_text("# One\ngiven: membership, 2 partitions\n 0 ms  w1 starts\n 9 ms  end\n", "utf-8")
    result = invoke("--scenario", str(path))
    assert result.exit_code == 0, result.output
    assert "-> StartRunner 0-1, epoch 5, after entry 0-0" in result.stdout
    assert result.stdout.splitlines()[-1] == "result: generation 3; w1: 0-1"
    path.write_text(result.stdout, "utf-8")
    assert invoke("--scenario", str(path)).stdout == result.stdout


@pytest.mark.parametrize("text", [None, "w1 starts"])
def test_a_scenario_that_cannot_be_read_is_an_error(invoke: Invoke, tmp_path: Path, text: str | None) -> None:
    """Also one that is not there."""
    path = tmp_path / "incident.txt"
    if text is not None:
        path.write_text(text, "utf-8")
    result = invoke("--scenario", str(path))
    assert result.exit_code == ExitCode.CONFIGURATION
    assert result.stderr


def test_a_violation_is_explained_and_fails_the_command(invoke: Invoke) -> None:
    """With the command that replays it."""
    with planted(PLANTS["an acquired lock says a checkpoint one entry too far"]):
        result = invoke("--schedules", "1", *SMALL, "--faults", "none")
    assert result.exit_code == ExitCode.FAILED
    assert "Run it again: python -m tests.simulator --protocol membership --seed 0" in result.stderr
