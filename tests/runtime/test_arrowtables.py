"""Arrow tables are sent as their records would be: each row to the same partition, and in order."""

import datetime as dt
import enum
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Annotated, Any
from unittest.mock import Mock, PropertyMock

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.placement import Placement, RoundRobin, canonical_key
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import ConfigurationError, ProducerError, RecordError, StreamFull
from streamworker.records import RecordType
from streamworker.redisio.data.columns import unpacked
from streamworker.runtime.send.arrowtables import Router, _bytes_of
from tests.helpers import drawn
from tests.records.kinds import MOMENTS, TEXT
from tests.runtime.workbench import Bench, Order, bench

ARROW: dict[str, Any] = {"codec": "arrow", "key_fields": "customer"}


class Tone(enum.Enum):
    """A key with few values."""

    LOUD = "loud"
    LOW = "low"


KEYS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "str": (str, TEXT),
    "maybe": (str | None, st.none() | TEXT),
    "int": (int, st.integers(-(2**63), 2**63 - 1)),
    "bytes": (bytes, st.binary(max_size=8)),
    "bool": (bool, st.booleans()),
    "uuid": (uuid.UUID, st.uuids()),
    "date": (dt.date, st.dates()),
    "time": (dt.datetime, MOMENTS),
    "local time": (Annotated[dt.datetime, msgspec.Meta(tz=False)], st.datetimes()),
    "decimal": (Decimal, st.decimals(-(10**9), 10**9, places=3)),
    "enum": (Tone, st.sampled_from(Tone)),
    "tuple": (tuple[str, ...], st.lists(TEXT, max_size=3).map(tuple)),
}


def stream_of(hints: dict[str, Any], key: Any, partitions: int) -> StreamSpec:
    """Declare a stream of records with these fields."""
    kind = RecordType.of(msgspec.defstruct("Keyed", list(hints.items())))
    return StreamSpec(
        app="shop", name="keyed", record=kind, key=kind.key_function(key), declared_partitions=partitions,
        codec="arrow", records_max=1000, key_fields=kind.key_fields(key),
    )  # fmt: skip


def assert_routed_alike(spec: StreamSpec, records: Sequence[Any]) -> None:
    """Each row goes where its record goes; one without a key goes anywhere."""
    routed = Router(spec, RoundRobin()).partitions_of(spec.record.to_arrow(records), 2).to_pylist()
    keys = [canonical_key(spec.key(record)) for record in records]
    alone = [None if key is None else spec.placement.partition_of(key) for key in keys]
    assert [found if key is not None else None for found, key in zip(routed, keys, strict=True)] == alone
    assert all(0 <= found < spec.placement.total for found in routed)


@pytest.mark.parametrize("name", KEYS)
@drawn(25)
@given(data=st.data())
def test_a_row_goes_to_the_partition_of_its_record(name: str, data: st.DataObject) -> None:
    """For keys of every type; whether it was sent alone or in a table."""
    hint, values = KEYS[name]
    spec = stream_of({"k": hint}, "k", data.draw(st.integers(1, 64)))
    assert_routed_alike(spec, [spec.record.python_type(value) for value in data.draw(st.lists(values))])


@drawn(25)
@given(
    rows=st.lists(st.tuples(st.none() | TEXT, st.integers(-3, 3), st.none() | st.dates())),
    partitions=st.integers(1, 64),
)
def test_a_row_with_a_key_of_several_fields_goes_to_the_partition_of_its_record(
    rows: list[tuple[Any, ...]], partitions: int
) -> None:
    """Whatever of them is null; and where a function makes the key."""
    hints = {"a": str | None, "b": int, "c": dt.date | None}
    for key in (("a", "b", "c"), ("a",), lambda record: (record.c, record.a)):
        spec = stream_of(hints, key, partitions)
        assert_routed_alike(spec, [spec.record.python_type(*row) for row in rows])


