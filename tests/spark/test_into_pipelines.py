"""Pipelines that send what Spark finds back into a stream."""

import asyncio
import datetime as dt
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker import App
from streamworker.declaring.specs import PipelineSpec
from streamworker.declaring.stream import Stream
from streamworker.errors import ConfigurationError, RecordError
from streamworker.spark import into_stream, send_rows
from streamworker.spark.driver.session import Session
from streamworker.spark.into import publishing
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.spark.acked import AckedLog
from tests.spark.into import Event, got, numbers
from tests.spark.processes import ROOT, ConnectServer
from tests.spark.running import Running, run_once
from tests.spark.specs import by_user, pipeline
from tests.spark.test_pipelines import failure_of

pytestmark = pytest.mark.usefixtures("in_tmp_path")

LIMIT = {"maxRowsPerTrigger": "10"}


class Alert(msgspec.Struct):
    user: str
    orders: int
    ends: dt.datetime | None = None


def doubled(frame: DataFrame) -> DataFrame:
    """Return events, after a shuffle."""
    return frame.repartition(3).select("n", F.col("user").alias("k"), (F.col("amount") * 2).alias("v"))


def events(url: str, **given: Any) -> Stream[Event]:
    return App("shop", redis_url=url, **given).stream("events", Event, key="k", partitions=3)


def back(stream: Stream[Any], function: Any = doubled, **given: Any) -> PipelineSpec:
    return pipeline(function, **{"path": None, "into": stream, "options": LIMIT, "name": "back", **given})


def test_what_a_pipeline_returns_is_in_the_stream_once_through_restarts(
    spark_session: Session, acked: AckedLog, redis_url: str
) -> None:
    """With other numbers of tasks after a shuffle."""
    stream = events(redis_url)
    for part in range(3):
        acked.fill(0, [9, 4])
        acked.fill(1, [12])
        spark_session.spark.conf.set("spark.sql.shuffle.partitions", str(2 + part))
        assert run_once(spark_session, back(stream)) == (0, "")
    spark_session.spark.conf.set("spark.sql.shuffle.partitions", "2")
    found = [each.record for each in got(redis_url, stream)]
    assert sorted(each.n for each in found) == acked.numbers()
    assert all(
        each.v == 2 * row["amount"] for each in found for row in acked.written[0] if row["n"] == each.n
    )


