"""A batch read beside workers that trim keeps its rows by a hold, and tells trimmed rows from lost ones."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from streamworker.app import App
from streamworker.core.data import readers
from streamworker.core.data.readers import ReaderPosition
from streamworker.errors import DataLoss
from streamworker.redisio.admin.rights import acl_rules
from streamworker.redisio.data.trimming import trim_many
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.run.trims import Trimmer, Trims, trim_once
from streamworker.settings import Settings
from streamworker.spark.source import datasource, logs
from streamworker.spark.source.datasource import LogBatchReader, LogStreamReader
from tests.spark.acked import AckedLog
from tests.spark.reading import batch_reader, numbers_of, stream_reader

shop = App("shop")


@dataclass
class Order:
    n: int


@shop.processor(shop.stream("orders", Order), forward=True)
def price(order: Order) -> None:
    """Forward it."""


Lose = Callable[[AckedLog, str], None]


@pytest.fixture
def here(acked: AckedLog, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[AckedLog]:
    """A log of ten entries with 20 rows, read up to row 6 and trimmed there; this process reads it itself."""
    monkeypatch.setattr(datasource, "READER_KNOWN_S", 0.01)
    # A trim drops whole nodes of a stream.
    acked.redis.config_set("stream-node-max-entries", 1)
    acked.fill(0, [2] * 10)
    passed(acked, 6)
    work_trims(acked, redis_url)
    yield acked
    acked.redis.config_set("stream-node-max-entries", 100)


def passed(acked: AckedLog, rows: int) -> None:
    """Let a pipeline beside have read so many rows."""
    position = ReaderPosition({0: rows}, {0: acked.identity(0)}, 1)
    acked.redis.hset(acked.keys.readers, "beside", position.text())


def work_trims(acked: AckedLog, url: str, rows: int | None = None) -> None:
    """Trim as a worker does once an interval; with ``rows``, as one that knows the readers of before."""

    async def trim() -> None:
        backend = Backend.open(url, name="worker")
        if rows is None:
            log = structlog.stdlib.get_logger()
            trimmer = Trimmer(backend, acked.keys, price.spec.stream, Settings(), log, has_log=True)
            await trim_once(trimmer, {0: Trims(0)})
        else:
            await trim_many(backend, acked.keys, {0: rows})
        await backend.aclose()

    asyncio.run(trim())


def test_a_trim_between_planning_and_reading_takes_nothing(here: AckedLog, redis_url: str) -> None:
    """The pipeline beside has read all rows; they stay until the batch read has them too."""
    reader = batch_reader(here.options())
    tasks = reader.partitions()
    passed(here, 20)
    work_trims(here, redis_url)
    assert numbers_of(reader, tasks) == list(range(6, 20))


def test_rows_that_go_before_workers_know_the_hold_are_not_planned(
    here: AckedLog, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker asks for the readers every two seconds, and trims by what it knows until then."""
    monkeypatch.setattr("time.sleep", lambda _: work_trims(here, redis_url, 12))
    reader = batch_reader(here.options())
    assert numbers_of(reader, reader.partitions()) == list(range(12, 20))


