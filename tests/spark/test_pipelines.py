"""Pipelines: a function of a DataFrame becomes a table, whatever happens on the way."""

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it
from pyspark.sql.streaming.query import StreamingQuery

from streamworker.core.data.readers import read_position
from streamworker.declaring.specs import PipelineSpec
from streamworker.errors import ConfigurationError
from streamworker.spark.driver import pipelines
from streamworker.spark.driver.failures import TOO_BUSY
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.progress import PipelineProgress
from streamworker.spark.driver.queries import start_query
from streamworker.spark.driver.session import Session
from streamworker.spark.sinks.sink import Batches, WholeResult
from tests.helpers import wait_for
from tests.spark.acked import AckedLog
from tests.spark.queries import wait_for_rows
from tests.spark.running import Running, run_once
from tests.spark.specs import by_user, pipeline, same

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def for_each(function: Callable[[DataFrame, int], None], name: str = "revenue") -> PipelineSpec:
    """Return a pipeline with a sink of the user's own."""
    return pipeline(lambda frame: frame.writeStream.foreachBatch(function), name=name, path=None)


def numbers(session: Session, path: str = "lake/revenue") -> list[int]:
    return sorted(row.n for row in session.spark.read.parquet(str(Path(path).absolute())).collect())


def spent(session: Session) -> dict[str, tuple[float, int]]:
    rows = session.spark.read.parquet(str(Path("lake/revenue").absolute())).collect()
    return {row.user: (row.amount, row.orders) for row in rows}


def failure_of(acked: AckedLog, reader: str) -> str:
    """Return the failure that stands in Redis beside a reader's position."""
    return read_position(acked.redis.hget(acked.keys.readers, reader) or b"").failed


def expected_spent(acked: AckedLog) -> dict[str, tuple[float, int]]:
    """Return what :func:`by_user` must come to."""
    found: dict[str, tuple[float, int]] = {}
    for row in [row for rows in acked.written.values() for row in rows]:
        amount, orders = found.get(row["user"], (0.0, 0))
        found[row["user"]] = (amount + row["amount"], orders + 1)
    return found


# -- several at once -------------------------------------------------------------------------


def environment(query: StreamingQuery) -> Any:
    """Return the map of environment variables that Spark keeps for a query's reader, in the JVM."""
    plan = query._jsq.streamingQuery().logicalPlan()
    reader = plan.collectLeaves().apply(0).stream()
    for name in ("runner", "envVars"):
        field = reader.getClass().getDeclaredField(name)
        field.setAccessible(True)
        reader = field.get(reader)
    return reader


def test_no_two_queries_share_a_map_that_spark_writes_to(spark_session: Session, acked: AckedLog) -> None:
    """Two that begin at the same moment would spoil it, and no task could be read back from then on."""
    acked.fill(0, [3])
    queries: list[StreamingQuery] = []
    try:
        for name in ("one", "two"):
            queries.append(start_query(pipeline(same, name=name, path=f"lake/{name}"), spark_session))
            wait_for_rows(queries[-1], 3)
        maps = [environment(query) for query in queries]
        identity = spark_session.spark._jvm.java.lang.System.identityHashCode  # type: ignore[union-attr]
        assert len({identity(each) for each in maps}) == len(queries)
        # What Spark has put into each: the reason why sharing one is no good.
        assert all(each.containsKey("SPARK_BUFFER_SIZE") for each in maps)
    finally:
        for query in queries:
            query.stop()


def test_a_pipeline_that_comes_late_finds_the_rows_that_another_has_read(
    spark_session: Session, acked: AckedLog
) -> None:
    """Both begin with the first row, though the log is trimmed as far as the readers allow."""
    acked.fill(0, [5])
    held: list[int] = []

    def late(frame: DataFrame) -> DataFrame:
        if not held:  # It is asked again where its query is started again.
            early = next(query for query in spark_session.spark.streams.active if query.name == "early")
            wait_for_rows(early, 5)
            # A second batch begins where the first has ended, and that is told before it is read.
            acked.fill(0, [5])
            wait_for_rows(early, 10)
            told = [json.loads(value)["p"] for value in acked.redis.hvals(acked.keys.readers)]
            held.append(min(each["0"] for each in told))
            acked.trim(0, held[0])
        return frame

    # Each function is asked when the query of the pipeline before it runs.
    specs = [pipeline(same, name="early", path="lake/early"), pipeline(late, name="late", path="lake/late")]
    running = Running(spark_session, *specs)
    wait_for(lambda: running.rows() >= 20 or running.code is not None, "both have read all", timeout_s=60)
    assert running.end() == 0
    assert held == [0]
    assert numbers(spark_session, "lake/late") == numbers(spark_session, "lake/early") == acked.numbers()


