"""Timers call a function by time: once in the whole application, or in each partition between batches."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import anyio
import msgspec
import pytest
from redis.asyncio import Redis

from streamworker import App, ConfigurationError, Context
from streamworker.core.data.placement import Placement
from streamworker.redisio.keys import GroupKeys
from streamworker.testing import local_worker
from tests.helpers import PATIENCE_S
from tests.helpers import wait_for_async as until

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    customer: str
    amount: float


async def test_a_timer_runs_once_in_the_whole_application(redis_url: str) -> None:
    """Two workers share the processors; one of them runs each planned time."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=2)
    seen: list[datetime] = []

    @app.processor(orders)
    async def audit(order: Order) -> None: ...

    @app.timer(every=0.1)
    async def sweep(at: datetime) -> None:
        seen.append(at)

    async with local_worker(app, url=redis_url, name="w1"), local_worker(app, url=redis_url, name="w2"):
        await until(lambda: len(seen) >= 5, "five times have come")

    assert seen == sorted(set(seen))
    assert all(at.tzinfo is UTC and at.microsecond % 100_000 == 0 for at in seen), "multiples of the period"


async def test_a_timer_that_is_always_late_holds_up_no_other_timer_and_no_records(redis_url: str) -> None:
    """Its calls take longer than its period, in the app and in the partition."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    seen: list[str] = []

    @app.processor(orders)
    async def audit(order: Order) -> None:
        seen.append("order")

    async def late(at: datetime) -> None:
        await anyio.sleep(0.15)

    async def other(at: datetime) -> None:
        seen.append("timer")

    async def other_of_the_partition(at: datetime) -> None:
        seen.append("partition's")

    app.timer(every=0.1)(late)
    app.timer(every=0.1)(other)
    audit.timer(every=0.1)(late)
    audit.timer(every=0.1)(other_of_the_partition)

    async with local_worker(app, url=redis_url):
        await until(lambda: {"timer", "partition's"} <= {*seen}, "both have run at their deploy")
        for count in range(1, 4):
            await orders.send(Order("ann", 1.0))
            more = {"timer": count + 1, "partition's": count + 1, "order": count}
            await until(lambda: all(seen.count(what) >= n for what, n in more.items()), "all go on")  # noqa: B023


async def test_an_application_may_have_timers_alone(redis_url: str) -> None:
    app = App("shop", redis_url=redis_url)
    seen: list[str] = []

    @app.resource
    async def mail() -> AsyncIterator[list[str]]:
        yield seen

    @app.middleware
    async def note(ctx: Context) -> AsyncIterator[None]:
        seen.append(f"before {ctx.processor}")
        yield

    @app.cron("* * * * * *", tz="Europe/Paris")
    def tick(at: datetime, ctx: Context, mail: list[str]) -> None:
        mail.append(f"{at:%z} {ctx.partition}")

    async with local_worker(app, url=redis_url):
        await until(lambda: len(seen) >= 2, "a second has come")

    assert seen[:2] in (["before timers", "+0100 0"], ["before timers", "+0200 0"])


@pytest.mark.parametrize("codec", ["json", "arrow"])
async def test_a_timer_of_a_processor_runs_in_each_partition_with_its_state_and_tables(
    redis_url: str, codec: Literal["json", "arrow"]
) -> None:
    """What it stores and takes away is committed as by a batch, and what batches stored is there."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=4, codec=codec)
    sums = app.table("sums", float)
    customers = [f"customer-{n}" for n in range(200)]
    told: dict[int, float] = {}
    flushed: dict[str, float] = {}

    @app.processor(orders, batch=50, tables=[sums])
    async def sum_up(batch: list[Order], ctx: Context) -> None:
        ctx.state["sum"] = ctx.state.get("sum", 0.0) + sum(order.amount for order in batch)
        known = await sums.get_many({order.customer for order in batch})
        for order in batch:
            known[order.customer] = known.get(order.customer, 0.0) + order.amount
        sums.set_many(known)

    @sum_up.timer(every=0.1)
    async def flush(ctx: Context) -> None:
        told[ctx.partition] = told.get(ctx.partition, 0.0) + ctx.state.pop("sum", 0.0)
        assert list(ctx.state) == [], "nothing of the timer's own is in the state"
        mine = [name for name in customers if Placement(4).partition_of(name.encode()) == ctx.partition]
        for customer, total in (await sums.get_many(mine)).items():
            flushed[customer] = flushed.get(customer, 0.0) + total
            sums.delete(customer)

    async with local_worker(app, url=redis_url) as worker:
        for _ in range(10):
            await orders.send_many([Order(customer, 1.0) for customer in customers])
        await worker.until_drained()
        await until(lambda: sum(told.values()) == 2_000, "all is flushed")
        await until(lambda: flushed == dict.fromkeys(customers, 10.0), "all is flushed from the table")

        async def is_empty() -> bool:
            return await sums.count() == 0

        await until(is_empty, "the flush is committed")

    assert set(told) == {0, 1, 2, 3}


