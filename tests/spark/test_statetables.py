"""Tables of state as Spark reads them: what `Table.scan` shows, as columns, a page at a time."""

import datetime as dt
import enum
import tracemalloc
import uuid
from decimal import Decimal
from typing import Any

import anyio
import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from streamworker import App
from streamworker.core.data.placement import Placement
from streamworker.declaring.table import Table
from streamworker.dev.cluster import EmbeddedCluster
from streamworker.errors import BackendUnavailable, ConfigurationError, DecodeError, RecordError
from streamworker.redisio.admin import growth
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.spark.source import statetables
from streamworker.spark.source.declared import find_columns
from streamworker.spark.source.options import parse_options
from streamworker.spark.source.schema import spark_schema
from streamworker.spark.source.statetables import TableReader
from streamworker.testing import local_worker
from tests.raw import opened
from tests.spark.conftest import Connect
from tests.spark.reading import read

KEYS = GroupKeys("shop", "orders", "sum_up")
PARTITIONS = 4
PAGE_ROWS = 1_000
NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


class Order(msgspec.Struct):
    customer: str
    number: int
    placed_at: dt.datetime = NOON


class Total(msgspec.Struct):
    orders: int = 0
    spent: float = 0.0


def app_with(redis_url: str, value: Any = Total, **table: Any) -> tuple[App, Table[Any, Any]]:
    """Return an app of which one processor sets what ``of`` says of each order; its table."""
    of, name = table.pop("of", lambda order: (order.customer, Total(1, order.number / 4))), "totals"
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=PARTITIONS)
    totals: Table[Any, Any] = app.table(name, value, **table)

    @app.processor(orders, tables=[totals])
    async def sum_up(order: Order) -> None:
        totals.set(*of(order))

    return app, totals


def worked(app: App, redis_url: str, *orders: Order) -> None:
    """Let a worker declare the app and handle orders."""

    async def work() -> None:
        async with local_worker(app, url=redis_url) as worker:
            await app.registry.streams["orders"].send_many(orders)
            await worker.until_drained()

    anyio.run(work)


def scanned(app: App) -> dict[Any, Any]:
    async def scan() -> dict[Any, Any]:
        async with app:
            return {key: value async for key, value in app.registry.tables["totals"].scan()}

    return anyio.run(scan)


def rows_of(**options: str) -> list[dict[str, Any]]:
    """Return the table's rows as Spark's tasks read them, without Spark."""
    found: list[dict[str, Any]] = read({"app": "shop", "table": "totals", **options}).to_pylist()
    return found


def fill(redis_url: str, totals: Table[Any, Any], count: int, *, expires: bytes = b"") -> None:
    """Store values as commits do, many at once."""
    with opened(redis_url) as raw, raw.pipeline(transaction=False) as commands:
        for n in range(count):
            key = f"customer-{n}"
            partition = totals.spec.partition_of(key)
            assert partition is not None
            body = totals._form.body(key, Total(n, n / 4))
            commands.hset(KEYS.table(partition, "totals"), key, expires + b" " + body)
        commands.execute()


def reader(**more: str) -> TableReader:
    options = parse_options({"app": "shop", "stream": "orders", "table": "totals", **more})
    columns = find_columns(options)
    return TableReader(options, columns, spark_schema(columns, options))


@pytest.fixture
def default(redis_url: str, connect: Connect) -> str:
    connect("default", redis_url)
    return redis_url


