"""An operator sets a record aside, or the function does: all others are handled, in every mode."""

from itertools import cycle
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from streamworker import App, Context, DeadLetter, Halt, Policy, Records, Retry, Skip
from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import Placement
from streamworker.errors import CoordinationError
from streamworker.redisio.data import streams
from streamworker.redisio.data.columns import unpacked
from streamworker.redisio.data.dead import list_dead
from streamworker.redisio.group import locks
from streamworker.redisio.group.requests import make_request
from streamworker.testing import local_worker
from tests.runtime.test_columnar import columns, send, taking
from tests.runtime.workbench import MODES, OVERLAPPING, Bench, Order, Priced, bench, handling, start

pytestmark = pytest.mark.anyio


async def put(desk: Bench, record: EntryId) -> bool:
    """Order that a record is set aside; return whether there was anything to order."""
    given = await make_request(desk.backend, desk.keys, [0], "put", who="ann", why="a test", record=record)
    return given[0].is_new


async def numbers(desk: Bench) -> list[int]:
    """Return the numbers of the rows, of which a stream forwards one before each order is handled."""
    return [row["number"] for row in await desk.rows() if row["price"]]


async def standing(desk: Bench) -> list[EntryId]:
    """The records that are to be set aside."""
    lock = await locks.read_lock(desk.backend, desk.keys, 0)
    assert lock is not None
    return list(lock.aside)


@pytest.mark.parametrize(("mode", "single"), [*zip([*MODES, OVERLAPPING], cycle([True, False]))])
async def test_a_record_is_set_aside_without_a_call(redis_url: str, mode: str, single: bool) -> None:
    """Alone in its entry, or one of many; also where the policy would skip it. The commit ends the order."""
    seen: list[int] = []

    def each(order: Order, _: Context) -> Priced:
        seen.append(order.number)
        return Priced(order.number, 1.0)

    async with bench(redis_url, stream={"single_entries": single}) as desk:
        await desk.send(range(40))
        await streams.register(desk.backend, desk.keys, Placement(1), "0")
        ids = await desk.ids()
        assert await put(desk, EntryId.parse(ids[25]))
        assert await standing(desk) == [EntryId.parse(ids[25])]
        await start(desk, mode, each, errors=Skip())
        await desk.until_committed(40)
        assert seen == [*range(25), *range(26, 40)]
        (letter,) = await list_dead(desk.backend, desk.keys, [0])
        assert (str(letter.entry_id), letter.attempts, letter.by) == (ids[25], 0, "w1")
        assert "Set aside by ann: a test" in letter.error
        assert await standing(desk) == []
        assert not await put(desk, EntryId.parse(ids[25]))


@pytest.mark.parametrize("kind", [pa.RecordBatch, pl.DataFrame, list[Order], Order])
async def test_a_row_of_an_entry_of_columns_is_set_aside_alone(redis_url: str, kind: Any) -> None:
    """Its dead letter holds that row; the other rows of the entry are handled in order."""
    async with columns(redis_url) as desk:
        await send(desk, 30)
        await streams.register(desk.backend, desk.keys, Placement(1), "0")
        last = EntryId.parse((await desk.ids())[1])
        row = last._replace(seq=last.seq - 4)
        found = await streams.record_at(desk.backend, desk.keys, 0, row)
        assert found is not None and found.id == row
        await put(desk, row)
        seen: list[int] = []
        await desk.start(desk.spec(taking(kind, seen)))
        await desk.until_committed(30)
        assert seen == [*range(15), *range(16, 30)]
        (letter,) = await list_dead(desk.backend, desk.keys, [0])
        assert letter.entry_id == row
        assert unpacked(letter.fields).to_pylist() == [{"number": 15, "customer": "ann"}]


async def test_orders_to_set_aside_have_a_limit_and_the_last_reason_counts(redis_url: str) -> None:
    async with bench(redis_url, run=False) as desk:
        await desk.send(range(101))
        await streams.register(desk.backend, desk.keys, Placement(1), "0")
        ids = [EntryId.parse(each) for each in await desk.ids()]
        for record in (*ids[:100], ids[0]):
            assert await put(desk, record)
        with pytest.raises(CoordinationError, match="100 records"):
            await put(desk, ids[100])
        lock = await locks.read_lock(desk.backend, desk.keys, 0)
        assert lock is not None and len(lock.aside) == 100
        assert set(lock.aside.values()) == {"by ann: a test"}


# -- what a function says about its records ----------------------------------------------------


ONE_BY_ONE = ["record", "thread", OVERLAPPING]


