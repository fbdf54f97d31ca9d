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

from streamworker.spark.source.sink import WholeResult

pytestmark = [pytest.mark.slow, pytest.mark.full("a query of Spark takes seconds")]

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


def by_pandas(table: Path) -> list[int]:
    return list(pd.read_parquet(table).version)


def by_polars(table: Path) -> list[int]:
    return list(pl.read_parquet(table / "*.parquet")["version"])


def by_duckdb(table: Path) -> list[int]:
    found = duckdb.execute(f"select version from '{table}/*.parquet'").fetchall()
    return [version for (version,) in found]


def look(read: Callable[[Path], list[int]], table: Path, times: int) -> list[int]:
    """Read the result so often, each time through the link, and through three swaps at least."""
    found: list[int] = []
    while len(found) < times or found[-1] < found[0] + 3:
        versions = read(table.resolve())
        assert len(versions) == 30
        assert len(set(versions)) == 1
        found.append(versions[0])
    return found


@pytest.mark.parametrize(
    "times", [100, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
@pytest.mark.parametrize("read", [by_pandas, by_polars, by_duckdb])
def test_a_reader_that_resolves_the_link_reads_one_whole_version(
    table: Path, read: Callable[[Path], list[int]], times: int
) -> None:
    """And never an older one than before."""
    found = look(read, table, times)
    assert found == sorted(found)


@pytest.mark.parametrize(
    "times", [10, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]
)
def test_spark_reads_one_whole_version_too(spark: SparkSession, table: Path, times: int) -> None:
    """As the others do."""

    def by_spark(place: Path) -> list[int]:
        return [row.version for row in spark.read.parquet(str(place)).collect()]

    found = look(by_spark, table, times)
    assert found == sorted(found)
