"""A newer schema than a query was planned with: no row loses a column that its worker forwarded."""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

from streamworker.core.data.entries import ZERO
from streamworker.errors import ConfigurationError, RecordError, SchemaChanged
from streamworker.redisio.data.ackedlog import schema_fingerprint, serialize_schema
from streamworker.spark.driver.queries import source_rows
from streamworker.spark.driver.session import Session
from streamworker.spark.source.datasource import StreamworkerDataSource
from streamworker.spark.source.logs import LogEntry
from streamworker.spark.source.options import SourceOptions
from streamworker.spark.source.schema import Conformer, declared_schema
from tests.spark.acked import ORDER, AckedLog, orders
from tests.spark.queries import rows, run, start, wait_for_rows
from tests.spark.reading import numbers_of, read, stream_reader
from tests.spark.running import Running
from tests.spark.specs import pipeline, same

SWITCHES = 100
VERSION_S = 3.0
"""How long a version of the workers runs at most."""
ROWS_AN_ENTRY = 8
PAUSE_S = 0.03
"""Between two commits: some 250 rows a second."""

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
    spec = pipeline(same, path=str(tmp_path / "table"), checkpoint=str(tmp_path / "ck"))
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


@pytest.mark.soak  # The table of changes has each kind once; here a query meets them at any moment.
@pytest.mark.timeout(3600)
def test_workers_go_back_and_forth_between_versions_while_rows_flow(
    spark_session: Session, acked: AckedLog, tmp_path: Path
) -> None:
    """Every second switch brings a column more, and the others go back to the version before."""
    rng = random.Random(SWITCHES)
    spec = pipeline(same, path=str(tmp_path / "table"), checkpoint=str(tmp_path / "ck"))
    running = Running(spark_session, spec)
    first = 0
    try:
        for switch in range(SWITCHES):
            version = switch // 2 + (1 if switch % 2 else 2)
            until = time.monotonic() + rng.uniform(0, VERSION_S)
            while first == 0 or time.monotonic() < until:
                batch = orders(first, ROWS_AN_ENTRY)
                for each in range(2, version + 1):
                    values = [None if n % 5 == 0 else n + each / 256 for n in batch["n"].to_pylist()]
                    batch = batch.append_column(f"extra{each}", pa.array(values, pa.float64()))
                append(acked, rng.randrange(acked.partitions), batch)
                first += ROWS_AN_ENTRY
                time.sleep(PAUSE_S)
            if rng.random() < 1 / 2:  # On a slow machine, too, the query meets some of the versions.
                running.wait_for_rows(first)
        running.wait_for_rows(first)
    finally:
        assert running.end() == 0
    found = in_table(spark_session.spark, tmp_path / "table")
    expected = [row for p in range(acked.partitions) for row in whole(acked, p, list(found[0]))]
    assert found == sorted(expected, key=lambda row: int(row["n"]))
    assert running.restarts() > 0


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


@pytest.mark.parametrize("name", ["recordSchema", "recordschema"])
def test_the_schema_that_a_pipeline_is_given_is_the_one_it_has(
    spark_session: Session, acked: AckedLog, name: str
) -> None:
    """However its option is written: Spark does not tell upper from lower case."""
    acked.fill(0, [3])
    given = declared_schema(ORDER).add("note", LongType())
    spec = pipeline(same, options={name: given.json()})
    assert source_rows(spec, spec.processors[0], spark_session).columns == [*ORDER.names, "note"]


# -- without Spark ---------------------------------------------------------------------------


def test_a_pipeline_of_the_older_code_takes_up_the_newer_schema_at_its_start(acked: AckedLog) -> None:
    """Its processor's type has three columns; it is not upgraded, and loses nothing."""
    append(acked, 0, older(0))
    append(acked, 0, newer(2))
    found = read(acked.options(recordSchema=declared_schema(ORDER).json())).to_pylist()
    assert found == whole(acked, 0, ["n", "user", "amount", "extra"])


def test_a_batch_that_was_planned_without_a_column_runs_again_with_it(acked: AckedLog) -> None:
    """As after a kill: Spark repeats the batch, and the query was started anew with the schema of now."""
    append(acked, 0, older(0))
    append(acked, 0, newer(2))
    before = stream_reader(acked.options())
    start = before.initialOffset()
    end = before.latestOffset(start, ReadAllAvailable())
    with pytest.raises(SchemaChanged, match="Column 'extra' is double"):
        numbers_of(before, before.partitions(start, end))
    source = StreamworkerDataSource(acked.options())
    again = source.streamReader(source.schema())
    batches = [batch for task in again.partitions(start, end) for batch in again.read(task)]
    rows = pa.Table.from_batches(batches).to_pylist()
    assert rows == whole(acked, 0, ["n", "user", "amount", "extra"])


def test_a_query_that_wants_some_columns_says_so(acked: AckedLog) -> None:
    """With a schema of its own it ends at a column that it lacks, unless it drops such columns."""
    acked.fill(0, [3])
    only_n = StructType([StructField("n", LongType())])

    def rows_with(**option: str) -> list[dict[str, Any]]:
        return read(acked.options(**option), only_n).to_pylist()  # type: ignore[no-any-return]

    with pytest.raises(SchemaChanged, match=r"Column .user. is string .* otherColumns=drop"):
        rows_with()
    assert rows_with(otherColumns="drop") == [{"n": 0}, {"n": 1}, {"n": 2}]
    with pytest.raises(ConfigurationError, match="Option recordSchema is no schema"):
        StreamworkerDataSource(acked.options(recordSchema="[]")).schema()


def conform(planned: pa.DataType, *entries: LogEntry) -> pa.RecordBatch:
    options = SourceOptions(app="shop", stream="orders", processor="price")
    return Conformer(pa.schema({"a": planned}), options).conform(entries)


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
        conform(planned, entry(found))
    assert conform(found, entry(planned)).schema == pa.schema({"a": found})


def test_a_type_that_no_column_holds_together_with_the_planned_one_is_an_error_that_stays() -> None:
    """A restart does not help: the value does not fit."""
    with pytest.raises(RecordError, match="Column 'a' is string in rows up to 1 of partition 0"):
        conform(pa.int64(), entry(pa.string(), "1"), entry(pa.string(), "one"))
