"""Workers keep what retention says, whatever program declared it, and let senders go on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import redis
import structlog

from streamworker import App
from streamworker.cli.workers.exporter import samples_of
from streamworker.core.data.placement import Placement
from streamworker.core.data.readers import ReaderPosition
from streamworker.redisio.admin import growth
from streamworker.redisio.data import streams, trimming
from streamworker.redisio.data.trimming import Keep
from streamworker.redisio.holdings import take_holdings
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.runtime.run import trims
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.raw import opened, records_of
from tests.runtime.workbench import Order

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
EVENTS = "sw:{kept.orders.0}:events"


@pytest.fixture
def raw(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator["redis.Redis"]:
    """A server with nodes of one entry, and workers that look at the retention all the time."""
    monkeypatch.setattr(trims, "LOOK_MS", 50)
    monkeypatch.setattr(trims, "LOOK_MS_PER_PARTITION", 0)
    with opened(redis_url) as client:
        client.config_set("stream-node-max-entries", 1)
        yield client
        client.config_set("stream-node-max-entries", 100)


def kept_by(
    redis_url: str, seen: list[int], *, processor: str = "handle", acked_entries_max: int = 1_000, **kept: Any
) -> App:
    """An app that keeps so much of its stream, and so many entries of its acked log, one for each record."""
    app = App("kept", redis_url=redis_url, trim_interval_ms=50, acked_entries_max=acked_entries_max)
    orders = app.stream("orders", Order, partitions=1, single_entries=True, **kept)

    @app.processor(orders, name=processor, batch=1)
    async def handle(batch: list[Order]) -> list[Order]:
        seen.extend(order.number for order in batch)
        return batch

    return app


def write(raw: "redis.Redis", *ages_ms: int) -> list[str]:
    """Write numbered orders that are so old, the oldest first; return their ids."""
    seconds, _ = raw.time()
    ids = [f"{seconds * 1000 - age_ms}-0" for age_ms in ages_ms]
    for number, entry_id in enumerate(ids):
        raw.xadd(EVENTS, {"v": msgspec.json.encode(Order(number))}, id=entry_id)
    return ids


def differs(logged: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in logged if line["event"] == "retention_differs"]


async def test_a_new_processor_begins_an_hour_back(raw: "redis.Redis", redis_url: str) -> None:
    """An hour is kept although the first processor has read it; what is older went."""
    write(raw, 5 * HOUR_MS, 2 * HOUR_MS, HOUR_MS // 2, HOUR_MS // 4, 0)
    first: list[int] = []
    async with local_worker(kept_by(redis_url, first, retention="1 hour"), url=redis_url) as worker:
        await worker.until_drained()
        await wait_for_async(lambda: raw.xlen(EVENTS) == 3, "what is older than an hour was dropped")
    second: list[int] = []
    app = kept_by(redis_url, second, processor="another", retention="1 hour")
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
    assert (first, second) == ([0, 1, 2, 3, 4], [2, 3, 4])


def chain(redis_url: str, **kept: Any) -> App:
    """A chain whose last stream no processor reads."""
    app = App("kept", redis_url=redis_url, trim_interval_ms=50)
    taken = app.stream("taken", Order)
    orders = app.stream("orders", Order, partitions=1, single_entries=True, **kept)

    @app.processor(taken, into=orders, forward=False)
    async def handle(order: Order) -> Order:
        return order

    return app


@pytest.mark.parametrize(
    ("kept", "stay"), [("1 hour", [2, 3]), ("3 records", [1, 2, 3]), (None, [0, 1, 2, 3])]
)
async def test_a_stream_that_nobody_reads_keeps_its_retention(
    raw: "redis.Redis", redis_url: str, kept: str | None, stay: list[int]
) -> None:
    """Any worker of the app trims it; without retention everything stays."""
    write(raw, 5 * HOUR_MS, 2 * HOUR_MS, 1_000)
    app = chain(redis_url, retention=kept)
    async with local_worker(app, url=redis_url) as worker:
        await app.registry.streams["taken"].send(Order(3))
        await worker.until_drained()
        await wait_for_async(lambda: raw.xlen(EVENTS) == len(stay), "what the retention keeps")
        numbers = [msgspec.json.decode(fields[b"v"])["number"] for fields in records_of(raw, EVENTS)]
    assert numbers == stay


async def test_a_stream_that_nobody_reads_is_trimmed_in_the_partitions_that_it_gets(
    raw: "redis.Redis", redis_url: str
) -> None:
    """It grows while the worker runs, which reads no map for a group of it."""
    app, keys = App("kept", redis_url=redis_url, trim_interval_ms=50), StreamKeys("kept", "orders")
    app.processor(app.stream("taken", Order), name="handle")(_ignore)
    orders = app.stream("orders", Order, partitions=1, single_entries=True, retention="1 ms")
    async with app, app.worker(), Backend.open(redis_url, name="tool") as backend:
        await orders.send(Order(0))
        await growth.prepare(backend, keys, 2, MEMORY)
        await growth.go_on(backend, keys, MEMORY, "test")
        assert await orders.send_many([Order(number, f"c{number}") for number in range(20)]) == 20
        await wait_for_async(lambda: all(raw.xlen(keys.events(p)) == 0 for p in range(3)), "all is trimmed")
        counts = [raw.hget(keys.counts(p), "dropped") for p in range(3)]
    assert sum(int(count or 0) for count in counts) == 21


async def _ignore(order: Order) -> None: ...


async def test_a_changed_retention_takes_effect_and_both_programs_are_told(
    raw: "redis.Redis", redis_url: str
) -> None:
    """The older worker follows what was declared later, and says so."""
    write(raw, 5 * HOUR_MS, 2 * HOUR_MS, 0)
    seen: list[int] = []
    with structlog.testing.capture_logs() as logged:
        async with local_worker(kept_by(redis_url, seen, retention="1 week"), url=redis_url) as worker:
            await worker.until_drained()
            later = kept_by(redis_url, seen, processor="another", retention="1 hour")
            async with local_worker(later, url=redis_url):
                await wait_for_async(lambda: raw.xlen(EVENTS) == 1, "an hour is kept")
    (changed,) = [line for line in logged if line["event"] == "retention_changed"]
    assert (changed["before"], changed["now"]) == ("7 days", "1 hour")
    assert ("1 hour", "7 days") in [(line["kept"], line["declared"]) for line in differs(logged)]


async def test_a_log_that_nobody_reads_stops_nobody(raw: "redis.Redis", redis_url: str) -> None:
    """It keeps the newest entries, as many as the limit says."""
    seen: list[int] = []
    app = kept_by(redis_url, seen, acked_entries_max=4)
    async with local_worker(app, url=redis_url) as worker:
        for number in range(30):
            await app.registry.streams["orders"].send(Order(number))
        await worker.until_drained()
        acked = "sw:{kept.orders.0}:acked:handle"
        await wait_for_async(lambda: raw.xlen(acked) == 4, "the newest four entries stay")
        assert raw.xinfo_stream(acked)["last-generated-id"] == b"30-0"
    assert seen == list(range(30))


async def test_a_log_that_somebody_reads_holds_up_commits_visibly_and_no_shutdown(
    raw: "redis.Redis", redis_url: str
) -> None:
    """The reason stands in status and a metric; a drain leaves the batch to the next owner at once."""
    app, seen = kept_by(redis_url, [], acked_entries_max=4), list[int]()
    raw.hset("sw:{kept.orders:handle}:readers", "slow", ReaderPosition({0: 0}, {0: "?"}, 1).text())
    with structlog.testing.capture_logs() as logged:
        async with local_worker(app, url=redis_url) as worker:
            await worker.until(lambda now: bool(now.processors["handle"].partitions[0].owner))
            await wait_for_async(lambda: raw.exists("sw:{kept.orders.0}:lock:handle"), "the lock is there")
            for number in range(30):
                await app.registry.streams["orders"].send(Order(number))
            await worker.until(lambda now: "acked log full" in now.processors["handle"].partitions[0].reason)
            snapshot = (await worker.snapshot()).processors["handle"]
            told = {name: value for name, _, value in samples_of(snapshot)}
            assert told["streamworker_partition_held_up"] == 1
    stopped = [line for line in logged if line["event"] == "partition_stopped"]
    assert [line["reason"] for line in stopped] == ["drained"]
    assert not [line for line in logged if line["event"] == "grace_period_over"]
    raw.delete("sw:{kept.orders:handle}:readers")
    async with local_worker(kept_by(redis_url, seen, acked_entries_max=4), url=redis_url) as worker:
        await worker.until_drained()
    assert seen == list(range(4, 30)), "what was not committed runs again, and nothing else"


async def test_the_forecast_is_what_happens(raw: "redis.Redis", redis_url: str) -> None:
    """The free memory is filled with a record every 40 ms; at a third of it the rest is forecast."""
    keys, room = GroupKeys("kept", "orders", "handle"), 12_000_000
    async with Backend.open(redis_url, name="fills") as backend:
        await streams.provision(backend, keys, 1, "json")
        await streams.register(backend, keys, Placement(1), "earliest")
        raw.hset(keys.meta, "retention", "365 days")
        limit = used(raw) + room
        raw.config_set("maxmemory", limit)
        started_ms = raw.time()[0] * 1000 - HOUR_MS
        at_third, _ = fill(raw, started_ms, lambda: used(raw) > limit - room * 2 / 3)
        await trimming.trim_many(backend, keys, {0: 0}, lambda _: Keep(365 * 24 * HOUR_MS))
        holdings = await take_holdings(backend, "kept", {"orders": 1}, [("orders", "handle")])
        forecast = replace(holdings, taken_ms=at_third).full_in_s
        at_end, refused = fill(raw, at_third, lambda: False)
        raw.config_set("maxmemory", "1gb")
    assert "maxmemory" in refused
    print(f"forecast {forecast} s, measured {(at_end - at_third) / 1000} s")
    assert forecast == pytest.approx((at_end - at_third) / 1000, rel=0.2)


def used(raw: "redis.Redis") -> int:
    return int(raw.info("memory")["used_memory"])


def fill(raw: "redis.Redis", from_ms: int, is_enough: Callable[[], bool]) -> tuple[int, str]:
    """Write a record every 40 ms of the ids' time; return the last time and what the server said."""
    for number in range(1, 100_000):
        if number % 100 == 0 and is_enough():
            return from_ms + 40 * number, ""
        try:
            raw.xadd(EVENTS, {"v": b"x" * 1000}, id=f"{from_ms + 40 * number}-0")
        except redis.ResponseError as error:
            return from_ms + 40 * number, str(error)
    raise AssertionError("the server never refused")