async def test_a_batch_does_not_go_on_from_a_call_that_redis_has_lost(emptied: str) -> None:
    """A failover may lose the call of a timer alone: it moves no checkpoint, and the last one is there."""
    app = App("shop", redis_url=emptied)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    flushes = False

    @app.processor(orders)
    async def sum_up(order: Order, ctx: Context) -> None:
        ctx.state["sum"] = ctx.state.get("sum", 0.0) + order.amount

    @sum_up.timer(every=0.5)
    async def flush(ctx: Context) -> None:
        if flushes:
            ctx.state["flushed"] = ctx.state.get("flushed", 0.0) + ctx.state.pop("sum", 0.0)

    state = GroupKeys("shop", "orders", "sum_up").state(0)
    async with local_worker(app, url=emptied) as worker:
        raw: Any = Redis.from_url(emptied)
        await orders.send(Order("ann", 1.0))
        await worker.until_drained()
        before, flushes = await raw.hgetall(state), True
        with anyio.fail_after(PATIENCE_S):
            while not await raw.hexists(state, "flushed"):
                await anyio.sleep(0.01)
        async with raw.pipeline() as pipe:
            await pipe.delete(state).hset(state, mapping=before).execute()
        await orders.send(Order("ann", 1.0))
        await worker.until_drained()
        found = await raw.hmget(state, "sum", "flushed")
        await raw.aclose()
    assert sum(msgspec.msgpack.decode(value) for value in found if value) == 2


async def test_a_timer_that_waits_for_the_backlog_runs_under_constant_load(redis_url: str) -> None:
    """It has seen what was sent before its time. What comes later does not count, so it need not be empty."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    sent, seen = dict[float, datetime](), set[float]()
    calls: list[tuple[datetime, set[float]]] = []

    @app.processor(orders)
    async def audit(order: Order, ctx: Context) -> None:
        if len(calls) < 4:  # While one is handled, another waits.
            number = order.amount + 20
            await orders.send(Order("ann", number))
            sent[number] = datetime.now(UTC)
        seen.add(order.amount)

    @audit.timer(every=0.1, when="caught up")
    async def tell(at: datetime) -> None:
        calls.append((at, {number for number, done in sent.items() if done < at} - seen))

    async with local_worker(app, url=redis_url) as worker:
        await orders.send_many([Order("ann", number) for number in range(20)])
        await until(lambda: len(calls) >= 4, "it has run")
        await worker.until_drained()
    assert [missing for _, missing in calls] == [set()] * len(calls)
    times = [at for at, _ in calls]
    assert times == sorted(set(times))


async def test_a_timer_that_fails_is_called_again_and_stores_nothing_before(redis_url: str) -> None:
    """Meanwhile batches go on, and the partition says what fails."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    calls: list[datetime] = []
    healed = False

    @app.processor(orders)
    async def audit(order: Order) -> None: ...

    @audit.timer(every=0.1)
    async def report(at: datetime, ctx: Context) -> None:
        calls.append(at)
        ctx.state["reports"] = ctx.state.get("reports", 0) + 1
        if not healed:
            raise ConnectionError("the mail server is away")
        assert ctx.state["reports"] == 1 or len(calls) > 4

    async with local_worker(app, url=redis_url) as worker:
        await until(lambda: len(calls) >= 2, "it was tried twice")
        await orders.send(Order("ann", 1.0))
        await worker.until_drained()
        now = await worker.until(lambda now: bool(now.processors["audit"].partitions[0].reason))
        assert "timer report fails" in now.processors["audit"].partitions[0].reason
        healed, failed = True, len(calls)
        await until(lambda: len(calls) > failed + 1, "it runs again")
        await worker.until(lambda now: not now.processors["audit"].partitions[0].reason)