def test_a_log_that_was_never_trimmed_is_read_at_once(
    acked: AckedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waited"))
    acked.fill(0, [2, 2])
    for given in ({}, {"startingOffsets": '{"0": 2, "1": 0}'}):
        reader = batch_reader(acked.options(**given))
        assert numbers_of(reader, reader.partitions())[-1] == 3


def test_a_long_read_keeps_its_rows_by_renewing_its_hold(
    here: AckedLog, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of tasks that have not begun, too: seven steps that take longer than the limit, then a task."""
    monkeypatch.setattr(readers, "HOLD_MS", 1_500)
    monkeypatch.setattr(datasource, "together", lambda entries: ([entry] for entry in entries))
    monkeypatch.setattr(logs, "FIRST_COUNT", 1)
    monkeypatch.setattr(logs, "MOST_COUNT", 1)
    here.fill(1, [3])
    reader = batch_reader(here.options(minPartitions="2"))
    first, second = reader.partitions()
    passed(here, 20)
    found: list[int] = []
    for batch in reader.read(first):
        found += batch["n"].to_pylist()
        time.sleep(0.4)
        work_trims(here, redis_url)
    assert found == list(range(6, 20))
    assert numbers_of(reader, [second]) == here.numbers(1)
    assert here.redis.hlen(here.keys.holds) == 1


def test_after_its_limit_a_hold_is_gone_and_trimming_goes_on(
    here: AckedLog, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to clean up after a read that was killed; who comes too late is told why."""
    monkeypatch.setattr(readers, "HOLD_MS", 2_000)
    reader = batch_reader(here.options())
    tasks = reader.partitions()
    passed(here, 16)
    work_trims(here, redis_url)
    assert here.redis.xlen(here.keys.acked(0)) == 7
    time.sleep(2.05)
    work_trims(here, redis_url)
    assert here.redis.xlen(here.keys.acked(0)) == 2
    assert not here.redis.exists(here.keys.holds)
    with pytest.raises(DataLoss, match=r"Rows 7 to 16 are missing from .*: they were trimmed") as told:
        numbers_of(reader, tasks)
    assert "Redis lost nothing" in told.value.remedy and "restore" not in told.value.remedy


def test_a_hold_alone_lets_nothing_be_trimmed(acked: AckedLog, redis_url: str) -> None:
    """A log without a reader is not trimmed, wherever batch reads of it begin."""
    acked.fill(0, [2] * 10)
    batch_reader(acked.options(startingOffsets='{"0": 12, "1": 0}')).partitions()
    work_trims(acked, redis_url)
    assert acked.redis.hlen(acked.keys.holds) == 1
    assert acked.redis.xlen(acked.keys.acked(0)) == 10


def test_a_user_without_the_right_to_hold_reads_all_the_same(
    here: AckedLog, redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An ACL file of an earlier version does not name the key."""
    rules = [rule.replace(" ~sw:{shop.*}:holds", "") for rule in acl_rules("shop", "reader")]
    here.redis.execute_command("ACL", "SETUSER", "old", "on", ">secret", *rules)
    server = urlsplit(redis_url)
    url = server._replace(netloc=f"old:secret@{server.netloc.rpartition('@')[2]}").geturl()
    monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", url)
    reader = batch_reader(here.options())
    with caplog.at_level(logging.WARNING):
        assert numbers_of(reader, reader.partitions()) == list(range(6, 20))
    told, late = caplog.messages
    assert told.startswith("Rows may be trimmed while this batch read runs")
    assert late.startswith("The query begins late: 6 of 20 rows")
    here.redis.execute_command("ACL", "DELUSER", "old")


def whole_log(acked: AckedLog, url: str) -> None:
    passed(acked, 20)
    work_trims(acked, url)


def in_part(acked: AckedLog, url: str) -> None:
    passed(acked, 11)
    work_trims(acked, url)


def a_hole(acked: AckedLog, url: str) -> None:
    acked.redis.xdel(acked.keys.acked(0), "12-0")


def the_end(acked: AckedLog, url: str) -> None:
    acked.redis.xdel(acked.keys.acked(0), "18-0", "20-0")


def rolled_back(acked: AckedLog, url: str) -> None:
    """To a state in which nothing had been committed."""
    acked.redis.hset(acked.keys.lock(0), mapping={"rows": 0, "tail": ""})
    acked.redis.xtrim(acked.keys.acked(0), maxlen=0)


@pytest.mark.parametrize(
    ("lose", "rows", "trimmed"),
    [(whole_log, "7 to 20", True), (in_part, "7 to 10", True), (a_hole, "11 to 12", False),
     (the_end, "17 to 20", False), (rolled_back, "7 to 20", False)],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
@pytest.mark.parametrize("streaming", [False, True])
def test_trimmed_is_told_from_lost(
    here: AckedLog, redis_url: str, lose: Lose, rows: str, trimmed: bool, streaming: bool
) -> None:
    """A streaming query without a reader, and a batch read whose hold is gone."""
    reader: LogBatchReader | LogStreamReader
    if streaming:
        reader = stream_reader(here.options())
        since = reader.initialOffset()
        tasks = reader.partitions(since, reader.latestOffset(since, ReadAllAvailable()))
    else:
        reader = batch_reader(here.options())
        tasks = reader.partitions()
        here.redis.delete(here.keys.holds)
    lose(here, redis_url)
    with pytest.raises(DataLoss, match=f"Rows {rows} are missing") as told:
        numbers_of(reader, tasks)
    assert ("they were trimmed" in told.value.message) is trimmed
    assert ("If Redis lost data, restore it" in told.value.remedy) is not trimmed


def test_spark_reads_rows_that_are_trimmed_behind_its_plan(
    spark: SparkSession, here: AckedLog, redis_url: str
) -> None:
    """Through Spark's own planning and tasks."""
    frame = spark.read.format("streamworker").options(**here.options(minPartitions="3")).load()
    assert frame._jdf.queryExecution().toRdd().getNumPartitions() == 3
    passed(here, 20)
    work_trims(here, redis_url)
    assert sorted(row["n"] for row in frame.collect()) == list(range(6, 20))
    assert here.redis.hlen(here.keys.holds) == 1
