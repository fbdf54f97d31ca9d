"""A runner handles a partition in order, commits as it goes, and stops cleanly."""

import asyncio
import threading
import time
from typing import Any

import anyio
import pytest

from streamworker.context import Context
from streamworker.runtime.run.modes.modes import SLICE_MS
from streamworker.runtime.run.runner import StopReason
from tests.chaos.proxy import proxied
from tests.helpers import wait_for_async
from tests.runtime.workbench import MODES, OVERLAPPING, Order, Priced, Records, bench, handling, start

pytestmark = pytest.mark.anyio


# -- order and commits -----------------------------------------------------------------------


async def test_records_share_commits_and_are_handled_and_forwarded_in_order(redis_url: str) -> None:
    """Also where the function takes one at a time."""
    seen: list[int] = []

    async def price(order: Order) -> Priced:
        seen.append(order.number)
        return Priced(order.number, order.number * 2.0)

    async with handling(redis_url, price, range(2_500)) as (desk, running):
        await desk.until_committed(2_500)
        assert seen == list(range(2_500))
        assert [row["number"] for row in await desk.rows()] == list(range(2_500))
        assert len(await desk.acked_entries()) < 250
        assert (await running.drained()).reason is StopReason.DRAINED


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_record_is_committed_while_the_next_one_takes_long(redis_url: str, is_async: bool) -> None:
    """A slow record holds up neither the commit of those before it, nor anything else."""
    release = threading.Event()

    async def price(order: Order) -> None:
        while order.number == 3 and not release.is_set():
            await asyncio.sleep(0.01)

    def price_in_thread(order: Order) -> None:
        if order.number == 3:
            release.wait(20)

    async with bench(redis_url) as desk:
        await desk.send(range(5))
        await desk.start(desk.spec(price if is_async else price_in_thread))
        try:
            await desk.until_committed(3)
            assert await desk.committed() == 3
        finally:
            release.set()
        await desk.until_committed(5)


async def test_waiting_for_records_is_no_work_of_a_stream_processor(redis_url: str) -> None:
    """The alarm for a function that makes no progress counts from the record, not from the wait for it."""
    since_ms: dict[int, int | None] = {}

    async def price(records: Records[Order]) -> None:
        async for order in records:
            since_ms[order.number] = running.runner.activity.busy_since_ms

    async with bench(redis_url) as desk:
        running = await desk.start(desk.spec(price))
        await anyio.sleep(0.05)
        sent_ms = time.monotonic_ns() // 1_000_000
        await desk.send(range(1))
        await desk.until_committed(1)
        assert (since_ms[0] or 0) >= sent_ms


async def test_the_next_batch_is_handled_while_a_commit_is_under_way(redis_url: str) -> None:
    """While Redis does not answer, one more batch is handled, and not a third."""
    begun: list[int] = []

    async def price(batch: list[Order]) -> None:
        begun.append(batch[0].number)
        await asyncio.sleep(0)

    async with proxied(redis_url) as proxy, bench(proxy.url) as desk:
        await desk.send(range(50))
        desk.gate.close()
        running = await desk.start(desk.spec(price, batch=10))
        await wait_for_async(lambda: running.runner.intake.buffer.waiting == 50, "all are fetched")
        proxy.hold()
        desk.gate.open()
        await wait_for_async(lambda: len(begun) >= 2, "a second batch is handled")
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert begun == [0, 10]
        proxy.let_pass()
        await desk.until_committed(50)
        assert begun == [0, 10, 20, 30, 40]


async def test_a_filter_forwards_only_what_it_returns(redis_url: str) -> None:
    """A function that is annotated to return records drops those for which it returns None."""

    async def price(order: Order) -> Order | None:
        return order if order.number % 3 == 0 else None

    async with handling(redis_url, price, range(30)) as (desk, _):
        await desk.until_committed(30)
        assert [row["number"] for row in await desk.rows(Order)] == list(range(0, 30, 3))


# -- batches ---------------------------------------------------------------------------------


async def test_calls_that_never_wait_leave_the_event_loop_to_others(redis_url: str) -> None:
    """A call as long as a slice is a slice; of short ones each slice has many, and ends in time."""
    turns, seen = 0, []

    async def price(order: Order) -> None:
        if order.number < 20:
            time.sleep(SLICE_MS / 1000)
        seen.append(turns)

    async with handling(redis_url, price, range(10_000)) as (_, running):
        while running.runner.commits.records_done < 10_000:
            await asyncio.sleep(0)
            turns += 1
    assert len(set(seen[:20])) == 20
    assert len(set(seen[20:])) < 5_000