def test_rows_of_two_processors_are_joined_and_each_side_is_read_once(
    spark_session: Session, acked: AckedLog, redis_url: str
) -> None:
    """One query has the positions of both, in its checkpoint and in Redis; either side may come first."""
    price = pipeline().processors[0]
    refund = replace(price, name="refund", stream=replace(price.stream, name="refunds"))

    def refunded(priced: DataFrame, refunds: DataFrame) -> DataFrame:
        return priced.join(refunds.select("n", F.col("amount").alias("refund")), "n")

    both = pipeline(refunded, processors=(price, refund))
    with AckedLog(redis_url, partitions=1, stream="refunds", processor="refund") as other:
        for here, there in (([8], [3]), ([2], [10])):
            acked.fill(0, here)
            other.fill(0, there)
            told: list[PipelineProgress] = []
            assert run_pipelines([both], session=spark_session, once=True, on_progress=told.append) == 0
            assert sum(each.rows for each in told) == sum([*here, *there])
            assert numbers(spark_session) == sorted({*acked.numbers()} & {*other.numbers()})
        for log, read in ((acked, {"0": 10, "1": 0}), (other, {"0": 13})):
            assert json.loads(log.redis.hget(log.keys.readers, "revenue"))["p"] == read


# -- what is written -------------------------------------------------------------------------


def test_an_aggregate_is_replaced_as_a_whole(spark_session: Session, acked: AckedLog) -> None:
    """In the default mode too: an aggregate without a watermark has no other meaning.

    Each batch writes all of it, so that one that is gone is written again.
    """
    table = Path("lake/revenue")
    for mode in ("append", "complete", "complete"):
        acked.fill(0, [10])
        assert run_once(spark_session, pipeline(by_user, mode=mode)) == (0, "")
        assert table.is_symlink()
        assert spent(spark_session) == expected_spent(acked)
        if mode == "complete":
            table.unlink()


