"""Spark goes on while a stream grows twice: tables equal the log, and the newest value of a key wins."""

import random
import tempfile
from collections import defaultdict
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from streamworker.declaring.specs import PipelineSpec
from streamworker.spark.driver.session import Session
from tests.postgres import postgres
from tests.spark.acked import ORDER, AckedLog
from tests.spark.driver import WAREHOUSE
from tests.spark.processes import Driver
from tests.spark.running import Running, run_once
from tests.spark.specs import pipeline, same
from tests.spark.test_driver_killed import assert_tables_equal_the_log, finish, keep_busy, live_a_little

COUNTS = (3, 5)
"""The partitions of the second and the third generation."""
USERS = [f"user-{n}" for n in range(40)]


def newest(acked: AckedLog, first: int, versions: int) -> dict[str, int]:
    """Write some rows of each user to its partition; return the number of the last one of each."""
    users = defaultdict[int, list[str]](list)
    for user in USERS:
        users[acked.placement.partition_of(user.encode())].append(user)
    for version in range(first, first + versions):
        for partition, its in users.items():
            rows = [[version] * len(its), its, [0.0] * len(its)]
            acked.append(partition, pa.record_batch(rows, schema=ORDER))
    return dict.fromkeys(USERS, first + versions - 1)


def into() -> PipelineSpec:
    """Return a pipeline whose batches have many tasks, the largest first."""
    return pipeline(
        same, format="postgres", path=None, dsn_env=WAREHOUSE, table="orders", upsert=("user",),
        options={"minPartitions": "8"},
    )  # fmt: skip


def stored(dsn: str) -> dict[str, int]:
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute('SELECT "user", n FROM orders').fetchall())


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize("runs", [False, True], ids=["stopped", "running"])
def test_the_newest_value_of_a_key_is_in_the_table_after_two_growths(
    spark_session: Session, acked: AckedLog, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    """A query that was stopped meanwhile finds the rows of all generations, of the last one the most."""
    with postgres() as dsn:
        monkeypatch.setenv(WAREHOUSE, dsn)
        newest(acked, 0, 1)
        running = Running(spark_session, into()) if runs else None
        if running:
            running.wait_for_rows(1)
        for generation, count in enumerate(COUNTS, start=1):
            acked.grow(count)
            last = newest(acked, 100 * generation, 10 * generation)
            acked.finish()
        if running:
            running.wait_for_rows((1 + 10 + 20) * len(USERS))
            assert running.end() == 0
        else:
            assert run_once(spark_session, into()) == (0, "")
        assert stored(dsn) == last


@pytest.mark.usefixtures("warehouse")
@pytest.mark.soak("starts Spark three times")
@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed_and_stopped_while_its_stream_grows_twice_leaves_no_trace(
    spark: SparkSession, acked: AckedLog, redis_url: str, tmp_path: Path
) -> None:
    """Once while it runs, and once before it comes back; the tables of all sinks equal the log."""
    rng, (second, third) = random.Random(7), COUNTS
    with tempfile.TemporaryDirectory(prefix="sw") as scratch:
        keep_busy(acked, tmp_path)
        driver = Driver(tmp_path, redis_url, scratch)
        try:
            live_a_little(driver, tmp_path, rng)
            acked.grow(second)
            acked.finish()
            keep_busy(acked, tmp_path)
            live_a_little(driver, tmp_path, rng)
        finally:
            driver.kill()
        acked.grow(third)
        acked.finish()
        keep_busy(acked, tmp_path)
        driver = Driver(tmp_path, redis_url, scratch)
        try:
            live_a_little(driver, tmp_path, rng)
        finally:
            driver.terminate()
            code = driver.wait()
        assert code == 0
        acked.fill(acked.placement.base, [7])
        finish(None, acked, Driver(tmp_path, redis_url, scratch), tmp_path)
    assert_tables_equal_the_log(acked, tmp_path, spark)
