"""The source on real Spark: every row of the logs once, in every way of asking."""

import datetime as dt
import json
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamworker.dev.server import EmbeddedServer
from tests.spark.acked import NOTHING, AckedLog
from tests.spark.conftest import Connect
from tests.spark.queries import batch, rows, run, start, table, wait_for_rows, wait_for_stuck


def test_a_stream_written_to_parquet_equals_the_log_run_by_run(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """Each row is there once, with its values; a run with nothing to do ends at once.

    Without a name it is no reader: nobody could tell it from another, or take it off the list.
    """
    acked.fill(0, [3, 5, 1000])
    run(spark, acked.options(), tmp_path)
    run(spark, acked.options(), tmp_path)
    acked.fill(0, [10])
    acked.fill(1, [7])
    run(spark, acked.options(), tmp_path)
    assert not acked.redis.exists(acked.keys.readers)
    found = spark.read.parquet(str(tmp_path / "table")).orderBy("n").collect()
    assert [row.asDict() for row in found] == acked.written[0] + acked.written[1]


def test_a_running_query_follows_the_log_and_runs_no_empty_batches(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """Also from a partition that had no rows. A checkpoint that moves without rows is no news to Spark."""
    acked.fill(0, [4])
    query = start(rows(spark, acked.options()), tmp_path, trigger={"processingTime": "100 milliseconds"})
    try:
        wait_for_rows(query, 4)
        acked.append(0, NOTHING)
        acked.append(1, NOTHING)
        acked.fill(1, [6])
        wait_for_rows(query, 10)
    finally:
        query.stop()
    assert [int(event["numInputRows"]) for event in query.recentProgress if event["numInputRows"]] == [4, 6]
    assert {int(event["batchId"]) for event in query.recentProgress} <= {0, 1, 2}
    assert table(spark, tmp_path) == acked.numbers()


def lag_in(event: Mapping[str, Any]) -> int:
    source = event["sources"][0]
    end, latest = (sum(json.loads(source[name])["p"].values()) for name in ("endOffset", "latestOffset"))
    return int(latest - end)


def test_a_limit_is_exact_to_the_row_and_redis_is_told_of_the_last_one(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """Also where a limit ends inside an entry; shared over partitions. Each event has the lag.

    Trimming waits for the position in Redis. Spark never commits its last batch to a source; the start of the
    next look does.
    """
    acked.fill(0, [100])
    acked.fill(1, [37, 13])
    query = run(spark, acked.options(reader="table", maxRowsPerTrigger="40"), tmp_path)
    assert [int(event["numInputRows"]) for event in query.recentProgress] == [40, 40, 40, 30]
    assert [lag_in(event) for event in query.recentProgress] == [110, 70, 30, 0]
    assert table(spark, tmp_path) == acked.numbers()
    value = json.loads(acked.redis.hget(acked.keys.readers, "table"))
    assert value["p"] == {"0": 100, "1": 50}
    last = query.recentProgress[-1]
    assert value["took"] >= last["durationMs"]["addBatch"], "what the last micro-batch took stands beside it"
    assert value["log"] == {"0": acked.identity(0), "1": acked.identity(1)}
    assert value["at"] > 1_600_000_000_000


def test_every_arrow_type_that_records_have_arrives_as_it_was(spark: SparkSession, acked: AckedLog) -> None:
    """Times with and without a zone, dates, decimals, bytes, lists, maps, structs, null."""
    naive = dt.datetime.fromisoformat("2024-02-29T23:59:59.123456")
    row = {
        "n": 1, "small": 5, "flag": True, "text": "ä", "blob": b"\x00\xff", "naive": naive,
        "at": naive.replace(tzinfo=dt.UTC), "day": dt.date(1999, 12, 31), "price": 12, "tags": ["a", None],
        "where": {"lat": 1.5, "names": ["x"]}, "counts": [("k", 2)], "none": None, "count": 2**32 - 1,
        "took": dt.timedelta(hours=1, microseconds=1),
    }  # fmt: skip
    schema = pa.schema(
        [
            ("n", pa.int64()), ("small", pa.int8()), ("flag", pa.bool_()), ("text", pa.large_string()),
            ("blob", pa.binary()), ("at", pa.timestamp("us", "UTC")), ("naive", pa.timestamp("us")),
            ("day", pa.date32()), ("price", pa.decimal128(10, 2)), ("tags", pa.list_(pa.string())),
            ("where", pa.struct([("lat", pa.float64()), ("names", pa.list_(pa.string()))])),
            ("counts", pa.map_(pa.string(), pa.int64())), ("none", pa.int64()), ("count", pa.uint32()),
            ("took", pa.duration("us")),
        ]
    )  # fmt: skip
    acked.append(0, pa.RecordBatch.from_pylist([row], schema=schema))
    found = batch(spark, acked.options()).collect()[0].asDict(recursive=True)
    expected = dict(row, counts={"k": 2}, blob=bytearray(b"\x00\xff"))
    assert found.pop("price") == 12
    del expected["price"], expected["at"]
    # Spark gives times with a zone in the session's zone, UTC, without saying so.
    assert found.pop("at") == naive
    assert found == expected


def test_a_query_finds_the_stream_of_its_processor(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """A batch and a stream, whose checkpoint is the same as with the stream's name."""
    short = {"app": "shop", "processor": "price"}
    for given in (short, acked.options()):
        acked.fill(1, [3])
        run(spark, given, tmp_path)
        assert table(spark, tmp_path) == acked.numbers()
    reader = spark.read.format("streamworker").options(**short).schema("n long, user string, amount double")
    assert reader.load().count() == 6


def test_a_restart_of_redis_does_not_end_a_query(
    spark: SparkSession, connect: Connect, tmp_path: Path
) -> None:
    with EmbeddedServer(data_dir=tmp_path / "data", appendonly=True) as server, ExitStack() as stack:
        connect("own", server.url)
        log = stack.enter_context(AckedLog(server.url, partitions=2))
        log.fill(0, [10])
        query = start(
            rows(spark, log.options(connection="own", reader="q")),
            tmp_path,
            trigger={"processingTime": "50 milliseconds"},
        )
        try:
            wait_for_rows(query, 10)
            server.kill()
            wait_for_stuck(query, 1.0)
            server.start()
            log.reconnect()
            log.fill(0, [5])
            log.fill(1, [5])
            wait_for_rows(query, 20)
        finally:
            query.stop()
        assert table(spark, tmp_path) == log.numbers()


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TABLE rows USING streamworker OPTIONS ({options})", "no table of Spark's catalog"),
        ("CREATE TABLE rows (n bigint) USING streamworker; SELECT n FROM rows", "Option app is missing"),
        ("CREATE TEMPORARY VIEW rows USING streamworker OPTIONS ({options}); SELECT n FROM rows", ""),
    ],
    ids=["a table", "a table with columns", "a temporary view"],
)
def test_sql_reads_by_a_temporary_view_and_is_told_so(
    spark: SparkSession, acked: AckedLog, statement: str, says: str
) -> None:
    """To a table of its catalog Spark gives no options."""
    acked.fill(0, [3])
    options = ", ".join(f"{name} '{value}'" for name, value in acked.options().items())
    try:
        with (
            pytest.raises(PySparkException, match=f"{says}.*CREATE TEMPORARY VIEW") if says else nullcontext()
        ):
            for each in statement.format(options=options).split("; "):
                found = spark.sql(each).collect()
            assert [row.n for row in found] == acked.numbers()
    finally:
        spark.sql("DROP TABLE IF EXISTS rows")
        spark.catalog.dropTempView("rows")