def test_rows_without_a_key_take_turns_chunk_by_chunk() -> None:
    """Between them, rows with a key go where they must."""
    spec = stream_of({"k": str | None}, "k", 4)
    batch = pa.record_batch({"k": pa.array([None, None, "ann", None, None, None], pa.string())})
    assert Router(spec, RoundRobin(1)).partitions_of(batch, 2).to_pylist() == [1, 1, 3, 2, 2, 3]
    spec = replace(spec, key=lambda _: None, key_fields=())
    assert Router(spec, RoundRobin(3)).partitions_of(batch, 4).to_pylist() == [3, 3, 3, 3, 0, 0]


def test_a_key_that_python_does_not_have_is_refused() -> None:
    """A time so late that no record could hold it."""
    spec = stream_of({"k": dt.datetime}, "k", 4)
    late = pa.record_batch({"k": pa.array([2**62], pa.timestamp("us", "UTC"))})
    with pytest.raises(RecordError, match="A key is a value that Python does not have"):
        Router(spec, RoundRobin()).partitions_of(late, 1)


def orders(count: int, keys: int = 20) -> pa.Table:
    return pa.table({"number": range(count), "customer": [f"customer-{n % keys}" for n in range(count)]})


async def entries(desk: Bench, partition: int) -> list[pa.RecordBatch]:
    """Return the rows of each entry of a partition."""
    fields = [fields for _, fields in await desk.entries(desk.stream_keys.events(partition))]
    assert [int(each[b"n"]) for each in fields] == [unpacked(each).num_rows for each in fields]
    return [unpacked(each) for each in fields]


async def rows(desk: Bench, partition: int) -> list[tuple[int, str]]:
    return [
        (row["number"], row["customer"])
        for part in await entries(desk, partition)
        for row in part.to_pylist()
    ]


async def numbers(desk: Bench) -> list[int]:
    found = [await rows(desk, partition) for partition in range(desk.stream.placement.total)]
    return sorted(number for part in found for number, _ in part)


@pytest.mark.anyio
async def test_rows_of_one_key_keep_their_order(redis_url: str) -> None:
    """In large tables and small ones, however many rows an entry takes."""
    async with bench(redis_url, partitions=8, run=False, stream=ARROW) as desk:
        sent = await desk.producer.send_table(orders(10_000), rows_per_entry=100, compression="zstd")
        assert sent == 10_000
        assert await desk.producer.send_table(orders(10_100).slice(10_000).to_batches()[0]) == 100
        found = []
        for partition in range(8):
            for number, customer in await rows(desk, partition):
                assert partition == Placement(8).partition_of(customer.encode())
                found.append((customer, number))
            assert all(batch.num_rows <= 100 for batch in await entries(desk, partition))
        assert sorted(found, key=lambda each: each[0]) == sorted(found)
        assert sorted(number for _, number in found) == list(range(10_100))


@pytest.mark.anyio
async def test_a_table_of_polars_is_sent_as_it_is(redis_url: str) -> None:
    """Its texts are of another Arrow type than ours."""
    async with bench(redis_url, run=False, stream=ARROW) as desk:
        await desk.producer.send_table(pl.DataFrame({"customer": ["ann", "bob"], "number": [1, 2]}))
        assert [batch.to_pylist() for batch in await entries(desk, 0)] == [
            [{"number": 1, "customer": "ann"}, {"number": 2, "customer": "bob"}]
        ]


def test_a_table_is_measured_by_its_buffers_where_pyarrow_cannot_tell_the_size_of_its_rows() -> None:
    """Before 24.0 it could not, for the texts of polars."""
    table = Mock(spec=pa.Table, **{"get_total_buffer_size.return_value": 64})
    type(table).nbytes = PropertyMock(side_effect=pa.ArrowTypeError)
    assert _bytes_of(table) == 64


