"""Python processes of Spark's tasks that are killed: the table equals the log (F36).

In ``local[N]`` Spark tries no task again: the query ends, and starts again from its checkpoint.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from streamworker.spark.driver import pipelines
from streamworker.spark.driver.session import Session
from tests.chaos.figures import record, repeats
from tests.helpers import wait_for
from tests.spark.acked import AckedLog
from tests.spark.driver import ROWS_A_BATCH
from tests.spark.running import Running
from tests.spark.specs import pipeline

MAY_TAKE_S = 180.0
"""On a machine so busy that Spark gives up its Python processes before they have begun."""


def slowly(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand rows on after a moment, so that a task lasts."""
    for batch in batches:
        time.sleep(0.1)
        yield batch


def same(frame: DataFrame) -> DataFrame:
    """Return the rows as they are, from a second Python process for each task."""
    return frame.select("n", "_partition", "_offset").mapInArrow(
        slowly, "n long, _partition int, _offset long"
    )


def kill_one(jvm: psutil.Process, rng: random.Random) -> bool:
    """Kill one of the processes that run tasks with SIGKILL; returns whether there was one.

    They are forked by daemons, which the JVM or those of its executors have started.
    """
    found = []
    for daemon in jvm.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if daemon.cmdline()[-2:] == ["pyspark.daemon", "pyspark.worker"]:
                found += daemon.children()
    if found:
        with contextlib.suppress(psutil.NoSuchProcess):
            rng.choice(found).kill()
            return True
    return False


def kill_often(
    kills: int, jvm: psutil.Process, acked: AckedLog, done: Callable[[], int], hits: Callable[[], int]
) -> int:
    """Kill a process so often, and on until a task was hit; returns how often."""
    rng = random.Random(kills)
    count = 0

    def is_done(before: int) -> bool:
        return done() > before

    while count < kills or (hits() == 0 and count < 10 * kills):
        count += 1
        before = done()
        for p in range(acked.partitions):
            acked.fill(p, [int(ROWS_A_BATCH) // 4] * 2)
        # Not synchronisation: any moment will do, and each is another one.
        time.sleep(rng.random() / 2)
        wait_for(partial(kill_one, jvm, rng), "there is a process to kill", timeout_s=MAY_TAKE_S)
        wait_for(partial(is_done, before), "a batch is done", timeout_s=MAY_TAKE_S)
    return count


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(2, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(repeats(100, 20), marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_a_killed_python_process_costs_a_restart_and_no_row(
    spark_session: Session, acked: AckedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """As when it takes more memory than there is; in a session that tries no task again."""
    monkeypatch.setattr(pipelines, "FIRST_PAUSE_MS", 50)
    options = {"maxRowsPerTrigger": ROWS_A_BATCH, "includeMetadata": "true"}
    spec = pipeline(same, name="legs", path=str(tmp_path / "legs"), options=options)
    running = Running(spark_session, spec)
    assert spark_session._jvm is not None
    try:
        acked.fill(0, [10])
        wait_for(lambda: running.position() == 10, "it runs", timeout_s=MAY_TAKE_S)
        jvm = psutil.Process(spark_session._jvm.pid)
        count = kill_often(kills, jvm, acked, running.batches, running.restarts)
        total = len(acked.numbers())
        wait_for(lambda: running.position() == total, "all rows are behind it", timeout_s=MAY_TAKE_S)
    finally:
        assert running.end() == 0
    assert running.restarts(), "no task was hit"
    found = spark_session.spark.read.parquet(str(tmp_path / "legs")).collect()
    assert sorted((row._partition, row._offset, row.n) for row in found) == acked.placed()
    record(
        "F36",
        f"Python process of a task killed, no task tried again{', in small' if kills < 10 else ''}",
        times=count,
        target="the table equals the log" + (" after 100 kills" if kills >= 100 else ""),
        verdict="met",
        said=f"the query ended {running.restarts()} times and went on from its checkpoint",
        seed=kills,
    )
