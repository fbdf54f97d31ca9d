"""What becomes of records whose handling fails: halted, dead-lettered or skipped, never lost silently."""

import asyncio
import threading
import time

import anyio
import pytest

from streamworker import Retry, Skip
from streamworker.context import Context
from streamworker.feed import Records
from streamworker.runtime.run.runner import StopReason
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
    """The reason says what was returned and what should have been."""

    async def price(batch: list[Order]) -> list[Priced]:
        return returned  # type: ignore[return-value]

    async with handling(redis_url, price, [1]) as (_, running):
        assert said in await running.halts() and "Priced" in running.halted[0]


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
