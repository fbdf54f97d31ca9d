"""The source on real Spark: every row of the logs once, in every way of asking."""

import datetime as dt
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from streamworker.core.data.entries import EntryId
from streamworker.core.data.readers import read_position
from streamworker.dev.cluster import EmbeddedCluster
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import ConfigurationError
from streamworker.redisio.data.ackedlog import schema_fingerprint, serialize_schema
from streamworker.spark.source.datasource import LogStreamReader
from streamworker.spark.source.logs import AckedLogs
from streamworker.spark.source.offsets import from_json
from streamworker.spark.source.options import parse_options
from streamworker.spark.source.schema import spark_schema
from streamworker.urls import without_login
from tests.helpers import wait_for
from tests.spark.acked import NOTHING, ORDER, AckedLog, orders
from tests.spark.conftest import Connect
from tests.spark.queries import batch, rows, run, start, table, wait_for_rows, wait_for_stuck

# The first of them starts Spark.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.full("a query of Spark takes seconds")]


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


def test_max_rows_per_trigger_is_exact_to_the_row_and_each_event_has_the_lag(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """Also where a limit ends inside an entry; shared over partitions."""
    acked.fill(0, [100])
    acked.fill(1, [37, 13])
    query = run(spark, acked.options(maxRowsPerTrigger="40"), tmp_path)
    assert [int(event["numInputRows"]) for event in query.recentProgress] == [40, 40, 40, 30]
    assert [lag_in(event) for event in query.recentProgress] == [110, 70, 30, 0]
    assert table(spark, tmp_path) == acked.numbers()


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ("earliest", [3, 4, 5, 1_000_000, 1_000_001]),
        ("latest", []),
        ('{"0": 4}', [4, 5, 1_000_000, 1_000_001]),
        ('{"0": -1, "1": 1}', [1_000_001]),
        ('{"0": -1, "1": -2}', [1_000_000, 1_000_001]),
    ],
)
def test_a_new_query_begins_where_it_is_told_to(
    spark: SparkSession, acked: AckedLog, tmp_path: Path, starting: str, expected: list[int]
) -> None:
    """At either end, or at a row of each partition, also inside an entry; what was trimmed is no gap."""
    acked.fill(0, [3, 3])
    acked.trim(0, 3)
    acked.fill(1, [2])
    query = run(spark, acked.options(startingOffsets=starting), tmp_path)
    assert (table(spark, tmp_path) if expected else []) == expected
    assert sum(int(event["numInputRows"]) for event in query.recentProgress) == len(expected)


def test_a_batch_read_takes_the_rows_between_two_offsets(spark: SparkSession, acked: AckedLog) -> None:
    """All that is there by default, be it nothing."""
    acked.declare(ORDER)
    acked.register()
    assert batch(spark, acked.options()).collect() == []
    acked.fill(0, [5, 5])
    acked.fill(1, [4])
    assert sorted(row.n for row in batch(spark, acked.options()).collect()) == acked.numbers()
    part = batch(spark, acked.options(startingOffsets='{"0": 3, "1": -1}', endingOffsets='{"0": 7}'))
    assert sorted(row.n for row in part.collect()) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("offsets", "complaint"),
    [
        ({"startingOffsets": '{"0": 11}'}, "whose acked log has 10 rows"),
        ({"startingOffsets": '{"7": 0}'}, "Offsets are given for partition 7"),
        ({"endingOffsets": '{"0": 11}'}, "whose acked log has 10 rows"),
        ({"startingOffsets": '{"0": 1}'}, "rows up to 3 were trimmed"),
    ],
)
def test_an_offset_that_is_not_there_is_refused(
    spark: SparkSession, acked: AckedLog, offsets: dict[str, str], complaint: str
) -> None:
    acked.fill(0, [3, 7])
    acked.trim(0, 3)
    with pytest.raises(PySparkException, match=complaint):
        batch(spark, acked.options(**offsets)).collect()


