"""A query reads from the archive what Redis has no more: each row once, under the offsets that it had."""

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from streamworker.errors import DataLoss
from streamworker.spark.source.archived import ArchivedLogs
from streamworker.spark.source.offsets import START, Position
from tests.archive.acked import Archivers
from tests.spark.acked import AckedLog
from tests.spark.reading import Query, batch_reader, numbers_of, read


@pytest.fixture
def desk(acked: AckedLog, tmp_path: Path) -> Archivers:
    found = Archivers(acked, str(tmp_path / "lake"))
    acked.redis.hset(acked.keys.meta, "archive:price", found.store.url)
    return found


def archived(desk: Archivers, *, trim: bool = True) -> None:
    """Archive all that there is, and let Redis forget it."""
    time.sleep(0.11)
    assert desk.all(desk.new()) == ""
    if trim:
        for p, rows in desk.position.rows.items():
            desk.log.trim(p, rows)


def test_a_query_begins_with_the_first_row_that_ever_was(acked: AckedLog, desk: Archivers) -> None:
    acked.fill(0, [30, 20])
    acked.fill(1, [7])
    archived(desk)
    acked.fill(0, [11])
    query = Query(acked.options())
    assert query.run() == acked.numbers()
    assert acked.entries(1) == [], "Redis has none of them"
    acked.fill(1, [3])
    assert query.run() == acked.numbers()


def test_offsets_do_not_depend_on_where_rows_are(acked: AckedLog, desk: Archivers) -> None:
    """Spark repeats a micro-batch after a crash: it has the same rows, though they were trimmed meanwhile."""
    acked.fill(0, [30, 20])
    acked.fill(1, [25])
    query = Query(acked.options())
    seen: list[int] = []
    while True:
        end = query.reader.latestOffset(query.position, ReadMaxRows(10))
        tasks = query.reader.partitions(query.position, end)
        rows = numbers_of(query.reader, tasks)
        if not rows:
            break
        if len(seen) == 20:
            archived(desk)
        assert numbers_of(Query(acked.options(), query.position).reader, tasks) == rows
        seen += rows
        query.position = end
    assert sorted(seen) == acked.numbers()


def test_rows_that_are_trimmed_while_a_slice_is_read_come_from_the_archive(
    acked: AckedLog, desk: Archivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    acked.fill(0, [2] * 40)
    archived(desk, trim=False)
    acked.fill(0, [2] * 5)
    reader = batch_reader(acked.options())
    tasks = reader.partitions()
    ranges, calls = ArchivedLogs._ranges, list[Any]()

    def and_trim(logs: ArchivedLogs, asked: Any) -> Any:
        calls.append(asked)
        if len(calls) == 2:
            acked.trim(0, 80)
        return ranges(logs, asked)

    monkeypatch.setattr(ArchivedLogs, "_ranges", and_trim)
    assert numbers_of(reader, tasks) == acked.numbers()
    assert len(calls) == 2


def test_metadata_is_the_same_from_archive_and_log(acked: AckedLog, desk: Archivers) -> None:
    acked.fill(0, [3, 2])
    acked.fill(1, [4, 1])
    options = acked.options(includeMetadata="true")
    before = read(options)
    archived(desk)
    after = read(options)
    assert after.sort_by([("_partition", "ascending"), ("_offset", "ascending")]) == before.sort_by(
        [("_partition", "ascending"), ("_offset", "ascending")]
    )


def test_a_time_before_the_oldest_row_in_redis_is_found_in_the_archive(
    acked: AckedLog, desk: Archivers
) -> None:
    starts = []
    for count in (3, 4, 5):
        time.sleep(0.02)
        starts.append((int(time.time() * 1000), len(acked.written[0])))
        time.sleep(0.02)
        acked.fill(0, [count, 1])
        archived(desk)
    time.sleep(0.02)
    starts.append((int(time.time() * 1000), len(acked.written[0])))
    time.sleep(0.02)
    acked.fill(0, [2])
    for at_ms, rows in starts:
        found = read(acked.options(startingTimestamp=str(at_ms)))
        assert found["n"].to_pylist() == acked.numbers(0)[rows:]


def test_what_neither_has_is_a_loss(acked: AckedLog, desk: Archivers) -> None:
    acked.fill(0, [3])
    archived(desk)
    acked.fill(0, [4, 5])
    query = Query(acked.options())
    acked.trim(0, 7)
    with pytest.raises(DataLoss, match="Rows 4 to 7 are missing"):
        query.run()


def test_an_archive_that_begins_late_is_told_as_rows_that_are_gone(
    acked: AckedLog, desk: Archivers, caplog: pytest.LogCaptureFixture
) -> None:
    acked.fill(0, [3, 4, 5])
    acked.trim(0, 3)
    archived(desk)
    assert Query(acked.options()).run() == acked.numbers(0)[3:]
    assert "3 of 12 rows" in caplog.text


def test_the_archive_of_an_earlier_log_is_not_read(acked: AckedLog, desk: Archivers) -> None:
    acked.fill(0, [3])
    archived(desk)
    acked.redis.delete(acked.keys.lock(0), acked.keys.acked(0))
    acked.register()
    acked.written[0] = []
    acked.fill(0, [5, 5])
    acked.trim(0, 5)
    logs = Query(acked.options()).reader._logs
    assert logs.first_positions(logs.tails()) == {0: Position(5, acked.identity(0)), 1: START}


def test_rows_that_were_erased_leave_no_loss(acked: AckedLog, desk: Archivers) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from streamworker.archive.segments import encoded, opened
    from streamworker.core.data.archives import name_of

    acked.fill(0, [5, 5])
    archived(desk)
    acked.fill(0, [2])
    (segment,) = desk.chain(0).segments()
    found = desk.store.get(name_of(0, segment.after))
    assert found is not None
    file, footer = opened(found.body, segment.name)
    table = file.read()
    left = table.filter(pc.invert(pc.is_in(table["_offset"], pa.array([2, 3, 10]))))
    body = encoded(left, footer._replace(records=7, erased=3))
    assert desk.store.replace(segment.name, body, found.version)
    assert pq.read_metadata(pa.BufferReader(body)).num_rows == 7
    rows = acked.numbers(0)
    assert Query(acked.options()).run() == [n for n in rows if n not in (1, 2, 9)]
