"""What a killed driver leaves: a lock for as long as its JVM lives, and folders that are taken away then."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from streamworker.errors import ConfigurationError
from streamworker.spark.driver.driverlock import sole_driver
from streamworker.spark.driver.scratch import LOCK_NAME, LOG_KEPT_S, LOG_NAME, PREFIX, make_scratch, sweep
from tests.helpers import wait_for

NEVER = threading.Event()

DRIVER = """
import subprocess, sys, threading, time
from pathlib import Path
from streamworker.spark.driver.driverlock import sole_driver
from streamworker.spark.driver.scratch import make_scratch
folder, lock = make_scratch()
(folder / "local").mkdir()
(folder / "local" / "block").write_text("heavy")
(folder / "spark.log").write_text("its own words")
with sole_driver({"revenue": Path(sys.argv[1])}, threading.Event()) as files:
    # In the place of a JVM: a process that inherits the open files, through a shell as Spark's does.
    inherits = {"pass_fds": [lock, *files], "stdout": subprocess.DEVNULL}
    jvm = subprocess.Popen(["bash", "-c", "exec sleep 60"], **inherits)
    other = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    print(folder, jvm.pid, other.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextlib.contextmanager
def killed_later(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", Path, psutil.Process]]:
    """Run a driver; give it, its folder and its JVM, which outlives it."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "checkpoint")], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert driver.stdout is not None
    folder, *pids = driver.stdout.readline().split()
    jvm, other = (psutil.Process(int(pid)) for pid in pids)
    try:
        yield driver, Path(folder), jvm
    finally:
        for process in (driver, jvm, other):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        driver.wait()
        driver.stdout.close()


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_what_a_killed_driver_left_goes_when_its_jvm_is_gone_too(tmp_path: Path) -> None:
    """Its lock and its folder, and not before; what its JVM has said stays for a week."""
    checkpoint = tmp_path / "checkpoint"
    with killed_later(tmp_path) as (driver, folder, jvm):
        assert sweep() == []
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        assert sweep() == []
        assert "local" in names(folder)
        with pytest.raises(ConfigurationError), sole_driver({"revenue": checkpoint}, NEVER, wait_s=0.2):
            pass
        jvm.kill()
        wait_for(lambda: is_free(checkpoint), "the lock is free")
        wait_for(lambda: sweep() == [folder], "the folder is swept")
    assert names(folder) == {LOCK_NAME, LOG_NAME}
    assert sweep() == []
    assert sweep(time.time() + LOG_KEPT_S + 60) == [folder]
    assert not folder.exists()


def is_free(checkpoint: Path) -> bool:
    try:
        with sole_driver({"revenue": checkpoint}, NEVER, wait_s=0):
            return True
    except ConfigurationError:
        return False


def test_a_second_driver_is_refused_with_what_to_do(tmp_path: Path) -> None:
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
    stop = threading.Event()
    with sole_driver({"revenue": tmp_path / "checkpoint"}, NEVER):
        threading.Timer(0.2, stop.set).start()
        with sole_driver({"revenue": tmp_path / "checkpoint"}, stop) as files:
            assert files is None


def test_a_place_that_cannot_be_locked_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some file systems have no locks; whether the query can run there, Spark says."""
    (tmp_path / "file").touch()
    with (
        caplog.at_level(logging.WARNING),
        sole_driver({"revenue": tmp_path / "file" / "checkpoint"}, NEVER) as files,
    ):
        assert files == ()
    assert "make sure that only one driver uses it" in caplog.text


def test_a_folder_that_is_in_use_or_not_surely_ours_is_left_alone(tmp_path: Path) -> None:
    """Of a session that runs; one without our mark; one that only looks like it through a link."""
    running, lock = make_scratch()
    unmarked = tmp_path / f"{PREFIX}unmarked"
    unmarked.mkdir()
    (unmarked / "precious").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK_NAME).touch()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    try:
        assert sweep() == []
        assert running.exists() and (unmarked / "precious").exists() and (elsewhere / LOCK_NAME).exists()
    finally:
        os.close(lock)


def test_a_folder_is_this_user_s_alone() -> None:
    """Spark's sockets in it ask for no password."""
    folder, lock = make_scratch()
    os.close(lock)
    assert folder.stat().st_mode & 0o077 == 0
