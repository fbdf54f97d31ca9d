"""Spark's own state by key runs with what the extra ``spark`` installs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.spark.acked import AckedLog
from tests.spark.queries import rows, start


class Count(StatefulProcessor):
    """Counts the rows of each user."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(  # noqa: N802, Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        (before,) = self._count.get() or (0,)
        count = before + sum(len(each) for each in rows)
        self._count.update((count,))
        yield pd.DataFrame({"user": [key[0]], "n": [count]})


def test_state_by_key_is_kept_from_batch_to_batch(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """It needs protobuf, which pyspark does not bring by itself."""
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", store)
    acked.fill(0, [14])
    try:
        stream = rows(spark, acked.options(maxRowsPerTrigger="7")).groupBy("user")
        counted = stream.transformWithStateInPandas(Count(), "user string, n long", "Append", "None")
        start(counted, tmp_path).awaitTermination(120)
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    found = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted((row.user, row.n) for row in found) == [(f"user-{i}", n) for i in range(7) for n in (1, 2)]