def test_metadata_says_where_each_row_comes_from(spark: SparkSession, acked: AckedLog) -> None:
    """Partition, row number, time of the commit, last source id of its batch, epoch."""
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    acked.fill(0, [2, 3])
    acked.fill(1, [1])
    found = batch(spark, acked.options(includeMetadata="true")).orderBy("_partition", "_offset").collect()
    assert [(row.n, row._partition, row._offset, row._entry_id) for row in found] == [
        (0, 0, 1, "2-0"),
        (1, 0, 2, "2-0"),
        (2, 0, 3, "5-0"),
        (3, 0, 4, "5-0"),
        (4, 0, 5, "5-0"),
        (1_000_000, 1, 1, "1-0"),
    ]
    epochs = {p: int(acked.redis.hget(acked.keys.lock(p), "epoch")) for p in (0, 1)}
    assert all(row._epoch == epochs[row._partition] for row in found)
    stamps = [row._acked_at.replace(tzinfo=dt.UTC) for row in found]
    assert all(before <= stamp <= dt.datetime.now(dt.UTC) for stamp in stamps)


def test_large_partitions_are_split_and_small_ones_packed(spark: SparkSession, acked: AckedLog) -> None:
    """The number of tasks is what was asked for; in one task the rows of a partition are in order.

    By itself a small read is one task.
    """
    acked.fill(0, [500] * 4)
    acked.fill(1, [3])
    for option, tasks in (({"minPartitions": "7"}, 7), ({"minPartitions": "2"}, 2), ({}, 1)):
        frame = batch(spark, acked.options(**option))
        assert frame.rdd.getNumPartitions() == tasks
        found = [row.n for row in frame.collect()]
        assert sorted(found) == acked.numbers()
        assert tasks > 1 or [n for n in found if n < 1_000_000] == acked.numbers(0)


# -- types -----------------------------------------------------------------------------------


def test_older_rows_lack_a_new_column_as_null(spark: SparkSession, acked: AckedLog) -> None:
    """Also inside a struct and a list of structs: a type may grow, and the log keeps what was written."""
    old, new = [{"a": 1}, None], [{"a": 2, "b": "x"}]
    for n, value in ((1, old), (2, new)):
        items = [value, None] if n == 1 else [value]
        columns = {"n": pa.array([n] * len(value), pa.int64()), "s": pa.array(value)}
        note = {"note": pa.array(["new"])} if n == 2 else {}
        acked.append(0, pa.record_batch({**columns, "items": pa.array(items), **note}))
    found = batch(spark, acked.options()).orderBy("n").collect()
    assert [row.note for row in found] == [None, None, "new"]
    assert [row.s and row.s.asDict() for row in found] == [{"a": 1, "b": None}, None, {"a": 2, "b": "x"}]
    assert [row["items"] and [item and item.asDict() for item in row["items"]] for row in found] == [
        [{"a": 1, "b": None}, None],
        None,
        [{"a": 2, "b": "x"}],
    ]


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


def test_a_column_of_another_type_is_named(spark: SparkSession, acked: AckedLog) -> None:
    acked.append(0, pa.record_batch({"n": pa.array([2], pa.int64())}))
    old = pa.record_batch({"n": pa.array(["one"])})
    acked.redis.hset(acked.keys.schemas, schema_fingerprint(old.schema), serialize_schema(old.schema))
    acked.append(0, old, check_schema=False)
    with pytest.raises(PySparkException, match=r"Column 'n' is string in rows up to 2 of partition 0"):
        batch(spark, acked.options()).collect()


# -- without the name of the stream ----------------------------------------------------------


def without_stream(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name != "stream"}