def test_the_largest_values_of_a_table_are_shown(spark: SparkSession, default: str) -> None:
    """As columns: the stream's key, and the fields of the value; committed ones, from all partitions.

    To a batch read alone: a table is no stream of Spark's.
    """
    app, _ = app_with(default)
    worked(app, default, *(Order(f"customer-{n}", n) for n in range(50)))
    table = {"app": "shop", "table": "totals"}
    found = spark.read.format("streamworker").options(**table).load()
    assert found.columns == ["customer", "orders", "spent"]
    top = found.orderBy(sf.desc("spent")).limit(3).collect()
    assert [tuple(row) for row in top] == [(f"customer-{n}", 1, n / 4) for n in (49, 48, 47)]
    assert {row.customer: Total(row.orders, row.spent) for row in found.collect()} == scanned(app)
    assert {row["_partition"] for row in rows_of(stream="orders", includeMetadata="true")} == {0, 1, 2, 3}
    stream = spark.readStream.format("streamworker").options(**table).schema("customer string").load()
    with pytest.raises(PySparkException, match=r"A table is no stream.*spark\.read"):
        stream.writeStream.format("noop").start().processAllAvailable()


class Size(enum.Enum):
    SMALL = "small"


class Line(msgspec.Struct, tag=True, array_like=True):
    """Stored by position, behind its tag."""

    sku: str
    count: int = 1


class Everything(msgspec.Struct, rename="camel"):
    number: int
    customer: str
    placed_at: dt.datetime
    price: Decimal
    day: dt.date
    took: dt.timedelta
    id: uuid.UUID
    size: Size
    raw: bytes
    is_paid: bool
    last_line: Line
    lines: list[Line]
    by_sku: dict[str, Line]
    counts: dict[int, float]
    note: str | None = None
    tags: list[str] = []


def everything(order: Order) -> tuple[tuple[str, int | None], Everything]:
    line = Line(f"sku-{order.number}", order.number)
    value = Everything(
        number=order.number, customer="of the value", placed_at=NOON, price=Decimal("9.25"), day=NOON.date(),
        took=dt.timedelta(milliseconds=1500), id=uuid.UUID(int=order.number), size=Size.SMALL, raw=b"\xff\0",
        is_paid=True, last_line=line, lines=[line, line], by_sku={"a": line}, counts={7: 0.5},
    )  # fmt: skip
    return (order.customer, order.number or None), value


def test_keys_of_several_parts_and_values_of_every_type_become_columns(
    spark: SparkSession, default: str
) -> None:
    """Renamed fields and records by position, too. A key part named as a field is told apart."""
    app, _ = app_with(default, Everything, key=("customer", "number"), of=everything)
    worked(app, default, *(Order("ann:1", n) for n in range(3)))
    table = spark.read.format("streamworker").options(app="shop", table="totals").load()
    rows = table.orderBy("number").withColumn("at", sf.unix_timestamp("placed_at")).collect()
    assert [(row.key_customer, row.key_number) for row in rows] == [
        ("ann:1", None),
        ("ann:1", 1),
        ("ann:1", 2),
    ]
    kept = {key[1] or 0: value for key, value in scanned(app).items()}
    for n, row in enumerate(rows):
        found, value = row.asDict(recursive=True), kept[n]
        line = {"sku": f"sku-{n}", "count": n}
        expected = {name: getattr(value, name) for name in value.__struct_fields__}
        expected |= {"id": str(value.id), "size": "small", "last_line": line, "lines": [line, line]}
        expected |= {"by_sku": {"a": line}, "raw": bytearray(value.raw)}
        expected["placed_at"] = found["placed_at"]
        assert {name: found[name] for name in expected} == expected
        assert row.at == NOON.timestamp()


@pytest.mark.parametrize(
    ("key", "value", "columns"),
    [
        (int, 7, {"customer": pa.int64(), "value": pa.int64()}),
        (dt.date, 7, {"customer": pa.date32(), "value": pa.int64()}),
        (str, {"orders": 1.5}, {"customer": pa.string(), "value": pa.map_(pa.string(), pa.float64())}),
    ],
)
def test_a_value_that_is_no_record_is_one_column(
    default: str, key: type, value: Any, columns: dict[str, pa.DataType]
) -> None:
    kept = {int: 12, dt.date: NOON.date(), str: "12"}[key]
    kind = dict[str, float] if isinstance(value, dict) else type(value)

    class Keyed(msgspec.Struct):
        customer: key  # type: ignore[valid-type]

    app = App("shop", redis_url=default)
    orders = app.stream("orders", Keyed, key="customer", partitions=PARTITIONS)
    totals: Table[Any, Any] = app.table("totals", kind, key=key)

    @app.processor(orders, tables=[totals])
    async def sum_up(order: Keyed) -> None:
        totals.set(order.customer, value)

    worked(app, default, Keyed(kept))  # type: ignore[arg-type]
    found = read({"app": "shop", "table": "totals"})
    assert dict(zip(found.schema.names, found.schema.types, strict=True)) == columns
    (row,) = found.to_pylist(maps_as_pydicts="strict")
    assert row == {"customer": kept, "value": value}


