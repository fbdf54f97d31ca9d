"""A checkpoint directory or a table that is lost, or an older copy: no row is doubled or left out (F37)."""

import ast
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from streamworker.errors import ConfigurationError, DataLoss
from streamworker.spark.driver.checks import batch_in
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.session import Session
from streamworker.spark.source.options import parse_options
from streamworker.spark.source.table import check_holds
from tests.chaos.figures import record
from tests.spark.acked import AckedLog
from tests.spark.reading import Query, stream_reader
from tests.spark.running import Running, run_once
from tests.spark.specs import by_user, pipeline, same

pytestmark = pytest.mark.usefixtures("in_tmp_path")

TABLE = Path("lake/revenue")
CHECKPOINT = Path("lake/.streamworker/revenue/revenue/checkpoint")


def pass_by(session: Session, acked: AckedLog, function: Callable[[DataFrame], DataFrame]) -> None:
    """Run a pipeline over new rows, and trim what it has read, as workers do."""
    acked.fill(0, [4])
    assert run_once(session, pipeline(function)) == (0, "")
    position = json.loads(acked.redis.hget(acked.keys.readers, "revenue"))
    acked.trim(0, position["p"]["0"])


def lose_it() -> None:
    shutil.rmtree(CHECKPOINT)


def content(session: Session) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.spark.read.parquet(str(TABLE.resolve())).collect())


def test_a_table_of_files_is_not_written_on_from_another_checkpoint(
    spark_session: Session, acked: AckedLog, tmp_path: Path
) -> None:
    """Neither from none nor from an older one: Spark would leave out as many batches as it lacks."""
    pass_by(spark_session, acked, same)
    shutil.copytree(CHECKPOINT, tmp_path / "older")
    pass_by(spark_session, acked, same)
    acked.fill(0, [4])
    before = content(spark_session)
    CHECKPOINT.rename(tmp_path / "right")
    for what in (f"{CHECKPOINT.absolute()} knows of none", "ends with 0"):
        with pytest.raises(ConfigurationError, match=rf"{what}\. Spark would leave out the next"):
            run_pipelines([pipeline(same)], session=spark_session, once=True)
        shutil.copytree(tmp_path / "older", CHECKPOINT, dirs_exist_ok=True)
    assert content(spark_session) == before
    lose_it()
    shutil.copytree(tmp_path / "right", CHECKPOINT)
    assert run_once(spark_session, pipeline(same)) == (0, "")
    assert [row[0] for row in content(spark_session)] == acked.numbers()
    record(
        "F37",
        "checkpoint directory of a table of files removed, and an older copy put back",
        times=2,
        target="refused, or no row doubled or left out",
        verdict="met",
        said="refused before anything is written; with the right directory back, the table equals the log",
    )


def test_a_whole_result_is_not_made_anew_from_what_is_left(spark_session: Session, acked: AckedLog) -> None:
    """Rows that were trimmed would be missing from it. It says so, and what to do."""
    pass_by(spark_session, acked, by_user)
    before = content(spark_session)
    lose_it()
    acked.fill(0, [4])
    with pytest.raises(ConfigurationError, match=r"its whole result was made from another checkpoint"):
        run_pipelines([pipeline(by_user)], session=spark_session, once=True)
    assert content(spark_session) == before


def test_a_query_of_your_own_is_refused_by_the_name_of_its_reader(acked: AckedLog) -> None:
    """Until the reader is forgotten, or loss is accepted. Without a name it is not guarded."""
    acked.fill(0, [4])
    options = acked.options(reader="mine")
    Query(options).run()
    acked.trim(0, 4)
    with pytest.raises(DataLoss, match=r"Reader 'mine' was at row 4 .* begins anew"):
        Query(options)
    for allowed in (options | {"failOnDataLoss": "false"}, acked.options()):
        assert Query(allowed).run() == []
    acked.fill(0, [4])
    acked.redis.hdel(acked.keys.readers, "mine")
    assert Query(options).run() == [4, 5, 6, 7]


def test_a_start_that_spark_did_not_come_to_write_down_may_be_made_again(
    acked: AckedLog,
) -> None:
    """The reader has told its first position, and nothing was read; afterwards it may only go on."""
    options = acked.options(reader="mine")
    acked.fill(0, [4])
    for _ in range(2):
        reader = stream_reader(options)
        begin = reader.initialOffset()
        end = reader.latestOffset(begin, ReadAllAvailable())
    reader.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLoss, match="begins anew"):
        stream_reader(options).initialOffset()
    assert stream_reader(options).latestOffset(end, ReadAllAvailable()) == end
    with pytest.raises(DataLoss, match="goes on from row 0"):
        stream_reader(options).latestOffset(begin, ReadAllAvailable())
    with pytest.raises(DataLoss, match="goes on from row 0"):
        stream_reader(options).partitions(begin, end)
    acked.redis.hset(acked.keys.readers, "mine", b"[no json")
    assert stream_reader(options).initialOffset() == begin


def places(acked: AckedLog) -> dict[str, int]:
    told = acked.redis.hgetall(acked.keys.readers)
    return {name.decode(): json.loads(value)["p"]["0"] for name, value in told.items()}


