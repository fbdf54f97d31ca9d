"""The table equals the log, however often and whenever Spark's driver is killed."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.helpers import wait_for
from tests.spark.acked import AckedLog
from tests.spark.driver import ROWS_A_BATCH

BATCHES_A_LIFE = 4
START_S = 300.0
"""A start of Spark takes some ten seconds here, and a multiple of that on a busy machine."""
WAITS = "waits until the driver before has ended"
"""What a driver says while the JVM of the one before is still there."""


class Driver:
    """A Spark driver in a process group of its own, with its JVM."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self._log = (folder / "driver.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver", str(folder)],
            env={**os.environ, "STREAMWORKER_REDIS_URL": redis_url, "STREAMWORKER_CONNECTIONS": ""},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._folder = folder
        self._said_before = self.said_so_far()

    def said_so_far(self) -> int:
        """Return how often a driver in this folder has said that it waits."""
        return (self._folder / "driver.log").read_text().count(WAITS)

    def waits(self) -> bool:
        """Whether it has said that the JVM of the one before is still there."""
        return self.alive() and self.said_so_far() > self._said_before

    def alive(self) -> bool:
        """Whether it runs; fails the test if it has ended by itself."""
        assert self._process.poll() is None, (self._folder / "driver.log").read_text()[-3000:]
        return True

    def kill(self) -> None:
        """End driver and JVM with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def jvm(self) -> psutil.Process | None:
        """Return its JVM, once there is one."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        return next((process for process in children if process.name() == "java"), None)

    def kill_alone(self) -> psutil.Process:
        """End the driver alone with SIGKILL; returns its JVM, stopped where it is."""
        jvm = self.jvm()
        assert jvm is not None
        jvm.suspend()
        self._process.kill()
        self._process.wait()
        self._log.close()
        return jvm

    def kill_jvm(self) -> None:
        """End the JVM alone with SIGKILL, as the kernel does when memory is short."""
        jvm = self.jvm()
        assert jvm is not None
        jvm.kill()

    def wait(self) -> int:
        """Wait until it has ended by itself; returns its exit code."""
        return self._process.wait(60)

    def end(self) -> int:
        """Ask it to end in order; returns its exit code."""
        self._process.terminate()
        code = self._process.wait(60)
        self._log.close()
        return code


def numbered(folder: Path, kind: str) -> int:
    """Return the highest number in one of a checkpoint's logs; -1 if there is none."""
    places = (folder / ".streamworker/legs/legs/checkpoint" / kind).glob("[0-9]*")
    return max((int(place.name) for place in places if place.name.isdigit()), default=-1)


def is_mid_batch(folder: Path) -> bool:
    """Return whether a batch is planned and not committed."""
    return numbered(folder, "offsets") > numbered(folder, "commits")


def live_a_little(driver: Driver, folder: Path, rng: random.Random) -> None:
    """Wait until a driver is in the middle of a batch, at a moment of its own."""
    done = numbered(folder, "commits") + rng.randrange(1, BATCHES_A_LIFE - 1)
    wait_for(
        lambda: driver.alive() and numbered(folder, "commits") >= done,
        f"the driver has done batch {done}",
        timeout_s=START_S,
    )
    # Not synchronisation: any moment will do, and each is another one.
    time.sleep(rng.random() / 2)
    wait_for(lambda: driver.alive() and is_mid_batch(folder), "a batch is under way", timeout_s=30)


def survive(kills: int, acked: AckedLog, redis_url: str, folder: Path, spark: SparkSession) -> None:
    """Kill a driver so often while the log grows, let the last one finish, and compare.

    Every second one is killed alone. Its JVM goes on, in the middle of the batch, when the next driver
    is there: two that write may spoil the tables.
    """
    rng = random.Random(kills)
    mid_batch = 0
    orphan: psutil.Process | None = None
    for life in range(kills):
        # Enough for every life to be in the middle of something.
        for p in range(acked.partitions):
            acked.fill(p, [int(ROWS_A_BATCH) // 20] * 10 * BATCHES_A_LIFE)
        driver = Driver(folder, redis_url)
        try:
            outlive(orphan, driver)
            live_a_little(driver, folder, rng)
            orphan = driver.kill_alone() if life % 2 == 0 else None
        finally:
            if orphan is None:
                driver.kill()
        mid_batch += is_mid_batch(folder)
    acked.fill(0, [7])
    driver = Driver(folder, redis_url)
    try:
        outlive(orphan, driver)
        expected = sum(len(rows) for rows in acked.written.values())
        wait_for(
            lambda: driver.alive() and total(folder) == expected,
            f"all {expected} rows are in the totals",
            timeout_s=START_S + 60,
        )
    finally:
        code = driver.end()
    assert code == 0
    assert mid_batch > kills // 2
    assert_tables_equal_the_log(acked, folder, spark)


def outlive(orphan: psutil.Process | None, driver: Driver) -> None:
    """Let the JVM of a killed driver go on once the next driver has found it."""
    if orphan is None:
        return
    try:
        wait_for(driver.waits, "the next driver waits", timeout_s=START_S)
        assert driver.jvm() is None
    finally:
        orphan.resume()


def total(folder: Path) -> int:
    """Return how many rows both pipelines have seen, judging by what they left on disk."""
    import pyarrow.parquet as pq

    if numbered(folder, "offsets") < 0 or is_mid_batch(folder) or not (folder / "totals").exists():
        return -1
    version = (folder / "totals").resolve()
    files = list(version.glob("*.parquet"))
    return sum(sum(pq.read_table(file)["orders"].to_pylist()) for file in files)


def assert_tables_equal_the_log(acked: AckedLog, folder: Path, spark: SparkSession) -> None:
    """Compare both tables with what was committed, row by row."""
    rows = spark.read.parquet(str(folder / "legs")).collect()
    found = sorted((row._partition, row._offset, row.n) for row in rows)
    assert found == [
        (p, offset, row["n"])
        for p, written in sorted(acked.written.items())
        for offset, row in enumerate(written, 1)
    ]
    counts: dict[str, int] = {}
    for row in (row for written in acked.written.values() for row in written):
        counts[row["user"]] = counts.get(row["user"], 0) + 1
    table = spark.read.parquet(str((folder / "totals").resolve()))
    assert {row.user: row.orders for row in table.collect()} == counts


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_driver_killed_three_times_in_mid_batch_leaves_no_trace(
    spark: SparkSession, acked: AckedLog, redis_url: str, tmp_path: Path
) -> None:
    """Appended rows are there once, and the replaced result is whole."""
    survive(3, acked, redis_url, tmp_path, spark)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_driver_killed_ten_times_in_mid_batch_leaves_no_trace(
    spark: SparkSession, acked: AckedLog, redis_url: str, tmp_path: Path
) -> None:
    """Ten times over."""
    survive(10, acked, redis_url, tmp_path, spark)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_driver_whose_jvm_is_killed_says_so_and_ends(
    acked: AckedLog, redis_url: str, tmp_path: Path
) -> None:
    """It does not hang, and names the log of the JVM."""
    acked.fill(0, [10])
    driver = Driver(tmp_path, redis_url)
    try:
        wait_for(
            lambda: driver.alive() and numbered(tmp_path, "commits") >= 0,
            "the driver has done a batch",
            timeout_s=START_S,
        )
        driver.kill_jvm()
        assert driver.wait() != 0
    finally:
        driver.kill()
    said = (tmp_path / "driver.log").read_text()
    assert "Spark's JVM has ended by itself" in said
    log = said.rpartition("its own words are in ")[2].split()[0].rstrip(".")
    assert Path(log).exists()
    shutil.rmtree(Path(log).parent)
