"""Child processes that end with us and leave nothing of theirs behind."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from streamworker.dev.children import Child
from tests.helpers import inherited, process_is_gone, wait_for

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
DEAF_SOURCE = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""
DEAF = [sys.executable, "-c", DEAF_SOURCE]
FAMILY_SOURCE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(f"up {child.pid}", flush=True)
time.sleep(60)
"""
FAMILY = [sys.executable, "-c", FAMILY_SOURCE]
"""A program with a child of its own, as Spark's driver has its JVM."""


@pytest.fixture(autouse=True, scope="module")
def _sigterm_ends_a_program() -> Iterator[None]:
    """Whatever whoever started us has left us."""
    with inherited({signal.SIGTERM: signal.SIG_DFL}):
        yield


Start = Callable[[list[str]], Child]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    """Start a child and wait until it has said so; it ends with the test, whatever becomes of that."""
    children: list[Child] = []

    def start(command: list[str]) -> Child:
        child = Child(command, log_path=tmp_path / "child.log")
        children.append(child)
        wait_for(lambda: "up" in child.log_tail(), "the child is up")
        return child

    yield start
    for child in children:
        child.kill()


def test_a_child_that_listens_is_ended_by_a_request(started: Start) -> None:
    """stop() asks, and says that asking was enough."""
    child = started(SLEEP)

    assert child.stop(timeout_s=10)
    assert child.exit_code == -15
    assert not child.running


@pytest.mark.parametrize(
    ("command", "inherits"),
    [
        pytest.param(DEAF, signal.SIG_DFL, id="it does not listen"),
        # Whoever starts us with SIGTERM ignored has our children ignore it too, and no shell undoes that.
        pytest.param(SLEEP, signal.SIG_IGN, id="it inherits a deaf ear"),
    ],
)
def test_a_child_that_sigterm_does_not_end_is_killed(
    started: Start, command: list[str], inherits: signal.Handlers
) -> None:
    """stop() kills after its time and says so."""
    with inherited({signal.SIGTERM: inherits}):
        child = started(command)

    assert not child.stop(timeout_s=0.3)
    assert child.exit_code == -9


@pytest.mark.parametrize("child", [SLEEP, DEAF, FAMILY], ids=["listens", "deaf", "has a child"])
def test_children_end_when_we_are_killed(child: list[str], tmp_path: Path) -> None:
    """SIGKILL gives us no chance to end them, and yet they end with all that they started: those that do not
    listen a little later.
    """
    source = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from streamworker.dev import children\n"
        "children.KILL_ORPHAN_AFTER_S = 1\n"
        f"child = children.Child({child!r}, log_path=Path(sys.argv[1]))\n"
        "while 'up' not in child.log_tail(): time.sleep(0.02)\n"
        "print(child.pid, *child.log_tail().split()[1:], flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path / "child.log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert all(map(psutil.pid_exists, pids))

        parent.kill()
        parent.wait()

        wait_for(lambda: all(map(process_is_gone, pids)), "the child has ended with its parent")


def test_a_child_may_have_the_output_and_the_umask_of_its_parent(tmp_path: Path) -> None:
    """So a worker that `run` starts prints where its user looks, and makes files as the user has it."""
    source = (
        "import sys\n"
        "from streamworker.dev.children import Child\n"
        'made = \'print(open("made", "w").name); import sys; print("told", file=sys.stderr)\'\n'
        "Child([sys.executable, '-c', made], log_path=None, private=False).wait(20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, umask=0o027, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("made\n", "told\n")
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640


def test_a_child_has_no_child_that_it_has_not_started(started: Start) -> None:
    """One that waits for any of its children would wait for the watcher."""
    source = "import os\ntry: os.wait()\nexcept ChildProcessError: print('up', flush=True)\n"
    assert started([sys.executable, "-c", source]).wait(10)