def test_the_first_of_readers_that_begin_together_holds_the_first_rows_for_the_others(
    acked: AckedLog,
) -> None:
    """One that came late would find them trimmed, and begin behind them in silence."""
    early = stream_reader(acked.options(reader="early", siblings="late", startingOffsets="latest"))
    late = stream_reader(acked.options(reader="late", siblings="early"))
    acked.fill(0, [4])
    end = early.initialOffset()
    assert places(acked) == {"early": 4, "late": 0}
    acked.fill(0, [4])
    early.commit(early.latestOffset(end, ReadAllAvailable()))
    assert places(acked) == {"early": 8, "late": 0}
    assert late.initialOffset()["p"] == {"0": 0, "1": 0}
    late.commit(late.latestOffset(late.initialOffset(), ReadAllAvailable()))
    assert places(acked) == {"early": 8, "late": 8}


def test_a_reader_that_goes_on_holds_the_rows_of_one_that_nothing_is_known_of(
    acked: AckedLog,
) -> None:
    """Where Redis has lost what both had told, the slower one finds what it has yet to read."""
    acked.fill(0, [2, 2])
    first = stream_reader(acked.options())
    begin = first.initialOffset()
    behind, ahead = first.latestOffset(begin, ReadMaxRows(2)), first.latestOffset(begin, ReadAllAvailable())
    stream_reader(acked.options(reader="fast", siblings="slow")).latestOffset(ahead, ReadAllAvailable())
    assert places(acked) == {"fast": 4, "slow": 0}
    stream_reader(acked.options(reader="slow", siblings="fast")).latestOffset(behind, ReadAllAvailable())
    assert places(acked) == {"fast": 4, "slow": 2}


def test_batches_are_counted_on_other_file_systems_too(spark: SparkSession, tmp_path: Path) -> None:
    """Through Hadoop, with the marks that Spark's compaction leaves."""
    folder = tmp_path / "offsets"
    folder.mkdir()
    # The local disk under a scheme that is Hadoop's alone.
    far = f"viewfs://far{folder}"
    spark._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.far.linkMergeSlash", "file:///")
    assert batch_in(spark, far) == batch_in(spark, str(folder)) == -1
    for name in ("0", "9.compact", "10", ".11.crc", "12.tmp"):
        (folder / name).touch()
    assert batch_in(spark, far) == batch_in(spark, str(folder)) == 10
    assert batch_in(spark, f"{far}/nothing") == batch_in(spark, f"{folder}/nothing") == -1


# -- the table -------------------------------------------------------------------------------


def files() -> list[Path]:
    """Return the files of the table; Spark itself makes the directory."""
    return sorted(each for each in TABLE.rglob("*") if each.is_file())


def test_a_table_that_ends_before_its_checkpoint_is_told_by_both_batches(tmp_path: Path) -> None:
    """Of one that is gone, replaced or put back from a backup. The next batch is not written."""
    for folder in (tmp_path / "ck/commits", table := tmp_path / "table/_spark_metadata"):
        folder.mkdir(parents=True)
        (folder / "0").touch()
    check_holds(str(tmp_path / "table"), str(tmp_path / "ck"), {0: 4})
    (tmp_path / "ck/commits/1").touch()
    with pytest.raises(
        DataLoss, match=r"ends with batch 0, and its query has committed batch 1, with 8 rows"
    ):
        check_holds(str(tmp_path / "table"), str(tmp_path / "ck"), {0: 8, 1: 0})
    (table / "0").unlink()
    with pytest.raises(DataLoss, match="holds no batch"):
        check_holds(str(tmp_path / "table"), str(tmp_path / "ck"), {0: 8, 1: 0})


def test_the_way_on_from_a_lost_table_names_the_rows_of_each_processor(tmp_path: Path) -> None:
    """One option for both would skip or repeat rows of one of them."""
    for name in ("commits", "offsets"):
        (tmp_path / "ck" / name).mkdir(parents=True)
    (tmp_path / "ck/commits/3").touch()
    sources = [{"v": 1, "p": {"0": n}, "of": f"shop.{name}:{name}"} for name, n in (("one", 4), ("two", 7))]
    (tmp_path / "ck/offsets/3").write_text("\n".join(["v1", "{}", *map(json.dumps, sources)]))
    with pytest.raises(DataLoss) as lost:
        check_holds(str(tmp_path / "table"), str(tmp_path / "ck"), {0: 4})
    (named,) = re.findall(r"with options=(\{.*\})\.", str(lost.value))
    offsets = {
        name: parse_options({"app": "a", "processor": name, **given})
        for name, given in ast.literal_eval(named).items()
    }
    assert {name: each.starting_offsets.each for name, each in offsets.items()} == {
        "one": {0: 4},
        "two": {0: 7},
    }


def test_a_start_on_a_table_that_lacks_batches_writes_nothing(
    spark_session: Session, acked: AckedLog
) -> None:
    """It says what is missing and the ways out."""
    for _ in range(2):
        acked.fill(0, [4])
        assert run_once(spark_session, pipeline(same)) == (0, "")
    shutil.rmtree(TABLE)
    acked.fill(0, [4])
    code, error = run_once(spark_session, pipeline(same))
    assert code == 1
    assert f"The table {TABLE.absolute()} holds no batch" in error
    assert "its query has committed batch 1, with 8 rows in all" in error
    assert 'startingOffsets={"0": 8, "1": 0}' in error
    assert files() == []

    # The second way out that the message tells: the rows to come, in a new table.
    onward = pipeline(same, name="onward", path="lake/on", options={"startingOffsets": '{"0": 8, "1": 0}'})
    assert run_once(spark_session, onward) == (0, "")
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
