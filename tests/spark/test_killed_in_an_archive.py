"""A pipeline that begins with the first row reads the archive and then the log, however often it dies."""

import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.archive.acked import Archivers
from tests.chaos.figures import repeats
from tests.helpers import wait_for
from tests.spark.acked import AckedLog
from tests.spark.conftest import Connect
from tests.spark.driver import ONLY, ROWS_A_BATCH
from tests.spark.processes import START_S, Driver
from tests.spark.test_driver_killed import numbered, stage

LIVE = 100
"""Rows of a fill that are in Redis alone at its end."""


class Archived(AckedLog):
    """A log of which Redis drops what is archived, whether or not a pipeline has read it."""

    def to(self, url: str) -> None:
        self._archivers = Archivers(self, url)
        self._archiver = self._archivers.new()
        self.redis.hset(self.keys.meta, "archive:price", url)

    def fill(self, partition: int, counts: Sequence[int]) -> None:
        super().fill(partition, counts)
        time.sleep(0.11)  # Older than ``every``.
        assert self._archivers.all(self._archiver) == ""
        for p, rows in self._archivers.position.rows.items():
            self.trim(p, rows)
        super().fill(partition, [LIVE])


@pytest.fixture
def archived(redis_url: str, connect: Connect, tmp_path: Path) -> Iterator[Archived]:
    connect("default", redis_url)
    with Archived(redis_url, partitions=2) as log:
        log.to(str(tmp_path / "lake"))
        yield log


@pytest.mark.soak("each kill is another start of Spark")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [repeats(20, 6)])
def test_a_pipeline_over_archive_and_log_killed_in_mid_batch_writes_each_row_once(
    spark: SparkSession,
    archived: Archived,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kills: int,
) -> None:
    monkeypatch.setenv(ONLY, "legs")
    rng, rows = random.Random(kills), 2 * int(ROWS_A_BATCH)
    for p in (0, 1):
        archived.fill(p, [50] * (kills * rows // 200))
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="sw") as scratch:
        for life in range(kills):
            archived.fill(life % 2, [rows // 20] * 20)
            driver = Driver(tmp_path, redis_url, scratch)
            try:
                done = numbered(tmp_path, "legs", "commits") + rng.randint(1, 2)
                wait_for(partial(has_done, driver, tmp_path, done), f"batch {done} is done", START_S)
                time.sleep(rng.random() / 2)  # Any moment will do, and each is another one.
            finally:
                driver.kill()
            found[stage(tmp_path, "legs")] += 1
        archived.fill(0, [7])
        driver = Driver(tmp_path, redis_url, scratch)
        try:
            its = [len(archived.written[p]) for p in (0, 1)]
            wait_for(lambda: driver.alive() and read_up_to(tmp_path) == its, "all is read", START_S)
        finally:
            driver.kill()
    table = spark.read.parquet(str(tmp_path / "legs")).collect()
    assert sorted((row._partition, row._offset, row.n) for row in table) == archived.placed()
    left = sum(len(archived.entries(p)) for p in (0, 1))
    print(f"{kills} kills, {dict(found)}: {len(table)} rows, of which {left} entries are in Redis")
    assert left < 10


def has_done(driver: Driver, folder: Path, batch: int) -> bool:
    return driver.alive() and numbered(folder, "legs", "commits") >= batch


def read_up_to(folder: Path, name: str = "legs") -> list[int]:
    """Return the end of the last batch that is committed, by partition."""
    checkpoint = folder / ".streamworker" / name / name / "checkpoint"
    offsets = (checkpoint / "offsets" / str(numbered(folder, name, "commits"))).read_text().splitlines()
    return [rows for _, rows in sorted(json.loads(offsets[-1])["p"].items())]
