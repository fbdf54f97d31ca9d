"""One driver at a time for a checkpoint, also while the JVM of a killed one lives on."""

import contextlib
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from streamworker.errors import ConfigurationError
from streamworker.spark.driver.driverlock import sole_driver
from tests.helpers import wait_for

NEVER = threading.Event()

KILLED = """
import subprocess, sys, threading, time
from pathlib import Path
from streamworker.spark.driver.driverlock import sole_driver
with sole_driver({"revenue": Path(sys.argv[1])}, threading.Event()) as files:
    # In the place of a JVM: a process that inherits the open file, through a shell as Spark's does.
    child = subprocess.Popen(["bash", "-c", "exec sleep 60"], pass_fds=files, stdout=subprocess.DEVNULL)
    other = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    print(child.pid, other.pid, flush=True)
    time.sleep(60)
"""


def test_a_second_driver_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """After it has waited, and only for the pipeline that is taken."""
    revenue, rides = tmp_path / "revenue" / "checkpoint", tmp_path / "rides" / "checkpoint"
    with sole_driver({"revenue": revenue}, NEVER):
        with (
            pytest.raises(ConfigurationError, match=r"runs pipeline 'revenue'.*fuser"),
            sole_driver({"rides": rides, "revenue": revenue}, NEVER, wait_s=0.2),
        ):
            pass
        with sole_driver({"rides": rides}, NEVER, wait_s=0) as files:
            assert files is not None
            assert len(files) == 1
    with sole_driver({"revenue": revenue}, NEVER, wait_s=0) as files:
        assert files is not None


def test_waiting_ends_when_told_to_stop(tmp_path: Path) -> None:
    """There is nothing to run then."""
    stop = threading.Event()
    with sole_driver({"revenue": tmp_path / "checkpoint"}, NEVER):
        threading.Timer(0.2, stop.set).start()
        with sole_driver({"revenue": tmp_path / "checkpoint"}, stop) as files:
            assert files is None


def test_the_lock_of_a_killed_driver_lasts_as_long_as_its_jvm(tmp_path: Path) -> None:
    """And no longer, and not as long as any other process that it has started."""
    checkpoint = tmp_path / "checkpoint"
    driver = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(checkpoint)],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert driver.stdout is not None
    jvm, other = (psutil.Process(int(pid)) for pid in driver.stdout.readline().split())
    try:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        with pytest.raises(ConfigurationError), sole_driver({"revenue": checkpoint}, NEVER, wait_s=0.2):
            pass
        jvm.kill()
        wait_for(lambda: is_free(checkpoint), "the lock is free")
    finally:
        for process in (jvm, other):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        driver.stdout.close()


def is_free(checkpoint: Path) -> bool:
    try:
        with sole_driver({"revenue": checkpoint}, NEVER, wait_s=0):
            return True
    except ConfigurationError:
        return False


def test_a_place_that_cannot_be_locked_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some file systems have no locks; whether the query can run there, Spark says."""
    (tmp_path / "file").touch()
    with (
        caplog.at_level(logging.WARNING),
        sole_driver({"revenue": tmp_path / "file" / "checkpoint"}, NEVER) as files,
    ):
        assert files == ()
    assert "make sure that only one driver uses it" in caplog.text
