"""Windows that overlap, that tell changes, whose functions fail, and that two workers share."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest

from streamworker import App, Context, DeadLetter, Halt, Retry, Skip, Window
from streamworker.core.policies import Errors
from streamworker.declaring.stream import Stream
from streamworker.declaring.windows import Sessions
from streamworker.redisio.data.dead import list_dead
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from tests.helpers import is_halted, until_shown, wait_for_async
from tests.raw import opened
from tests.runtime.test_grown_groups import grow
from tests.runtime.windowed import DAY, Hourly, Order, Shop, add, at

pytestmark = pytest.mark.anyio


class Ride(msgspec.Struct):
    start: str
    line: int
    at: datetime


class Visit(msgspec.Struct):
    customer: str
    orders: list[int] = []


async def test_a_record_counts_in_each_of_its_windows_that_is_open() -> None:
    """Of windows that overlap those that are over stay as they were told. It is late if all are over."""
    shop = Shop(every="1 hour", step="20 minutes", late="0 seconds", idle="never")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"), ("bob", "10:45"), ("ann", "10:15", 2))
        await worker.until_drained()
        assert await shop.errors(worker) == []
        await shop.send(("bob", "11:15"), ("ann", "10:15", 4))
        await worker.until_drained()
        [error] = await shop.errors(worker)
        assert "late by 15 minutes" in error
        await worker.event_time(shop.per_hour, at("13:00"))
        rows = [row for row in await shop.rows(worker) if row[0] == "ann"]
    assert rows == [("ann", "09:20", 1), ("ann", "09:40", 1), ("ann", "10:00", 3)]


async def test_a_record_that_is_a_total_does_not_change_in_other_windows() -> None:
    """The function may return the record as the first total, and change it afterwards."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=1)
    told = app.stream("told", Order, key="customer", partitions=1, retention="1 day")

    @app.window(orders, every="1 hour", step="20 minutes", by="placed_at", late="0 seconds", into=told)
    def sums(total: Order | None, order: Order, window: Window) -> Order:
        if total is None:
            return order
        total.amount += order.amount
        return total

    async with local_worker(app, clock="virtual") as worker:
        await orders.send_many(
            [Order("ann", at("10:05"), 1), Order("ann", at("10:25"), 2), Order("ann", at("10:30"), 4)]
        )
        await worker.event_time(sums, at("13:00"))
        assert [each.amount for each in await worker.sent(told)] == [1, 7, 7, 6]


async def test_changes_are_told_once_a_batch_and_not_at_the_close() -> None:
    """The last row of a window is its total; late records of the batch tell nothing."""
    shop = Shop(emit="changes", batch=4, within="1 second", idle="never")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"), ("bob", "10:05"), ("ann", "10:06", 2), ("ann", "11:00", 4))
        await worker.until_drained()
        first = [("ann", "10:00", 3), ("bob", "10:00", 1), ("ann", "11:00", 4)]
        assert await shop.rows(worker) == first
        await shop.send(("ann", "10:07", 8), ("ann", "11:30"), ("ann", "10:08"), ("bob", "11:30"))
        await worker.until_drained()
        second = [("ann", "10:00", 11), ("ann", "11:00", 5), ("bob", "11:00", 1)]
        assert await shop.rows(worker) == first + second
        assert len(await shop.errors(worker)) == 1
        await worker.event_time(shop.per_hour, at("13:00"))
        assert await shop.per_hour.open.count() == 0
        assert await shop.rows(worker) == first + second


async def test_a_time_counts_in_the_window_that_holds_it_to_the_microsecond() -> None:
    """Half a millisecond before the hour is before the hour."""
    shop = Shop()
    async with local_worker(shop.app, clock="virtual") as worker:
        for day in ("1969-11-28", DAY):
            await shop.send(("ann", "10:59:59.999600"), ("ann", "11:00:00.000400"), day=day)
        await worker.event_time(shop.per_hour, at("13:00"))
        assert await shop.rows(worker) == [("ann", "10:00", 1), ("ann", "11:00", 1)] * 2