def test_values_that_were_stored_by_an_older_version_have_the_defaults(default: str) -> None:
    """As `Table.get` returns them; a field that is gone is left out, and a number fits a wider type."""

    class Older(msgspec.Struct):
        orders: int
        refunds: int = 3

    app, _ = app_with(default, Older, of=lambda order: (order.customer, Older(order.number)))
    worked(app, default, Order("ann", 1))

    class Newer(msgspec.Struct):
        orders: float
        spent: float = 0.5
        tags: list[str] = []
        note: str | None = None

    app, _ = app_with(default, Newer, of=lambda order: (order.customer, Newer(order.number, note="new")))
    worked(app, default, Order("bob", 2))
    rows = sorted(tuple(row.values()) for row in rows_of())
    assert rows == [("ann", 1.0, 0.5, [], None), ("bob", 2.0, 0.5, [], "new")]
    assert scanned(app)["ann"] == Newer(1.0)

    class Other(msgspec.Struct):
        orders: str

    app, _ = app_with(default, Other, of=lambda order: (order.customer, Other("")))
    worked(app, default)
    with pytest.raises(DecodeError, match=r"no value of its type for key b'(ann|bob)'.*Give new fields"):
        rows_of()


def test_what_has_expired_is_not_there_and_what_will_says_when(default: str) -> None:
    """By the server's clock, whether or not somebody has removed it."""
    app, totals = app_with(default, ttl="1 hour")
    worked(app, default, Order("ann", 4))
    fill(default, totals, 20, expires=b"1700000000000")
    (row,) = rows_of(includeMetadata="true")
    assert (row["customer"], row["spent"]) == ("ann", 1.0)
    assert row["_partition"] == totals.spec.partition_of("ann")
    assert dt.timedelta(minutes=50) < row["_expires_at"] - dt.datetime.now(dt.UTC) <= dt.timedelta(hours=1)


