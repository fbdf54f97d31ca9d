"""The source as Spark calls it, in this process and without a JVM: each loss is told by its name."""

import datetime as dt
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from streamworker.core.data.entries import EntryId
from streamworker.core.data.readers import read_position
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import ConfigurationError, DataLoss
from streamworker.spark.driver.notes import ReaderNotes
from streamworker.spark.source import datasource
from streamworker.spark.source.datasource import StreamworkerDataSource
from streamworker.spark.source.offsets import from_json
from streamworker.spark.source.options import parse_options
from streamworker.spark.source.schema import spark_schema
from streamworker.urls import without_login
from tests.helpers import wait_for
from tests.spark.acked import ORDER, AckedLog, orders
from tests.spark.conftest import Connect
from tests.spark.reading import Query, batch_reader, numbers_of, read, stream_reader


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
def test_a_new_query_begins_where_it_is_told_to(acked: AckedLog, starting: str, expected: list[int]) -> None:
    """At either end, or at a row of each partition, also inside an entry; what was trimmed is no gap."""
    acked.fill(0, [3, 3])
    acked.trim(0, 3)
    acked.fill(1, [2])
    assert Query(acked.options(startingOffsets=starting)).run() == expected


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
    acked: AckedLog, offsets: dict[str, str], complaint: str
) -> None:
    acked.fill(0, [3, 7])
    acked.trim(0, 3)
    with pytest.raises((ConfigurationError, DataLoss), match=complaint):
        batch_reader(acked.options(**offsets)).partitions()


def test_a_batch_read_takes_the_rows_between_two_offsets(acked: AckedLog) -> None:
    """All that is there by default, be it nothing."""
    acked.declare(ORDER)
    acked.register()
    assert read(acked.options()).num_rows == 0
    acked.fill(0, [5, 5])
    acked.fill(1, [4])
    assert sorted(read(acked.options())["n"].to_pylist()) == acked.numbers()
    part = read(acked.options(startingOffsets='{"0": 3, "1": -1}', endingOffsets='{"0": 7}'))
    assert sorted(part["n"].to_pylist()) == [3, 4, 5, 6]


def test_a_batch_has_about_so_many_bytes_and_at_least_a_row(acked: AckedLog) -> None:
    """By the entries that come next in each partition, within maxRowsPerTrigger."""
    large = pa.record_batch(
        {"n": range(10), "user": [f"{n}" * 10_000 for n in range(10)], "amount": [1.0] * 10}
    )
    acked.append(0, large)
    acked.append(0, large)
    acked.fill(1, [10] * 100)
    (rows_0, rows_1), entry = (20, 1000), len(acked.entries(0)[0][1][b"batch"])

    def first(**given: str) -> dict[int, int]:
        reader = stream_reader(acked.options(**given))
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        return {int(p): rows for p, rows in end["p"].items()}

    assert first() == first(maxBytesPerTrigger="1000000000") == {0: rows_0, 1: rows_1}
    some = first(maxBytesPerTrigger=str(entry))
    assert 0 < some[0] <= 10 and 0 < some[1] <= 700, "half of the large rows and no more than their share"
    assert sum(first(maxBytesPerTrigger=str(entry), maxRowsPerTrigger="7").values()) == 7
    assert sum(first(maxBytesPerTrigger="1").values()) == 1


def test_metadata_says_where_each_row_comes_from(acked: AckedLog) -> None:
    """Partition, row number, time of the commit, last source id of its batch, epoch."""
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    acked.fill(0, [2, 3])
    acked.fill(1, [1])
    found = read(acked.options(includeMetadata="true")).to_pylist()
    assert [(row["n"], row["_partition"], row["_offset"], row["_entry_id"]) for row in found] == [
        (0, 0, 1, "2-0"),
        (1, 0, 2, "2-0"),
        (2, 0, 3, "5-0"),
        (3, 0, 4, "5-0"),
        (4, 0, 5, "5-0"),
        (1_000_000, 1, 1, "1-0"),
    ]
    epochs = {p: int(acked.redis.hget(acked.keys.lock(p), "epoch")) for p in (0, 1)}
    assert all(row["_epoch"] == epochs[row["_partition"]] for row in found)
    assert all(before <= row["_acked_at"] <= dt.datetime.now(dt.UTC) for row in found)