@pytest.mark.anyio
async def test_records_are_sent_as_rows(redis_url: str) -> None:
    """One alone is an entry; many are an entry a partition; a bad one does not hold up those before it."""
    async with bench(redis_url, partitions=2, run=False, stream=ARROW) as desk:
        sent = await desk.producer.send(Order(1, "ann"), headers={"trace": "abc"})
        ((_, fields),) = await desk.entries(desk.stream_keys.events(sent.partition))
        assert fields[b"h.trace"] == b"abc"
        assert await desk.producer.send_many(Order(n, f"c{n % 9}") for n in range(2, 100)) == 98
        assert len(await entries(desk, 0)) + len(await entries(desk, 1)) == 3
        for bad in (Order("x", "ann"), "no order", Order(2**63, "ann")):  # type: ignore[arg-type]
            with pytest.raises(RecordError):
                await desk.producer.send_many([Order(100, "ann"), bad, Order(101, "ann")])
        assert await numbers(desk) == [*range(1, 101), 100, 100]


@pytest.mark.anyio
async def test_what_cannot_be_sent_is_refused_by_name(redis_url: str) -> None:
    """The row, the size, the option; nothing of it is written. What does not fit: tests/records."""
    async with bench(redis_url, run=False, stream=ARROW, entry_bytes_max=2000) as desk:
        send = desk.producer.send_table
        for table, wrong in (
            (pa.table({"number": [1, None]}), "Row 1 .* 'number' of Order is null"),
            (pa.table({"number": [1], "customer": ["x" * 2000]}), "bytes, and entry_bytes_max is 2000"),
            ([Order(1)], "A list is no table"),
        ):
            with pytest.raises(RecordError, match=wrong):
                await send(table)
        with pytest.raises(ConfigurationError, match="rows_per_entry=0"):
            await send(orders(1), rows_per_entry=0)
        with pytest.raises(ConfigurationError, match="compression='gzip'"):
            await send(orders(1), compression="gzip")  # type: ignore[arg-type]
        assert await entries(desk, 0) == []
        assert await send(orders(2000)) == 2000  # in as many entries as it takes
        assert len(await entries(desk, 0)) > 20
    async with bench(redis_url, run=False) as desk:
        with pytest.raises(ConfigurationError, match="written as 'json'"):
            await desk.producer.send_table(orders(1))


@pytest.mark.anyio
async def test_a_table_waits_at_a_full_partition_or_is_refused(redis_url: str) -> None:
    """As records do; the limit counts rows."""
    stream = ARROW | {"records_max": 100}
    async with bench(redis_url, run=False, stream=stream) as desk:
        await desk.backend.execute("XGROUP", "CREATE", desk.stream_keys.events(0), "slow", "0", "MKSTREAM")
        assert await desk.producer.send_table(orders(100), rows_per_entry=10) == 100
        with pytest.raises(StreamFull):
            await desk.producer.send_table(orders(10), on_full="raise")
        with pytest.raises(ProducerError):
            await desk.producer.send_table(orders(10), timeout=0.1)
        assert sum(batch.num_rows for batch in await entries(desk, 0)) == 100


@pytest.mark.anyio
async def test_a_large_table_goes_in_windows(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never copied as a whole, and a row that is wrong is found where it is."""
    monkeypatch.setattr("streamworker.runtime.send.arrowtables.WINDOW_BYTES", 16_000)
    table = orders(5_000)
    random.Random(1).shuffle(parts := [table.slice(start, 500) for start in range(0, 5000, 500)])
    async with bench(redis_url, partitions=2, run=False, stream=ARROW) as desk:
        assert await desk.producer.send_table(pa.concat_tables(parts)) == 5_000
        assert await numbers(desk) == list(range(5_000))
        wrong = pa.concat_tables(
            [table, pa.table({"number": pa.array([None], pa.int64()), "customer": ["x"]})]
        )
        with pytest.raises(RecordError, match=r"In the rows from \d+: Row \d+ .* is null"):
            await desk.producer.send_table(wrong)
