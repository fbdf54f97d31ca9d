"""What becomes of records whose handling fails, and of those about which the function decides."""

import asyncio
import threading
import time
from typing import Any

import anyio
import msgspec
import polars as pl
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from streamworker import App, Context, DeadLetter, Halt, Policy, Records, Retry, Skip
from streamworker.runtime.run.runner import StopReason
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.runtime.workbench import MODES, OVERLAPPING, Bench, Each, Order, Priced, bench, handling, start

pytestmark = pytest.mark.anyio


async def numbers(desk: Bench) -> list[int]:
    """Return the numbers of the rows, of which a stream forwards one before each order is handled."""
    return [row["number"] for row in await desk.rows() if row["price"]]


def failing_at(*poison: int) -> tuple[Each, list[int]]:
    """Return a function that fails at some numbers, and the list of numbers that it is called with."""
    seen: list[int] = []

    def each(order: Order, _: Context) -> Priced:
        seen.append(order.number)
        if order.number in poison:
            raise ValueError(f"cannot price {order.number}")
        return Priced(order.number, 1.0)

    return each, seen


# -- halt ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [*MODES, OVERLAPPING])
async def test_a_failing_record_halts_the_partition_and_what_came_before_is_committed(
    redis_url: str, mode: str
) -> None:
    """A batch is halved until the record is found; the reason names its entry and the exception."""
    handle, seen = failing_at(25)
    async with bench(redis_url) as desk:
        await desk.send(range(40))
        running = await start(desk, mode, handle, errors=Retry(attempts=3))
        await running.halts()
        ids = await desk.ids()
        assert await desk.committed() == 25
        assert await numbers(desk) == list(range(25))
        assert len(await desk.rows()) == (50 if mode == "stream" else 25)
        assert seen.count(25) == 3 if mode in ("record", "thread", OVERLAPPING) else seen.count(25) > 6
        (reason,) = running.halted
        assert ids[25] in reason
        assert "ValueError: cannot price 25" in reason and "3 attempts" in reason
        assert "test_errors.py" in reason
        assert desk.budget.used == 0
        stopped = await running.drained()
        assert stopped.reason is StopReason.HALTED and stopped.detail == reason


async def test_a_slice_of_a_failed_batch_has_one_attempt_and_its_record_all_of_them(redis_url: str) -> None:
    """After the attempts of the whole, a bad record among a thousand is found in few calls."""
    calls: list[int] = []

    async def price(batch: list[Order]) -> None:
        calls.append(len(batch))
        if any(order.number == 617 for order in batch):
            raise ValueError("no")

    async with bench(redis_url) as desk:
        desk.gate.close()
        await desk.send(range(1_000))
        errors = Retry(attempts=3, backoff=0.001, then=DeadLetter())
        running = await desk.start(desk.spec(price, batch=1_000, errors=errors))
        while running.runner.intake.buffer.waiting < 1_000:
            await running.runner.intake.wait_draining(0.01)
        desk.gate.open()
        await desk.until_committed(1_000)
        assert calls[:3] == [1_000] * 3 and calls.count(1) >= 3
        assert len(calls) <= 3 + 20 + 3
        (letter,) = await desk.dead()
        assert letter[b"attempts"] == b"3"


@pytest.mark.parametrize("mode", [*MODES, OVERLAPPING])
async def test_draining_during_a_pause_between_attempts_gives_up_the_call(redis_url: str, mode: str) -> None:
    """A partition that is to be handed over does not wait for a long backoff."""
    handle, seen = failing_at(3)
    async with bench(redis_url) as desk:
        await desk.send(range(4))
        running = await start(desk, mode, handle, errors=Retry(attempts=5, backoff=60.0, backoff_max=60.0))
        await wait_for_async(lambda: 3 in seen, "the first attempt has failed")
        with anyio.fail_after(20):  # less than the shortest pause
            stopped = await running.drained()
        assert stopped.reason is StopReason.DRAINED
        assert await desk.committed() == (0 if mode in ("batch", "stream") else 3)


# -- kinds of failure --------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_call_that_takes_too_long_has_failed(
    redis_url: str, is_async: bool, concurrency: int
) -> None:
    """It fails alone, and its reason says why; calls beside it go on, and are committed up to it."""
    hold = threading.Event()

    async def price(order: Order) -> None:
        if order.number == 5:
            await asyncio.sleep(60)

    def price_in_thread(order: Order) -> None:
        if order.number == 5:
            hold.wait(20)

    async with bench(redis_url) as desk:
        await desk.send(range(10), keys=10)
        function = price if is_async else price_in_thread
        running = await desk.start(desk.spec(function, concurrency=concurrency, timeout=1))
        await running.halts()
        hold.set()
        assert "TimeoutError: the call took longer than 1 s" in running.halted[0]
        assert await desk.committed() == 5


