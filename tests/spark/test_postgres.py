"""Pipelines into PostgreSQL: rows and the number of their batch in one transaction."""

import datetime as dt
import decimal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker.declaring.specs import PipelineSpec
from streamworker.errors import BackendUnavailable, ConfigurationError, DataLoss
from streamworker.spark.driver.failures import read_failure
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.session import Session
from streamworker.spark.sinks.postgres import AWAY, Postgres
from tests.postgres import postgres
from tests.spark.acked import AckedLog
from tests.spark.arrow import Rows
from tests.spark.running import run_once
from tests.spark.specs import pipeline, same

pytestmark = pytest.mark.usefixtures("in_tmp_path")

VARIABLE = "WAREHOUSE"
LAST = dt.datetime(9999, 12, 31, 3, 30, tzinfo=dt.UTC)
Query = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def warehouse() -> Iterator[str]:
    with postgres() as dsn:
        yield dsn


@pytest.fixture
def query(warehouse: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Query]:
    """Execute a statement in a database without tables."""
    monkeypatch.setenv(VARIABLE, warehouse)
    with psycopg.connect(warehouse, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

        def execute(text: str, *values: object) -> list[tuple[Any, ...]]:
            cursor = connection.execute(text.encode(), values)
            return cursor.fetchall() if cursor.description else []

        yield execute


def into(table: str = "orders", function: Any = same, **given: Any) -> PipelineSpec:
    fixed = {"format": "postgres", "path": None, "dsn_env": VARIABLE, "table": table}
    return pipeline(function, **{**fixed, "options": {"maxRowsPerTrigger": "5"}, **given})


def sink(checkpoint: Path, **given: Any) -> Postgres:
    """Return a sink of a query that has begun."""
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "metadata").write_text('{"id": "12345678-aaaa"}')
    fixed: dict[str, Any] = {"path": "orders", "pipeline": "shop.revenue", "dsn_env": VARIABLE}
    return Postgres(checkpoint=str(checkpoint), columns={"n": "bigint", "user": "text"}, **{**fixed, **given})


def typed(frame: DataFrame) -> DataFrame:
    """Return a row of each kind of type."""
    nothing = F.lit(None).cast("string")
    return frame.limit(1).select(
        "n",
        F.lit('it\'s \\ \t a "text"\n').alias("text"),
        nothing.alias("nothing"),
        F.lit(LAST).cast("timestamp").alias("at"),
        F.lit("2026-07-01 08:30:00.000001").cast("timestamp_ntz").alias("naive"),
        F.lit("2026-07-01").cast("date").alias("day"),
        F.lit("1.500000000000000001").cast("decimal(38,18)").alias("amount"),
        F.lit(b"\x00\xff").alias("raw"),
        F.lit(float("nan")).alias("nan"),
        F.lit(True).alias("is"),
        F.expr("interval 1 day 1 second").alias("lasts"),
        F.array(F.lit("a,b"), nothing).alias("words"),
        F.expr("array(array(1), array(2))").alias("nested"),
        F.struct(F.lit(1).alias("x"), F.lit("y").alias("z"), nothing.alias("no")).alias("pair"),
        F.expr("map('k', 1.5D)").alias("Of `each`"),
    )


def test_a_table_is_made_with_the_columns_of_the_result(
    spark_session: Session, acked: AckedLog, query: Query
) -> None:
    """Each type of Spark as one of PostgreSQL's, and what is nested as JSON."""
    acked.fill(0, [1])
    assert run_once(spark_session, into(function=typed)) == (0, "")
    (row,) = query("SELECT * FROM orders")
    assert row[:8] == (
        0, "it's \\ \t a \"text\"\n", None, LAST, dt.datetime(2026, 7, 1, 8, 30, 0, 1), dt.date(2026, 7, 1),  # noqa: DTZ001
        decimal.Decimal("1.500000000000000001"), b"\x00\xff",
    )  # fmt: skip
    assert str(row[8]) == "nan"
    lasts = dt.timedelta(days=1, seconds=1)
    assert row[9:] == (True, lasts, ["a,b", None], [[1], [2]], {"x": 1, "z": "y", "no": None}, {"k": 1.5})
    unknown = into("other", lambda frame: frame.select(F.lit(None).alias("v")))
    with pytest.raises(ConfigurationError, match="Column 'v' of pipeline 'revenue' is void"):
        run_pipelines([unknown], session=spark_session, once=True)


