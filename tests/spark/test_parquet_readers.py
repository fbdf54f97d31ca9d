"""Times in a pipeline's table are the same for every reader of Parquet that docs/spark-reference.md names."""

import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.session import TIMESTAMPS, Session, open_session
from tests.spark.acked import AckedLog
from tests.spark.processes import ROOT, ConnectServer
from tests.spark.specs import pipeline, same

pytestmark = pytest.mark.usefixtures("in_tmp_path")

EAST = dt.timezone(dt.timedelta(hours=9))
TIMES = [
    dt.datetime(1582, 10, 4, 12, tzinfo=dt.UTC),  # the last day of the Julian calendar
    dt.datetime(1900, 1, 1, tzinfo=EAST),
    dt.datetime(2026, 7, 1, 8, 30, 0, 1, tzinfo=dt.timezone(dt.timedelta(hours=-4))),
    dt.datetime(2262, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),  # 64 bits of nanoseconds end in April
    dt.datetime(9999, 12, 31, 12, 30, tzinfo=EAST),
]
NAIVE = dt.datetime.fromisoformat("9999-12-31T01:00")
LASTS = dt.timedelta(days=-1, microseconds=1)
ORDERS = pa.record_batch(
    {
        "at": pa.array(TIMES, pa.timestamp("us", "UTC")),
        "naive": pa.array([NAIVE] * len(TIMES), pa.timestamp("us")),
        "lasts": pa.array([LASTS] * len(TIMES), pa.duration("us")),
    }
)
HOUR = dt.timedelta(hours=1)
STARTS = [at.astimezone(dt.UTC).replace(minute=0, second=0, microsecond=0) for at in TIMES]


def by_hour(frame: DataFrame) -> DataFrame:
    """Count by window, with the window as Spark names it, and its start as a column."""
    counted = frame.groupBy(F.window("at", "1 hour")).count()
    return counted.withColumn("start", F.col("window.start"))


def of_pandas(folder: Path) -> pa.Table:
    """Read by pandas; the column types must be those of the files, of which a join depends."""
    frame = pd.read_parquet(folder)
    for name in {"at", "start"} & set(frame.columns):
        assert isinstance(frame[name].dtype, pd.DatetimeTZDtype), frame.dtypes
    return pa.Table.from_pylist(frame.to_dict("records"))


def of_duckdb(folder: Path) -> pa.Table:
    found = duckdb.sql(f"from '{folder}/*.parquet'")
    assert found is not None
    table = found.to_arrow_table()
    assert isinstance(table, pa.Table)
    return table


READERS: dict[str, Callable[[Path], pa.Table]] = {
    "pyarrow": pq.read_table,
    "pandas": of_pandas,
    "duckdb": of_duckdb,
    "polars": lambda folder: pl.read_parquet(folder / "*.parquet").to_arrow(),
}