def test_large_partitions_are_split_and_small_ones_packed(acked: AckedLog) -> None:
    """The number of tasks is what was asked for; in one task the rows of a partition are in order.

    By itself a small read is one task.
    """
    acked.fill(0, [500] * 4)
    acked.fill(1, [3])
    for option, count in (({"minPartitions": "7"}, 7), ({"minPartitions": "2"}, 2), ({}, 1)):
        reader = batch_reader(acked.options(**option))
        tasks = reader.partitions()
        assert len(tasks) == count
        found = numbers_of(reader, tasks)
        assert sorted(found) == acked.numbers()
        assert count > 1 or [n for n in found if n < 1_000_000] == acked.numbers(0)


def test_older_rows_lack_a_new_column_as_null(acked: AckedLog) -> None:
    """Also inside a struct and a list of structs: a type may grow, and the log keeps what was written."""
    old, new = [{"a": 1}, None], [{"a": 2, "b": "x"}]
    for n, value in ((1, old), (2, new)):
        items = [value, None] if n == 1 else [value]
        columns = {"n": pa.array([n] * len(value), pa.int64()), "s": pa.array(value)}
        note = {"note": pa.array(["new"])} if n == 2 else {}
        acked.append(0, pa.record_batch({**columns, "items": pa.array(items), **note}))
    found = read(acked.options()).to_pylist()
    assert [row["note"] for row in found] == [None, None, "new"]
    grown = {"a": 1, "b": None}
    assert [row["s"] for row in found] == [grown, None, *new]
    assert [row["items"] for row in found] == [[grown, None], None, new]


# -- what is declared ------------------------------------------------------------------------


def test_a_processor_of_no_stream_or_several_is_answered_with_those_there_are(
    acked: AckedLog, redis_url: str
) -> None:
    """Where a query does not name the stream."""
    short = {"app": "shop", "processor": "price"}

    def says(text: str, **given: str) -> None:
        with pytest.raises(ConfigurationError, match=text):
            StreamworkerDataSource({**short, **given}).schema()

    says(r"No worker has declared a processor 'price'.*check the names")
    acked.declare(ORDER)
    says(r"a processor 'prize'.*The app has: price on orders\.", processor="prize")
    with AckedLog(redis_url, partitions=2, stream="refunds") as other:
        other.declare(ORDER)
        says(r"on the streams orders, refunds\. Name one: option stream")
        assert StreamworkerDataSource(other.options()).schema().names == ORDER.names


def test_a_query_finds_the_stream_of_its_processor(acked: AckedLog) -> None:
    """A stream, whose position is the same as with the stream's name, and a batch read."""
    short = {"app": "shop", "processor": "price"}
    acked.fill(1, [3])
    source = StreamworkerDataSource(short)
    reader = source.streamReader(source.schema())
    begin = reader.initialOffset()
    assert begin == stream_reader(acked.options()).initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert numbers_of(reader, reader.partitions(begin, end)) == acked.numbers()
    assert read(short, spark_schema(ORDER, parse_options(short)))["n"].to_pylist() == acked.numbers()


def test_a_processor_that_has_not_forwarded_yet_is_told_from_one_that_is_not_there(acked: AckedLog) -> None:
    """Its stream may be missing, too."""

    def says(text: str, **given: str) -> None:
        with pytest.raises(ConfigurationError, match=text):
            StreamworkerDataSource(acked.options(**given)).schema()

    says("There is no processor 'price'")
    acked.register()
    says(r"has not forwarded any rows yet.*forward=True")
    says("There is no stream 'nothing'", stream="nothing")


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
        pytest.param([4], True, deleted, "not there any more", [*range(4)], id="a deleted log"),
        pytest.param([4], True, made_again, "made again", [*range(4), *range(100, 109)], id="made again"),
        pytest.param([4, 4], True, lambda log: log.rewrite(0, log.entries(0)[:1]),
                     "shorter than what was already read", [*range(8)], id="rolled back"),
        pytest.param([4, 4], True, grown_again, "rolled back and has grown again", None,
                     id="rolled back and grown again"),
        pytest.param([2, 2], False, damaged, "Entry 4-0 .* does not match its CRC", [0, 1, 4], id="damaged"),
    ],
)  # fmt: skip
def test_a_loss_ends_the_query_by_its_name(
    acked: AckedLog,
    written: list[int],
    is_read: bool,
    lose: Callable[[AckedLog], None],
    says: str,
    left: list[int] | None,
) -> None:
    """Loudly, with what is missing; without failOnDataLoss it goes on behind that, with what comes later."""
    acked.fill(0, written)
    before = Query(acked.options())
    kept = before.run() if is_read else []
    lose(acked)
    with pytest.raises(DataLoss, match=says):
        Query(acked.options(), before.position).run()
    if left is not None:
        query = Query(acked.options(failOnDataLoss="false"), before.position)
        query.run()
        acked.append(0, orders(300, 2))
        assert kept + query.run() == [*left, 300, 301]