async def test_a_record_without_a_time_or_a_key_is_a_dead_letter_that_says_so() -> None:
    """It moves no event time, and the records beside it count. Only ``by=`` can give such a time here."""
    naive = at("23:00").replace(tzinfo=None)
    first = datetime(1, 1, 1, tzinfo=UTC)  # what Go and .NET mean by none
    shop = Shop(by=lambda order: {1: order.placed_at, 2: naive, 3: None, 4: first}[order.amount])
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "23:00", 2), ("ann", "23:00", 3), ("ann", "23:00", 4), ("ann", "10:05"))
        await shop.orders.send(Order(None, at("23:00")))
        await worker.until_drained()
        errors = await shop.errors(worker)
        assert (
            "is a datetime: datetime.datetime(2025, 11, 28, 23, 0), which is no datetime with a zone"
            in errors[0]
        )
        assert "its time is a NoneType: None, which is no datetime" in errors[1]
        assert "its time is 0001-01-01 00:00:00+00:00, at the end of the calendar" in errors[2]
        assert "it has no key, and windows are of a key" in errors[3]
        assert await shop.per_hour.open.count() == 1


@pytest.mark.parametrize(
    ("errors", "letters"),
    [
        (DeadLetter(), 1),
        ({ValueError: DeadLetter()}, 1),
        (Retry(attempts=3, backoff="1 second", then=DeadLetter()), 1),
        (Skip(), 0),
    ],
    ids=str,
)
async def test_a_record_that_the_function_fails_for_is_removed_alone(errors: Errors, letters: int) -> None:
    """It moves no event time: those after it are not late by it."""
    shop = Shop(errors=errors, idle="never")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"), ("ann", "23:00", -1), ("ann", "10:06", 2))
        await worker.until_drained()
        found = await shop.errors(worker)
        assert len(found) == letters and all("ValueError: no amount" in each for each in found)
        await worker.event_time(shop.per_hour, at("11:10"))
        assert await shop.rows(worker) == [("ann", "10:00", 3)]


async def test_the_function_may_set_a_record_aside() -> None:
    """It is in none of its windows, and moves no event time."""
    shop = Shop(idle="never", step="30 minutes")
    visits = shop.app.session(shop.orders, gap="1 hour", by="placed_at", late="10 minutes", name="visits")(
        add
    )

    @visits.merge
    def joined(one: Hourly, other: Hourly) -> Hourly:
        return Hourly(one.customer, one.start, other.end, one.spent + other.spent)

    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"), ("ann", "23:00", -2), ("ann", "23:30", -3), ("ann", "10:06", 2))
        await worker.until_drained()
        for processor in (shop.per_hour, visits):
            [letter] = await worker.dead_letters(processor)
            assert "DeadLetter: no amount" in letter.error
        assert {key[1:]: total.spent async for key, total in shop.per_hour.open.scan()} == {
            (at("09:30"), at("10:30")): 3,
            (at("10:00"), at("11:00")): 3,
        }
        assert [each.total.spent for each in await visits.open.get("ann") or ()] == [3]


async def test_a_partition_halts_at_a_record_that_the_function_fails_for() -> None:
    """What came before it counts. What that has closed is told when the partition goes on, as timers are."""
    shop = Shop(errors=Halt(), idle="never")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"), ("ann", "11:10"), ("ann", "11:20", -1), ("ann", "11:30"))
        view = await until_shown(worker, is_halted)
        assert "no amount" in view.reason
        assert await shop.per_hour.open.count() == 2
        assert await shop.rows(worker) == []


