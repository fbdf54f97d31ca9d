"""The demo, as a user starts it: a smaller one, with everything that the whole one has."""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.helpers import process_is_gone, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.full("the whole demo, as users run it; its verdict has times in it"),
    pytest.mark.spark("the demo ends with a table of Spark"),
]

FLIGHTS = 40_000


def start_demo(
    directory: Path, *, send_s: float, errors: Path, cluster: bool = False, grow: bool = False
) -> "subprocess.Popen[str]":
    """Start a demo of the first flights of the year; of a stream that grows it archives them, too."""
    size = f"flights={FLIGHTS}, send_s={send_s}, cluster={cluster}, grow={grow}, archive={grow}"
    arguments = f"json_output=True, directory={str(directory)!r}, {size}"
    source = f"import sys; from streamworker.dev.demo import run_demo; sys.exit(run_demo({arguments}))"
    with errors.open("w") as log:
        return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=log, text=True)


@pytest.mark.alone("its verdict has times in it")
@pytest.mark.parametrize(
    ("cluster", "grow"),
    [
        pytest.param(False, False, id="server"),
        pytest.param(False, True, id="grown and archived"),
        pytest.param(True, True, id="cluster", marks=pytest.mark.soak),
    ],
)
def test_every_flight_becomes_one_row_while_workers_join_die_and_leave(
    tmp_path: Path, cluster: bool, grow: bool
) -> None:
    """Three joins, one SIGKILL, one SIGTERM; the tables are exactly right and the exit code says so."""
    demo = start_demo(tmp_path / "demo", send_s=12, errors=tmp_path / "errors", cluster=cluster, grow=grow)
    printed, _ = demo.communicate(timeout=280)

    assert demo.returncode == 0, (tmp_path / "errors").read_text()
    found = json.loads(printed.splitlines()[-1])
    causes = [one["cause"] for one in found["rebalances"]]
    assert {name: found[name] for name in ("sent", "spark_rows", "lost", "duplicates", "out_of_order")} == {
        "sent": FLIGHTS,
        "spark_rows": FLIGHTS,
        "lost": 0,
        "duplicates": 0,
        "out_of_order": 0,
    }
    assert found["aggregate_equal"] is True
    assert (causes.count("join"), causes.count("death"), causes.count("leave")) == (3, 1, 1)
    assert ("partitions" in causes) == grow
    assert (found.get("archived"), found.get("archive_equal")) == ((FLIGHTS, True) if grow else (None, None))
    assert all(one["ms"] is not None for one in found["rebalances"])


# That children end with whoever started them, and so do their own, is in test_children.py and test_server.py.
@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    """Server, workers, Spark and its JVM end with it, whatever ends it."""
    demo = start_demo(tmp_path / "demo", send_s=60, errors=tmp_path / "errors")
    try:
        family = wait_for(lambda: _with_jvm(demo.pid), "server, Spark and a worker run", timeout_s=60)
        demo.send_signal(number)
        demo.communicate(timeout=60)
    finally:
        demo.kill()

    assert demo.returncode == (-number if number == signal.SIGKILL else 130)
    for pid in family:
        wait_for(partial(process_is_gone, pid), f"process {pid} has ended", timeout_s=40)


def _with_jvm(pid: int) -> list[int]:
    """Return all descendants of a process once there is a JVM among them, else nothing."""
    family = psutil.Process(pid).children(recursive=True)
    names = []
    for member in family:
        try:
            names.append(member.name())
        except psutil.NoSuchProcess:
            return []
    return [member.pid for member in family] if "java" in names else []
