"""A newer schema than a query was planned with: no row loses a column that its worker forwarded."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from streamworker.core.data.entries import ZERO
from streamworker.errors import RecordError, SchemaChanged
from streamworker.redisio.data.ackedlog import schema_fingerprint, serialize_schema
from streamworker.spark.driver.session import Session
from streamworker.spark.source.logs import LogEntry
from streamworker.spark.source.schema import Conformer
from tests.spark.acked import ORDER, AckedLog, orders
from tests.spark.queries import batch, rows, run, start, wait_for_rows
from tests.spark.running import Running
from tests.spark.specs import pipeline

pytestmark = [pytest.mark.slow, pytest.mark.full("a query of Spark takes seconds")]

PLACE = pa.struct([("city", pa.string())])
FAR_PLACE = pa.struct([("city", pa.string()), ("zone", pa.int64())])


def older(first: int, kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Return two rows of version 1 of the record, with a nested field if its type is given."""
    found = orders(first, 2)
    return found if kind is None else found.append_column("place", pa.array([{"city": "Ulm"}] * 2, kind))


def newer(first: int) -> pa.RecordBatch:
    """Return two rows of version 2, which has a column more."""
    return orders(first, 2).append_column("extra", pa.array([first + 0.5, None], pa.float64()))


def nested(first: int) -> pa.RecordBatch:
    """Return two rows whose nested record has a field more."""
    value = {"city": "Ulm", "zone": first}
    return orders(first, 2).append_column("place", pa.array([value] * 2, FAR_PLACE))


def optional(first: int) -> pa.RecordBatch:
    """Return two rows in which a number may be missing."""
    return pa.record_batch(
        [pa.array([first, first + 1]), pa.array(["ann", "bob"]), pa.array([None, 0.5], pa.float64())],
        schema=ORDER,
    )


def strict(first: int) -> pa.RecordBatch:
    """Return two rows in which no number may be missing."""
    return orders(first, 2).cast(pa.schema([field.with_nullable(False) for field in ORDER]))


CHANGES: dict[str, tuple[Callable[[int], pa.RecordBatch], ...]] = {
    "a new column": (older, newer),
    "older and newer workers at once": (older, newer, older, newer),
    "an upgrade and the way back": (older, newer, older, older),
    "a nested field": (lambda first: older(first, PLACE), nested, lambda first: older(first, PLACE)),
    "a field that became optional": (strict, optional, strict),
}
VARIED = {"older and newer workers at once", "a field that became optional"}
"""A change that starts the query anew, and one that does not; the others vary them."""


def append(acked: AckedLog, partition: int, rows: pa.RecordBatch) -> None:
    """Commit rows, and store their schema as a worker of any version does: the newest stays the current."""
    wider = schema_fingerprint(rows.schema), serialize_schema(rows.schema)
    current = acked.redis.hget(acked.keys.schemas, "current")
    is_new = not acked.redis.hexists(acked.keys.schemas, wider[0])
    acked.redis.hset(acked.keys.schemas, *wider)
    if current is None or is_new:
        acked.redis.hset(acked.keys.schemas, "current", wider[0])
    acked.append(partition, rows, check_schema=False)