async def test_a_function_that_fails_at_the_close_is_called_again_and_holds_up_its_partition_alone() -> None:
    """Nothing of its window is lost; records go on beside it."""
    shop = Shop(into=None, partitions=4, idle="never")
    fails, seen = True, list[tuple[str | None, int]]()

    @shop.per_hour.closed(into=shop.hourly)
    async def tell(total: Hourly, window: Window) -> Hourly:
        assert window == Window(total.start, total.end)
        if fails and total.customer == "ann":
            raise ValueError("not now")
        seen.append((total.customer, total.spent))
        return total

    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"), ("bob", "10:05"), ("ann", "11:10"), ("bob", "11:10"))
        await wait_for_async(lambda: ("bob", 1) in seen, "the other partition goes on")
        await shop.send(("ann", "11:20", 2))
        reason = "function per_hour fails"

        def is_shown(now: Any) -> bool:
            return any(reason in view.reason for view in now.processors["per_hour"].partitions)

        now = await worker.until(is_shown)
        assert now.processors["per_hour"].lag == 0
        assert await shop.rows(worker) == [("bob", "10:00", 1)]
        fails = False
        await worker.until_drained()
        await worker.event_time(shop.per_hour, at("12:10"))
        rows = await shop.rows(worker)
    assert sorted(rows) == [
        ("ann", "10:00", 1),
        ("ann", "11:00", 3),
        ("bob", "10:00", 1),
        ("bob", "11:00", 1),
    ]


async def test_a_total_that_nobody_can_read_holds_up_no_window_that_ended_before(redis_url: str) -> None:
    """It waits for somebody to look, and says which; those before it in the same commit are told."""
    shop = Shop(url=redis_url)
    async with local_worker(shop.app, url=redis_url) as worker:
        await shop.send(("ann", "10:05"), ("bob", "11:05"))
        await worker.until_drained()
    key = GroupKeys("shop", "orders", "per_hour").table(0, "per_hour")
    with opened(redis_url) as redis:
        [field] = [each for each in redis.hkeys(key) if b"bob" in each]
        redis.hset(key, field, b" sttnonsense")
    async with local_worker(shop.app, url=redis_url) as worker:
        await shop.send(("eve", "13:00"))

        def is_shown(now: Any) -> bool:
            return any("bob" in view.reason for view in now.processors["per_hour"].partitions)

        await worker.until(is_shown)

        async def is_told() -> bool:
            return await shop.rows(worker) == [("ann", "10:00", 1)]

        await wait_for_async(is_told, "the window before it is told")


async def test_the_function_at_the_close_may_take_many_windows_and_resources() -> None:
    """And it may skip a window, which is closed without a row."""
    shop, other = Shop(into=None), Shop(into=None, name="by_list")

    @shop.app.resource
    async def rate() -> AsyncIterator[int]:
        yield 10

    @shop.per_hour.closed(into=shop.hourly)
    def tell(total: Hourly, window: Window, rate: int) -> list[Hourly]:
        if total.customer == "bob":
            raise Skip("he is not told")
        return [total, Hourly(total.customer, *window, total.spent * rate)]

    sizes: list[int] = []

    @other.per_hour.closed(into=other.hourly)
    async def tell_all(pairs: list[tuple[Hourly, Window]]) -> list[Hourly]:
        sizes.append(len(pairs))
        return [Hourly(total.customer, *window, total.spent) for total, window in pairs]

    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"), ("bob", "10:05"))
        await worker.event_time(shop.per_hour, at("12:10"))
        assert await shop.rows(worker) == [("ann", "10:00", 1), ("ann", "10:00", 10)]
        assert await shop.per_hour.open.count() == 0
    async with local_worker(other.app, clock="virtual") as worker:
        await other.send(*((f"c{n}", "10:05") for n in range(1_100)))
        await worker.event_time(other.per_hour, at("12:10"))
        assert len(await other.rows(worker)) == 1_100
    assert sum(sizes) == 1_100 and max(sizes) <= 500