async def test_a_drain_in_the_middle_of_a_slice_starts_no_other_call(redis_url: str) -> None:
    begun: list[int] = []

    async def price(order: Order) -> None:
        begun.append(order.number)
        if order.number == 100:
            running.runner.intake.drain()

    async with handling(redis_url, price, range(1_000)) as (desk, running):
        await wait_for_async(running.ended.is_set, "the runner ends")
        assert begun == list(range(101))
        assert await desk.committed() == 101


async def test_a_full_batch_does_not_wait(redis_url: str) -> None:
    """With enough records, or enough bytes, the time plays no part."""
    sizes: list[int] = []

    async def price(batch: list[Order]) -> None:
        sizes.append(len(batch))

    async with handling(redis_url, price, range(100), batch=50, within=60) as (desk, running):
        await desk.until_committed(100)
        await running.drained()
        await desk.send(range(100))
        await desk.start(desk.spec(price, batch=50, within=60, batch_bytes=300))
        await desk.until_committed(190)
        assert sizes[:2] == [50, 50]
        assert max(sizes[2:]) <= 10


async def test_an_incomplete_batch_is_given_up_when_the_partition_drains(redis_url: str) -> None:
    """Draining does not wait for ``within``, and the waiting records are left to the next owner."""
    called: list[int] = []

    async def price(batch: list[Order]) -> None:
        called.append(len(batch))

    async with bench(redis_url) as desk:
        running = await desk.start(desk.spec(price, within=60))
        await desk.send([1, 2, 3])
        await wait_for_async(lambda: running.runner.intake.buffer.waiting == 3, "three records wait")
        began = time.monotonic()
        assert (await running.drained()).reason is StopReason.DRAINED
        assert time.monotonic() - began < 20
        assert called == [] and await desk.committed() == 0
        assert desk.budget.used == 0


# -- stopping --------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "in_hand"), [("batch", 10), ("record", 1), ("stream", 10)])
async def test_draining_finishes_and_commits_what_is_in_hand(redis_url: str, mode: str, in_hand: int) -> None:
    """The call in hand ends and is committed; nothing after it is started."""
    release, begun = anyio.Event(), anyio.Event()
    seen: list[int] = []

    async def work(order: Order, _: Context) -> Priced:
        begun.set()
        await release.wait()
        seen.append(order.number)
        return Priced(order.number, 1.0)

    async with bench(redis_url) as desk:
        await desk.send(range(20))
        running = await start(desk, mode, work)
        await begun.wait()
        running.runner.intake.drain()
        release.set()
        assert (await running.drained()).reason is StopReason.DRAINED
        assert seen == list(range(in_hand))
        assert await desk.committed() == len(seen)


@pytest.mark.parametrize(
    ("mode", "options"),
    [*((mode, {}) for mode in MODES), (OVERLAPPING, {}), ("thread", {"concurrency": 4})],
)
async def test_a_cancel_acks_nothing_of_what_is_in_hand(
    redis_url: str, mode: str, options: dict[str, Any]
) -> None:
    """After the grace period calls are cut off, or left behind in their threads; others get the records."""
    begun, release, after = threading.Semaphore(0), threading.Event(), list[int]()
    at_once = 4 if options or mode == OVERLAPPING else 1

    async def hang(order: Order, _: Context) -> Priced:
        begun.release()
        await asyncio.sleep(60)
        return Priced(order.number, 1.0)

    def hang_in_thread(order: Order, _: Context) -> Priced:
        begun.release()
        release.wait(20)
        after.append(order.number)
        return Priced(order.number, 1.0)

    async with bench(redis_url) as desk:
        await desk.send(range(20), keys=20)
        running = await start(desk, mode, hang_in_thread if mode == "thread" else hang, **options)
        for _ in range(at_once):
            await wait_for_async(lambda: begun.acquire(blocking=False), "a call has begun")
        await running.cancelled()
        release.set()
        assert running.stopped is None
        assert await desk.committed() == 0
        assert await desk.acked_entries() == []
        assert desk.budget.used == 0
    assert len(after) <= at_once