def test_what_cannot_be_called_by_time_is_refused_at_import() -> None:
    app = App("shop")
    orders = app.stream("orders", Order, key="customer")

    @app.processor(orders, concurrency=4)
    async def price(order: Order) -> None: ...

    with pytest.raises(ConfigurationError, match="Processor 'price' takes Records or has concurrency"):

        @price.timer(every="1 hour")
        async def flush(ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match="Timer 'sweep' takes `at: Order`, which nothing fills"):

        @app.timer(every="1 hour")
        async def sweep(at: Order) -> None: ...

    with pytest.raises(ConfigurationError, match="Timer 'clean' takes `when: int`, which nothing fills"):

        @app.timer(every="1 hour")
        async def clean(at: datetime, when: int) -> None: ...

    @app.processor(orders)
    async def audit(order: Order) -> None: ...

    @app.timer(every="1 hour")
    async def mop() -> None: ...

    with pytest.raises(ConfigurationError, match="App 'shop' has two timers named 'mop'"):
        app.timer(every="1 hour")(mop)

    async def rinse() -> None: ...

    wrong: Any
    for wrong in ("empty", True, ["caught up"]):
        with pytest.raises(ConfigurationError, match="Timer 'rinse' has when="):
            audit.timer(every="1 hour", when=wrong)(rinse)


class Alert(msgspec.Struct):
    customer: str
    count: int


async def test_what_a_timer_returns_goes_to_a_stream_once(redis_url: str) -> None:
    """From the timer of an app and from that of a partition; a call that fails sends nothing."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=2)
    alerts = app.stream("alerts", Alert, key="customer", partitions=3)
    failures: list[str] = []

    @app.processor(orders)
    async def audit(order: Order, ctx: Context) -> None:
        ctx.state["count"] = ctx.state.get("count", 0) + 1

    @audit.timer(every=0.1, into=alerts)
    async def flush(ctx: Context) -> Alert | None:
        count = ctx.state.pop("count", 0)
        return Alert(f"partition-{ctx.partition}", count) if count else None

    @app.timer(every=0.1, into=alerts)
    async def greet(at: datetime, ctx: Context) -> list[Alert]:
        if ctx.state.get("greeted"):
            return []
        ctx.state["greeted"] = True
        ctx.send(alerts, Alert("bob", 0))
        failures.append("once")
        if len(failures) < 2:
            raise ConnectionError("not yet")
        return [Alert("ann", n) for n in range(3)]

    @app.processor(alerts)
    async def tell(alert: Alert) -> None: ...

    async with local_worker(app, url=redis_url) as worker:
        await orders.send_many([Order(f"customer-{n}", 1.0) for n in range(100)])

        async def told() -> bool:
            sent = await worker.sent(alerts)
            return sum(alert.count for alert in sent) == 100 + 3 and len(sent) >= 4

        await until(told, "all is sent")
        sent = await worker.sent(alerts)
    assert [alert.count for alert in sent if alert.customer == "ann"] == [0, 1, 2]
    assert [alert.count for alert in sent if alert.customer == "bob"] == [0]
    assert {alert.customer for alert in sent} == {"ann", "bob", "partition-0", "partition-1"}


async def test_a_call_that_is_asked_for_moves_no_planned_time(redis_url: str) -> None:
    """On a timer that was never deployed before, at a time long ago and at one to come, and if it fails."""
    app = App("shop", redis_url=redis_url)
    seen: list[datetime] = []

    @app.timer(every="1 day", missed="once")
    async def report(at: datetime) -> None:
        seen.append(at)
        if len(seen) == 1:
            raise ConnectionError("not yet")

    past, future = (datetime(year, 11, 2, 5, 0, tzinfo=UTC) for year in (2020, 2050))
    async with local_worker(app, url=redis_url) as worker:
        await worker.run(report, at=past)
        await worker.run(report, at=future)
    assert seen == [past, past, future]


async def test_a_call_asked_for_while_one_runs_is_made_after_it(redis_url: str) -> None:
    """What began before the order does not count as its call."""
    app = App("shop", redis_url=redis_url)
    seen: list[datetime] = []
    go_on = anyio.Event()

    @app.timer(every="1 day", missed="once")
    async def report(at: datetime) -> None:
        seen.append(at)
        await go_on.wait()

    first, second = (datetime(year, 11, 2, 5, 0, tzinfo=UTC) for year in (2050, 2020))
    state, order = "sw:{shop.streamworker-timers.0}:state:timers", f"\0run:report/{second.timestamp():.0f}000"
    async with local_worker(app, url=redis_url) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(worker.run, report, at=first))
        await until(lambda: seen, "the first call has begun")
        tasks.start_soon(partial(worker.run, report, at=second))
        await until(lambda: worker._backend.execute("HEXISTS", state, order), "the second was asked for")
        go_on.set()
    assert seen == [first, second]
