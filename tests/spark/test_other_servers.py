"""Real queries of Spark behind sentinels and on a Cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamworker.dev.cluster import EmbeddedCluster
from tests.sentinel.test_spark import everywhere, log_at
from tests.sentinel.trio import Trio
from tests.spark.acked import AckedLog
from tests.spark.conftest import Connect

PARTITIONS = 4


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with Trio(tmp_path / "trio") as trio:
        yield trio


def test_a_query_reads_a_cluster(spark: SparkSession, connect: Connect, cluster: EmbeddedCluster) -> None:
    """Planner and tasks look the connection up, and find each slot's primary."""
    connect("cluster", cluster.url)
    with AckedLog(cluster.url, partitions=PARTITIONS, app="spread") as log:
        for partition in range(PARTITIONS):
            log.fill(partition, [3, 2])
        frame = spark.read.format("streamworker").options(**log.options(connection="cluster")).load()
        assert sorted(row.n for row in frame.select("n").collect()) == log.numbers()


@pytest.mark.soak
def test_a_query_goes_on_after_a_failover(
    spark: SparkSession, connect: Connect, trio: Trio, tmp_path: Path
) -> None:
    """The table has all rows once, those from before and those from behind it."""
    connect("trio", trio.url)
    table = str(tmp_path / "table")
    with log_at(trio.primary) as log:
        log.fill(0, [3])
        everywhere(log)
        given = log.options(connection="trio", retryTimeout="30s")
    frame = spark.readStream.format("streamworker").options(**given).load()
    query = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(table)
    try:
        query.processAllAvailable()
        old = trio.primary
        old.kill()
        trio.wait_for_other_primary(old)
        with log_at(trio.primary) as log:
            log.fill(0, [4])
            query.processAllAvailable()
        assert spark.read.parquet(table).count() == 7
    finally:
        query.stop()
