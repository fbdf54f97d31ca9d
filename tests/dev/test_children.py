"""Child processes that end with us and leave nothing of theirs behind."""

import subprocess
import sys
from pathlib import Path

import psutil

from streamworker.dev.children import Child
from tests.helpers import process_is_gone, wait_for

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
DEAF_SOURCE = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""
DEAF = [sys.executable, "-c", DEAF_SOURCE]


def started(command: list[str], tmp_path: Path) -> Child:
    """Start a child and wait until it has said so."""
    child = Child(command, log_path=tmp_path / "child.log")
    wait_for(lambda: "up" in child.log_tail(), "the child is up")
    return child


def test_a_child_that_listens_is_ended_by_a_request(tmp_path: Path) -> None:
    """stop() asks, and says that asking was enough."""
    child = started(SLEEP, tmp_path)

    assert child.stop(timeout_s=10)
    assert child.exit_code == -15
    assert not child.running


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    """stop() kills after its time and says so."""
    child = started(DEAF, tmp_path)

    assert not child.stop(timeout_s=0.3)
    assert child.exit_code == -9


def test_what_a_child_started_itself_ends_with_it(tmp_path: Path) -> None:
    """A grandchild, such as Spark's JVM, does not outlive a killed child."""
    source = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('up', child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    child = started([sys.executable, "-c", source], tmp_path)
    grandchild = int(child.log_tail().split()[1])

    child.kill()

    wait_for(lambda: process_is_gone(grandchild), "the grandchild has ended")


def test_children_end_when_we_are_killed(tmp_path: Path) -> None:
    """SIGKILL gives us no chance to end them, and yet they end."""
    source = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from streamworker.dev.children import Child\n"
        f"child = Child({SLEEP!r}, log_path=Path(sys.argv[1]))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path / "child.log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)

        parent.kill()
        parent.wait()

        wait_for(lambda: process_is_gone(pid), "the child has ended with its parent")
