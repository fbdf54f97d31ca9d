"""A table's directory that is gone, replaced or an older copy: noticed before the next batch is written."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker.declaring.specs import PipelineSpec
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.progress import PipelineProgress
from streamworker.spark.driver.session import Session
from tests.spark.acked import AckedLog
from tests.spark.running import Running
from tests.spark.specs import pipeline

pytestmark = [pytest.mark.slow, pytest.mark.full("a query of Spark takes seconds")]

TABLE = Path("lake/revenue")


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def same(frame: DataFrame) -> DataFrame:
    return frame


def run_once(session: Session, *specs: PipelineSpec) -> tuple[int, list[PipelineProgress]]:
    told: list[PipelineProgress] = []
    code = run_pipelines(list(specs), session=session, once=True, on_progress=told.append)
    return code, [each for each in told if each.state == "failed"]


def files() -> list[Path]:
    """Return the files of the table; Spark itself makes the directory."""
    return sorted(each for each in TABLE.rglob("*") if each.is_file())


def gone() -> None:
    shutil.rmtree(TABLE)


def replaced() -> None:
    shutil.rmtree(TABLE)
    TABLE.mkdir()


def put_back() -> None:
    shutil.rmtree(TABLE)
    Path("backup").rename(TABLE)


WAYS: dict[Callable[[], None], str] = {
    gone: "holds no batch",
    replaced: "holds no batch",
    put_back: "ends with batch 0",
}


@pytest.mark.parametrize(
    "lose",
    [gone, pytest.param(replaced, marks=pytest.mark.soak), put_back],
    ids=lambda way: str(getattr(way, "__name__", way)),
)
def test_a_start_on_a_table_that_lacks_batches_writes_nothing(
    spark_session: Session, acked: AckedLog, lose: Callable[[], None]
) -> None:
    """It says what is missing and the ways out, and a pipeline beside it goes on."""
    other = pipeline(same, name="other", path="lake/other")
    for _ in range(2):
        acked.fill(0, [4])
        assert run_once(spark_session, pipeline(same), other) == (0, [])
        if not Path("backup").exists():
            shutil.copytree(TABLE, "backup")
    lose()
    before = files()
    acked.fill(0, [4])
    code, (failed,) = run_once(spark_session, pipeline(same), other)
    assert code == 1
    assert failed.pipeline == "revenue"
    assert f"{WAYS[lose]}, and its query has committed batch 1, with 8 rows in all" in failed.error
    assert 'startingOffsets={"0": 8, "1": 0}' in failed.error
    assert files() == before
    assert spark_session.spark.read.parquet(str(Path("lake/other").absolute())).count() == 12

    # The second way out that the message tells: the rows to come, in a new table.
    onward = pipeline(same, name="onward", path="lake/on", options={"startingOffsets": '{"0": 8, "1": 0}'})
    assert run_once(spark_session, onward) == (0, [])
    assert spark_session.spark.read.parquet(str(Path("lake/on").absolute())).count() == 4


def test_a_table_that_goes_away_under_a_running_query_ends_it_before_the_next_batch(
    spark_session: Session, acked: AckedLog
) -> None:
    """From the first batch on."""
    acked.fill(0, [4])
    running = Running(spark_session, pipeline(same))
    running.wait_for_rows(4)
    shutil.rmtree(TABLE)
    acked.fill(0, [4])
    assert "with 4 rows in all" in running.wait_for_state("failed").error
    assert running.end() == 1
    assert files() == []


def test_a_whole_result_that_is_gone_is_written_again(spark_session: Session, acked: AckedLog) -> None:
    """Each batch writes all of it, so nothing is missing."""

    def by_user(frame: DataFrame) -> DataFrame:
        return frame.groupBy("user").agg(F.count("*").alias("orders"))

    for _ in range(2):
        acked.fill(0, [7])
        assert run_once(spark_session, pipeline(by_user)) == (0, [])
        orders = {
            row.user: row.orders for row in spark_session.spark.read.parquet(str(TABLE.absolute())).collect()
        }
        assert sum(orders.values()) == len(acked.numbers())
        TABLE.unlink()