def test_a_window_is_sent_once_when_it_closes(
    spark_session: Session, acked: AckedLog, redis_url: str
) -> None:
    """Its result is what pandas counts; the rows carry headers."""
    alerts = App("shop", redis_url=redis_url).stream("alerts", Alert, key="user", partitions=2)

    def too_many(frame: DataFrame) -> DataFrame:
        at = F.timestamp_seconds(F.col("n") % 1000)
        windows = (
            frame.withColumn("at", at)
            .withWatermark("at", "1 second")
            .groupBy(F.window("at", "10 seconds"), "user")
        )
        return windows.count().select(
            "user", F.col("count").alias("orders"), F.col("window.end").alias("ends"),
            F.create_map(F.lit("by"), F.lit("spark")).alias("_headers"),
        )  # fmt: skip

    acked.fill(0, [40])
    acked.fill(1, [40])
    for _ in range(3):
        assert run_once(spark_session, back(alerts, too_many)) == (0, "")
    rows = [row for rows in acked.written.values() for row in rows]
    ends = [(row["user"], (row["n"] % 1000 // 10 + 1) * 10) for row in rows]
    wanted = Counter(each for each in ends if each[1] <= 30)  # The last window has not closed.
    found = got(redis_url, alerts)
    assert {(each.record.user, each.record.ends.timestamp()): each.record.orders for each in found} == wanted
    assert len(found) == len(wanted)
    assert {each.headers["by"] for each in found} == {"spark"}


@pytest.mark.parametrize(
    ("function", "says"),
    [
        pytest.param(by_user, "aggregate without a watermark.*withWatermark", id="rows that change"),
        pytest.param(lambda frame: frame.select("n"), "no column 'k', which Event needs", id="too few"),
        pytest.param(
            lambda frame: doubled(frame).withColumn("n", F.col("n").cast("string")),
            "Column 'n' of the table is string, and Event needs int64", id="another type",
        ),
        pytest.param(lambda frame: frame.writeStream.format("noop"), "DataStreamWriter", id="a writer"),
    ],
)  # fmt: skip
def test_a_result_that_a_stream_cannot_take_is_refused_at_the_start(
    spark_session: Session, acked: AckedLog, redis_url: str, function: Any, says: str
) -> None:
    acked.fill(0, [3])
    with pytest.raises(ConfigurationError, match=says):
        run_once(spark_session, back(events(redis_url), function))
    assert not Path(".streamworker").exists() or not list(Path(".streamworker").rglob("into"))


def test_a_full_stream_is_waited_for_and_the_reader_says_so(
    spark_session: Session, acked: AckedLog, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "WAIT_S", 0.5)
    stream = events(redis_url, partition_records_max=5, trim_interval_ms=100)
    acked.fill(0, [60])
    running = Running(spark_session, back(stream))
    told = running.wait_for_state("waiting")
    assert "of stream 'events' is at its limit of 5 records" in told.error
    assert "at its limit of 5" in failure_of(acked, "back")
    handled: list[int] = []

    app: Any = stream.app

    @app.processor(stream)  # type: ignore[untyped-decorator]
    async def handle(event: Event) -> None:
        handled.append(event.n)

    async def work() -> None:
        async with local_worker(app, url=redis_url):
            await wait_for_async(lambda: len(handled) >= 60, "the workers have handled all")

    asyncio.run(work())
    running.wait_for_rows(60)
    assert running.end() == 0
    assert sorted(handled) == acked.numbers()


def test_a_function_may_send_to_two_streams_and_write_elsewhere(
    spark_session: Session, acked: AckedLog, redis_url: str, tmp_path: Path
) -> None:
    low, high = (
        events(redis_url),
        App("shop", redis_url=redis_url).stream("high", Event, key="k", partitions=2),
    )
    send_low, send_high = into_stream(low), into_stream(high)

    def write(rows: DataFrame, query: str, batch: int) -> None:
        events = doubled(rows)
        send_low(events.where("n % 3 = 0"), query, batch)
        send_high(events.where("n % 3 > 0"), query, batch)
        rows.write.mode("overwrite").parquet(str(tmp_path / f"copy-{batch}"))

    acked.fill(0, [25])
    assert run_once(spark_session, pipeline(lambda frame: frame, path=None, write=write, options=LIMIT)) == (
        0,
        "",
    )
    acked.fill(1, [25])
    assert run_once(spark_session, pipeline(lambda frame: frame, path=None, write=write, options=LIMIT)) == (
        0,
        "",
    )
    wanted = acked.numbers()
    assert numbers(redis_url, low) == [n for n in wanted if n % 3 == 0]
    assert numbers(redis_url, high) == [n for n in wanted if n % 3]
    assert len(list(tmp_path.glob("copy-*"))) == 6


def test_rows_of_a_dataframe_are_sent_by_their_ids(spark_session: Session, redis_url: str) -> None:
    """Sent again, with more rows, only these are sent."""
    stream = events(redis_url)
    spark = spark_session.spark

    def rows(count: int) -> DataFrame:
        columns = ("id AS n", "concat('k', id % 7) AS k", "id / 2 AS v", "concat('case ', id) AS case_id")
        return spark.range(0, count, 1, 3).selectExpr(*columns)

    assert send_rows(rows(700), stream, id="case_id") == 700
    assert send_rows(rows(900).repartition(5), stream, id="case_id") == 200
    assert numbers(redis_url, stream) == [*range(900)]
    unnamed = rows(3).selectExpr("n", "k", "v", "if(n = 1, NULL, case_id) AS case_id")
    with pytest.raises(RecordError, match="1 row of the DataFrame have no 'case_id'"):
        send_rows(unnamed, stream, id="case_id")
    headed = rows(901).where("n = 900").selectExpr("*", "map('by', 'night') AS _headers")
    assert send_rows(headed, stream, id="case_id") == 1
    assert [each.headers for each in got(redis_url, stream) if each.record.n == 900] == [{"by": "night"}]
    with pytest.raises(ConfigurationError, match="no column 'nothing'"):
        send_rows(rows(1), stream, id="nothing")


@pytest.mark.timeout(600)
def test_a_connect_server_sends_what_a_pipeline_returns(
    connect_server: ConnectServer, acked: AckedLog, redis_url: str
) -> None:
    """With streamworker and the program installed where the server runs, and its own URL of Redis."""
    acked.fill(0, [30])
    program = [sys.executable, "-c", ON_CONNECT, connect_server.url, redis_url]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert numbers(redis_url, events(redis_url)) == acked.numbers()


ON_CONNECT = """
import sys
from streamworker.spark.driver.pipelines import run_pipelines
from tests.spark.test_into_pipelines import back, events

server, redis_url = sys.argv[1:]
sys.exit(run_pipelines([back(events(redis_url))], remote=server, once=True))
"""
"""A program of its own: pyspark serves either a JVM or a server in one process."""
