"""A reader that begins where rows were trimmed says how many and since when, or does not begin."""

import logging
from pathlib import Path
from typing import Any

import pytest

from streamworker.core.data.readers import read_position
from streamworker.errors import DataLoss
from streamworker.spark.driver import pipelines
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.progress import PipelineProgress
from streamworker.spark.driver.session import Session
from streamworker.spark.source import datasource
from streamworker.spark.source.datasource import LogStreamReader
from streamworker.spark.source.offsets import from_json
from tests.spark.acked import AckedLog
from tests.spark.reading import batch_reader, numbers_of, stream_reader
from tests.spark.specs import by_user, pipeline, same


@pytest.fixture(autouse=True)
def trimmed(acked: AckedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twelve rows in two partitions the first six of one are gone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasource, "READER_KNOWN_S", 0.01)
    acked.fill(0, [6, 3])
    acked.fill(1, [3])
    acked.trim(0, 6)


def reader(acked: AckedLog, **given: str) -> LogStreamReader:
    return stream_reader(acked.options(reader="late", **given))


def test_the_source_says_how_many_rows_and_since_when(
    acked: AckedLog, caplog: pytest.LogCaptureFixture
) -> None:
    """In its log, once, and in Redis beside its position, where it stays when the query goes on."""
    with caplog.at_level(logging.WARNING):
        first = reader(acked).initialOffset()
    (told,) = caplog.messages
    assert told.startswith(
        "The query begins late: 6 of 12 rows of shop.orders (price) were trimmed before, by "
    )
    assert "partition {0: 6}; the oldest row that is left was committed at 20" in told
    again = reader(acked)
    acked.fill(0, [2])
    again.latestOffset(first, again.getDefaultReadLimit())
    stored = read_position(acked.redis.hget(acked.keys.readers, "late"))
    assert (stored.late_rows, stored.rows) == (6, {0: 6, 1: 0})


def test_the_source_says_so_where_no_row_is_left(acked: AckedLog, caplog: pytest.LogCaptureFixture) -> None:
    """It names no time then: there is none."""
    acked.trim(0, 9)
    with caplog.at_level(logging.WARNING):
        reader(acked).initialOffset()
    assert caplog.messages[0].endswith(
        "9 of 12 rows of shop.orders (price) were trimmed before, by partition {0: 9}; no row of these "
        "partitions is left. The query goes on without them; failOnDataLoss=true would end it."
    )


def test_a_batch_read_says_so_and_fails_where_nothing_may_be_missing(
    acked: AckedLog, caplog: pytest.LogCaptureFixture
) -> None:
    """As a stream does."""
    with caplog.at_level(logging.WARNING):
        batch_reader(acked.options()).partitions()
    (told,) = caplog.messages
    assert told.startswith(
        "The query begins late: 6 of 12 rows of shop.orders (price) were trimmed before, by "
    )
    with pytest.raises(DataLoss, match="begins late: 6 of 12 rows"):
        batch_reader(acked.options(failOnDataLoss="true")).partitions()
    batch_reader(acked.options(failOnDataLoss="true", startingOffsets='{"0": 6, "1": 0}')).partitions()


@pytest.mark.parametrize("given", [{"startingOffsets": "latest"}, {"startingOffsets": '{"0": 6, "1": 0}'}])
def test_a_query_that_was_told_to_begin_there_is_not_late(
    acked: AckedLog, caplog: pytest.LogCaptureFixture, given: dict[str, str]
) -> None:
    """Even where nothing may be missing."""
    with caplog.at_level(logging.WARNING):
        reader(acked, failOnDataLoss="true", **given).initialOffset()
    assert caplog.messages == []


def test_where_nothing_may_be_missing_it_does_not_begin(acked: AckedLog) -> None:
    """Neither does it register: workers keep no rows for it."""
    with pytest.raises(DataLoss, match="begins late: 6 of 12 rows"):
        reader(acked, failOnDataLoss="true").initialOffset()
    assert acked.redis.hlen(acked.keys.readers) == 0