async def test_event_time_is_not_in_the_state_of_users() -> None:
    """Whoever empties their state, in middleware or at the close, takes no event time back."""
    shop, seen = Shop(into=None, idle="never"), list[list[str]]()

    @shop.app.middleware
    async def empty(ctx: Context) -> AsyncIterator[None]:
        seen.append(list(ctx.state))
        ctx.state.clear()
        yield

    @shop.per_hour.closed()
    async def tell(total: Hourly, window: Window, ctx: Context) -> None:
        seen.append(list(ctx.state))
        ctx.state["told"] = total.spent

    async with local_worker(shop.app, clock="virtual") as worker:
        for orders in ([("ann", "10:05")], [("bob", "11:10")], [("ann", "10:06")]):
            await shop.send(*orders)
            await worker.until_drained()
        assert len(await shop.errors(worker)) == 1
    assert {name for names in seen for name in names} == {"told"}


async def test_open_windows_are_read_from_anywhere() -> None:
    """With the end of a window or without it, which then is the one that windows have now."""
    shop = Shop(every="1 hour", step="30 minutes")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"), ("ann", "10:35", 2), ("bob", "10:35", 4))
        await worker.until_drained()
        opened = shop.per_hour.open
        assert await opened.get(("ann", at("10:00"))) == Hourly("ann", at("10:00"), at("11:00"), 3)
        assert await opened.get(("ann", at("10:30"), at("11:30"))) == Hourly(
            "ann", at("10:30"), at("11:30"), 2
        )
        assert await opened.get(("ann", at("10:00"), at("10:30"))) is None
        assert await opened.get(("ann", at("11:00"))) is None
        found = {key: total.spent async for key, total in opened.scan()}
        assert found[("bob", at("10:00"), at("11:00"))] == 4
        assert len(found) == await opened.count() == 5
        many = await opened.get_many([("ann", at("10:00")), ("bob", at("11:00"))])
        assert [total.spent for total in many.values()] == [3]


async def test_another_worker_takes_over_what_is_open(redis_url: str) -> None:
    """Windows, their ends and event time go along with partitions, in both directions."""
    shop, customers = Shop(url=redis_url, partitions=4), [f"c{n}" for n in range(40)]
    async with local_worker(shop.app, url=redis_url, name="w1") as first:
        await shop.send(*((each, "10:05") for each in customers))
        await first.until_drained()
        async with local_worker(shop.app, url=redis_url, name="w2") as second:

            def share(now: Any) -> bool:
                owners = [view.owner or "" for view in now.processors["per_hour"].partitions]
                return sorted(owner[:2] for owner in owners) == ["w1", "w1", "w2", "w2"]

            await second.until(share)
            await shop.send(*((each, "10:06", 2) for each in customers))
            await shop.send(*((each, "11:10", 4) for each in customers))
            await second.until_drained()
            assert sorted(await shop.rows(second)) == sorted((each, "10:00", 3) for each in customers)
        await shop.send(*((each, "10:07", 8) for each in customers))
        await first.event_time(shop.per_hour, at("12:10"))
        rows = await shop.rows(first)
        assert len(await shop.errors(first)) == len(customers)
    assert sorted(rows) == sorted(
        (each, hour, n) for each in customers for hour, n in (("10:00", 3), ("11:00", 4))
    )


async def test_event_time_goes_along_when_a_stream_grows(redis_url: str) -> None:
    """What is late in the old partitions is late in those that follow."""
    shop, customers = Shop(url=redis_url, partitions=2, idle="never"), [f"c{n}" for n in range(40)]
    async with (
        local_worker(shop.app, url=redis_url) as worker,
        Backend.open(redis_url, name="test") as backend,
    ):
        await shop.send(*((each, "12:00") for each in customers))
        await worker.until_drained()
        await grow(backend, 3)
        await shop.send(*((each, "10:05") for each in customers))
        await worker.until(lambda now: now.processors["per_hour"].committed == 80)
        letters = await list_dead(backend, GroupKeys("shop", "orders", "per_hour"), range(5), count=100)
        assert [letter.partition >= 2 for letter in letters] == [True] * 40