@pytest.mark.parametrize("mode", ["batch", "record", OVERLAPPING])
async def test_a_fenced_runner_stops_all_its_calls_and_adds_nothing(redis_url: str, mode: str) -> None:
    """Another owner took the partition: the next commit is refused and what runs is cut off."""
    taken, begun, cut = anyio.Event(), list[int](), list[int]()
    options: dict[str, Any] = {"batch": 1} if mode == "batch" else {}

    async def price(order: Order, _: Context) -> Priced:
        begun.append(order.number)
        if order.number == 0:
            await taken.wait()
            return Priced(0, 1.0)
        try:
            await asyncio.sleep(60)
        finally:
            cut.append(order.number)
        return Priced(order.number, 1.0)

    async with bench(redis_url) as desk:
        await desk.send(range(20), keys=20)
        running = await start(desk, mode, price, **options)
        await wait_for_async(lambda: 0 in begun, "the first call runs")
        await desk.acquire(0, "w2")
        taken.set()
        with anyio.fail_after(5):
            await running.ended.wait()
        assert running.stopped is not None
        assert running.stopped.reason is StopReason.FENCED
        assert "overtaken" in running.stopped.detail
        assert set(cut) == set(begun) - {0}
        assert mode != OVERLAPPING or {1, 2, 3} <= set(cut)
        assert await desk.acked_entries() == []
        assert desk.budget.used == 0


@pytest.mark.parametrize(("drains", "reason"), [(False, StopReason.FENCED), (True, StopReason.DRAINED)])
async def test_a_moved_checkpoint_stops_the_runner(redis_url: str, drains: bool, reason: StopReason) -> None:
    """Somebody set the checkpoint: the runner's view is wrong, and it says what it found.

    It holds the lock. If it drains it gives that back; else the next owner would wait for the drain deadline.
    """
    begun, moved = anyio.Event(), anyio.Event()

    async def price(batch: list[Order]) -> None:
        begun.set()
        await moved.wait()

    async with handling(redis_url, price, [1]) as (desk, running):
        with anyio.fail_after(5):
            await begun.wait()
        await desk.backend.execute("HSET", desk.keys.lock(0), "checkpoint", "5-5")
        if drains:
            running.runner.drain()
        moved.set()
        with anyio.fail_after(5):
            await running.ended.wait()
        assert running.stopped is not None
        assert running.stopped.reason is reason
        assert "5-5" in running.stopped.detail


# -- state -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_state_is_committed_with_the_records_and_found_by_the_next_owner(
    redis_url: str, mode: str
) -> None:
    """A count kept in the state survives a change of owner exactly."""

    def count(order: Order, ctx: Context) -> Priced:
        ctx.state[order.customer] = ctx.state.get(order.customer, 0) + 1
        if ctx.state["ann"] == 5:
            ctx.state["gone"] = b"x"
        elif "gone" in ctx.state:
            del ctx.state["gone"]
        return Priced(order.number, 1.0)

    async with bench(redis_url) as desk:
        await desk.send(range(100))
        running = await start(desk, mode, count)
        await desk.until_committed(100)
        await running.drained()
        stored = await desk.backend.execute("HGETALL", desk.keys.state(0))
        assert stored == [b"ann", b"\x64"]
        await desk.send(range(50))
        second = await start(desk, mode, count, owner="w2")
        await desk.until_committed(150)
        view = second.runner.invoker.state.view()
        assert dict(view) == {"ann": 150}


async def test_a_key_of_another_type_holds_a_commit_up_and_nothing_is_handled_again(redis_url: str) -> None:
    """The partition says which key it is, and goes on once somebody has put it right."""
    calls: list[int] = []

    async def price(batch: list[Order]) -> list[Priced]:
        calls.extend(order.number for order in batch)
        return []

    async with bench(redis_url) as desk:
        key = desk.keys.dead(0)
        running = await desk.start(desk.spec(price, batch=3, within=5.0, output=Priced))
        await desk.backend.execute("SET", key, "mine")
        await desk.send(range(3))
        await wait_for_async(lambda: len(running.states) >= 2, "the commit was tried again")
        assert all(key in reason for reason in running.states)
        assert await desk.committed() == 0
        await desk.backend.execute("DEL", key)
        await desk.until_committed(3)
        assert (await running.drained()).reason is StopReason.DRAINED
        assert running.states[-1] == ""
    assert calls == [0, 1, 2]