def test_a_pipeline_says_so_and_goes_on_and_a_whole_result_is_not_made_of_a_part(
    spark_session: Session, acked: AckedLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The result of an aggregate would be wrong; failOnDataLoss=false makes it of what is left."""
    told: list[PipelineProgress] = []
    rows = pipeline(same, name="rows", path="lake/rows")
    whole = pipeline(by_user)
    part = pipeline(by_user, name="part", path="lake/part", options={"failOnDataLoss": "false"})
    specs = [rows, whole, part]
    assert run_pipelines(specs, session=spark_session, once=True, on_progress=told.append) == 1
    assert {each.pipeline: each.late_rows for each in told if each.state == "running"} == {
        "rows": 6,
        "part": 6,
    }
    assert "pipeline rows begins late: 6 rows were trimmed before it" in caplog.messages
    (failed,) = [each for each in told if each.state == "failed"]
    assert failed.pipeline == "revenue"
    assert "begins late: 6 of 12 rows" in failed.error
    assert not Path("lake/revenue").exists()


def test_a_query_begins_at_a_time(acked: AckedLog, caplog: pytest.LogCaptureFixture) -> None:
    """With the first row that was committed then; it lacks rows only where the oldest is younger."""
    acked.fill(1, [2, 2, 2])
    now_ms = acked.redis.time()[0] * 1000
    aged = zip(acked.entries(1), (4, 3, 1, 0), strict=True)
    acked.rewrite(1, [(at, {**fields, b"at": b"%d" % (now_ms - h * 3_600_000)}) for (at, fields), h in aged])
    for hours, begins, late in ((5, {0: 6, 1: 0}, 1), (2, {0: 6, 1: 5}, 1), (-1, {0: 9, 1: 9}, 0)):
        acked.redis.delete(acked.keys.readers)
        caplog.clear()
        query = reader(acked, startingTimestamp=str(now_ms - hours * 3_600_000))
        with caplog.at_level(logging.WARNING):
            start = from_json(query.initialOffset())
        assert {p: at.rows for p, at in start.items()} == begins
        assert sum("by partition {0: 6}" in told for told in caplog.messages) == late


def test_a_batch_read_ends_before_a_time(acked: AckedLog) -> None:
    """Two reads whose times meet have each row once between them."""
    acked.fill(1, [2, 2])
    now_ms = acked.redis.time()[0] * 1000
    for p, ages in ((0, (2,)), (1, (4, 3, 1))):
        aged = zip(acked.entries(p), ages, strict=True)
        entries = [(at, {**fields, b"at": b"%d" % (now_ms - h * 3_600_000)}) for (at, fields), h in aged]
        acked.rewrite(p, entries)
    left = [*range(6, 9), *range(1_000_000, 1_000_007)]
    for hours, before in ((5, []), (3, left[3:6]), (2, left[3:8]), (1, left[:8]), (0, left)):
        at = str(now_ms - hours * 3_600_000)
        rest = sorted({*left} - {*before})
        for given, expected in (({"endingTimestamp": at}, before), ({"startingTimestamp": at}, rest)):
            read = batch_reader(acked.options(**given))
            assert sorted(numbers_of(read, read.partitions())) == expected


@pytest.mark.parametrize(
    ("given", "warns"),
    [
        ({}, True),
        ({"options": {"startingOffsets": "latest"}}, False),
        ({"options": {"STARTINGTIMESTAMP": "2026-01-31T12:00Z"}}, False),
        ({"options_of": {"price": {"startingOffsets": "latest"}}}, False),
    ],
)
def test_rows_that_a_pipeline_asks_to_leave_out_were_not_trimmed(
    given: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's first event has more rows before it than it read, whatever the reason."""
    session: Any = None  # Nothing is asked of it.
    run = pipelines._Run(pipeline(**given), session, None, once=True, on_progress=None)
    run._log(PipelineProgress("revenue", "running", batch=0, rows=1, late_rows=3, lag_rows={0: 0}))
    assert ("begins late: 3 rows were trimmed" in caplog.text) is warns
