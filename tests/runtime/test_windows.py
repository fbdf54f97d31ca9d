"""What users of other frameworks complain about with windows does not happen here."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from streamworker import Archive, Context
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.testing import local_worker
from tests.archive.shop import KEYS, ends, exact
from tests.helpers import wait_for_async
from tests.runtime.windowed import Hourly, Order, Shop, at

pytestmark = pytest.mark.anyio


async def test_1_a_window_closes_though_nothing_comes() -> None:
    """Elsewhere the last window of a stream that has become silent is never told."""
    shop = Shop(every="1 minute", late="10 seconds")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:00:30"))
        await worker.until_drained()
        await worker.advance("39 seconds")
        assert await shop.rows(worker) == []
        await worker.advance("3 seconds")
        await worker.until_drained()
        assert await shop.rows(worker) == [("ann", "10:00", 1)]


async def test_1_a_window_that_the_clock_has_closed_stays_closed() -> None:
    """A record that comes for it is late, also at the next owner of the partition."""
    shop = Shop(every="1 minute", late="10 seconds")
    async with local_worker(shop.app, clock="virtual") as first:
        await shop.send(("ann", "10:00:30"))
        await first.until_drained()
        await first.advance("42 seconds")
        async with local_worker(shop.app, clock="virtual") as second:
            first.stop()
            await shop.send(("ann", "10:00:31"))
            await second.until_drained()
            assert len(await shop.errors(second)) == 1
            assert await shop.rows(second) == [("ann", "10:00", 1)]
            assert await shop.per_hour.open.count() == 0


async def test_1_only_records_move_event_time_where_that_is_asked_for() -> None:
    """``idle="never"``: a sender that is away for longer than ``late`` finds its windows open."""
    shop = Shop(every="1 minute", late="10 seconds", idle="never")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:00:30"))
        await worker.until_drained()
        await worker.advance("5 minutes")
        await shop.send(("ann", "10:00:40"))
        await worker.until_drained()
        assert await shop.rows(worker) == []
        await shop.send(("bob", "10:01:10"))
        await worker.until_drained()
        assert await shop.rows(worker) == [("ann", "10:00", 2)]


async def test_2_an_idle_partition_holds_up_no_other() -> None:
    """Elsewhere all windows wait for the partition whose records are the oldest, or that has none."""
    shop = Shop(partitions=4, idle="never")
    places = {name: shop.orders.spec.placement.partition_of(name.encode()) for name in ("ann", "bob")}
    assert len(set(places.values())) == 2
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"), ("bob", "10:05"), ("bob", "11:10"))
        await worker.until_drained()
        assert await shop.rows(worker) == [("bob", "10:00", 1)]


async def test_3_a_late_record_is_kept_and_says_by_how_much_it_is_late() -> None:
    """Elsewhere late records vanish. Here each is a dead letter, and one line a minute tells of them."""
    shop = Shop()
    async with local_worker(shop.app, clock="virtual") as worker:
        with capture_logs() as logs:
            await shop.send(("ann", "12:00"), ("ann", "10:05"), ("ann", "10:06", 7), ("ann", "10:59:59"))
            await worker.until_drained()
            letters = await worker.dead_letters(shop.per_hour)
            assert ["late by 50 minutes" in letter.error for letter in letters] == [True] * 3, letters
            await worker.advance("61 seconds")
            await shop.send(("ann", "10:05"))
            await worker.until_drained()
        told = [line for line in logs if line["event"] == "records_late"]
        assert [line["records"] for line in told] == [1, 3]
        assert not [line for line in logs if line["event"] == "record_dead"], "late is no error"
        await worker.event_time(shop.per_hour, at("14:00"))
        assert await shop.rows(worker) == [("ann", "12:00", 1)]


async def test_3_a_record_that_is_as_late_as_it_may_be_still_counts() -> None:
    """Event time is 11:09:59.999, and then 11:10."""
    shop = Shop(idle="never")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("bob", "11:09:59.999"), ("ann", "10:05"), ("bob", "11:10"), ("ann", "10:06"))
        await worker.until_drained()
        assert await shop.rows(worker) == [("ann", "10:00", 1)]
        assert len(await shop.errors(worker)) == 1


async def test_3_a_window_waits_for_what_may_be_late_though_one_before_it_is_told() -> None:
    """Event time is 12:05: the window that ended at noon is open for five minutes more."""
    shop = Shop(idle="never")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"), ("ann", "11:05"), ("bob", "12:05"))
        await worker.until_drained()
        assert await shop.rows(worker) == [("ann", "10:00", 1)]
        await shop.send(("ann", "11:06", 2), ("bob", "12:10"))
        await worker.until_drained()
        assert await shop.rows(worker) == [("ann", "10:00", 1), ("ann", "11:00", 3)]


async def test_3_late_records_go_to_a_stream_of_their_own() -> None:
    """With their headers; they are no dead letters then."""
    shop = Shop(late_into=True)
    seen: list[tuple[int, str]] = []

    @shop.app.processor(shop.late)
    async def look(order: Order, ctx: Context) -> None:
        [headers] = ctx.headers
        seen.append((order.amount, headers["from"]))

    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "12:00"))
        await shop.orders.send(Order("ann", at("10:05"), 7), headers={"from": "till 4"})
        await worker.until_drained()
        assert seen == [(7, "till 4")]
        assert await worker.sent(shop.late) == [Order("ann", at("10:05"), 7)]
        assert await shop.errors(worker) == []


@pytest.mark.parametrize("late", ["0 seconds", "10 seconds", "5 minutes"])
async def test_4_a_clock_that_is_a_day_ahead_makes_nobody_late(late: str) -> None:
    """It moves event time ahead of its arrival by ``late`` and a minute at most, and has its own window."""
    shop = Shop(every="1 minute", late=late)
    async with local_worker(shop.app, clock="virtual") as worker:
        sent = await shop.orders.send(Order("ann", at("10:00")))
        now = datetime.fromtimestamp(sent.entry_id.ms / 1000, UTC)
        await shop.orders.send(Order("bob", now + timedelta(days=1)))
        await shop.orders.send(Order("ann", now + timedelta(seconds=1)))
        await worker.until_drained()
        assert await shop.errors(worker) == []
        await worker.advance("10 minutes")
        await worker.until_drained()
        assert [each.customer for each in await worker.sent(shop.hourly)] == ["ann", "ann"]
        assert await shop.per_hour.open.count() == 1, "that of tomorrow is open"


async def test_5_nothing_closes_by_the_clock_while_a_backlog_waits() -> None:
    """Elsewhere a window that is closed by the wall clock is told in parts while a worker lags."""
    shop = Shop(every="1 minute", late="10 seconds", batch=1)

    @shop.app.middleware
    async def slow(ctx: Context) -> AsyncIterator[None]:
        await anyio.sleep(30)
        yield

    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(*(("ann", "10:00:30", 2**n) for n in range(6)))
        await worker.advance("2 minutes")
        assert await shop.rows(worker) == [], "some are committed, and others wait"
        await worker.advance("5 minutes")
        await worker.until_drained()
        assert await shop.rows(worker) == [("ann", "10:00", 63)]
        assert await shop.errors(worker) == []


async def test_6_a_restart_neither_loses_nor_doubles_a_window() -> None:
    """Total, end, event time, row and checkpoint are one commit, whatever the worker was about to do."""
    shop, customers, hours = Shop(partitions=2, batch=7), [f"c{n}" for n in range(20)], range(12)
    rng, sent = random.Random(6), 0
    async with AsyncExitStack() as workers:  # They share a server until the last of them ends.
        for hour in hours:
            worker = await workers.enter_async_context(local_worker(shop.app, clock="virtual"))
            await shop.send(*((each, f"{hour:02}:30") for each in customers))
            sent, least = sent + 20, rng.randrange(sent, sent + 21)
            await worker.until(lambda now: now.processors["per_hour"].committed >= least)  # noqa: B023
            await anyio.sleep(rng.random() / 50)
            await worker.kill()
        worker = await workers.enter_async_context(local_worker(shop.app, clock="virtual"))
        await worker.until(
            lambda now: [each.name for each in now.processors["per_hour"].members] == [worker.name]
        )
        await worker.event_time(shop.per_hour, at("13:00"))
        rows = await shop.rows(worker)
        assert await shop.errors(worker) == []
        assert await shop.per_hour.open.count() == 0
    assert sorted(rows) == sorted((each, f"{hour:02}:00", 1) for each in customers for hour in hours)


async def test_7_a_closed_window_is_gone_from_redis(redis_url: str) -> None:
    """Neither its total nor its end stays; the state keeps how far event time has come."""
    shop = Shop(url=redis_url)
    async with local_worker(shop.app, url=redis_url) as worker:
        await shop.send(*((f"c{n}", "10:05") for n in range(1_200)))
        await worker.until_drained()
        assert await shop.per_hour.open.count() == 1_200
        await worker.event_time(shop.per_hour, at("11:10"))
        assert len(await shop.rows(worker)) == 1_200
        raw: Any = Redis.from_url(redis_url)
        left = [key for key in await raw.keys("*") if b":table:" in key or b":due:" in key]
        state = await raw.hkeys(GroupKeys("shop", "orders", "per_hour").state(0))
        await raw.aclose()
    assert left == []
    assert sorted(state) == [b"\0event-time", b"\0tick:per_hour"]


@pytest.mark.parametrize(("day", "hours"), [("2025-03-30", 23), ("2025-10-26", 25), ("2025-11-28", 24)])
async def test_8_a_day_of_a_zone_is_as_long_as_its_clocks_say(day: str, hours: int) -> None:
    """Elsewhere days are those of UTC, or 24 hours that drift away from midnight."""
    shop, paris = Shop(every="1 day", tz="Europe/Paris", late="0 seconds"), ZoneInfo("Europe/Paris")
    start = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=paris).astimezone(UTC)
    end = start + timedelta(hours=hours)
    async with local_worker(shop.app, clock="virtual") as worker:
        for moment in (start - timedelta(milliseconds=1), start, end - timedelta(milliseconds=1), end):
            await shop.orders.send(Order("ann", moment))
        await worker.until_drained()
        await worker.event_time(shop.per_hour, end)
        before, during = await worker.sent(shop.hourly)
    assert (before.end, before.spent) == (start, 1)
    assert during == Hourly("ann", start, end, 2)


@pytest.mark.parametrize(
    ("every", "first", "last"),
    [
        ("2 days", "2025-11-27", "2025-11-29"),
        ("1 week", "2025-11-24", "2025-12-01"),
        ("1 month", "2025-11-01", "2025-12-01"),
        ("3 months", "2025-10-01", "2026-01-01"),
        ("1 year", "2025-01-01", "2026-01-01"),
    ],
)
async def test_8_longer_windows_are_of_the_calendar_too(every: str, first: str, last: str) -> None:
    """They begin at midnight of the zone, on a Monday, the first of a month, or new year."""
    shop, paris = Shop(every=every, tz="Europe/Paris"), ZoneInfo("Europe/Paris")
    async with local_worker(shop.app, clock="virtual") as worker:
        await shop.send(("ann", "10:05"))
        await worker.until_drained()
        [(_, start, end)] = [key async for key, _ in shop.per_hour.open.scan()]
    assert [str(each.astimezone(paris)) for each in (start, end)] == [
        str(datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=paris)) for day in (first, last)
    ]


async def test_9_history_counts_by_its_own_time() -> None:
    """Old records are not late: event time is only compared with itself."""
    shop = Shop()
    async with local_worker(shop.app, clock="virtual") as worker:
        for year in (1969, 1999, 2024):
            await shop.send(("ann", "10:05"), ("ann", "10:55"), day=f"{year}-02-28")
        await worker.until_drained()
        await worker.event_time(shop.per_hour, at("11:10", "2024-02-28"))
        assert await shop.rows(worker) == [("ann", "10:00", 2)] * 3
        assert await shop.errors(worker) == []


@pytest.mark.full("waits for what is archived")
async def test_9_a_replay_from_the_archive_closes_windows_by_event_time(
    redis_url: str, tmp_path: Path
) -> None:
    """A group that is declared late tells the same rows, though no time passes between its records."""
    archive = Archive(str(tmp_path), every="200ms", after="0 seconds")
    rows: list[list[tuple[str | None, str, int]]] = []
    with exact(redis_url) as raw:
        first = Shop(url=redis_url, stream={"archive": archive}, idle="never")
        async with local_worker(first.app, url=redis_url) as worker:
            for hour in range(24):
                await first.send(*((f"c{n}", f"{hour:02}:{n:02}") for n in range(50)))
            await worker.until_drained()
            await wait_for_async(lambda: raw.xlen(KEYS.events(0)) == 0, "all is archived and trimmed")
            rows.append(await first.rows(worker))
        raw.delete(StreamKeys("shop", "hourly").events(0))
        late = Shop(url=redis_url, stream={"archive": archive}, idle="never", name="again")
        async with local_worker(late.app, url=redis_url, processors=["again"]) as worker:
            await wait_for_async(ends(raw, 1, "again"), "all is read")
            await worker.until_drained()
            rows.append(await late.rows(worker))
    assert sorted(rows[0]) == sorted(rows[1])
    assert len(rows[0]) == 22 * 50 + 50


async def test_10_another_size_at_a_deploy_keeps_old_windows(redis_url: str) -> None:
    """They end as they began, and new records open new ones."""
    old = Shop(url=redis_url)
    async with local_worker(old.app, url=redis_url) as worker:
        await old.send(("ann", "10:05"), ("bob", "10:35"))
        await worker.until_drained()
    new = Shop(url=redis_url, every="30 minutes")
    async with local_worker(new.app, url=redis_url) as worker:
        await new.send(("ann", "10:10", 2), ("ann", "10:36", 4), ("bob", "10:37", 8))
        await worker.until_drained()
        assert await new.per_hour.open.count() == 5
        await worker.event_time(new.per_hour, at("11:10"))
        rows = await worker.sent(new.hourly)
    assert sorted((each.customer, each.start, each.end, each.spent) for each in rows) == [
        ("ann", at("10:00"), at("10:30"), 2),
        ("ann", at("10:00"), at("11:00"), 1),
        ("ann", at("10:30"), at("11:00"), 4),
        ("bob", at("10:00"), at("11:00"), 1),
        ("bob", at("10:30"), at("11:00"), 8),
    ]