async def test_a_timeout_does_not_count_how_long_other_partitions_keep_the_threads(redis_url: str) -> None:
    """Five of them have one thread, and each call is within its time."""

    def price(_: Order) -> None:
        time.sleep(0.4)

    async with bench(redis_url, partitions=5, handler_threads=1) as desk:
        for partition in range(5):
            await desk.add_raw(b'{"number":1}', partition)
        spec = desk.spec(price, timeout=1.5)
        runners = [await desk.start(spec, partition) for partition in range(5)]
        for partition, running in enumerate(runners):
            await wait_for_async(
                lambda running=running: running.halted or running.runner.commits.records_done,  # type: ignore[misc]
                f"partition {partition} is done or halts",
            )
        assert [running.halted for running in runners] == [[]] * 5


@pytest.mark.parametrize(
    ("returned", "said"),
    [(Priced(1, 1.0), "returned a Priced for a batch"), ([1], "forwarded a int"), ("text", "returned a str")],
)
async def test_a_return_value_of_another_type_is_a_clear_error(
    redis_url: str, returned: object, said: str
) -> None:
    """The reason says what was returned and what should have been. No record is at fault, so none is a dead
    letter: the partition waits for the next deploy.
    """

    async def price(batch: list[Order]) -> list[Priced]:
        return returned  # type: ignore[return-value]

    async with handling(redis_url, price, [1], errors=None) as (desk, running):
        await wait_for_async(lambda: bool(running.states), "it says why it tries again")
        assert said in running.states[0] and "Priced" in running.states[0]
        assert not running.halted and await desk.dead() == []


async def test_a_stream_processor_that_asks_for_nothing_halts(redis_url: str) -> None:
    """Returning without asking for a record would spin for ever; it is a failure instead."""

    async def price(records: Records[Order]) -> None: ...

    async with bench(redis_url) as desk:
        running = await desk.start(desk.spec(price, errors=Retry(attempts=2, then=Skip())))
        assert "without asking for a record" in await running.halts()


async def test_nothing_can_be_forwarded_or_stored_after_the_call(redis_url: str) -> None:
    """A context that outlives its call refuses, instead of losing what it is given."""
    kept: list[Context] = []

    async def price(order: Order, ctx: Context) -> Priced:
        kept.append(ctx)
        return Priced(1, 1.0)

    async with handling(redis_url, price, [1]) as (desk, _):
        await desk.until_committed(1)
        with pytest.raises(Exception, match="after its call was over"):
            kept[0].forward(Priced(2, 1.0))
        with pytest.raises(Exception, match="after the call was over"):
            kept[0].state["a"] = 1


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


# -- groups of errors ---------------------------------------------------------------------------


class Gone(Exception):
    """What the mapping names."""


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_an_error_of_a_task_in_a_call_has_its_own_policy_and_is_named(concurrency: int) -> None:
    """Raised by the task or named by the mapping; not the group that the task group makes of it."""
    app = App("shop")
    orders = app.stream("orders", Order, partitions=1)
    raised = {1: Gone("order 1 is gone"), 2: Skip("not ours"), 3: DeadLetter("unpaid"), 4: ValueError("once")}

    @app.processor(orders, errors={Gone: DeadLetter()}, concurrency=concurrency)
    async def price(order: Order) -> None:
        async def fetch() -> None:
            if error := raised.pop(order.number, None):
                raise error

        async with anyio.create_task_group() as tasks, asyncio.TaskGroup() as inner:
            inner.create_task(fetch())
            tasks.start_soon(anyio.sleep, 0)

    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await orders.send_many([Order(number) for number in range(6)])
            await worker.until_drained()
            letters = [letter.error for letter in await worker.dead_letters(price)]
    assert [letter.partition(" (")[0] for letter in letters] == [
        "Gone: order 1 is gone",
        "DeadLetter: unpaid",
    ]
    [skipped] = [log for log in logs if log["event"] == "record_skipped"]
    assert skipped["error"].startswith("Skip: not ours (test_errors.py:")
    retried = [
        log["error"] for log in logs if log["event"] == "handler_failed" and "ValueError" in log["error"]
    ]
    assert len(retried) == 1 and retried[0].startswith("ValueError: once (test_errors.py:")


async def test_a_timer_whose_task_raises_skip_is_skipped() -> None:
    """As if the function had raised it."""
    app = App("shop")

    @app.timer(every="1 second")
    async def tidy() -> None:
        async def fetch() -> None:
            raise Skip("nothing to do")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fetch())

    with capture_logs() as logs:
        async with local_worker(app):
            await wait_for_async(
                lambda: any(log["event"] == "timer_skipped" for log in logs), "it is skipped"
            )
    assert not [log for log in logs if log["event"] == "timer_failed"]