@pytest.mark.parametrize("mode", ONE_BY_ONE)
async def test_a_policy_that_is_raised_decides_about_that_record_alone(redis_url: str, mode: str) -> None:
    """Before the mapping, at the first attempt; a dead letter has the reason. One line tells of it."""
    seen: list[int] = []

    def each(order: Order, _: Context) -> Priced:
        seen.append(order.number)
        if order.number == 3:
            raise Skip("a test order")
        if order.number == 5:
            raise DeadLetter("negative amount")
        if order.number == 7 and seen.count(7) < 3:
            raise Retry(backoff=0.001)
        if order.number == 10:
            raise Halt("the price list is of yesterday")
        return Priced(order.number, 1.0)

    with capture_logs() as logs:
        async with bench(redis_url) as desk:
            await desk.send(range(12))
            running = await start(desk, mode, each, errors={Policy: Halt(), Exception: Retry()})
            assert "the price list is of yesterday" in await running.halts()
            assert await desk.committed() == 10
            assert await numbers(desk) == [0, 1, 2, 4, 6, 7, 8, 9]
            (letter,) = await desk.dead()
    told = [(log["event"], log["log_level"]) for log in logs if "entry" in log or "policy" in log]
    failures = [("handler_failed", "warning")] * 3
    assert sorted(told) == [*failures, ("record_dead", "error"), ("record_skipped", "warning")]
    assert b"negative amount" in letter[b"error"] and letter[b"attempts"] == b"1"
    assert (seen.count(3), seen.count(5), seen.count(7)) == (1, 1, 3)


@pytest.mark.parametrize("mode", ["batch", "lists"])
async def test_a_policy_that_is_raised_about_several_records_is_an_error_that_says_what_to_do(
    redis_url: str, mode: str
) -> None:
    """Whichever number of records the call happens to have."""

    async def batch(orders: list[Order]) -> None:
        raise Skip("which one?")

    async def lists(records: Records[Order]) -> None:
        async for _ in records.take(10):
            raise Skip("which one?")

    function: Any = batch if mode == "batch" else lists
    async with handling(redis_url, function, [1], errors=Halt()) as (desk, running):
        reason = await running.halts()
        assert "raised Skip('which one?') about several records" in reason
        assert 'ctx.skip(record, "why")' in reason
        assert await desk.committed() == 0


@pytest.mark.parametrize("mode", [*MODES, OVERLAPPING])
async def test_a_function_names_records_and_goes_on_with_the_others(redis_url: str, mode: str) -> None:
    """In one call, without an attempt more; it returns what it likes."""

    def each(order: Order, ctx: Context) -> Priced:
        if order.number in (3, 4):
            ctx.dead_letter(order, "negative amount")
        if order.number == 8:
            ctx.skip(order)
        return Priced(order.number, 1.0)

    async with bench(redis_url) as desk:
        await desk.send(range(20))
        await start(desk, mode, each)
        await desk.until_committed(20)
        ids, dead = await desk.ids(), await desk.dead()
        assert [letter[b"id"].decode() for letter in dead] == [ids[3], ids[4]]
        assert b"DeadLetter: negative amount" in dead[0][b"error"] and dead[0][b"attempts"] == b"1"
        assert await numbers(desk) == list(range(20)), "rows are forwarded as they were returned"


async def test_records_that_were_named_are_not_forwarded_where_none_says_forward_them(redis_url: str) -> None:
    """A function that returns nothing forwards its records: those that are left."""

    async def keep(batch: list[Order], ctx: Context) -> None:
        for order in batch:
            if order.number % 2:
                ctx.skip(order, "odd")

    async with handling(redis_url, keep, range(10), batch=10, forward=True) as (desk, _):
        await desk.until_committed(10)
        assert [row["number"] for row in await desk.rows(Order)] == [0, 2, 4, 6, 8]


async def test_a_record_of_another_call_cannot_be_named(redis_url: str) -> None:
    """An equal one is not enough: two of a batch may be equal."""

    async def keep(order: Order, ctx: Context) -> None:
        ctx.skip(Order(order.number, order.customer))

    async with handling(redis_url, keep, [1], errors=Halt()) as (_, running):
        assert "named a record that is not of its call" in await running.halts()


@pytest.mark.parametrize(
    ("kind", "codec"), [(pa.RecordBatch, "arrow"), (pa.Table, "json"), (pl.DataFrame, "arrow")]
)
async def test_rows_of_columns_are_named_by_their_numbers(redis_url: str, kind: Any, codec: Any) -> None:
    """A dead letter holds its row alone, and the others are forwarded."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, partitions=1, codec=codec)

    def sort_out(rows, ctx: Context) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        values = rows["number"].to_list() if kind is pl.DataFrame else rows["number"].to_pylist()
        for row, number in enumerate(values):
            if number == 5:
                ctx.dead_letter(row, "five")

    sort_out.__annotations__["rows"] = kind
    app.processor(items, name="sort", forward=True)(sort_out)
    if codec == "arrow":
        await items.send_table(pa.table({"number": list(range(10))}))
    else:
        await items.send_many([Item(number) for number in range(10)])
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
        assert [row["number"] for row in await worker.rows("sort")] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        (letter,) = await worker.dead_letters("sort")
        assert letter.error == "DeadLetter: five"


class Item(msgspec.Struct):
    number: int
