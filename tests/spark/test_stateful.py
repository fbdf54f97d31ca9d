"""Pipelines with state: rows that come late, and columns that come later."""

import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker.core.data.readers import read_position
from streamworker.declaring.specs import PipelineSpec
from streamworker.spark.driver.failures import TOO_BUSY
from streamworker.spark.driver.notes import ReaderNotes
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.progress import PipelineProgress
from streamworker.spark.driver.session import Session
from streamworker.spark.source.options import parse_options
from tests.spark.acked import AckedLog, orders
from tests.spark.reading import stream_reader
from tests.spark.specs import pipeline

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def ends(session: Session, *specs: PipelineSpec) -> dict[str, PipelineProgress]:
    """Run pipelines over what the logs hold; return what each said last."""
    told: dict[str, PipelineProgress] = {}
    states: list[str] = []

    def progressed(progress: PipelineProgress) -> None:
        told[progress.pipeline] = progress
        states.append("busy" if progress.error.startswith(TOO_BUSY) else progress.state)

    for spec in specs:  # One after the other, so that Python starts in time on a busy machine, too.
        run_pipelines([spec], session=session, once=True, on_progress=progressed)
    assert "restarting" not in states, "what is final is not tried again"
    return told


def test_state_meets_late_rows_and_columns_that_came_later(
    spark_session: Session, acked: AckedLog, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Dropped rows are told. A column more ends what stores whole rows, and the cure that is told goes on."""
    price = pipeline().processors[0]
    refund = replace(price, name="refund", stream=replace(price.stream, name="refunds"))

    def refunded(priced: DataFrame, refunds: DataFrame) -> DataFrame:
        return priced.join(refunds.select("n", F.col("amount").alias("refund")), "n")

    def in_time(frame: DataFrame) -> DataFrame:
        timed = frame.withColumn("at", F.timestamp_seconds("n")).withWatermark("at", "1 hour")
        return timed.dropDuplicatesWithinWatermark(["n"])

    joined = pipeline(refunded, processors=(price, refund), name="joined", path="lake/joined")
    distinct = pipeline(DataFrame.dropDuplicates, name="distinct", path="lake/distinct")
    late = pipeline(in_time, name="late", path="lake/late")
    with AckedLog(redis_url, partitions=1, stream="refunds", processor="refund") as refunds:
        acked.fill(1, [4])
        refunds.fill(0, [3])
        assert {each.state for each in ends(spark_session, joined, distinct, late).values()} == {"done"}
        acked.append(0, orders(0, 3).append_column("extra", pa.array([1.0, 2.0, 3.0])))
        with caplog.at_level(logging.INFO):
            told = ends(spark_session, joined, distinct, late)
        for name in ("joined", "distinct"):
            assert "has other columns than its rows have now: new extra. Choose" in told[name].error
            assert ".drop('extra')" in told[name].error
        assert (told["late"].state, told["late"].dropped_rows) == ("done", 3)
        assert "pipeline late: 3 rows came after the watermark, and Spark dropped them" in caplog.text
        assert "pipeline late is done: 3 rows processed in all, 3 dropped as late" in caplog.text
        assert read_position(acked.redis.hget(acked.keys.readers, "late")).dropped_rows == 3

        cured = [
            replace(distinct, function=lambda rows: rows.drop("extra").dropDuplicates()),
            replace(joined, function=lambda rows, refunds: refunded(rows.drop("extra"), refunds)),
        ]
        told = ends(spark_session, *cured)
    assert told["distinct"].state == told["joined"].state == "done"
    found = {
        name: sorted(
            row.n for row in spark_session.spark.read.parquet(str(Path(f"lake/{name}").absolute())).collect()
        )
        for name in ("distinct", "joined")
    }
    assert found == {"distinct": acked.numbers(), "joined": [0, 1, 2]}


def test_the_number_of_dropped_rows_stays_beside_a_position_that_moves(acked: AckedLog) -> None:
    """The driver adds to what it finds, and the source, which writes the position, leaves it."""
    acked.fill(0, [3])
    options = acked.options(reader="late")
    reader, notes = stream_reader(options), ReaderNotes(parse_options(options, streaming=True))
    first = reader.initialOffset()
    before = notes.dropped(2)
    acked.fill(0, [2])
    reader.latestOffset(
        reader.latestOffset(first, reader.getDefaultReadLimit()), reader.getDefaultReadLimit()
    )
    stored = read_position(acked.redis.hget(acked.keys.readers, "late"))
    assert (stored.rows[0], stored.dropped_rows, before) == (5, 2, 0)
    assert notes.dropped(7, before) == 0
    assert notes.dropped(1) == 7, "another driver goes on from there"
    assert read_position(acked.redis.hget(acked.keys.readers, "late")).dropped_rows == 8