@pytest.mark.parametrize("codec", ["json", "msgpack", "arrow"])
async def test_windows_are_of_records_of_any_codec_and_of_keys_of_several_parts(
    codec: Literal["json", "msgpack", "arrow"],
) -> None:
    """A part of the key may be called as a part of the window is."""
    app = App("rides")
    rides = app.stream("rides", Ride, key=("start", "line"), partitions=2, codec=codec)

    @app.window(rides, every="1 hour", by="at", late="0 seconds")
    def counts(total: int | None, ride: Ride, window: Window) -> int:
        return (total or 0) + 1

    closed: list[tuple[int, Window]] = []

    @counts.closed()
    async def note(total: int, window: Window) -> None:
        closed.append((total, window))

    async with local_worker(app, clock="virtual") as worker:
        await rides.send_many([Ride("Nord", n % 2, at("10:05")) for n in range(5)])
        await worker.until_drained()
        assert await counts.open.get(("Nord", 0, at("10:00"))) == 3
        assert counts.open.spec.form.names == ("start", "line", "window_start", "end")
        await worker.event_time(counts, at("11:00"))
    assert sorted(closed) == [(n, Window(at("10:00"), at("11:00"))) for n in (2, 3)]


def sessions_of(
    app: App, idle: Literal["clock", "never"] = "clock"
) -> tuple[Stream[Order], Sessions[Order, Visit], Stream[Visit]]:
    """Return orders, the sessions of their customers, and where these are told."""
    orders = app.stream("orders", Order, key="customer", partitions=1)
    told = app.stream("told", Visit, key="customer", partitions=1, retention="1 day")

    @app.session(orders, gap="10 minutes", by="placed_at", late="5 minutes", into=told, idle=idle)
    def visits(visit: Visit | None, order: Order, window: Window) -> Visit:
        assert window.start <= order.placed_at <= window.end
        visit = visit or Visit(order.customer or "")
        visit.orders.append(order.amount)
        return visit

    @visits.merge
    def joined(one: Visit, other: Visit) -> Visit:
        return Visit(one.customer, one.orders + other.orders)

    return orders, visits, told


async def test_an_event_out_of_order_joins_two_sessions() -> None:
    """The earlier one comes first; what is open shows them as they are so far."""
    app = App("shop")
    orders, visits, told = sessions_of(app)
    async with local_worker(app, clock="virtual") as worker:
        for number, time in enumerate(("10:00", "10:12", "10:06")):
            await orders.send(Order("ann", at(time), number))
            await worker.until_drained()
            found = await visits.open.get("ann") or []
            assert [each.start for each in found] == [
                [at("10:00")],
                [at("10:00"), at("10:12")],
                [at("10:00")],
            ][number]
        assert (found[0].end, found[0].total.orders) == (at("10:12"), [0, 1, 2])
        await worker.event_time(visits, at("10:26:59"))
        assert await worker.sent(told) == []
        await worker.event_time(visits, at("10:27"))
        assert await worker.sent(told) == [Visit("ann", [0, 1, 2])]
        assert await visits.open.count() == 0


async def test_a_session_that_is_over_is_joined_no_more() -> None:
    """Of a customer's sessions the others stay, with their own end."""
    app = App("shop")
    orders, visits, told = sessions_of(app, idle="never")
    async with local_worker(app, clock="virtual") as worker:
        await orders.send_many(
            [Order("ann", at("10:00"), 1), Order("bob", at("10:16"), 2), Order("ann", at("10:07"), 4)]
        )
        await worker.until_drained()
        assert await worker.sent(told) == [Visit("ann", [1])]
        assert [each.total.orders for each in await visits.open.get("ann") or ()] == [[4]]
        await orders.send_many([Order("ann", at("09:57"), 8), Order("ann", at("10:01"), 16)])
        await worker.until_drained()
        [letter] = await worker.dead_letters(visits)
        assert "late by 4 minutes" in letter.error
        assert [each.total.orders for each in await visits.open.get("ann") or ()] == [[4, 16]]
