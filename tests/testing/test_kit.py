"""The users' test kit does the same on the server in memory and on a real one."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import anyio
import msgspec
import pytest

from streamworker import App, Context, Halt, Processor, Stream
from streamworker.errors import ConfigurationError
from streamworker.redisio.wire.client import Backend
from streamworker.testing import Snapshot, fake_context, local_worker
from streamworker.testing.memory import is_in_memory
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio

QUICK: dict[str, Any] = {"heartbeat_interval_ms": 100, "dead_after_ms": 300}
"""Settings with which a group misses a dead member soon."""


class Order(msgspec.Struct):
    """What is sent."""

    customer: str
    amount: int


class Total(msgspec.Struct):
    """What is forwarded."""

    customer: str
    total: int


async def test_after_a_kill_the_next_worker_counts_each_record_once(url: str) -> None:
    """Nothing is handed over: the batch in hand runs again, what was committed does not. By a virtual clock
    the dead worker is missed after its time, although nobody waits for it.
    """
    app = App("shop", **QUICK)
    clock: Literal["virtual", "real"] = "virtual" if is_in_memory(url) else "real"
    orders = app.stream("orders", Order, key="customer", partitions=2)
    calls, is_killed = 0, anyio.Event()

    @app.processor(orders, batch=10)
    async def sum_up(batch: list[Order], ctx: Context) -> list[Total]:
        nonlocal calls
        calls += 1
        for order in batch:
            ctx.state[order.customer] = ctx.state.get(order.customer, 0) + order.amount
        if calls > 10:  # However late somebody looks, there is something left.
            await is_killed.wait()
        return [Total(order.customer, ctx.state[order.customer]) for order in batch]

    async with local_worker(app, url=url, clock=clock, name="first") as first:
        await orders.send_many(Order(f"c{n % 7}", 1) for n in range(400))
        seen = await first.until(lambda now: now.processors["sum_up"].committed >= 40)
        await first.kill()
        is_killed.set()
        assert seen.processors["sum_up"].lag > 0
        async with local_worker(app, url=url, clock=clock, name="second") as second:
            dead = await second.snapshot()
            assert {view.owner for view in dead.processors["sum_up"].partitions} != {None}, "nobody released"
            await second.until_drained()
            rows = await second.rows(sum_up)
    latest = {row["customer"]: row["total"] for row in rows}
    assert sum(latest.values()) == 400
    assert len(rows) == 400


async def test_what_was_sent_is_shown_as_records_in_its_order(url: str) -> None:
    """Over all partitions; columns are no records."""
    app = App("shop")
    columns = app.stream("columns", Order, codec="arrow")
    orders = app.stream("orders", Order, key="customer", partitions=4)

    @app.processor(orders)
    async def take(order: Order) -> None: ...

    sent = [Order(f"c{n % 5}", n) for n in range(20)]
    async with local_worker(app, url=url) as worker:
        for order in sent:
            await orders.send(order)
            await anyio.sleep(0.002)  # Ids of two partitions differ by the clock of the server.
        assert await worker.sent(orders) == sent
        with pytest.raises(ConfigurationError, match="are columns"):
            await worker.sent(columns)


async def test_a_wait_in_vain_says_what_was_seen_last(url: str) -> None:
    """How far each processor was, and which of its partitions halted."""
    app = App("shop")
    orders = app.stream("orders", Order, partitions=1)

    @app.processor(orders, errors=Halt())
    async def book(order: Order) -> None:
        if order.amount < 0:
            raise ValueError("a negative amount")

    @app.processor(orders)
    async def audit(order: Order) -> None: ...

    def all_done_and_halted(now: Snapshot) -> bool:
        return now.processors["audit"].lag == 0 and now.processors["book"].partitions[0].state == "halted"

    async with local_worker(app, url=url) as worker:
        await orders.send_many([Order("ann", 1), Order("ann", -1)])
        await worker.until(all_done_and_halted)
        with pytest.raises(TimeoutError) as raised:
            await worker.until(lambda now: False, timeout=2)
        assert str(raised.value) == (
            "Waited 2 s in vain. Last seen: 'book' had committed 1 of 2 entries, partition 0 halted; "
            "'audit' had committed 2 of 2 entries."
        )


READ = ("XREAD", "COUNT", 10, "BLOCK", 60_000, "STREAMS", "entries", "0-0")


async def test_a_read_that_waits_ends_with_its_time_by_a_word_by_a_cancel_and_by_an_entry(url: str) -> None:
    """Of another thread, as a thread with an event loop of its own sends to a worker. And the connection can
    be used again after each.
    """

    async def add() -> None:
        async with Backend.open(url, name="writer") as writer:
            await writer.execute("XADD", "entries", "1-0", "v", "x")

    async with Backend.open(url, name="reader") as backend:
        connection = backend.blocking()

        async def waiting() -> "asyncio.Future[Any]":
            read = asyncio.ensure_future(connection.execute(*READ, block_ms=60_000))
            await wait_for_async(lambda: is_blocked(backend), "it waits")
            return read

        brief = (*READ[:4], 10, *READ[5:])
        assert await connection.execute(*brief, block_ms=10) is None
        read = await waiting()
        await connection.unblock()
        assert await read is None
        read = await waiting()
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        read = await waiting()
        thread = threading.Thread(target=asyncio.run, args=(add(),))
        thread.start()
        assert await read == [[b"entries", [[b"1-0", [b"v", b"x"]]]]]
        await asyncio.to_thread(thread.join)
        await connection.aclose()


async def is_blocked(backend: Backend) -> bool:
    """Whether a connection to the server reads and waits."""
    return b"blocked_clients:1\r\n" in await backend.execute("INFO")


class Balance(msgspec.Struct):
    """What a table holds."""

    amount: int = 0


def _bank() -> tuple[App, Any, Any, Processor[..., Any]]:
    app = App("bank")
    orders = app.stream("orders", Order, key="customer", partitions=4)
    balances = app.table("balances", Balance, ttl="30 days")

    @app.processor(orders, batch=10, tables=[balances])
    async def add(batch: list[Order], ctx: Context) -> list[Total]:
        known = await balances.get_many({order.customer for order in batch})
        for order in batch:
            balance = known.setdefault(order.customer, Balance())
            balance.amount += order.amount
            ctx.forward(Total(order.customer, balance.amount))
        balances.set_many(known)
        ctx.log.info("added", orders=len(batch))
        return []

    return app, orders, balances, add


async def test_a_call_by_hand_has_a_context_and_tables_without_a_worker() -> None:
    """With keys of any partition; outside of the block the table refuses writes as ever."""
    _, _, balances, add = _bank()
    with fake_context(add, partition=2, key="ann", headers={"trace": "4bf92f"}) as ctx:
        ctx.put(balances, {"ann": Balance(5), "bob": Balance(7)})
        assert await add([Order("ann", 1), Order("ann", 2), Order("zoe", 4)], ctx) == []
        assert ctx.table(balances) == {"ann": Balance(8), "bob": Balance(7), "zoe": Balance(4)}
        assert ctx.forwarded == [Total("ann", 6), Total("ann", 8), Total("zoe", 4)]
        balances.delete("bob")
        assert "bob" not in ctx.table(balances)
        assert (ctx.app, ctx.processor, ctx.partition, ctx.key) == ("bank", "add", 2, "ann")
        assert (ctx.header("trace"), ctx.count, ctx.attempt) == ("4bf92f", 1, 1)
        assert 0 <= ctx.elapsed < 60
        assert ctx.timestamp.year >= 2026
    with pytest.raises(ConfigurationError, match="outside of a call"):
        balances.set("ann", Balance(1))


async def test_a_call_by_hand_shows_what_was_sent_and_set_aside() -> None:
    """Beside what it forwards."""
    app = App("bank")
    orders, alerts = app.stream("orders", Order, partitions=2), app.stream("alerts", Order, partitions=1)

    @app.processor(orders)
    async def check(order: Order, ctx: Context) -> Order | None:
        if order.amount < 0:
            ctx.dead_letter(order, "below nothing")
        elif order.amount == 0:
            ctx.skip(order)
        else:
            ctx.send(alerts, order)
            ctx.forward(order)
        return None

    with fake_context(check, partition=1) as ctx:
        for amount in (-1, 0, 1):
            await check(Order("ann", amount), ctx)
        assert [record.amount for record, _ in ctx.set_aside] == [-1, 0]
        assert repr(ctx.set_aside[0][1]) == "DeadLetter('below nothing')"
        assert ctx.sent(alerts) == ctx.forwarded == [Order("ann", 1)]
        assert ctx.sent(orders) == []
    with pytest.raises(ConfigurationError, match="'orders' has no partition 2"):
        fake_context(check, partition=2)


def _reminding() -> tuple[App, Stream[Order], Stream[Order], Processor[..., Any]]:
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=2)
    reminders = app.stream("reminders", Order, key="customer", partitions=2)

    @app.processor(orders, forward=False)
    async def remind(order: Order) -> None:
        if order.amount:
            await reminders.schedule(order, id="pay", after=f"{order.amount} days", replace=True)
        else:
            await reminders.cancel("pay", key=order.customer)

    return app, orders, reminders, remind


async def test_a_call_by_hand_schedules_and_cancels_without_a_server() -> None:
    """With the refusals of life, and for each block by itself."""
    _, _, reminders, remind = _reminding()
    for _ in range(2):
        with fake_context(remind) as ctx:
            for amount, customer in ((2, "ann"), (1, "bob"), (1, "zoe"), (0, "bob")):
                await remind(Order(customer, amount))
            zoe, ann = await ctx.scheduled(reminders)
            assert (zoe.record, zoe.id, ann.record) == (Order("zoe", 1), "pay", Order("ann", 2))
            assert zoe.due < ann.due
            with pytest.raises(ConfigurationError, match="-1 days"):
                await remind(Order("ann", -1))


async def test_a_test_sees_what_waits_until_it_is_due(url: str) -> None:
    """And a call by hand in the block of a worker shares its server, and its clock."""
    app, orders, reminders, remind = _reminding()
    async with local_worker(app, url=url, clock="virtual" if is_in_memory(url) else "real") as worker:
        await orders.send(Order("ann", 3))
        await worker.until_drained()
        with fake_context(remind) as ctx:
            await remind(Order("bob", 1))
            assert [each.record.customer for each in await ctx.scheduled(reminders)] == ["bob", "ann"]
        [bob, ann] = await worker.scheduled(reminders)
        assert ann.due - bob.due >= timedelta(days=1, hours=23)
        assert await worker.sent(reminders) == []


async def test_a_test_sets_what_a_table_holds_before_the_first_record(url: str) -> None:
    """It is read, expires and is counted as what the processor has written."""
    app, orders, balances, add = _bank()
    async with local_worker(app, url=url) as worker:
        await worker.put(balances, {f"c{n}": Balance(n) for n in range(9)})
        assert await balances.count() == 9
        await orders.send(Order("c7", 3))
        await worker.until_drained()
        assert await worker.rows(add) == [{"customer": "c7", "total": 10}]
        assert await balances.get("c7") == Balance(10)
        assert {key async for key, _ in balances.scan()} == {f"c{n}" for n in range(9)}


async def test_what_a_test_asks_for_in_vain_is_named(url: str) -> None:
    """A timer that fails, with its error; what is no timer; and rows of which no log is kept."""
    app, orders, _, add = _bank()

    @app.cron("0 6 * * mon")
    async def report() -> None:
        raise RuntimeError("no printer")

    @app.processor(orders, forward=False)
    async def look(order: Order) -> None:
        pass

    async with local_worker(app, url=url) as worker:
        with pytest.raises(TimeoutError, match=r"timer report fails, attempt .*RuntimeError: no printer"):
            await worker.run(report, timeout=3)
        for other in (add, "report"):
            with pytest.raises(ConfigurationError, match="names no timer of the app"):
                await worker.run(other)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="has no zone"):
            await worker.run(report, at=datetime(2026, 11, 2))  # noqa: DTZ001
        with pytest.raises(ConfigurationError, match="'look' keeps no log of its rows"):
            await worker.rows(look)


async def test_a_timer_runs_when_a_test_says_so(url: str) -> None:
    """With the planned time that the test names; in each partition, if it is a processor's."""
    app, orders, balances, add = _bank()
    times: list[datetime] = []
    partitions: set[int] = set()

    @app.cron("0 6 * * mon")
    async def report(at: datetime) -> None:
        times.append(at)

    @add.timer(every="7 days")
    async def count(ctx: Context) -> None:
        partitions.add(ctx.partition)
        assert await balances.count(partition=ctx.partition) in (0, 1)

    async with local_worker(app, url=url) as worker:
        await worker.put(balances, {"ann": Balance(1)})
        await worker.run(report, at=datetime(2026, 11, 2, 6, tzinfo=UTC))
        await worker.run(count)
        await worker.run(report, at=datetime(2026, 11, 9, 6, tzinfo=UTC))
    assert times == [datetime(2026, 11, 2, 6, tzinfo=UTC), datetime(2026, 11, 9, 6, tzinfo=UTC)]
    assert partitions == set(range(4))
    assert orders.spec.placement.total == 4
