"""Readers of a whole result that is replaced again and again: none fails, none mixes two versions."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker.spark.sinks.sink import WholeResult
from tests.chaos.figures import repeats

FILES = 3


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A result of three files, in which each row has the number of its version; replaced every second."""
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "metadata").write_text('{"id": "12345678-aaaa"}')
    whole = WholeResult(str(tmp_path / "table"), str(tmp_path / "v"), str(tmp_path / "ck"), "parquet")
    stop = threading.Event()

    def replace() -> None:
        for batch in range(sys.maxsize):
            whole(spark.range(30).repartition(FILES).withColumn("version", F.lit(batch)), batch)
            if stop.wait(1.0):
                return

    thread = threading.Thread(target=replace)
    thread.start()
    while not (tmp_path / "table").exists():
        time.sleep(0.05)
    yield tmp_path / "table"
    stop.set()
    thread.join()


READERS: dict[str, Callable[[SparkSession, Path], list[int]]] = {
    "pandas": lambda spark, table: list(pd.read_parquet(table).version),
    "polars": lambda spark, table: list(pl.read_parquet(table / "*.parquet")["version"]),
    "duckdb": lambda spark, table: [
        version for (version,) in duckdb.execute(f"select version from '{table}/*.parquet'").fetchall()
    ],
    "spark": lambda spark, table: [row.version for row in spark.read.parquet(str(table)).collect()],
}


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("duckdb", 100),
        # Others read the same files: what differs is when they open them.
        *(
            pytest.param(name, repeats(10_000, 1_000), marks=[pytest.mark.soak, pytest.mark.timeout(7200)])
            for name in READERS
        ),
    ],
)
def test_a_reader_that_resolves_the_link_reads_one_whole_version(
    spark: SparkSession, table: Path, name: str, times: int
) -> None:
    """Through three swaps at least, and never an older one than before."""
    found: list[int] = []
    while len(found) < times or found[-1] < found[0] + 3:
        versions = READERS[name](spark, table.resolve())
        assert len(versions) == 30
        assert len(set(versions)) == 1
        found.append(versions[0])
    assert found == sorted(found)
