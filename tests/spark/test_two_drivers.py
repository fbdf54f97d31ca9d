"""Two drivers on one checkpoint directory, as on a shared disk where the lock does not hold.

Each sink takes a batch once, and what one driver has written the other never sets back.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from streamworker.errors import ConfigurationError
from streamworker.spark.sinks.sink import Batches, OncePerBatch, WholeResult

ROWS = 10
BATCHES = 2


def sink_of(folder: Path, name: str) -> OncePerBatch | WholeResult:
    """Return a sink of files of one query."""
    (folder / "ck").mkdir()
    (folder / "ck" / "metadata").write_text('{"id": "12345678-aaaa"}')
    given: dict[str, Any] = {"checkpoint": str(folder / "ck"), "folder": str(folder / "beside")}
    if name == "batches":
        return Batches(path=str(folder / name), **given)
    return WholeResult(path=str(folder / name), format="parquet", **given)


def numbers(batch: int) -> range:
    return range(batch * ROWS, batch * ROWS + ROWS)


def found(folder: Path, name: str) -> list[int]:
    """Read all files that are there, as programs do that know nothing of Spark."""
    files = f"{(folder / name).resolve()}/**/*.parquet"
    return sorted(pl.read_parquet(files, hive_partitioning=False)["id"])


@pytest.mark.parametrize("name", ["batches", "whole"])
def test_two_drivers_that_write_each_batch_at_once_leave_it_once(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """One of them may fail; Spark then repeats the batch."""
    sink = sink_of(tmp_path, name)

    def write(batch: int) -> None:
        sink(spark.range(numbers(batch).start, numbers(batch).stop).repartition(4), batch)

    with ThreadPoolExecutor(2) as pool:
        for batch in range(BATCHES):
            for attempt in [pool.submit(write, batch) for _ in range(2)]:
                attempt.exception()
            write(batch)
    assert found(tmp_path, name) == [*range(0 if name == "batches" else ROWS, BATCHES * ROWS)]


@dataclass
class Rows:
    """What the sinks ask of a DataFrame; while it is written, another driver does something."""

    batch: int
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None

    @property
    def write(self) -> "Rows":
        return self

    def format(self, _: str) -> "Rows":
        return self

    def options(self) -> "Rows":
        return self

    def partitionBy(self) -> "Rows":  # noqa: N802, as Spark calls it
        return self

    def save(self, path: str) -> None:
        self.before()
        Path(path).mkdir(parents=True)
        pq.write_table(pa.table({"id": [*numbers(self.batch)]}), f"{path}/part-0.parquet")
        self.after()

    parquet = save


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["batches", "whole"])
def test_a_driver_that_stood_still_sets_nothing_back(tmp_path: Path, name: str, when: str) -> None:
    """It goes on in the batch in which it stood, when another one has written three more."""
    sink = sink_of(tmp_path, name)

    def other() -> None:
        for batch in (1, 2, 3):
            sink(Rows(batch), batch)

    sink(Rows(0), 0)
    with suppress(ConfigurationError):  # The one that stood still ends; the other is told nothing.
        sink(Rows(1, **{when: other}), 1)
    assert found(tmp_path, name) == [*range(0 if name == "batches" else 3 * ROWS, 4 * ROWS)]
    sink(Rows(4), 4)
    assert found(tmp_path, name) == [*range(0 if name == "batches" else 4 * ROWS, 5 * ROWS)]
