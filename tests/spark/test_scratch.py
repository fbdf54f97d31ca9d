"""Folders that killed Spark sessions left are taken away, and no others."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from streamworker.spark.driver.scratch import LOCK_NAME, LOG_KEPT_S, LOG_NAME, PREFIX, make_scratch, sweep
from tests.helpers import wait_for

KILLED = """
import subprocess, time
from streamworker.spark.driver.scratch import make_scratch
folder, lock = make_scratch()
(folder / "local").mkdir()
(folder / "local" / "block").write_text("heavy")
(folder / "spark.log").write_text("its own words")
# In the place of a JVM: a process that inherits the open file, through a shell as Spark's does.
jvm = subprocess.Popen(["bash", "-c", "exec sleep 60"], pass_fds=[lock], stdout=subprocess.DEVNULL)
print(folder, jvm.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_what_a_killed_driver_left_goes_when_its_jvm_is_gone_too(tmp_path: Path) -> None:
    """And not before. What the JVM has said stays for a week."""
    driver = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert driver.stdout is not None
    place, pid = driver.stdout.readline().split()
    folder, jvm = Path(place), psutil.Process(int(pid))
    try:
        assert sweep() == []
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
        assert sweep() == []
        assert "local" in names(folder)
    finally:
        jvm.kill()
    wait_for(lambda: sweep() == [folder], "the folder is swept")
    assert names(folder) == {LOCK_NAME, LOG_NAME}
    assert sweep() == []
    assert sweep(time.time() + LOG_KEPT_S + 60) == [folder]
    assert not folder.exists()


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
