"""What a function says about its records: by a policy that it raises, or by naming them."""

from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from streamworker import App, Context, DeadLetter, Halt, Policy, Records, Retry, Skip
from streamworker.testing import local_worker
from tests.runtime.workbench import MODES, OVERLAPPING, Bench, Order, Priced, bench, handling, start

pytestmark = pytest.mark.anyio

ONE_BY_ONE = ["record", "thread", OVERLAPPING]


async def numbers(desk: Bench) -> list[int]:
    return [row["number"] for row in await desk.rows() if row["price"]]


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
