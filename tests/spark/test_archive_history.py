"""``history``: all rows that there ever were, from files and log, each once."""

import threading
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from streamworker.errors import ArchiveConflict, ConfigurationError
from streamworker.spark import history
from streamworker.variables import CONNECTIONS_VARIABLE
from tests.archive.acked import Archivers
from tests.spark.acked import ORDER, AckedLog, orders
from tests.spark.queries import batch
from tests.spark.test_archived import archived, desk

__all__ = ["desk"]


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row.n for row in frame.select("n").collect())


def of(spark: SparkSession, **more: Any) -> DataFrame:
    return history(spark, app="shop", processor="price", **more)


def test_history_has_each_row_once_while_more_come_and_go(
    acked: AckedLog, desk: Archivers, spark: SparkSession
) -> None:
    """Before anything is archived, after, and of a frame that was made before rows were trimmed."""
    acked.declare(ORDER)
    acked.fill(0, [30, 20])
    assert numbers(of(spark)) == acked.numbers()
    archived(desk, trim=False)
    acked.fill(0, [5])
    acked.fill(1, [4])
    early = of(spark)
    before = acked.numbers()
    assert numbers(early) == before
    archived(desk)
    acked.fill(0, [6, 1])
    assert acked.entries(1) == []
    assert numbers(of(spark)) == acked.numbers()
    assert numbers(early) == before, "the source reads from the archive what it planned to read from Redis"


def test_rows_that_arrive_and_are_archived_meanwhile_are_there_once(
    acked: AckedLog, desk: Archivers, spark: SparkSession
) -> None:
    """Whatever moves between the list of segments, the plan and the read: a prefix of each partition."""
    acked.declare(ORDER)
    acked.fill(0, [100])
    archived(desk)
    stop, failed = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            with AckedLog(acked._url, partitions=2) as log:
                log.written = acked.written
                again = Archivers(log, desk.store.url)
                archiver = again.new()
                while not stop.is_set():
                    for p in (0, 1):
                        log.fill(p, [7, 2])
                    assert again.all(archiver) == ""
                    for p, rows in again.position.rows.items():
                        log.trim(p, rows)
                    time.sleep(0.02)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(6):
            before = [len(acked.written[p]) for p in (0, 1)]
            found = numbers(of(spark))
            for p in (0, 1):
                mine = [n for n in found if n // 1_000_000 == p]
                assert mine == [row["n"] for row in acked.written[p]][: len(mine)]
                assert len(mine) >= before[p]
    finally:
        stop.set()
        thread.join()
    assert failed == []
    assert numbers(of(spark)) == acked.numbers()


def test_since_reads_only_the_files_that_have_such_rows(
    acked: AckedLog, desk: Archivers, spark: SparkSession
) -> None:
    acked.declare(ORDER)
    moments = []
    for count in (3, 4, 5):
        moments.append((datetime.now(UTC), len(acked.written[0])))
        time.sleep(0.02)
        acked.fill(0, [count, 1])
        acked.fill(1, [count])
        archived(desk)
    moments.append((datetime.now(UTC), len(acked.written[0])))
    time.sleep(0.02)
    acked.fill(0, [2, 6])
    for index, (at, rows) in enumerate(moments):
        for since in (at, at.isoformat()):
            frame = of(spark, since=since, includeMetadata=True)
            assert numbers(frame.where("_partition = 0")) == acked.numbers(0)[rows:]
            assert len(frame.inputFiles()) == 2 * (3 - index)
    assert "PushedFilters: [IsNotNull(_acked_at), GreaterThanOrEqual(_acked_at" in plan_of(
        of(spark, since=moments[0][0])
    )
    assert "_acked_at" not in of(spark, since=moments[0][0]).columns
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    local = moments[1][0].astimezone(__import__("zoneinfo").ZoneInfo("Asia/Tokyo")).replace(tzinfo=None)
    try:
        assert numbers(of(spark, since=local.isoformat())) == numbers(of(spark, since=moments[1][0]))
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


ALL = pa.schema(
    [
        ("n", pa.int64()),
        ("tiny", pa.uint8()),
        ("small", pa.uint16()),
        ("wide", pa.uint32()),
        ("huge", pa.uint64()),
        ("ratio", pa.float32()),
        ("price", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("data", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("who", pa.struct([("name", pa.string()), ("age", pa.int32())])),
        ("more", pa.map_(pa.string(), pa.int64())),
        ("is_new", pa.bool_()),
    ]
)


def all_types(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "tiny": 250,
        "small": 65_000,
        "wide": 4_000_000_000,
        "huge": 2**64 - 1 - n,
        "ratio": 0.5,
        "price": Decimal("12.34"),
        "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC),
        "data": b"\x00\xff",
        "tags": ["a", None, "b"],
        "who": {"name": "ann", "age": n},
        "more": [("x", n)],
        "is_new": None if n % 2 else True,
    }


def test_all_types_and_metadata_are_those_of_the_source(
    acked: AckedLog, desk: Archivers, spark: SparkSession
) -> None:
    acked.append(0, pa.RecordBatch.from_pylist([all_types(n) for n in range(5)], schema=ALL))
    options = acked.options(includeMetadata="true")
    before = sorted(map(str, batch(spark, options).collect()))
    archived(desk)
    found = of(spark, includeMetadata=True)
    assert found.schema == batch(spark, options).schema
    assert sorted(map(str, found.collect())) == before
    assert len(found.inputFiles()) == 1


def test_columns_that_came_later_are_null_before(
    acked: AckedLog, desk: Archivers, spark: SparkSession
) -> None:
    acked.append(0, pa.record_batch({"n": [1, 2]}))
    archived(desk)
    acked.append(0, pa.record_batch({"n": [3], "note": ["late"]}))
    archived(desk)
    acked.append(0, pa.record_batch({"n": [4], "note": ["last"]}))
    rows = of(spark).orderBy("n").collect()
    assert [tuple(row) for row in rows] == [(1, None), (2, None), (3, "late"), (4, "last")]


def test_a_url_given_reaches_sparks_processes(
    acked: AckedLog,
    desk: Archivers,
    spark: SparkSession,
    connections_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acked.declare(ORDER)
    acked.fill(0, [5])
    archived(desk)
    acked.fill(0, [4])
    connections_file.write_text("")
    with pytest.raises(ConfigurationError, match="not known to this Spark process"):
        of(spark)
    monkeypatch.delenv(CONNECTIONS_VARIABLE)
    before = {**spark.sparkContext.environment}
    assert numbers(of(spark, redis_url=acked._url)) == acked.numbers()
    assert spark.sparkContext.environment == before


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"since": "yesterday"}, "is no time"),
        ({"startingOffsets": "latest"}, "begins with the first row"),
        ({"stream": "others"}, "No worker has declared"),
        ({"maxRowsPerTrigger": 5}, "is not for a batch read"),
    ],
)
def test_what_does_not_fit_is_refused(
    acked: AckedLog, spark: SparkSession, given: dict[str, Any], match: str
) -> None:
    acked.declare(ORDER)
    with pytest.raises(ConfigurationError, match=match):
        of(spark, **given)


def test_the_archive_of_an_earlier_log_is_refused(
    acked: AckedLog, desk: Archivers, spark: SparkSession
) -> None:
    acked.fill(0, [3])
    archived(desk)
    acked.redis.delete(acked.keys.lock(0), acked.keys.acked(0))
    acked.register()
    acked.append(0, orders(50, 2))
    with pytest.raises(ArchiveConflict, match="it was deleted or lost, and began anew"):
        of(spark)