def assert_all_read_the_same(spark: SparkSession, folder: Path) -> None:
    """Compare with what was sent: instants with a zone, times without one, durations, windows."""
    kept, hours = (folder / "kept").absolute(), (folder / "hours").resolve()
    for name, read in READERS.items():
        table = read(kept)
        assert sorted(table["at"].to_pylist()) == TIMES, name
        assert {str(table.schema.field("at").type.tz)} <= {"UTC", "Etc/UTC"}, name
        assert set(table["naive"].to_pylist()) == {NAIVE}, name
        # Parquet has no durations: Spark writes them as numbers, as docs/spark-reference.md says.
        assert set(table["lasts"].to_pylist()) == {LASTS // dt.timedelta(microseconds=1)}, name
        windows = read(hours)
        assert sorted(windows["start"].to_pylist()) == STARTS, name
        inside = windows["window"].combine_chunks()
        for field, expected in (("start", STARTS), ("end", [start + HOUR for start in STARTS])):
            assert sorted(pc.struct_field(inside, field).to_pylist()) == expected, (name, field)
    rows = spark.read.parquet(str(kept))
    assert rows.schema["lasts"].dataType.simpleString() == "interval day to second"
    instants = rows.select(F.unix_micros("at")).collect()
    assert sorted(row[0] for row in instants) == [micros(at) for at in TIMES]
    found = spark.read.parquet(str(hours)).select(F.unix_micros("window.start"), F.unix_micros("start"))
    assert sorted(tuple(row) for row in found.collect()) == [(micros(at), micros(at)) for at in STARTS]


def micros(at: dt.datetime) -> int:
    return (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def write(session: Session, folder: str) -> None:
    """Run a pipeline that appends rows and one that has a whole result, in a folder."""
    specs = [
        pipeline(same, name=f"{folder}-kept", path=f"{folder}/kept"),
        pipeline(by_hour, name=f"{folder}-hours", path=f"{folder}/hours"),
    ]
    assert run_pipelines(specs, session=session, once=True) == 0


@pytest.fixture
def sent(acked: AckedLog, redis_url: str) -> Iterator[AckedLog]:
    """A log in which each time has a partition of its own."""
    acked.redis.flushall()
    with AckedLog(redis_url, partitions=len(TIMES)) as log:
        for p in range(len(TIMES)):
            log.append(p, ORDERS.slice(p, 1))
        yield log


@pytest.fixture
def of_the_user(spark: SparkSession) -> SparkSession:
    """A session with Spark's own defaults, as a notebook has."""
    session = spark.newSession()
    session.conf.unset(TIMESTAMPS)
    return session


@pytest.mark.usefixtures("sent")
def test_times_are_the_same_for_every_reader(of_the_user: SparkSession) -> None:
    """Also those of windows. The session of the user's is as it was when the pipelines have ended."""
    before = of_the_user.conf.getAll
    write(Session(of_the_user, None), "lake")
    assert_all_read_the_same(of_the_user, Path("lake"))
    assert of_the_user.conf.getAll == before


@pytest.mark.soak  # In test_masters a server writes to each sink; this is about a user's session there.
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("sent")
def test_a_connect_server_writes_what_a_local_spark_writes(
    spark: SparkSession, connect_server: ConnectServer, tmp_path: Path
) -> None:
    """In a session that streamworker opens there, and in one of the user's, which is as it was afterwards.

    An aggregate without a watermark is a whole result there, too, also when its pipeline starts again.
    """
    command = [sys.executable, "-m", __name__, connect_server.url]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout) == []
    for folder in map(Path, ("ours", "theirs")):
        assert_all_read_the_same(spark, folder)


def on_a_server(url: str) -> None:
    """Run the pipelines, in a process of its own: pyspark's functions make columns of a server from then on.

    Prints the settings of the user's session that have changed.
    """
    with open_session("tests", remote=url) as ours:
        write(ours, "ours")
        write(ours, "ours")
        ours.spark.conf.unset(TIMESTAMPS)
        before = ours.spark.conf.getAll
        write(Session(ours.spark, None, remote=True), "theirs")
        print(json.dumps(sorted(set(before.items()) ^ set(ours.spark.conf.getAll.items()))))


def test_a_user_s_choice_stays_and_the_last_of_two_runs_sets_back(of_the_user: SparkSession) -> None:
    conf: Any = of_the_user.conf
    with Session(of_the_user, None).timestamps_for_all():
        with Session(of_the_user, None).timestamps_for_all():
            assert conf.get(TIMESTAMPS) == "TIMESTAMP_MICROS"
        assert conf.get(TIMESTAMPS) == "TIMESTAMP_MICROS"
    assert TIMESTAMPS not in conf.getAll
    conf.set(TIMESTAMPS, "INT96")
    with Session(of_the_user, None).timestamps_for_all():
        assert conf.get(TIMESTAMPS) == "INT96"
    assert conf.get(TIMESTAMPS) == "INT96"


if __name__ == "__main__":
    on_a_server(sys.argv[1])
