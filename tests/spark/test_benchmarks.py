"""``python -m benchmarks spark``: what it measures is really read."""

import pytest

from benchmarks.contest import Contest
from benchmarks.measuring.ground import open_ground
from benchmarks.peers.row_by_row import RowByRowSource
from benchmarks.scenes.spark import spark
from streamworker.spark.driver.session import Session
from tests.spark.acked import AckedLog
from tests.spark.conftest import Connect

pytestmark = pytest.mark.full("a query of Spark takes seconds")

RECORDS = 2_000


@pytest.mark.soak
@pytest.mark.anyio
async def test_spark_is_measured_on_the_log_that_a_worker_leaves(
    spark_session: Session, redis_url: str, connect: Connect
) -> None:
    """Beside Parquet, row by row, and Spark's rate source; all keys are the bench's."""
    connect("default", redis_url)
    async with open_ground(redis_url) as ground:
        contest = Contest(ground, runs=1, records=RECORDS)
        rows = {row.scene: row for row in await spark(contest, session=spark_session, batches=1)}
        await ground.remove_keys()
        assert await ground.backend.execute("DBSIZE") == 0
    for name in ("spark-parquet", "spark-by-row"):
        assert rows[name].what == "Spark reads 2,000 rows"
        assert rows[name].ours.median > 0 and rows[name].against.median > 0
    assert rows["spark-micro-batch"].ours.median > 1
    assert contest.left_out == []


def test_the_peer_that_hands_over_row_by_row_reads_the_same_rows(acked: AckedLog) -> None:
    acked.fill(0, [3, 2])
    acked.fill(1, [4])
    source = RowByRowSource(acked.options())
    reader = source.reader(source.schema())
    rows = [row for task in reader.partitions() for row in reader.read(task)]
    assert rows == [tuple(row.values()) for p in (0, 1) for row in acked.written[p]]
