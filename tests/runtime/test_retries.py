"""What fails for a while goes on by itself: nothing is lost, the order is kept, and everybody can see it."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import anyio
import msgspec
import pytest

from streamworker import App, Context, DeadLetter, Retry
from streamworker.core.events import MarkLock
from streamworker.errors import BackendUnavailable
from streamworker.redisio.group import locks
from streamworker.runtime import group
from streamworker.runtime.run.modes.keyed import WINDOW_MIN
from streamworker.runtime.run.runner import StopReason
from streamworker.testing import LocalWorker, local_worker
from tests.helpers import wait_for_async
from tests.runtime.workbench import MODES, OVERLAPPING, Order, Priced, bench, start

pytestmark = pytest.mark.anyio

PARTITIONS = 16
BACKOFF_MAX_S = 4


class Item(msgspec.Struct):
    key: str
    number: int


async def _retries(worker: LocalWorker, count: int) -> None:
    await worker.until(lambda now: now.processors["store"].retrying == count)


@pytest.mark.parametrize("options", [{"batch": 20}, {"concurrency": 4}, {}], ids=["batch", "keyed", "record"])
async def test_a_database_that_is_away_delays_records_and_nothing_else(options: dict[str, Any]) -> None:
    """No worker restarts, none is lost, the order is kept, and each partition tries again within the cap.

    After a while all run within the longest pause: pauses are spread over their upper half, and the last
    begins within 4 s.
    """
    app = App("shop")
    items = app.stream("items", Item, key="key", partitions=PARTITIONS)
    is_away = True
    stored: dict[str, list[int]] = defaultdict(list)
    first_s: dict[int, float] = {}
    loop = asyncio.get_running_loop()

    def put(item: Item, ctx: Context) -> None:
        if is_away:
            raise ConnectionError("the database is away")
        first_s.setdefault(ctx.partition, loop.time())
        stored[item.key].append(item.number)

    async def one(item: Item, ctx: Context) -> None:
        put(item, ctx)

    async def some(batch: list[Item], ctx: Context) -> None:
        for item in batch:
            put(item, ctx)

    errors = Retry(backoff=0.05, backoff_max=BACKOFF_MAX_S)
    app.processor(items, name="store", errors=errors, **options)(some if "batch" in options else one)
    keys = [f"k{n}" for n in range(100)]
    async with local_worker(app, clock="virtual") as worker:
        await items.send_many(Item(key, number) for number in range(5) for key in keys)
        await _retries(worker, PARTITIONS)
        before = (await worker.snapshot()).processors["store"]
        await anyio.sleep(20)
        often = (await worker.snapshot()).processors["store"]
        for view in often.partitions:
            assert view.retry is not None and view.reason.startswith("ConnectionError: the database is away")
            assert view.retry.attempt > 8
            assert view.retry.next_ms - often.taken_ms <= BACKOFF_MAX_S * 1000
            assert view.retry.next_ms - view.retry.since_ms >= 20_000, "it counts from the first failure"
        is_away, healed_s = False, loop.time()
        await worker.until_drained()
        await _retries(worker, 0)
        after = (await worker.snapshot()).processors["store"]
    assert [view.epoch for view in after.partitions] == [view.epoch for view in before.partitions]
    assert all(view.reason == "" for view in after.partitions)
    assert stored == {key: list(range(5)) for key in keys}
    assert len(first_s) == PARTITIONS
    assert max(first_s.values()) - healed_s <= BACKOFF_MAX_S


@pytest.mark.parametrize("trouble", ["a slow way to Redis", "no answer"])
async def test_a_partition_that_has_recovered_is_shown_as_running(
    redis_url: str, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the call that shows the failure is slower than the next, or the next gets no answer."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, key="key", partitions=1)
    is_away, seen, under_way = True, list[str](), 0

    @app.processor(items, name="store", errors=Retry(backoff=0.01, backoff_max=0.01))
    async def store(_: Item) -> None:
        if is_away:
            raise ConnectionError("the database is away")

    async def troubled(backend: Any, keys: Any, marks: Sequence[MarkLock], **clock: Any) -> None:
        nonlocal under_way
        seen.extend(mark.state for mark in marks)
        if seen[-1] == "running" and seen.count("running") == 1 and trouble == "no answer":
            raise BackendUnavailable("no answer", remedy="none")
        under_way += 1
        if seen[-1] == "retrying" and trouble == "a slow way to Redis":
            await anyio.sleep(0.3)
        await locks.mark_many(backend, keys, marks, **clock)
        under_way -= 1

    monkeypatch.setattr(group, "mark_many", troubled)
    async with local_worker(app, url=redis_url) as worker:
        await items.send(Item("a", 1))
        await wait_for_async(lambda: "retrying" in seen, "the failure is about to be shown")
        is_away = False
        await worker.until_drained()
        await wait_for_async(lambda: "running" in seen and not under_way, "the recovery was shown")
        await _retries(worker, 0)


async def test_a_failure_that_is_shown_late_is_shown_with_its_time(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is told how long ago it was when it answers, and not when it was first asked."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, key="key", partitions=1)
    failed_s: list[float] = []

    @app.processor(items, name="store", errors=Retry(backoff=60))
    async def store(_: Item) -> None:
        failed_s.append(time.time())
        raise ConnectionError("the database is away")

    async def late(backend: Any, keys: Any, marks: Sequence[MarkLock], **clock: Any) -> None:
        if time.time() < failed_s[0] + 1.5:
            raise BackendUnavailable("no answer", remedy="none")
        await locks.mark_many(backend, keys, marks, **clock)

    monkeypatch.setattr(group, "mark_many", late)
    async with local_worker(app, url=redis_url) as worker:
        await items.send(Item("a", 1))
        await _retries(worker, 1)
        (view,) = (await worker.snapshot()).processors["store"].partitions
    assert view.retry is not None and view.retry.since_ms / 1000 < failed_s[0] + 1


async def test_a_record_that_fails_once_is_shown_nowhere(redis_url: str) -> None:
    """Most errors are over at the second call, and each show is a write to Redis."""

    async def price(order: Order, ctx: Context) -> Priced:
        if ctx.attempt == 1:
            raise ConnectionError("not now")
        return Priced(order.number, 1.0)

    async with bench(redis_url) as desk:
        await desk.send(range(5))
        running = await desk.start(desk.spec(price, errors=Retry(backoff=0.001)))
        await desk.until_committed(5)
        assert running.states == []


async def test_others_go_on_up_to_a_window_and_then_the_partition_says_that_it_stands(redis_url: str) -> None:
    """With concurrency only the key of the failing record waits, until the window behind it is full."""
    is_away, done = True, set[int]()

    async def price(order: Order) -> Priced:
        if order.number == 0 and is_away:
            raise ConnectionError("not now")
        done.add(order.number)
        return Priced(order.number, 1.0)

    async with bench(redis_url) as desk:
        await desk.send(range(1_500), keys=500)
        running = await desk.start(
            desk.spec(price, concurrency=4, errors=Retry(backoff=0.02, backoff_max=0.02))
        )
        full = "the window behind it is full"
        await wait_for_async(lambda: any(full in said for said in running.states), "it says that it stands")
        assert await desk.committed() == 0
        # As many are done twice after a crash, and no more.
        others = {number for number in range(WINDOW_MIN) if number % 500}
        await wait_for_async(lambda: done >= others, "all other keys of the window are done")
        assert done == others
        is_away = False
        await desk.until_committed(1_500)
        assert [row["number"] for row in await desk.rows()] == list(range(1_500))
        assert running.states[-1] == ""


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
    seen: list[int] = []

    def each(order: Order, _: Context) -> Priced:
        seen.append(order.number)
        if order.number == 3:
            raise ValueError("not now")
        return Priced(order.number, 1.0)

    async with bench(redis_url) as desk:
        await desk.send(range(4))
        running = await start(desk, mode, each, errors=Retry(attempts=5, backoff=60.0, backoff_max=60.0))
        await wait_for_async(lambda: 3 in seen, "the first attempt has failed")
        with anyio.fail_after(20):  # less than the shortest pause
            stopped = await running.drained()
        assert stopped.reason is StopReason.DRAINED
        assert await desk.committed() == (0 if mode in ("batch", "stream") else 3)