def test_a_group_that_was_reset_is_no_loss(acked: AckedLog) -> None:
    """Entries that are processed again add their rows again: the log goes on, and so does the query."""
    acked.fill(0, [4, 4])
    query = Query(acked.options())
    query.run()
    acked.reset(0, EntryId(2, 0))
    query.run()
    for n in (100, 101):
        acked.append(0, orders(n, 1))
        query.run()
    assert query.table == [*range(8), 100, 101]


def test_a_query_goes_on_after_a_restart_of_redis(connect: Connect, tmp_path: Path) -> None:
    """It plans, tells its position and reads when the server is there again."""
    with EmbeddedServer(data_dir=tmp_path / "data", appendonly=True) as server:
        connect("own", server.url)
        with AckedLog(server.url, partitions=2) as log:
            log.fill(0, [10])
            query = Query(log.options(connection="own", reader="q"))
            assert query.run() == log.numbers()
            log.fill(0, [5])
            log.fill(1, [5])
            server.kill()
            with ThreadPoolExecutor() as threads:
                going_on = threads.submit(query.run)
                time.sleep(0.3)
                assert not going_on.done()
                server.start()
                assert going_on.result(60) == log.numbers()


# -- readers' positions ----------------------------------------------------------------------


def test_a_reader_holds_its_place_before_it_has_read_anything(
    acked: AckedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a trim between planning and reading would take its rows."""
    monkeypatch.setattr(datasource, "READER_KNOWN_S", 0.01)
    acked.fill(0, [6, 4])
    acked.trim(0, 6)
    query = Query(acked.options(reader="table", maxRowsPerTrigger="1"))
    for rows in (0, 1):
        assert len(query.table) == rows
        assert json.loads(acked.redis.hget(acked.keys.readers, "table"))["p"] == {"0": 6, "1": 0}
        query.batch()


def test_a_failure_stays_beside_a_position_until_its_query_has_read_on(acked: AckedLog) -> None:
    """A query that only begins again where it failed has not mended anything."""
    acked.fill(0, [3])
    options = acked.options(reader="table", idleWait="0.01")

    def after_a_failure(offset: dict[str, Any]) -> str:
        ReaderNotes(parse_options(options, streaming=True)).failed("the disk is away")
        for _ in range(2):
            stream_reader(options).latestOffset(offset, ReadAllAvailable())
        return read_position(acked.redis.hget(acked.keys.readers, "table")).failed

    first = stream_reader(options).initialOffset()
    assert after_a_failure(first) == "the disk is away"
    end = stream_reader(options).latestOffset(first, ReadAllAvailable())
    assert after_a_failure(end) == "", "it has read on"
    assert after_a_failure(end) == "", "there is nothing to read"


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
    query = stream_reader(acked.options(idleWait="0.1"))
    start = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    assert query.latestOffset(start, ReadAllAvailable()) == start
    commands = commands_of(acked)
    assert query.latestOffset(start, ReadAllAvailable()) == start
    assert dict(commands_of(acked) - commands) == {"hget": 1, "hmget": 2, "time": 1, "xread": 1}
    query = stream_reader(acked.options(idleWait="30"))
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
        query = stream_reader(acked.options(idleWait="0.2"))
        assert query.latestOffset(end, ReadAllAvailable()) == end, "a user of an earlier version waits, too"
        assert time.monotonic() - begun_s >= 0.2
    acked.redis.execute_command("ACL", "DELUSER", "early")


def test_a_checkpoint_of_another_processor_is_named(acked: AckedLog) -> None:
    """After a processor got another name; by a start and by a batch that is repeated after a kill."""
    acked.fill(0, [3])
    query = stream_reader(acked.options())
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    renamed = stream_reader({**acked.options(), "processor": "renamed"})
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