def in_table(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    frame = spark.read.option("mergeSchema", "true").parquet(str(path)).orderBy("n")
    return [row.asDict(recursive=True) for row in frame.collect()]


def whole(acked: AckedLog, partition: int, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return all rows with all columns: what a row was written without is null."""
    found = [{name: row.get(name) for name in columns} for row in acked.written[partition]]
    for row in found:
        if place := row.get("place"):
            row["place"] = {"zone": None, **place}
    return sorted(found, key=lambda row: int(row["n"]))


@pytest.mark.parametrize(
    "change", [pytest.param(name, marks=[] if name in VARIED else pytest.mark.soak) for name in CHANGES]
)
def test_a_pipeline_writes_every_row_with_every_column_that_was_forwarded(
    spark_session: Session, acked: AckedLog, tmp_path: Path, change: str
) -> None:
    """Its query is started anew with the schema of now, before it commits a batch without the column."""
    versions = CHANGES[change]
    append(acked, 0, versions[0](0))
    spec = pipeline(lambda frame: frame, path=str(tmp_path / "table"), checkpoint=str(tmp_path / "ck"))
    running = Running(spark_session, spec)
    try:
        for i, version in enumerate(versions):
            if i:
                append(acked, 0, version(2 * i))
            running.wait_for_rows(2 * (i + 1))
    finally:
        assert running.end() == 0
    found = in_table(spark_session.spark, tmp_path / "table")
    assert found == whole(acked, 0, list(found[0]))
    assert running.restarts() == (0 if "optional" in change else 1)
    if "column" in change:
        assert [row["extra"] for row in found] == [None, None, 2.5, None]


def test_a_query_of_a_user_ends_before_the_batch_and_says_to_start_it_again(
    spark: SparkSession, acked: AckedLog, tmp_path: Path
) -> None:
    """It names the column and the first row; the same query started again reads these rows whole."""
    append(acked, 0, older(0))
    query = start(rows(spark, acked.options()), tmp_path, trigger={"processingTime": "100 milliseconds"})
    wait_for_rows(query, 2)
    append(acked, 0, newer(2))
    with pytest.raises(
        PySparkException,
        match=r"SchemaChanged: Column 'extra' is double in rows from 3 of partition 0 on, and the "
        r"schema of the query lacks it\. Start the query again: it reads these rows whole",
    ):
        query.awaitTermination(60)
    assert [row["n"] for row in in_table(spark, tmp_path / "table")] == [0, 1]
    run(spark, acked.options(), tmp_path)
    found = in_table(spark, tmp_path / "table")
    assert found == whole(acked, 0, ["n", "user", "amount", "extra"])


def test_a_pipeline_of_the_older_code_takes_up_the_newer_schema_at_its_start(
    spark_session: Session, acked: AckedLog, tmp_path: Path
) -> None:
    """Its processor's type has three columns; it is not upgraded, and loses nothing."""
    append(acked, 0, older(0))
    append(acked, 0, newer(2))
    spec = pipeline(lambda frame: frame, path=str(tmp_path / "table"), checkpoint=str(tmp_path / "ck"))
    running = Running(spark_session, spec)
    running.wait_for_rows(4)
    assert running.end() == 0
    assert running.restarts() == 0
    assert in_table(spark_session.spark, tmp_path / "table") == whole(
        acked, 0, ["n", "user", "amount", "extra"]
    )


def test_a_query_that_wants_some_columns_says_so(spark: SparkSession, acked: AckedLog) -> None:
    """With a schema of its own it ends at a column that it lacks, unless it drops such columns."""
    acked.fill(0, [3])
    only_n = StructType([StructField("n", LongType())])
    frame = spark.read.format("streamworker").options(**acked.options()).schema(only_n)
    with pytest.raises(PySparkException, match=r"Column .user. is string .* otherColumns=drop"):
        frame.load().collect()
    found = frame.option("otherColumns", "drop").load().orderBy("n").collect()
    assert [row.asDict() for row in found] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_wrong_choice_is_named(spark: SparkSession, acked: AckedLog) -> None:
    """Of either option."""
    acked.fill(0, [1])
    with pytest.raises(PySparkException, match=r"Option otherColumns is .keep.\. It must be fail or drop"):
        batch(spark, acked.options(otherColumns="keep"))
    with pytest.raises(PySparkException, match="Option recordSchema is no schema"):
        batch(spark, acked.options(recordSchema="[]"))


# -- without Spark ---------------------------------------------------------------------------


def entry(kind: pa.DataType, value: object = None) -> LogEntry:
    return LogEntry(0, 1, pa.record_batch({"a": pa.array([value], kind)}), str(ZERO), 1, 0)


@pytest.mark.parametrize(
    ("planned", "found"),
    [
        (pa.int64(), pa.float64()),
        (pa.list_(PLACE), pa.list_(FAR_PLACE)),
        (pa.map_(pa.string(), PLACE), pa.map_(pa.string(), FAR_PLACE)),
        (pa.decimal128(10, 2), pa.decimal128(20, 4)),
    ],
    ids=str,
)
def test_a_type_that_holds_more_than_the_planned_one_is_a_changed_schema(
    planned: pa.DataType, found: pa.DataType
) -> None:
    """The other way round the rows fit."""
    with pytest.raises(SchemaChanged, match="Column 'a' is"):
        Conformer(pa.schema({"a": planned})).conform([entry(found)])
    assert Conformer(pa.schema({"a": found})).conform([entry(planned)]).schema == pa.schema({"a": found})


def test_a_type_that_no_column_holds_together_with_the_planned_one_is_an_error_that_stays() -> None:
    """A restart does not help: the value does not fit."""
    with pytest.raises(RecordError, match="Column 'a' is string"):
        Conformer(pa.schema({"a": pa.int64()})).conform([entry(pa.string(), "1"), entry(pa.string(), "one")])
