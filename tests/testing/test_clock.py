"""With a virtual clock a test waits for nothing, and what depends on time happens in its order."""

import asyncio
import time
from datetime import datetime
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pyarrow as pa
import pytest

from streamworker import App, Context
from streamworker.core.data.entries import EntryId
from streamworker.core.time.schedules import When
from streamworker.errors import ConfigurationError
from streamworker.testing import MemoryServer, local_worker

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    """What is sent."""

    customer: str
    number: int


def _shop(**settings: Any) -> tuple[App, Any]:
    app = App("shop", **settings)
    return app, app.stream("orders", Order, key="customer", partitions=2)


async def test_minutes_pass_in_moments_and_what_is_due_happens_in_between() -> None:
    """By the clocks of the event loop, of the server and of the worker alike."""
    app, orders = _shop()
    seen: list[tuple[float, datetime]] = []

    @app.processor(orders)
    async def take(order: Order, ctx: Context) -> None:
        await anyio.sleep(60 * order.number)
        seen.append((ctx.elapsed, ctx.timestamp))

    began_s = time.monotonic()
    async with local_worker(app, clock="virtual") as worker:
        at_s = asyncio.get_running_loop().time()
        await orders.send(Order("ann", 5))
        await worker.advance("10 minutes")
        await orders.send(Order("ann", 1))
        await worker.until_drained()
        assert asyncio.get_running_loop().time() - at_s == pytest.approx(660, abs=5)
    assert time.monotonic() - began_s < 30
    assert [elapsed for elapsed, _ in seen] == pytest.approx([300, 60], abs=0.1)
    assert (seen[1][1] - seen[0][1]).total_seconds() == pytest.approx(600, abs=1)


async def test_time_stands_still_while_something_runs() -> None:
    """A call that computes, and functions in threads, however they came there."""
    app, orders = _shop()
    elapsed: dict[str, float] = {}

    @app.processor(orders)
    async def compute(order: Order, ctx: Context) -> None:
        time.sleep(0.05)
        elapsed["compute"] = ctx.elapsed

    @app.processor(orders)
    def block(order: Order, ctx: Context) -> None:
        time.sleep(0.05)
        elapsed["block"] = ctx.elapsed

    @app.processor(orders)
    async def hand_on(order: Order, ctx: Context) -> None:
        await asyncio.to_thread(time.sleep, 0.05)
        await anyio.to_thread.run_sync(time.sleep, 0.05)
        elapsed["hand_on"] = ctx.elapsed

    async with local_worker(app, clock="virtual") as worker:
        at_s = asyncio.get_running_loop().time()
        await orders.send(Order("ann", 1))
        await worker.until(lambda now: now.processors["hand_on"].committed == 1)
        await worker.until_drained()
        assert asyncio.get_running_loop().time() - at_s < 1
    assert elapsed == {"compute": 0, "block": 0, "hand_on": 0}


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("when", [None, "caught up"])
async def test_a_timer_that_waits_for_the_backlog_sees_what_was_sent_before_its_time(
    when: When | None, batch: int | None
) -> None:
    """Eight sessions prove that they live while the partition is busy; without waiting they are closed."""
    app = App("shop")
    seen = app.stream("seen", Order, key="customer", partitions=1)
    ended: list[tuple[str, datetime]] = []

    async def one(order: Order, ctx: Context) -> None:
        await anyio.sleep(order.number)
        ctx.state[order.customer] = ctx.timestamp.timestamp()

    async def many(orders: list[Order], ctx: Context) -> None:
        for order in orders:
            await one(order, ctx)

    take = app.processor(seen, batch=batch, name="take")(many if batch else one)

    @take.timer(every="5 seconds", when=when)
    async def close(at: datetime, ctx: Context) -> None:
        for customer, last in list(ctx.state.items()):
            if at.timestamp() - last > 60:
                ended.append((customer, at))
                del ctx.state[customer]

    customers = [f"customer-{n}" for n in range(8)]
    async with local_worker(app, clock="virtual") as worker:
        await seen.send_many([Order(customer, 0) for customer in customers])
        await worker.advance("58 seconds")
        await seen.send_many([Order("slow", 15), *(Order(customer, 0) for customer in customers)])
        await worker.advance("20 seconds")
        early = len(ended)
        await worker.advance("70 seconds")
    first = [at for customer, at in ended if customer != "slow"]
    assert bool(early) == (when is None)
    assert len(first) == early + 8, "each is closed in the end"
    assert all(at.second % 5 == at.microsecond == 0 for at in first), "at a planned time"


