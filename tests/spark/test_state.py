"""Spark's own state by key runs with what the extra ``spark`` installs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
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


def test_state_by_key_goes_on_from_the_checkpoint(
    spark: SparkSession, acked: AckedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs protobuf, which pyspark does not bring by itself."""
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", store)
    try:
        for count in (7, 14):
            acked.fill(0, [7])
            counted = (
                rows(spark, acked.options())
                .groupBy("user")
                .transformWithStateInPandas(Count(), "user string, n long", "Append", "None")
            )
            query = start(counted, tmp_path)
            query.awaitTermination(120)
            found = spark.read.parquet(str(tmp_path / "table")).collect()
            assert sum(max(row.n for row in found if row.user == f"user-{i}") for i in range(7)) == count
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