@pytest.mark.full("stores 40,000 values")
def test_a_large_table_streams_through_a_page_at_a_time(
    default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the keys take no more memory; tasks are packed by keys, one partition each at most."""
    monkeypatch.setattr(statetables, "BATCH_ROWS", PAGE_ROWS)
    app, totals = app_with(default)
    worked(app, default)
    peaks = []
    for count in (20_000, 40_000):
        fill(default, totals, count)
        rows = most = 0
        tasks = reader(maxPartitions="1").partitions()
        assert [sorted(task.value) for task in tasks] == [[0, 1, 2, 3]]
        tracemalloc.start()
        for page in reader().read(tasks[0]):
            rows, most = rows + page.num_rows, max(most, page.num_rows)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (rows, most) == (count, PAGE_ROWS)
    assert peaks[1] < 1.1 * peaks[0], peaks
    assert [len(task.value) for task in reader(parallelism="4").partitions()] == [1, 1, 1, 1]
    found = read({"app": "shop", "table": "totals", "parallelism": "4"})
    assert sorted(found["orders"].to_pylist()) == list(range(40_000))


@pytest.mark.full("stores 160,000 values")
def test_a_partition_is_read_at_one_moment_however_long_it_takes(default: str) -> None:
    """What is committed after the first page was read is in none of the later ones.

    An answer that breaks off ends the task: the rest would be of another moment.
    """
    app, totals = app_with(default)
    worked(app, default)
    fill(default, totals, 160_000)
    with opened(default) as raw:
        size = raw.hlen(KEYS.table(0, "totals"))
        first, second = (reader().read(type(reader().partitions()[0])([p])) for p in (0, 1))
        found = next(first).column(1).to_pylist()
        raw.delete(KEYS.table(0, "totals"))
        raw.hset(KEYS.table(0, "totals"), "new", b" " + totals._form.body("new", Total(-1)))
        for page in first:
            found += page.column(1).to_pylist()
        assert len(found) == size and min(found) >= 0
        next(second)
        raw.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(BackendUnavailable, match=r"broke off while it sent .*Run the query again"):
        list(second)


@pytest.mark.full("starts a Cluster")
def test_a_table_of_a_cluster_is_read(connect: Connect, cluster: EmbeddedCluster) -> None:
    """Each partition on its node, by the app's name and the table's alone."""
    connect("cluster", cluster.url)
    app, _ = app_with(cluster.url)
    worked(app, cluster.url, *(Order(f"customer-{n}", n) for n in range(50)))
    found = rows_of(connection="cluster")
    assert {row["customer"]: Total(row["orders"], row["spent"]) for row in found} == scanned(app)


def test_what_is_no_table_is_answered_with_the_tables_there_are(default: str) -> None:
    """And a table that has no columns with the reason."""
    app, _ = app_with(default, dict, of=lambda order: (order.customer, {}))
    worked(app, default, Order("ann", 1))
    with pytest.raises(ConfigurationError, match=r"no columns: Field 'value'.*Read it with Table\.scan"):
        rows_of()
    for wrong in ({"table": "total"}, {"table": "totals", "stream": "others"}):
        with pytest.raises(
            ConfigurationError, match=r"No worker has declared a table.*has: totals on orders\."
        ):
            rows_of(**wrong)


def test_a_part_of_a_key_of_another_type_than_its_name_says_is_read_as_text(default: str) -> None:
    """The record's field of that name is a time, and the key has its day."""
    app, _ = app_with(
        default, int, key=("customer", "placed_at"), of=lambda order: ((order.customer, NOON.date()), 1)
    )
    worked(app, default, Order("ann", 1))
    with pytest.raises(RecordError, match=r"Column 'placed_at' .* does not fit timestamp.*\.schema"):
        rows_of()
    own = StructType().add("placed_at", "date").add("value", "integer").add("more", "string")
    (row,) = read({"app": "shop", "table": "totals"}, own).to_pylist()
    assert row == {"placed_at": NOON.date(), "value": 1, "more": None}


def test_a_table_is_read_where_it_is_while_its_stream_grows(default: str) -> None:
    """Before a new partition is open, when it is, and when the old ones have nothing any more."""
    app, _ = app_with(default)
    worked(app, default, *(Order(f"customer-{n}", n) for n in range(50)))

    async def grow() -> None:
        async with Backend.open(default, name="tool") as backend:
            await growth.prepare(backend, KEYS, PARTITIONS + 2, MEMORY)
            await growth.go_on(backend, KEYS, MEMORY, "test")

    def keys() -> list[tuple[str, int]]:
        found = rows_of(stream="orders", includeMetadata="true")
        return sorted((row["customer"], row["_partition"]) for row in found)

    before, placement = keys(), Placement(PARTITIONS, PARTITIONS + 2)
    after = [(name, placement.partition_of(name.encode())) for name, _ in before]
    anyio.run(grow)
    assert keys() == after
    worked(app_with(default)[0], default, Order("customer-0", 0))
    assert keys() == after
    with opened(default) as raw:
        for p in placement.active:
            raw.hset(KEYS.lock(p), "from", "0")
        raw.hset(KEYS.lock(0), "moved", "1")
    with pytest.raises(BackendUnavailable, match="have moved while they were read"):
        keys()