async def test_a_condition_is_looked_at_before_time_moves_on() -> None:
    """What lasts for a second of a minute is seen."""
    app, orders = _shop()
    is_open = False

    @app.processor(orders)
    async def take(order: Order) -> None:
        nonlocal is_open
        await anyio.sleep(10)
        is_open = True
        await anyio.sleep(1)
        is_open = False
        await anyio.sleep(60)

    async with local_worker(app, clock="virtual") as worker:
        at_s = asyncio.get_running_loop().time()
        await orders.send(Order("ann", 1))
        await worker.until(lambda _: is_open)
        assert asyncio.get_running_loop().time() - at_s == pytest.approx(10, abs=0.5)
        await worker.until_drained()


async def test_a_call_may_wait_for_a_real_socket() -> None:
    """Its deadline does not pass meanwhile."""
    app, orders = _shop()
    answers: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        await asyncio.to_thread(time.sleep, 0.05)
        writer.write(b"2.50\n")
        await writer.drain()
        writer.close()

    @app.processor(orders)
    async def ask(order: Order) -> None:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"tea\n")
            answers.append(await reader.readline())
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with local_worker(app, clock="virtual") as worker:
            await orders.send(Order("ann", 1))
            await worker.until_drained()
    assert answers == [b"2.50\n"]


async def test_the_server_of_an_app_lives_until_its_last_block_ends() -> None:
    """The first may end before."""
    app, orders = _shop()
    before = app.settings

    @app.processor(orders)
    async def take(order: Order) -> Order:
        return order

    is_second_there, is_first_over = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with local_worker(app, clock="virtual"):
            await orders.send(Order("ann", 1))
            await is_second_there.wait()
        is_first_over.set()

    async def second() -> None:
        async with local_worker(app, clock="virtual") as worker:
            is_second_there.set()
            await is_first_over.wait()
            await orders.send(Order("ann", 2))
            await worker.until_drained()
            assert [row["number"] for row in await worker.rows(take)] == [1, 2]

    await asyncio.gather(first(), second())
    assert app.settings is before


async def test_what_is_due_after_the_block_stays_due_after_the_same_time() -> None:
    """A test may go on with the real clock."""
    app, orders = _shop()

    @app.processor(orders)
    async def take(order: Order) -> None: ...

    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    async with local_worker(app, clock="virtual") as worker:
        await worker.advance("10 minutes")
        loop.call_later(0.05, rung.set)
    began_s = time.monotonic()
    await rung.wait()
    assert time.monotonic() - began_s < 10
    began_s, at_s = time.monotonic(), loop.time()
    await asyncio.sleep(0.05)
    assert loop.time() - at_s >= 0.05
    assert time.monotonic() - began_s >= 0.05


async def test_a_virtual_clock_is_refused_where_it_cannot_be_the_only_one() -> None:
    """On a real server, and beside a worker with another clock."""
    app, orders = _shop()

    @app.processor(orders)
    async def take(order: Order) -> None: ...

    with pytest.raises(ConfigurationError, match="Leave out url= or clock="):
        async with local_worker(app, url="redis://localhost:1/0", clock="virtual"):
            pass
    async with local_worker(app) as worker:
        with pytest.raises(ConfigurationError, match="The clock of this worker is real"):
            await worker.advance(1)
        with pytest.raises(ConfigurationError, match="The clock of the block around this one is not virtual"):
            async with local_worker(app, clock="virtual"):
                pass
    with MemoryServer() as server:
        async with local_worker(app, url=server.url, clock="virtual") as worker:
            with pytest.raises(TimeoutError, match=r"Waited 0\.1 s in vain"):
                await worker.until(lambda _: False, timeout=0.1)


async def test_tables_that_are_sent_while_the_clock_stands_still_have_ids_of_that_time() -> None:
    """Each is a millisecond behind the one before, however many there are."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=1, codec="arrow")
    seen: list[EntryId] = []

    @app.processor(orders)
    async def take(order: Order, ctx: Context) -> None:
        seen.append(ctx.entry_id)

    rows = pa.table({"customer": ["ann"] * 7, "number": list(range(7))})
    async with local_worker(app, clock="virtual") as worker:
        for _ in range(200):
            assert await orders.send_table(rows) == 7
        await worker.until_drained()
    assert len(seen) == len(set(seen)) == 1400
    assert seen == sorted(seen)
    assert seen[-1].ms - seen[0].ms < 10_000


async def test_a_timer_is_run_twice_while_the_clock_stands_still() -> None:
    """The second call leaves another mark than the first, so that it is committed."""
    app = App("shop")
    calls: list[datetime] = []

    @app.timer(every="1 hour")
    async def report(at: datetime) -> None:
        calls.append(at)

    async with local_worker(app, clock="virtual") as worker:
        for _ in range(3):
            await worker.run(report)
    assert len(calls) == 3
