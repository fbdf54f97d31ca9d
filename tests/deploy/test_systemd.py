"""The units of deploy/systemd. None is started here: systemd's own tool reads them."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.root import app as command_line
from streamworker.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
SHARED = FOLDER / "streamworker-.service.d" / "shared.conf"
PROGRAM = "/opt/shop/venv/bin/streamworker"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")


def analyze(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Let systemd's tool look at the units, where their program is one that this machine has."""
    folder = tmp_path / "units"
    shutil.copytree(FOLDER, folder)
    for unit in folder.glob("*.service"):
        program = Path(sys.executable).with_name("streamworker")
        unit.write_text(unit.read_text("utf-8").replace(PROGRAM, str(program)), "utf-8")
    return subprocess.run(
        [str(ANALYZE), *arguments, *folder.glob("*.service")],
        env={"SYSTEMD_UNIT_PATH": f"{folder}:"},
        capture_output=True,
        text=True,
        check=False,
    )


def settings_of(unit: Path) -> Iterator[tuple[str, str]]:
    for line in (unit.read_text("utf-8") + SHARED.read_text("utf-8")).splitlines():
        if re.match(r"\w+=", line):
            name, _, value = line.partition("=")
            yield name, value


@needs_systemd
def test_systemd_finds_nothing_wrong_in_the_units(tmp_path: Path) -> None:
    found = analyze(tmp_path, "verify")
    assert (found.returncode, found.stderr) == (0, "")


@needs_systemd
def test_systemd_finds_little_that_a_unit_may_do(tmp_path: Path) -> None:
    """At most 1.4 of 10, where 10 is a unit without limits; what all units share counts for each."""
    found = analyze(tmp_path, "security", "--offline=true", "--threshold=14")
    levels = re.findall(r"exposure level for (\S+): ([\d.]+)", found.stdout)
    assert len(levels) == len(UNITS)
    assert found.returncode == 0, levels


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_runs_a_command_that_exists(unit: Path) -> None:
    """With options of this command."""
    (started,) = [value for name, value in settings_of(unit) if name == "ExecStart"]
    program, name, *arguments = started.replace("%l", "host").replace("%i", "1").split()
    assert program == PROGRAM
    root = typer.main.get_command(command_line)
    assert isinstance(root, typer.core.TyperGroup)
    root.commands[name].make_context(name, arguments)


def test_prometheus_reaches_what_the_units_serve() -> None:
    """Its configuration has their ports, which are not those of Prometheus itself and of node_exporter."""
    config = (FOLDER.parent / "prometheus" / "prometheus.yml").read_text("utf-8")
    asked = set(re.findall(r'"host-1:(\d+)"', config))
    starts = "\n".join(dict(settings_of(unit))["ExecStart"].replace("%i", "1") for unit in UNITS)
    served = set(re.findall(r"port 0\.0\.0\.0:(\d+)", starts))
    assert served and served <= asked and not asked & {"9090", "9100"}
    assert starts.count("-port ") == len(served)


def test_workers_get_more_time_to_stop_than_they_take() -> None:
    stop = dict(settings_of(FOLDER / "streamworker-worker@.service"))["TimeoutStopSec"]
    assert int(stop) * 1000 > Settings().shutdown_timeout_ms


def test_a_unit_is_not_started_again_where_that_does_not_help() -> None:
    """As docs/deploy.md says of systemd."""
    shared = dict(settings_of(SHARED))
    assert shared["Restart"] == "on-failure"
    assert shared["RestartPreventExitStatus"] == f"{ExitCode.USAGE:d} {ExitCode.CONFIGURATION:d}"