def test_a_query_finds_the_stream_of_its_processor(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """A batch and a stream, whose checkpoint is the same as with the stream's name."""
    options, short = acked.options(), without_stream(acked.options())
    for given in (short, options, short):
        acked.fill(1, [3])
        run(spark, given, tmp_path)
        assert table(spark, tmp_path) == acked.numbers()
    assert batch(spark, short).count() == 9
    reader = spark.read.format("streamworker").options(**short).schema("n long, user string, amount double")
    assert reader.load().count() == 9


def test_a_processor_of_no_stream_or_several_is_answered_with_those_there_are(
    spark: SparkSession, acked: AckedLog, redis_url: str
) -> None:
    with pytest.raises(
        PySparkException, match=r"No worker has declared a processor 'price'.*check the names"
    ):
        batch(spark, without_stream(acked.options()))
    acked.declare(ORDER)
    with pytest.raises(PySparkException, match=r"a processor 'prize'.*The app has: price on orders\."):
        batch(spark, {"app": "shop", "processor": "prize"})
    with AckedLog(redis_url, partitions=2, stream="refunds") as other:
        other.declare(ORDER)
        with pytest.raises(
            PySparkException, match=r"on the streams orders, refunds\. Name one: option stream"
        ):
            batch(spark, without_stream(acked.options()))
        assert batch(spark, other.options()).count() == 0


# -- wrong use -------------------------------------------------------------------------------


def test_a_processor_that_has_not_forwarded_yet_is_told_from_one_that_is_not_there(
    spark: SparkSession, acked: AckedLog
) -> None:
    with pytest.raises(PySparkException, match="There is no processor 'price'"):
        rows(spark, acked.options())
    acked.register()
    with pytest.raises(PySparkException, match=r"has not forwarded any rows yet.*forward=True"):
        rows(spark, acked.options())
    with pytest.raises(PySparkException, match="There is no stream 'nothing'"):
        rows(spark, acked.options() | {"stream": "nothing"})


# -- losses ----------------------------------------------------------------------------------


def trimmed(log: AckedLog) -> None:
    log.fill(0, [4, 4])
    log.trim(0, 8)


def deleted(log: AckedLog, entry: str = "") -> None:
    if entry:
        log.redis.xdel(log.keys.acked(0), entry)
    else:
        log.redis.delete(log.keys.lock(0), log.keys.acked(0))


def made_again(log: AckedLog) -> None:
    """Where it has more rows than the old one."""
    deleted(log)
    log.append(0, orders(100, 9))


def grown_again(log: AckedLog) -> None:
    """The row numbers fit, and the source entries behind them do not."""
    kept, (_, lost) = log.entries(0)
    log.rewrite(0, [kept, (b"8-0", {**lost, b"last": b"5004-0"})])
    log.append(0, orders(200, 4))


def damaged(log: AckedLog) -> None:
    """Flipped bytes crash Arrow's reader if nobody looks."""
    first, (entry_id, fields) = log.entries(0)
    data = bytearray(fields[b"batch"])
    data[len(data) // 2] ^= 0xFF
    log.rewrite(0, [first, (entry_id, {**fields, b"batch": bytes(data)})])
    log.append(0, orders(4, 1))


@pytest.mark.parametrize(
    ("written", "is_read", "lose", "says", "left"),
    [
        pytest.param([4], True, trimmed, "Rows 5 to 8 are missing", [*range(4), *range(8, 12)], id="trimmed"),
        pytest.param([2, 2, 2], False, partial(deleted, entry="4-0"), "Rows 3 to 4 are missing", None,
                     id="a hole in the middle"),
        pytest.param([2, 2], False, partial(deleted, entry="4-0"), "Rows 3 to 4 are missing", None,
                     id="a deleted end"),
        pytest.param([4], True, deleted, ".*not there any more", [*range(4)], id="a deleted log"),
        pytest.param([4], True, made_again, ".*made again", [*range(4), *range(100, 109)], id="made again"),
        pytest.param([4, 4], True, lambda log: log.rewrite(0, log.entries(0)[:1]),
                     ".*shorter than what was already read", [*range(8)], id="rolled back"),
        pytest.param([4, 4], True, grown_again, ".*rolled back and has grown again", None,
                     id="rolled back and grown again"),
        pytest.param([2, 2], False, damaged, "Entry 4-0 .* does not match its CRC", [0, 1, 4], id="damaged"),
    ],
)  # fmt: skip
def test_a_loss_ends_the_query_by_its_name(
    spark: SparkSession,
    acked: AckedLog,
    tmp_path: Path,
    written: list[int],
    is_read: bool,
    lose: Callable[[AckedLog], None],
    says: str,
    left: list[int] | None,
) -> None:
    """Loudly, with what is missing; without failOnDataLoss it goes on behind that, with what comes later."""
    acked.fill(0, written)
    if is_read:
        run(spark, acked.options(), tmp_path)
    lose(acked)
    with pytest.raises(PySparkException, match=f"DataLoss(: )?{says}"):
        run(spark, acked.options(), tmp_path)
    if left is not None:
        run(spark, acked.options(failOnDataLoss="false"), tmp_path)
        acked.append(0, orders(300, 2))
        run(spark, acked.options(failOnDataLoss="false"), tmp_path)
        assert table(spark, tmp_path) == [*left, 300, 301]


def test_a_group_that_was_reset_is_no_loss(spark: SparkSession, acked: AckedLog, tmp_path: Path) -> None:
    """Entries that are processed again add their rows again: the log goes on, and so does the query."""
    acked.fill(0, [4, 4])
    run(spark, acked.options(), tmp_path)
    acked.reset(0, EntryId(2, 0))
    run(spark, acked.options(), tmp_path)
    acked.append(0, orders(100, 1))
    run(spark, acked.options(), tmp_path)
    acked.append(0, orders(101, 1))
    run(spark, acked.options(), tmp_path)
    assert table(spark, tmp_path) == [*range(8), 100, 101]


# -- outages, and other servers -----------------------------------------------------------------


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


def test_a_query_reads_a_cluster(spark: SparkSession, connect: Connect, cluster: EmbeddedCluster) -> None:
    """Planner and tasks look the connection up, and find the stream and each slot's primary."""
    connect("cluster", cluster.url)
    with AckedLog(cluster.url, partitions=4, app="spread") as log:
        for partition in range(4):
            log.fill(partition, [3, 2])
        found = batch(spark, without_stream(log.options(connection="cluster"))).collect()
        assert sorted(row.n for row in found) == log.numbers()


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


def test_a_path_for_load_is_answered_with_what_to_write(spark: SparkSession, acked: AckedLog) -> None:
    with pytest.raises(PySparkException, match=r"have no path.*load\(\) without one"):
        spark.read.format("streamworker").options(**acked.options()).load("shop/orders")


# -- readers' positions ----------------------------------------------------------------------


def test_a_reader_s_position_is_told_to_redis_up_to_the_last_row(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """So that trimming waits for it.

    Spark never commits its last batch to a source; the start of the next look does.
    """
    acked.fill(0, [6])
    acked.fill(1, [4])
    query = run(spark, acked.options(reader="table", maxRowsPerTrigger="5"), tmp_path)
    value = json.loads(acked.redis.hget(acked.keys.readers, "table"))
    assert value["p"] == {"0": 6, "1": 4}
    *_, last = (event for event in query.recentProgress if event["numInputRows"])
    assert value["took"] >= last["durationMs"]["addBatch"], "what the last micro-batch took stands beside it"
    assert value["log"] == {"0": acked.identity(0), "1": acked.identity(1)}
    assert value["at"] > 1_600_000_000_000


def test_a_reader_holds_its_place_before_it_has_read_anything(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """Otherwise a trim between planning and reading would take its rows."""
    acked.fill(0, [6, 4])
    acked.trim(0, 6)
    query = start(
        rows(spark, acked.options(reader="table", maxRowsPerTrigger="1")),
        tmp_path,
        trigger={"processingTime": "10 minutes"},
    )
    try:
        wait_for_rows(query, 1)
    finally:
        query.stop()
    assert json.loads(acked.redis.hget(acked.keys.readers, "table"))["p"] == {"0": 6, "1": 0}


def test_a_failure_stays_beside_a_position_until_its_query_has_read_on(acked: AckedLog) -> None:
    """A query that only begins again where it failed has not mended anything."""
    acked.fill(0, [3])
    options = parse_options(acked.options(reader="table"), streaming=True)

    def query() -> LogStreamReader:
        return LogStreamReader(options, spark_schema(ORDER))

    def after_a_failure(offset: dict[str, Any]) -> str:
        AckedLogs(options).tell_failure("the disk is away")
        for _ in range(2):
            query().latestOffset(offset, ReadAllAvailable())
        return read_position(acked.redis.hget(acked.keys.readers, "table")).failed

    first = query().initialOffset()
    assert after_a_failure(first) == "the disk is away"
    read = query().latestOffset(first, ReadAllAvailable())
    assert after_a_failure(read) == "", "it has read on"
    assert after_a_failure(read) == "", "there is nothing to read"


def commands_of(acked: AckedLog) -> Counter[str]:
    """Return how often each command has run, but for the question."""
    stats = acked.redis.info("commandstats").items()
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats}
    return Counter({name: count for name, count in calls.items() if name != "info"})


def test_a_micro_batch_without_rows_waits_for_the_first(acked: AckedLog, redis_url: str) -> None:
    """So an idle query asks little: once how far the logs are, and one command that waits.

    A run over what is there does not wait.
    """
    acked.fill(0, [3])
    query = LogStreamReader(parse_options(acked.options(idleWait="0.1"), streaming=True), spark_schema(ORDER))
    start = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    assert query.latestOffset(start, ReadAllAvailable()) == start
    commands = commands_of(acked)
    assert query.latestOffset(start, ReadAllAvailable()) == start
    assert dict(commands_of(acked) - commands) == {"hget": 1, "hmget": 2, "time": 1, "xread": 1}
    query = LogStreamReader(parse_options(acked.options(idleWait="30"), streaming=True), spark_schema(ORDER))
    start = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(query.latestOffset, start, ReadAllAvailable())
        wait_for(lambda: acked.redis.info("clients")["blocked_clients"], "the query waits")
        acked.fill(1, [2])
        assert from_json(waiting.result(20))[1].rows == 2
    query.prepareForTriggerAvailableNow()
    end = waiting.result()
    assert query.latestOffset(end, ReadAllAvailable()) == end

    acked.redis.execute_command("ACL", "SETUSER", "early", "on", ">secret", "~*", "+@all", "-xread")
    url = without_login(redis_url).replace("://", "://early:secret@")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamworker.spark.source.connection.resolve", lambda name: url)
        begun_s = time.monotonic()
        options = parse_options(acked.options(idleWait="0.2"), streaming=True)
        query = LogStreamReader(options, spark_schema(ORDER))
        assert query.latestOffset(end, ReadAllAvailable()) == end, "a user of an earlier version waits, too"
        assert time.monotonic() - begun_s >= 0.2
    acked.redis.execute_command("ACL", "DELUSER", "early")


def test_a_checkpoint_of_another_processor_is_named(acked: AckedLog) -> None:
    """After a processor got another name; by a start and by a batch that is repeated after a kill."""
    acked.fill(0, [3])
    options = parse_options(acked.options(), streaming=True)
    query = LogStreamReader(options, spark_schema(ORDER))
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    renamed = LogStreamReader(replace(options, processor="renamed"), spark_schema(ORDER))
    says = (
        "checkpoint is of processor 'price' on shop.orders, and the query reads processor 'renamed' on shop"
    )
    with pytest.raises(ConfigurationError, match=says):
        renamed.latestOffset(end, ReadAllAvailable())
    with pytest.raises(ConfigurationError, match=says):
        renamed.partitions(start, end)
    of_an_earlier_version = {name: value for name, value in end.items() if name != "of"}
    assert query.latestOffset(of_an_earlier_version, ReadAllAvailable()) == of_an_earlier_version


# -- the module ------------------------------------------------------------------------------


def test_executors_load_nothing_heavy_for_the_source() -> None:
    """Beside the package itself, its modules bring the standard library, redis, pyarrow and pyspark."""
    code = (
        "import sys, streamworker; before = set(sys.modules); import streamworker.spark.source.datasource; "
        "print({'typer', 'rich', 'structlog', 'anyio', 'msgspec', 'pandas'} & (set(sys.modules) - before))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "set()"
