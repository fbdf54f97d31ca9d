"""Functions that take columns, and streams of them: the same rows, and the same promises."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import msgspec
import polars as pl
import pyarrow as pa
import pytest

from streamworker import App, DeadLetter, DecodeError, Retry
from streamworker.context import Context
from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import Placement
from streamworker.errors import ConfigurationError
from streamworker.feed import Records
from streamworker.records import RecordType
from streamworker.redisio.data.columns import Packer, unpacked
from streamworker.redisio.data.dead import list_dead
from streamworker.redisio.data.streams import Append, append_many, register
from streamworker.runtime.run.modes.columns import CALL_ENTRIES_MAX
from streamworker.runtime.run.runner import StopReason
from tests.helpers import wait_for_async
from tests.runtime.workbench import Bench, Order, Priced, Running, bench

pytestmark = pytest.mark.anyio

ARROW: dict[str, Any] = {"codec": "arrow", "key_fields": "customer"}


def orders(count: int, first: int = 0) -> pa.Table:
    return pa.table({"number": range(first, first + count), "customer": ["ann"] * count})


@contextlib.asynccontextmanager
async def columns(url: str, **given: Any) -> AsyncIterator[Bench]:
    async with bench(url, stream=ARROW, **given) as desk:
        yield desk


async def send(desk: Bench, count: int, *, per_entry: int = 10, first: int = 0) -> None:
    """Send orders, so many in each entry where an entry holds several."""
    if desk.stream.codec == "arrow":
        await desk.producer.send_table(orders(count, first), rows_per_entry=per_entry)
    else:
        await desk.send(range(first, first + count))


@contextlib.asynccontextmanager
async def handling(
    url: str, function: Callable[..., Any], count: int, *, per_entry: int = 10, **options: Any
) -> AsyncIterator[tuple[Bench, Running]]:
    """Open a bench on which a function handles so many orders, which came in columns."""
    async with columns(url) as desk:
        await send(desk, count, per_entry=per_entry)
        yield desk, await desk.start(desk.spec(function, **options))


async def until(seen: list[int], count: int) -> None:
    await wait_for_async(lambda: len(seen) >= count, f"{count} rows are seen")


def taking(kind: Any, seen: list[int], refused: int | None = None) -> Callable[..., Any]:
    """Return a function that takes what an annotation says, and notes the numbers, or fails if it has one."""

    async def note(rows: Any) -> None:
        if isinstance(rows, Order):
            numbers = [rows.number]
        elif isinstance(rows, list):
            numbers = [order.number for order in rows]
        else:
            assert isinstance(rows, kind)
            numbers = rows["number"].to_list() if kind is pl.DataFrame else rows["number"].to_pylist()
        if refused in numbers:
            raise ValueError(f"not {refused}")
        seen.extend(numbers)

    note.__annotations__ = {"rows": kind, "return": None}
    return note


KINDS: list[Any] = [pa.RecordBatch, pa.Table, pl.DataFrame, list[Order], Order]


@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        *((kind, "arrow") for kind in KINDS),
        *((kind, "json") for kind in KINDS[:3]),
        (pa.RecordBatch, "msgpack"),
        (pa.RecordBatch, "fields"),
    ],
)
async def test_a_function_takes_rows_as_it_likes_from_any_stream(
    redis_url: str, kind: Any, codec: str
) -> None:
    """Whatever the codec; each row once, in order; and what is forwarded are the rows themselves."""
    async with bench(redis_url, stream={"codec": codec, "key_fields": "customer"}) as desk:
        seen: list[int] = []
        running = await desk.start(desk.spec(taking(kind, seen), forward=True))
        await send(desk, 95)
        await desk.producer.send(Order(95))
        await until(seen, 96)
        assert (await running.drained()).reason is StopReason.DRAINED
        assert seen == list(range(96))
        assert [row["number"] for row in await desk.rows(Order)] == seen
        assert await desk.checkpoint() == (await desk.ids())[-1]


async def test_an_entry_is_forwarded_as_it_came(redis_url: str) -> None:
    """Its bytes are those of the acked log; a function may also return what it was given."""
    async with columns(redis_url) as desk:

        async def same(rows: pa.RecordBatch) -> pa.RecordBatch:
            return rows

        seen: list[int] = []
        for function in (taking(pa.RecordBatch, seen), same):
            running = await desk.start(desk.spec(function, batch=500, forward=True), owner=function.__name__)
            await send(desk, 500, per_entry=500)
            await desk.until_committed(500 if function is not same else 1000)
            await running.drained()
        sent = [fields for _, fields in await desk.entries(desk.stream_keys.events(0))]
        acked = await desk.acked_entries()
        assert [entry[b"v"] for entry in sent] == [entry[b"batch"] for entry in acked]
        assert {entry[b"codec"] for entry in acked} == {b"lz4"}
        assert len(seen) == 500
        assert [row["number"] for row in await desk.rows(Order)] == [*range(500), *range(500)]


async def test_some_of_an_entrys_rows_are_not_taken_for_the_entry(redis_url: str) -> None:
    """A function that filters has the columns of the stream, and others than came."""

    async def odd(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.take(pa.array(range(1, rows.num_rows, 2)))

    async with handling(redis_url, odd, 10) as (desk, _):
        await desk.until_committed(10)
        assert [row["number"] for row in await desk.rows(Order)] == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("kind", [pa.RecordBatch, pa.Table, pl.DataFrame])
@pytest.mark.parametrize("codec", ["json", "arrow"])
async def test_what_a_function_returns_is_forwarded_in_its_output_type(
    redis_url: str, kind: Any, codec: str
) -> None:
    """Columns are cast to it; None forwards nothing; rows by ctx.forward come first."""

    def price(rows: Any, ctx: Context) -> Any:
        numbers = rows["number"].to_list() if kind is pl.DataFrame else rows["number"].to_pylist()
        if 0 in numbers:
            return None
        ctx.forward(Priced(-1, 0.0))
        assert len(ctx.entry_ids) == len(numbers)
        if kind is pl.DataFrame:
            return rows.select("number", pl.lit(2.5).cast(pl.Float32).alias("price"))
        return kind.from_pydict({"price": pa.array([2.5] * len(numbers), pa.float32()), "number": numbers})

    price.__annotations__ = {"rows": kind, "ctx": Context, "return": kind | None}
    async with bench(redis_url, stream={"codec": codec, "key_fields": "customer"}) as desk:
        await send(desk, 20)
        await desk.start(desk.spec(price, batch=10, output=Priced))
        await desk.until_committed(20)
        assert await desk.rows() == [
            {"number": -1, "price": 0.0}, *({"number": n, "price": 2.5} for n in range(10, 20))
        ]  # fmt: skip


async def test_columns_of_another_type_are_an_error_of_the_function(redis_url: str) -> None:
    """Named, with what to do; nothing of the call is committed."""

    async def wrong(rows: pa.RecordBatch) -> pa.Table:
        return pa.table({"number": rows["number"], "total": rows["number"]})

    async with handling(redis_url, wrong, 10) as (desk, running):
        assert "forwarded columns that are no Order: The table has a column 'total'" in await running.halts()
        assert "output=" in running.halted[0]
        assert await desk.committed() == 0


@pytest.mark.parametrize("kind", [pa.RecordBatch, list[Order], Order])
async def test_the_poison_row_leaves_and_all_others_are_forwarded_in_order(redis_url: str, kind: Any) -> None:
    """Also those of its entry; its dead letter holds that row alone, and has its id."""
    async with columns(redis_url) as desk:
        seen: list[int] = []
        await send(desk, 80)
        batch, errors = None if kind is Order else 40, Retry(attempts=2, backoff=0.01, then=DeadLetter())
        await desk.start(desk.spec(taking(kind, seen, 34), batch=batch, errors=errors, forward=True))
        await desk.until_committed(80)
        assert [row["number"] for row in await desk.rows(Order)] == [*range(34), *range(35, 80)]
        (letter,) = await list_dead(desk.backend, desk.keys, [0], count=10)
        assert "not 34" in letter.error
        assert letter.entry_id == EntryId.parse((await desk.ids())[3])._replace(seq=letter.entry_id.seq)
        assert letter.entry_id.seq == EntryId.parse((await desk.ids())[3]).seq - 5
        assert unpacked(letter.fields).to_pylist() == [{"number": 34, "customer": "ann"}]


@pytest.mark.parametrize("kind", [pa.RecordBatch, list[Order], Order])
async def test_an_entry_that_holds_no_rows_is_a_dead_letter_that_says_why(redis_url: str, kind: Any) -> None:
    """One whose bytes were changed, and one that another program wrote."""
    async with columns(redis_url) as desk:
        await send(desk, 10)
        ((_, flat),) = await desk.backend.execute("XRANGE", desk.stream_keys.events(0), "-", "+")
        payload = flat.index(b"v") + 1
        flat[payload] = flat[payload][:-1] + bytes([flat[payload][-1] ^ 1])
        await desk.backend.execute("XADD", desk.stream_keys.events(0), "*", *flat)
        await desk.add_raw(b'{"number":1}')
        await send(desk, 10, first=10)
        seen: list[int] = []
        running = await desk.start(desk.spec(taking(kind, seen), errors={DecodeError: DeadLetter()}))
        await desk.until_committed(22)
        await running.drained()
        assert seen == list(range(20))
        changed, foreign = [fields[b"error"] for fields in await desk.dead()]
        assert b"does not match its CRC" in changed and b"no field 'n'" in foreign


@pytest.mark.parametrize("bad", [[0, 5, 9], list(range(10))])
@pytest.mark.parametrize("kind", [pa.RecordBatch, list[Order], Order])
async def test_a_row_that_is_no_record_leaves_alone(redis_url: str, kind: Any, bad: list[int]) -> None:
    """Its neighbours are handled; if no row can be decoded, the entry is one dead letter."""
    async with columns(redis_url) as desk:
        numbers = [None if n in bad else n for n in range(10)]
        table = pa.record_batch({"number": pa.array(numbers, pa.int64()), "customer": ["ann"] * 10})
        entry = (Packer(table.schema).fields(table, "lz4"), None)
        await append_many(desk.backend, desk.stream_keys, [Append(0, "x", 1, 0, [entry], pack="arrow")])
        await send(desk, 10, first=10)
        seen: list[int] = []
        await desk.start(desk.spec(taking(kind, seen), errors=DeadLetter(), forward=True))
        await desk.until_committed(20)
        good = [n for n in range(20) if n not in bad]
        assert seen == good
        assert [row["number"] for row in await desk.rows(Order)] == good
        letters = await list_dead(desk.backend, desk.keys, [0], count=20)
        last = EntryId.parse((await desk.ids())[0])
        dead = [9] if len(bad) == 10 else bad
        assert [each.entry_id for each in letters] == [EntryId(last.ms, last.seq - 9 + n) for n in dead]
        assert sum(unpacked(each.fields).num_rows for each in letters) == len(bad)
        assert all("is null" in each.error for each in letters)


@pytest.mark.parametrize("kind", [pa.RecordBatch, list[Order], Order])
async def test_a_checkpoint_within_an_entry_passes_its_first_rows_over(redis_url: str, kind: Any) -> None:
    """Reading brings the entry again; its bytes are then not forwarded as they came."""
    async with columns(redis_url) as desk:
        await send(desk, 20)
        seen: list[int] = []
        first = EntryId.parse((await desk.ids())[0])
        checkpoint = EntryId(first.ms, first.seq - 6)
        spec = desk.spec(taking(kind, seen), forward=True, batch=None if kind is Order else 10)
        await register(desk.backend, desk.keys, Placement(1), str(checkpoint))
        await desk.start(spec)
        await desk.until_committed(20)
        assert seen == list(range(4, 20))
        assert [row["number"] for row in await desk.rows(Order)] == seen
        assert await desk.checkpoint() == (await desk.ids())[-1]


async def test_a_record_of_a_json_stream_that_has_no_column_is_its_poison(redis_url: str) -> None:
    """An int that Arrow cannot hold is found among the others."""
    async with bench(redis_url) as desk:
        seen: list[int] = []
        await desk.producer.send_many([Order(1), Order(2**70), Order(3)])
        await desk.start(desk.spec(taking(pa.Table, seen), errors=DeadLetter()))
        await desk.until_committed(3)
        assert seen == [1, 3]
        assert len(await desk.dead()) == 1


async def test_a_call_has_as_many_rows_as_were_asked_for(redis_url: str) -> None:
    """Entries are put together up to that many, never split; and bytes bound them, too."""
    async with columns(redis_url) as desk:
        sizes: list[int] = []

        async def note(rows: pa.RecordBatch) -> None:
            sizes.append(rows.num_rows)

        await send(desk, 100)
        await send(desk, 60, per_entry=60)
        await desk.start(desk.spec(note, batch=35))
        await desk.until_committed(160)
        assert sizes == [30, 30, 30, 10, 60]


async def test_small_entries_are_no_more_in_a_call_than_can_be_opened_at_once(redis_url: str) -> None:
    """However many rows a batch may have: each entry takes its time, and other partitions wait."""
    sizes: list[int] = []

    async def note(rows: pa.RecordBatch) -> None:
        sizes.append(rows.num_rows)

    async with handling(redis_url, note, CALL_ENTRIES_MAX + 10, per_entry=1, within=60.0) as (desk, _):
        await desk.until_committed(CALL_ENTRIES_MAX)
        assert sizes == [CALL_ENTRIES_MAX]


async def test_a_full_batch_of_rows_does_not_wait_for_more(redis_url: str) -> None:
    """It is handled at once, however few its entries are; one that is not full waits."""
    async with columns(redis_url) as desk:
        seen: list[int] = []
        running = await desk.start(desk.spec(taking(pa.RecordBatch, seen), batch=100, within=60.0))
        await send(desk, 100, per_entry=50)
        await until(seen, 100)
        await send(desk, 99, per_entry=50)
        await wait_for_async(lambda: running.runner.intake.buffer.waiting == 2, "two entries wait")
        assert len(seen) == 100
        await running.drained()


async def test_state_and_outputs_of_an_entrys_rows_stand_or_fall_together(redis_url: str) -> None:
    """A function of one record sees what the rows before have stored; a failure undoes the entry."""
    async with columns(redis_url) as desk:
        failures = [15]
        ids: list[EntryId] = []

        async def total(order: Order, ctx: Context) -> Priced:
            ids.append(ctx.entry_id)
            ctx.state["total"] = ctx.state.get("total", 0) + order.number
            ctx.forward(Priced(order.number, 0.0))
            if order.number in failures:
                failures.remove(order.number)
                raise ValueError("once")
            return Priced(order.number, float(ctx.state["total"]))

        await send(desk, 20)
        await desk.start(desk.spec(total, errors=Retry(attempts=2)))
        await desk.until_committed(20)
        last = EntryId.parse((await desk.ids())[-1])
        assert ids[-20:] == [EntryId(last.ms, last.seq - behind) for behind in range(19, -1, -1)]
        totals = [sum(range(n + 1)) for n in range(20)]
        assert await desk.rows() == [
            {"number": n, "price": price} for n in range(20) for price in (0.0, float(totals[n]))
        ]


async def test_a_drain_between_two_calls_commits_what_is_done_and_nothing_behind_it(redis_url: str) -> None:
    """Several calls are made of what one read brought; a call that was given up is a wall."""
    seen: list[int] = []
    failing = asyncio.Event()

    async def stuck(rows: pa.RecordBatch) -> None:
        if 20 in rows["number"].to_pylist():
            failing.set()
            raise ValueError("never")
        seen.extend(rows["number"].to_pylist())

    options: dict[str, Any] = {"batch": 10, "errors": Retry(backoff=5)}
    async with handling(redis_url, stuck, 50, **options) as (desk, running):
        with anyio.fail_after(10):
            await failing.wait()
        assert (await running.drained()).reason is StopReason.DRAINED
        assert seen == list(range(20))
        assert await desk.checkpoint() == (await desk.ids())[1]


class Wider(msgspec.Struct):
    """The next release of the orders."""

    number: int
    customer: str = "ann"
    currency: str = "EUR"
    note: str | None = None


async def test_entries_of_the_next_release_are_read(redis_url: str) -> None:
    """A field that is not known is passed over, as with JSON. Of the last release: test_arrowtables.py."""
    async with columns(redis_url) as desk:
        wider = Packer(RecordType.of(Wider).arrow_schema())
        table = pa.table({"number": [1], "customer": ["ann"], "currency": ["USD"], "note": ["x"]})
        batch = RecordType.of(Wider).fit_arrow(table.to_batches()[0])
        fields = [part for pair in wider.fields(batch, "lz4").items() for part in pair]
        await desk.backend.execute("XADD", desk.stream_keys.events(0), "*", *fields)
        seen: list[int] = []
        await desk.start(desk.spec(taking(pa.RecordBatch, seen), forward=True))
        await desk.until_committed(1)
        assert await desk.rows(Order) == [{"number": 1, "customer": "ann"}]


async def _record(order: Order) -> None: ...
async def _stream(records: Records[Order]) -> None: ...
async def _mixed(batch: list[Order]) -> pa.Table: ...


@pytest.mark.parametrize(
    ("function", "options", "wrong"),
    [
        (_record, {"concurrency": 4}, "entries of stream 'orders' hold many rows"),
        (_stream, {}, "takes Records"),
        (_mixed, {}, "takes Order and returns columns"),
    ],
)
def test_what_columns_cannot_do_is_refused_when_it_is_declared(
    function: Callable[..., Any], options: dict[str, Any], wrong: str
) -> None:
    """With what to write instead."""
    app = App("shop")
    orders = app.stream("orders", Order, codec="arrow")
    with pytest.raises(ConfigurationError, match=wrong):
        app.processor(orders, name="take", **options)(function)