def test_rows_are_inserted_and_two_pipelines_fill_one_table(
    spark_session: Session, acked: AckedLog, query: Query
) -> None:
    """Into a schema of the user's, each with numbers of its own."""
    query("CREATE SCHEMA sales")
    one = into("sales.orders", lambda frame: frame.where("n % 2 = 0"), name="even")
    two = into("sales.orders", lambda frame: frame.where("n % 2 = 1"), name="odd")
    acked.fill(0, [9])
    assert run_once(spark_session, one, two) == (0, "")
    assert [n for (n,) in query("SELECT n FROM sales.orders ORDER BY n")] == acked.numbers()
    found = query("SELECT pipeline, target, batch FROM sales.streamworker_batches ORDER BY pipeline")
    assert found == [("shop.even", "sales.orders", 1), ("shop.odd", "sales.orders", 1)]


def test_the_last_row_of_a_key_wins(spark_session: Session, acked: AckedLog, query: Query) -> None:
    """Within a batch, and from one batch to the next; rows without another column are there once."""
    given: dict[str, Any] = {"upsert": ("user",), "options": {"maxRowsPerTrigger": "10"}}
    last, only = into(**given), into("users", lambda frame: frame.select("user"), name="only", **given)
    acked.fill(0, [23])
    assert run_once(spark_session, last, only) == (0, "")
    expected = {row["user"]: row["n"] for row in acked.written[0]}
    assert dict(query('SELECT "user", n FROM orders')) == expected
    assert {user for (user,) in query("SELECT * FROM users")} == expected.keys()


def test_an_aggregate_is_replaced_whole_and_with_a_key_updated(
    spark_session: Session, acked: AckedLog, query: Query
) -> None:
    """The first in one transaction; of the second only keys that changed are written."""

    def by_user(frame: DataFrame) -> DataFrame:
        return frame.groupBy("user").agg(F.count("*").alias("orders"))

    whole, updated = into("whole", by_user, name="whole"), into("byuser", by_user, upsert=("user",))
    for count in (9, 1):
        acked.fill(0, [count])
        assert run_once(spark_session, whole, updated) == (0, "")
    expected = {f"user-{n}": 2 if n in {0, 1, 2} else 1 for n in range(7)}
    assert dict(query("SELECT * FROM whole")) == dict(query("SELECT * FROM byuser")) == expected
    (changed,) = query("SELECT count(DISTINCT xmin::text) FROM byuser")
    assert changed[0] > 1, "rows of the first run stayed as they were"
    assert query("SELECT count(DISTINCT xmin::text) FROM whole") == [(1,)]