def test_batches_as_directories_are_whole_for_every_reader(
    spark_session: Session, acked: AckedLog, tmp_path: Path
) -> None:
    """Each row is there once for programs that list files; a run without rows leaves no directory."""
    spec = pipeline(
        lambda frame: frame.where("n != 9"), format="parquet-batches", path="lake/each",
        options={"maxRowsPerTrigger": "5", "partitionBy": "user"},
    )  # fmt: skip
    acked.fill(0, [9])
    for more in ([], [1], [6]):  # The second run has one row, and leaves it out.
        acked.fill(0, more)
        assert run_once(spark_session, spec) == (0, "")
    table = tmp_path / "lake" / "each"
    kept = [n for n in acked.numbers() if n != 9]
    assert sorted(pd.read_parquet(table)["n"]) == kept
    assert sorted(pl.read_parquet(table / "**" / "*.parquet")["n"]) == kept
    query = f"select n, \"user\", batch from '{table}/*/*/*.parquet'"
    found = duckdb.execute(query).fetchall()
    assert sorted((n, user) for n, user, _ in found) == [(n, f"user-{n % 7}") for n in kept]
    assert len({batch for *_, batch in found}) == len([*table.glob("batch=*")]) == 4
    assert sorted(row.n for row in spark_session.spark.read.parquet(str(table)).collect()) == kept
    assert all(file.stat().st_size for file in table.rglob("*"))
    (table / ".last").unlink()
    acked.fill(0, [1])
    told: list[PipelineProgress] = []
    with pytest.raises(ConfigurationError, match="holds files already"):
        run_pipelines([spec], session=spark_session, once=True)
    shutil.rmtree(table)
    assert run_pipelines([spec], session=spark_session, once=True, on_progress=told.append) == 1
    assert "does not hold batch 4, which its query has committed" in told[-1].error
    two = replace(spec, name="two", path="lake/two")
    assert run_once(spark_session, two) == (0, "")
    for wrong, says in (
        (replace(two, name="other", checkpoint="other"), "written from another checkpoint directory"),
        (replace(two, name="all", path="lake/all", function=by_user), "aggregate without a watermark"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            run_pipelines([wrong], session=spark_session, once=True)


def test_a_batch_of_a_directory_that_runs_again_changes_nothing(
    spark_session: Session, tmp_path: Path
) -> None:
    """After a kill before it was whole, before it was noted, and before Spark's commit."""
    (checkpoint := tmp_path / "ck").mkdir()
    (checkpoint / "metadata").write_text('{"id": "12345678-aaaa"}')
    each = Batches(path=str(tmp_path / "table"), folder=str(tmp_path / "beside"), checkpoint=str(checkpoint))
    half = tmp_path / "beside" / "fresh" / "12345678-000000"
    half.mkdir(parents=True)
    (half / "part-0.parquet").write_bytes(b"half")

    def rows() -> int:
        return len(pd.read_parquet(tmp_path / "table"))

    each(spark_session.spark.range(5), 0)
    assert rows() == 5
    each(spark_session.spark.range(99), 0)
    assert rows() == 5
    (tmp_path / "table" / ".last").unlink()
    each.begin()
    each(spark_session.spark.range(99), 0)
    assert rows() == 5
    each(spark_session.spark.range(7), 1)
    assert rows() == 12


def test_a_batch_that_runs_again_changes_nothing(spark_session: Session, tmp_path: Path) -> None:
    """After a kill between the swap and Spark's commit; a half-written version is passed over.

    A version that was replaced stays for a while, for those who read it.
    """
    checkpoint = tmp_path / "ck"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id": "12345678-aaaa"}')
    whole = WholeResult(str(tmp_path / "table"), str(tmp_path / "v"), str(checkpoint), "parquet")
    half = tmp_path / "v" / "versions" / "12345678-000003"
    half.mkdir(parents=True)
    (half / "part-0.parquet").write_bytes(b"half")
    whole(spark_session.spark.range(5), 3)
    assert spark_session.spark.read.parquet(str(tmp_path / "table")).count() == 5
    whole(spark_session.spark.range(99), 3)
    assert spark_session.spark.read.parquet(str(tmp_path / "table")).count() == 5
    whole(spark_session.spark.range(7), 4)
    assert spark_session.spark.read.parquet(str(tmp_path / "table")).count() == 7
    for version in half.parent.iterdir():
        os.utime(version, times=(version.stat().st_mtime - 3600,) * 2)
    whole(spark_session.spark.range(7), 5)
    assert sorted(each.name.split("-")[1] for each in half.parent.iterdir()) == ["000004", "000005"]


def test_a_sink_of_the_user_s_is_handed_what_names_a_batch(spark_session: Session, acked: AckedLog) -> None:
    """A batch that fails comes again with the same rows and names; the next run counts on."""
    handed: list[tuple[str, int, list[int]]] = []

    def write(rows: DataFrame, query: str, batch: int) -> None:
        handed.append((query, batch, [row.n for row in rows.collect()]))
        if len(handed) == 1:
            raise OSError("the first attempt")

    spec = pipeline(same, path=None, write=write, mode="update", options={"maxRowsPerTrigger": "4"})
    for _ in range(2):
        acked.fill(0, [4])
        assert run_once(spark_session, spec) == (0, "")
    checkpoint = Path(".streamworker/shop/revenue/checkpoint/metadata")
    query = json.loads(checkpoint.read_text())["id"]
    assert handed == [(query, 0, [0, 1, 2, 3])] * 2 + [(query, 1, [4, 5, 6, 7])]


# -- what is told ----------------------------------------------------------------------------


def test_progress_tells_rows_positions_and_lag(
    spark_session: Session, acked: AckedLog, caplog: pytest.LogCaptureFixture
) -> None:
    """After each micro-batch, and the end. A limit goes to the source, a compression to the files."""
    acked.fill(0, [6])
    acked.fill(1, [2])
    told: list[PipelineProgress] = []
    options = {"maxRowsPerTrigger": "5", "compression": "gzip", "partitionBy": "user"}
    spec = pipeline(same, options=options)
    with caplog.at_level(logging.INFO, pipelines.__name__):
        run_pipelines([spec], session=spark_session, once=True, on_progress=told.append)
    cut = "5 rows processed, lag 3; a micro-batch has at most 5 rows (maxRowsPerTrigger)"
    assert f"pipeline revenue: {cut}" in caplog.messages
    assert [(each.state, each.batch, each.rows, each.lag) for each in told] == [
        ("running", 0, 5, 3),
        ("running", 1, 3, 0),
        ("done", 1, 0, 0),
    ]
    assert told[1].positions == {0: 6, 1: 2}
    assert told[0].rows_per_s > 0
    assert told[0].seconds > 0
    assert numbers(spark_session) == acked.numbers()
    written = {path.parent.name for path in Path("lake/revenue").rglob("*.gz.parquet")}
    assert written == {f"user=user-{row['user'][-1]}" for rows in acked.written.values() for row in rows}


def test_the_log_tells_all_rows_and_no_lag_that_nobody_looked_at(
    spark_session: Session, acked: AckedLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark repeats the batch of a failure without a look at the logs' ends.

    A stream writer that a function returns is started with our checkpoint directory and trigger.
    """
    quick(monkeypatch)
    fails = iter([True])

    def once(frame: DataFrame, batch: int) -> None:
        if next(fails, False):
            raise OSError("the disk is away")
        frame.collect()

    acked.fill(0, [20])
    told: list[PipelineProgress] = []
    spec = replace(for_each(once), options={"maxRowsPerTrigger": "5"})
    with caplog.at_level(logging.INFO, pipelines.__name__):
        assert run_pipelines([spec], session=spark_session, once=True, on_progress=told.append) == 0
    first, *later = [each for each in told if each.state == "running"]
    assert first.lag is None
    assert all(each.lag in (None, 20 - sum(each.positions.values())) for each in later)
    assert not any("5 rows processed, lag" in message for message in caplog.messages)
    assert caplog.messages[-1] == "pipeline revenue is done: 20 rows processed in all"
    assert Path(".streamworker/shop/revenue/checkpoint/metadata").exists()


# -- stopping and failing --------------------------------------------------------------------


def test_a_stop_lets_the_batch_under_way_finish(spark_session: Session, acked: AckedLog) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slowly(frame: DataFrame, batch: int) -> None:
        frame.collect()
        entered.set()
        go_on.wait(30)

    acked.fill(0, [3])
    running = Running(spark_session, for_each(slowly))
    assert entered.wait(60)
    running.stop.set()
    go_on.set()
    assert running.end() == 0
    assert running.rows() == 3
    assert running.told[-1].state == "stopped"


@pytest.mark.parametrize("finishes", [False, True])
def test_what_is_to_read_all_and_is_stopped_has_failed_unless_it_finished_in_time(
    spark_session: Session, acked: AckedLog, monkeypatch: pytest.MonkeyPatch, finishes: bool
) -> None:
    monkeypatch.setattr(pipelines, "GRACE_S", 60 if finishes else 0)
    entered, go_on = threading.Event(), threading.Event()

    def slowly(frame: DataFrame, batch: int) -> None:
        entered.set()
        go_on.wait(60)

    acked.fill(0, [3])
    running = Running(spark_session, for_each(slowly), once=True)
    assert entered.wait(60)
    (query,) = spark_session.spark.streams.active
    running.stop.set()
    if not finishes:
        wait_for(lambda: not query.isActive, "it is stopped in its first micro-batch", timeout_s=60)
    go_on.set()
    assert running.end() == (0 if finishes else 1)
    assert running.told[-1].state == ("done" if finishes else "stopped")


def quick(monkeypatch: pytest.MonkeyPatch, restarts: int = 5) -> None:
    monkeypatch.setattr(pipelines, "FIRST_PAUSE_MS", 50)
    monkeypatch.setattr(pipelines, "RESTARTS_MAX", restarts)


@pytest.mark.parametrize(
    ("restarts", "errors"),
    [(5, ["the disk is away"] * 2), (1, [TOO_BUSY, TOO_BUSY, "the disk is away"])],
    ids=["a failure that passes", "a busy machine"],
)
def test_a_failed_query_is_started_again_from_its_checkpoint(
    spark_session: Session, acked: AckedLog, monkeypatch: pytest.MonkeyPatch, restarts: int, errors: list[str]
) -> None:
    """It costs restarts, and no rows. Python processes that start too late use up none of them."""
    quick(monkeypatch, restarts)
    seen: list[int] = []
    left = iter(errors)

    def sometimes(frame: DataFrame, batch: int) -> None:
        if error := next(left, None):
            raise OSError(error)
        seen.extend(row.n for row in frame.collect())

    acked.fill(0, [3])
    running = Running(spark_session, for_each(sometimes))
    running.wait_for_rows(3)
    assert running.end() == 0
    assert seen == [0, 1, 2]
    said = [each.error for each in running.told if each.state == "restarting"]
    is_busy = [error.startswith(TOO_BUSY) for error in said]
    assert sum(is_busy) >= errors.count(TOO_BUSY)  # A busy machine adds some.
    others = [text for text, busy in zip(said, is_busy, strict=True) if not busy]
    assert others == [f"OSError: {error}" for error in errors if error != TOO_BUSY]
    assert failure_of(acked, "revenue") == "", "it has read since"


def test_no_rows_are_held_for_a_pipeline_that_is_done_and_was_forgotten(
    spark_session: Session, acked: AckedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor when the query of one that goes on is started again: nobody would come for them."""
    quick(monkeypatch)
    is_away = threading.Event()

    def sometimes(frame: DataFrame, batch: int) -> None:
        if is_away.is_set():
            is_away.clear()
            raise OSError("the disk is away")
        frame.collect()

    acked.fill(0, [3])
    done = pipeline(same, name="done", path="lake/done", trigger="available now")
    goes_on = for_each(sometimes, "goes-on")
    running = Running(spark_session, done, goes_on)
    running.wait_for_state("done")
    running.wait_for_rows(6)
    assert set(acked.redis.hkeys(acked.keys.readers)) == {b"done", b"goes-on"}
    acked.redis.hdel(acked.keys.readers, "done")
    is_away.set()
    acked.fill(0, [3])
    running.wait_for_rows(9)
    assert running.end() == 0
    assert running.restarts() == 1
    assert acked.redis.hkeys(acked.keys.readers) == [b"goes-on"]


def test_a_pipeline_that_keeps_failing_ends_with_1_and_stops_no_other(
    spark_session: Session, acked: AckedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told at once, and by the code at the end; the other pipeline goes on."""
    quick(monkeypatch, restarts=1)
    stood: list[str] = []

    def always(frame: DataFrame, batch: int) -> None:
        stood.append(failure_of(acked, "bad"))
        raise OSError("the disk is gone")

    acked.fill(0, [3])
    bad = for_each(always, "bad")
    running = Running(spark_session, bad, pipeline(same))
    failed = running.wait_for_state("failed")
    assert failed.pipeline == "bad"
    assert "the disk is gone" in failed.error
    assert failure_of(acked, "bad") == failed.error, "for `graph`, `top` and `doctor`"
    assert "the disk is gone" in stood[-1], "also while it is tried again"
    before = running.rows()
    acked.fill(0, [3])
    running.wait_for_rows(before + 3)
    assert running.end() == 1


def test_a_data_loss_is_not_tried_again(spark_session: Session, acked: AckedLog) -> None:
    acked.fill(0, [3, 3])
    acked.trim(0, 3)
    told: list[PipelineProgress] = []
    spec = pipeline(same, options={"startingOffsets": '{"0": 3}'})
    assert run_once(spark_session, spec) == (0, "")
    acked.fill(0, [3])
    acked.trim(0, 9)
    assert run_pipelines([spec], session=spark_session, once=True, on_progress=told.append) == 1
    assert [each.state for each in told] == ["failed"]
    assert told[0].error.startswith("Rows 7 to 9 are missing")


def test_a_pipeline_waits_for_a_stream_that_nobody_has_declared_yet(
    spark_session: Session, redis_url: str, connect: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Spark may be up before the first worker."""
    quick(monkeypatch, restarts=0)
    connect("default", redis_url)
    running = Running(spark_session, pipeline(same))
    running.wait_for_state("waiting")
    with AckedLog(redis_url, partitions=2) as acked:
        acked.fill(0, [3])
        running.wait_for_rows(3)
        assert running.end() == 0
        assert numbers(spark_session) == acked.numbers()


# -- wrong use -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "given", "complaint"),
    [
        (lambda frame: None, {}, "returned NoneType"),
        (lambda frame: frame.sparkSession.range(3), {}, "does not come from its argument"),
        (same, {"path": None}, "has no path"),
        (by_user, {"path": "s3a://bucket/x"}, "not on a local disk"),
        (lambda frame: frame.select("nothing"), {}, "Spark refuses"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused_by_name(
    spark_session: Session, acked: AckedLog, returned: Any, given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"revenue.*{complaint}|{complaint}.*revenue"):
        run_pipelines([pipeline(returned, **given)], session=spark_session, once=True)


def test_a_whole_result_does_not_replace_what_is_not_its_own(spark_session: Session, acked: AckedLog) -> None:
    Path("lake/revenue").mkdir(parents=True)
    Path("lake/revenue/precious.csv").write_text("1")
    with pytest.raises(ConfigurationError, match="holds files already"):
        run_pipelines([pipeline(by_user, mode="complete")], session=spark_session, once=True)
    assert Path("lake/revenue/precious.csv").exists()


def test_an_unknown_pipeline_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'revenue'"):
        run_pipelines([pipeline(same)], pipelines=["revenue", "revenu"])
    with pytest.raises(ConfigurationError, match="no pipeline"):
        run_pipelines([])