def test_a_batch_that_runs_again_changes_nothing(
    spark_session: Session, query: Query, warehouse: str, tmp_path: Path
) -> None:
    """Also while the transaction of a killed driver has not ended; a batch after a gap is refused."""
    spark, orders = spark_session.spark, sink(tmp_path / "ck")

    def rows(count: int) -> DataFrame:
        return spark.range(count).selectExpr("id AS n", "'u' AS user")

    for frame, batch in ((rows(3), 0), (rows(9), 0), (rows(0), 1), (rows(9), 1)):
        orders(frame, batch)
    assert query("SELECT count(*) FROM orders") == [(3,)]
    with pytest.raises(DataLoss, match="table orders does not hold batch 2"):
        orders(rows(9), 3)
    with psycopg.connect(warehouse) as late:
        late.execute("UPDATE streamworker_batches SET batch = 2")
        late.execute("INSERT INTO orders VALUES (100, 'of the killed one')")
        again = threading.Thread(target=orders, args=(rows(9), 2))
        again.start()
        while not query("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            assert again.is_alive()
            time.sleep(0.01)
    again.join()
    assert query("SELECT count(*) FROM orders") == [(4,)]
    query("DROP TABLE orders")
    with pytest.raises(DataLoss, match="table orders does not hold batch 2"):
        orders(rows(9), 3)


def test_two_pipelines_that_begin_at_once_make_one_table(
    spark_session: Session, query: Query, warehouse: str, tmp_path: Path
) -> None:
    """The second one waits for the first, and has looked for the tables before."""
    rows = spark_session.spark.range(3).selectExpr("id AS n", "'u' AS user")
    with psycopg.connect(warehouse) as first:
        sink(tmp_path / "one", pipeline="shop.one")._create(first)
        second = threading.Thread(target=sink(tmp_path / "two", pipeline="shop.two"), args=(rows, 0))
        second.start()
        while not query("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory'"):
            assert second.is_alive()
            time.sleep(0.01)
    second.join()
    assert query("SELECT count(*) FROM orders") == [(3,)]


def test_another_checkpoint_is_refused(spark_session: Session, acked: AckedLog, query: Query) -> None:
    """Rows would be there twice."""
    spec = into()
    acked.fill(0, [4])
    assert run_once(spark_session, spec) == (0, "")
    with pytest.raises(ConfigurationError, match=r"^orders: its last batch was written from another check"):
        run_pipelines([replace(spec, checkpoint="lost")], session=spark_session, once=True)
    assert query("SELECT count(*) FROM orders") == [(4,)]


@pytest.mark.parametrize(
    ("table", "upsert", "says"),
    [
        ("n integer", (), "writes column 'user' as text, and the table orders has no such column"),
        ('n integer, "user" integer', (), "'user' as text, and the table orders has it as integer"),
        ('n bigint, "user" text, amount integer', (), "'amount' as double precision, and .* it as integer"),
        ('n bigint, "user" text, amount float', ("n",), "no unique or exclusion constraint"),
        ('n bigint, "user" text, amount float', ("town",), "has upsert with town, which its result lacks"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_start(
    spark_session: Session, acked: AckedLog, query: Query, table: str, upsert: tuple[str, ...], says: str
) -> None:
    """By the column's name, before a row is written."""
    acked.fill(0, [4])
    query(f"CREATE TABLE orders ({table})")
    with pytest.raises(ConfigurationError, match=says):
        run_pipelines([into(upsert=upsert)], session=spark_session, once=True)


def test_columns_of_the_user_s_types_take_what_fits(
    spark_session: Session, acked: AckedLog, query: Query
) -> None:
    """Text as uuid or JSON, whole numbers in smaller columns; what does not fit ends the pipeline at once."""
    key = "12345678-1234-1234-1234-123456789abc"

    def keyed(frame: DataFrame) -> DataFrame:
        return frame.select(
            "n", F.lit(key).alias("id"), F.lit('{"a": 1}').alias("doc"), F.col("user").alias("name")
        )

    columns = "more text DEFAULT 'x', id uuid, doc jsonb, name varchar(6), n smallint UNIQUE"
    query(f"CREATE TABLE orders ({columns})")
    acked.fill(0, [4])
    spec = into(function=keyed, upsert=("n",))
    assert run_once(spark_session, spec) == (0, "")
    assert query("SELECT DISTINCT more, id::text, doc, name FROM orders WHERE n = 3") == [
        ("x", key, {"a": 1}, "user-3")
    ]
    acked.fill(1, [1])  # Its number is a million.
    code, error = run_once(spark_session, spec)
    assert code == 1
    assert "writes to the table orders: smallint out of range" in error
    assert query("SELECT count(*) FROM orders") == [(4,)]


NEVER = (
    "CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'n is %%', NEW.n; END $$; "
    "CREATE TRIGGER never BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION never()"
)


@pytest.mark.full("starts a server of PostgreSQL")
@pytest.mark.parametrize(
    ("kind", "values", "before", "says"),
    [
        ("text", ["a", "x\0y"], "", "zero byte .* in row 2 of the batch, column n. .*translate"),
        ("text[]", [["a"], ["b", "x\0y"]], "", "zero byte .* in row 2 of the batch, column n. "),
        ("jsonb", ["{}", '{"a": "x\\u0000"}'], "", "Unicode escape .* row 2 of .*, column n. .*translate"),
        ("bigint", [1], f"CREATE TABLE orders (n bigint); {NEVER}", "n is 1"),
        (
            "bigint", [-1],
            "CREATE TABLE t (n int); CREATE VIEW orders AS SELECT * FROM t WHERE n > 0 WITH CHECK OPTION",
            "violates check option",
        ),
        ("too wide", [1], "", "at most 1600 columns"),
    ],
)  # fmt: skip
def test_what_the_server_refuses_is_final_in_its_words(
    query: Query, tmp_path: Path, kind: str, values: list[Any], before: str, says: str
) -> None:
    """Whatever it refuses, and psycopg before it: no other attempt helps, and no variable is to blame."""
    if before:
        query(before)
    columns = {f"c{n}": "bigint" for n in range(1700)} if kind == "too wide" else {"n": kind}
    rows = Rows(pa.table(dict.fromkeys(columns, values)))
    with pytest.raises(ConfigurationError, match=f"PostgreSQL refuses what pipeline .* {says}") as refused:
        replace(sink(tmp_path / "ck"), columns=columns)(rows, 0)
    assert read_failure(f"streamworker.errors.ConfigurationError: {refused.value}").final


@pytest.mark.full("starts a server of PostgreSQL")
@pytest.mark.parametrize("code", ["08006", "40001", "53300", "57P01", "55P03"])
def test_what_may_pass_is_tried_again(query: Query, tmp_path: Path, code: str) -> None:
    """A lost connection, a conflict, a lack of resources, a server that ends, a lock."""
    query(f"CREATE TABLE orders (n bigint); {NEVER}".replace("'n is %%', NEW.n", f"SQLSTATE '{code}'"))
    with pytest.raises(BackendUnavailable, match=AWAY):
        replace(sink(tmp_path / "ck"), columns={"n": "bigint"})(Rows(pa.table({"n": [1]})), 0)


def test_a_connection_string_is_in_no_message(
    spark_session: Session, acked: AckedLog, query: Query, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is wrong with it. A server that is away may come back."""
    with pytest.raises(ConfigurationError, match="variable NOWHERE, the dsn_env of pipeline"):
        run_pipelines([into(dsn_env="NOWHERE")], session=spark_session, once=True)
    monkeypatch.setenv(VARIABLE, "hunter2")
    with pytest.raises(ConfigurationError, match="holds no connection string") as wrong:
        sink(tmp_path / "ck").begin()
    monkeypatch.setenv(VARIABLE, "postgresql://me:hunter@2@127.0.0.1:1/x")
    with pytest.raises(BackendUnavailable, match=AWAY) as away:
        sink(tmp_path / "ck").begin()
    for error in (wrong, away):
        assert "hunter" not in str(error.value)
        assert error.value.__suppress_context__
    failure = read_failure(f"Traceback\nstreamworker.errors.BackendUnavailable: {away.value}")
    assert failure.may_last
    assert not failure.final
    monkeypatch.setenv(VARIABLE, "postgresql://me:hunter2@127.0.0.1:1/x")
    checkpoint = Path(".streamworker/shop/revenue/checkpoint")
    assert not checkpoint.exists()
