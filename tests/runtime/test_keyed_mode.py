"""Several records at a time: keys overlap, one key never does, and the log has no gap."""

import asyncio
import gc
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import anyio
import msgspec
import pytest

from streamworker import ConfigurationError, DeadLetter, Retry, Skip
from streamworker.context import Context
from streamworker.runtime.run.modes.keyed import WINDOW_MIN
from streamworker.runtime.run.runner import StopReason
from tests.helpers import wait_for_async
from tests.runtime.workbench import Bench, Order, Priced, Running, bench
from tests.runtime.workbench import handling as handling_orders

pytestmark = pytest.mark.anyio

KEYS = 20


def handling(
    url: str, function: Callable[..., Any], numbers: Iterable[int], *, keys: int = KEYS, **options: Any
) -> AbstractAsyncContextManager[tuple[Bench, Running]]:
    """Handle orders of many customers."""
    return handling_orders(url, function, (Order(n, f"k{n % keys}") for n in numbers), **options)


@dataclass
class Watch:
    """What a handler did: who ran beside whom, and in which order."""

    running: dict[int, str] = field(default_factory=dict)
    begun: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    widest: int = 0
    same_key: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, order: Order) -> None:
        with self.lock:
            self.same_key += order.customer in self.running.values()
            self.running[order.number] = order.customer
            self.begun.append(order.number)
            self.widest = max(self.widest, len(self.running))

    def end(self, order: Order) -> None:
        with self.lock:
            self.running.pop(order.number, None)
            self.ended.append(order.number)

    def check_order(self, keys: int = KEYS, *, repeated: bool = False) -> None:
        """No key overlapped itself or went back; and no record came twice, unless calls were repeated."""
        assert self.same_key == 0
        by_key: dict[int, list[int]] = defaultdict(list)
        for number in self.begun:
            by_key[number % keys].append(number)
        assert all(numbers == sorted(numbers) for numbers in by_key.values())
        assert repeated or len(set(self.begun)) == len(self.begun)


def watched(watch: Watch, pause_s: Callable[[int], float]) -> Callable[..., Any]:
    """Return a handler that waits for a while and forwards a row."""

    async def price(order: Order) -> Priced:
        watch.begin(order)
        try:
            await asyncio.sleep(pause_s(order.number))
        finally:
            watch.end(order)
        return Priced(order.number, 1.0)

    return price


async def numbers_of(desk: Bench, kind: type = Priced) -> list[int]:
    return [row["number"] for row in await desk.rows(kind)]


# -- order and overlap -------------------------------------------------------------------------


@pytest.mark.parametrize(("keys", "ordered_by"), [(KEYS, "key"), (1, "none")])
async def test_calls_overlap_as_their_order_allows_and_the_log_is_in_order(
    redis_url: str, keys: int, ordered_by: str
) -> None:
    """Those of one key never do, unless nothing orders them. They end in another order than they began."""
    watch, rng = Watch(), random.Random(3)
    handler = watched(watch, lambda _: rng.random() / 100)
    options: dict[str, Any] = {"concurrency": 8, "ordered_by": ordered_by}
    async with handling(redis_url, handler, range(600), keys=keys, **options) as (desk, _):
        await desk.until_committed(600)
        assert await numbers_of(desk) == list(range(600))
    if ordered_by == "key":
        watch.check_order()
    assert watch.widest == 8
    assert watch.ended != sorted(watch.ended)


async def test_a_key_is_what_decides_the_partition(redis_url: str) -> None:
    """Keys that are equal for the partitioner are one key here, and records without one are each alone."""
    watch = Watch()
    keys: dict[str, object] = {"k0": 7, "k1": "7", "k2": None}
    async with bench(redis_url, stream={"key": lambda order: keys[order.customer]}) as desk:
        await desk.send(range(30), keys=3)
        await desk.start(desk.spec(watched(watch, lambda _: 0.02), concurrency=30))
        await desk.until_committed(30)
    assert watch.widest == 11, "ten without a key, and one with the key 7"
    assert [n for n in watch.begun if n % 3 < 2] == [n for n in range(30) if n % 3 < 2]


async def test_functions_in_threads_overlap_as_far_as_there_are_threads(redis_url: str) -> None:
    """More would only wait for a thread."""
    watch = Watch()

    def price(order: Order) -> Priced:
        watch.begin(order)
        time.sleep(0.005)
        watch.end(order)
        return Priced(order.number, 1.0)

    async with bench(redis_url, handler_threads=4) as desk:
        await desk.send(range(200), KEYS)
        await desk.start(desk.spec(price, concurrency=64))
        await desk.until_committed(200)
        assert await numbers_of(desk) == list(range(200))
    watch.check_order()
    assert watch.widest == 4


# -- errors ------------------------------------------------------------------------------------


async def test_a_key_waits_for_another_attempt_and_the_others_go_on(redis_url: str) -> None:
    """With a width of one, even: a pause takes nobody's place. The checkpoint waits too."""
    calls: list[tuple[int, int]] = []
    benches: list[Bench] = []
    committed: list[int] = []

    async def price(order: Order, ctx: Context) -> Priced:
        calls.append((order.number, ctx.attempt))
        ctx.forward(Priced(-1, 0.0))
        if order.number == 2 and ctx.attempt < 3:
            if ctx.attempt == 2:
                committed.append(await benches[0].committed())
            raise ConnectionError("not now")
        return Priced(order.number, 1.0)

    options: dict[str, Any] = {"concurrency": 2, "errors": Retry(attempts=3, backoff_max=0.2)}
    async with handling(redis_url, price, range(12), keys=4, **options) as (desk, _):
        benches.append(desk)
        await desk.until_committed(12)
        of_key = [call for call in calls if call[0] % 4 == 2]
        assert of_key == [(2, 1), (2, 2), (2, 3), (6, 1), (10, 1)]
        assert calls.index((11, 1)) < calls.index((2, 2)) and committed[0] <= 2
        assert await numbers_of(desk) == [n for number in range(12) for n in (-1, number)]


async def test_the_first_record_that_fails_for_good_halts_the_partition(redis_url: str) -> None:
    """All before it is committed, also what fails and succeeds later; nothing behind it is."""
    calls: list[int] = []

    async def price(order: Order, ctx: Context) -> Priced:
        calls.append(order.number)
        if order.number == 9 or (order.number == 3 and ctx.attempt == 1):
            raise ValueError(f"cannot price {order.number}")
        await asyncio.sleep(0.05 if order.number == 6 else 0.01)
        if order.number == 6:
            raise ValueError("cannot price 6 either")
        return Priced(order.number, 1.0)

    async with handling(
        redis_url, price, range(400), concurrency=5, errors=Retry(attempts=2, backoff=0.05)
    ) as (
        desk,
        running,
    ):
        await running.halts()
        assert await desk.committed() == 6 and await numbers_of(desk) == list(range(6))
        (reason,) = running.halted
        assert (await desk.ids())[6] in reason and "cannot price 6 either" in reason
        assert "2 attempts" in reason and "test_keyed_mode.py" in reason
        assert max(calls) < 390, "nothing new is begun"
        assert 26 not in calls, "the key waits for ever"
        assert desk.budget.used == 0
        assert (await running.drained()).reason is StopReason.HALTED


async def test_a_record_whose_key_cannot_be_told_is_not_handled(redis_url: str) -> None:
    """Another program may have written it; its place among the others of its key is unknown."""
    calls: list[int] = []

    def key(order: Order) -> object:
        if order.number == 3:
            return 0.5
        return {0: "ann", 1: "ann", 2: "bob", 5: "bob"}[order.number]

    async def price(order: Order) -> None:
        calls.append(order.number)

    async with bench(redis_url) as desk:
        await desk.send(range(6), KEYS)
        spec = desk.spec(price, concurrency=4, errors=Retry(attempts=3, then=DeadLetter()))
        await desk.start(replace(spec, stream=replace(spec.stream, key=key)))
        await desk.until_committed(6)
        errors = [letter[b"error"] for letter in await desk.dead()]
        assert sorted(calls) == [0, 1, 2, 5]
        assert b"float cannot be a key" in errors[0] and b"KeyError: 4" in errors[1]


async def test_the_state_is_refused_and_left_as_it_is(redis_url: str) -> None:
    """Calls that overlap would see each other's changes before they are committed."""
    uses: list[Callable[[MutableMapping[str, Any]], Any]] = [
        lambda state: state.get("sum"),
        lambda state: state.update(sum=1),
        lambda state: state.pop("sum"),
        lambda state: "sum" in state,
        list,
    ]

    async def price(_: Order, ctx: Context) -> None:
        for use in uses[1:]:
            with pytest.raises(ConfigurationError):
                use(ctx.state)
        uses[0](ctx.state)

    async with bench(redis_url) as desk:
        await desk.backend.execute("HSET", desk.keys.state(0), "sum", msgspec.msgpack.encode(7))
        await desk.send(range(3), KEYS)
        running = await desk.start(desk.spec(price, concurrency=4, errors=Retry(attempts=3, then=Skip())))
        await wait_for_async(lambda: bool(running.halted), "the partition halts, and skips nothing")
        assert await desk.committed() == 0
        assert "'price' uses ctx.state, and has concurrency=4" in running.halted[0]
        stored = await desk.backend.execute("HGETALL", desk.keys.state(0))
        assert stored == [b"sum", msgspec.msgpack.encode(7)]


# -- stopping ----------------------------------------------------------------------------------


@pytest.mark.parametrize("gate_is_closed", [False, True])
async def test_draining_leaves_no_gap_and_repeats_nothing(redis_url: str, gate_is_closed: bool) -> None:
    """What is in hand ends; what lies before it, waiting for its key, is done too; no more is begun.

    With a closed gate a drain fills no gap: its commit would be refused, since heartbeats do not get through.
    """
    release, watch = asyncio.Event(), Watch()

    async def price(order: Order) -> Priced:
        watch.begin(order)
        await release.wait()
        watch.end(order)
        return Priced(order.number, 1.0)

    async with bench(redis_url) as desk:
        # Keys 0, 0, 0, 1, 2, 3, ...: the second and third record wait for the first.
        orders = [Order(n, f"k{max(0, n - 2)}") for n in range(50)]
        await desk.producer.send_many(orders)
        spec = desk.spec(price, concurrency=4)
        running = await desk.start(spec)
        await wait_for_async(lambda: len(watch.begun) == 4, "four calls have begun")
        assert watch.begun == [0, 3, 4, 5]
        if gate_is_closed:
            desk.gate.close()
        running.runner.intake.drain()
        release.set()
        assert (await running.drained()).reason is StopReason.DRAINED
        done = [0] if gate_is_closed else list(range(6))
        assert await desk.committed() == len(done)
        assert sorted(watch.begun) == ([0, 3, 4, 5] if gate_is_closed else done)
        desk.gate.open()
        before = len(watch.begun) - len(done)
        await desk.start(spec, owner="w2")
        await desk.until_committed(50)
        assert len(watch.begun) == 50 + before
        assert await numbers_of(desk) == list(range(50))


async def test_a_drain_ends_a_halt_that_waits_for_the_gate(redis_url: str) -> None:
    """What lies before the record that failed cannot be done while heartbeats do not get through."""
    release, failed = asyncio.Event(), asyncio.Event()

    async def price(order: Order) -> None:
        if order.number == 0:
            await release.wait()
        if order.number == 2:
            failed.set()
            raise ValueError("no")

    async with bench(redis_url) as desk:
        await desk.producer.send_many([Order(n, "k" if n < 2 else f"k{n}") for n in range(3)])
        running = await desk.start(desk.spec(price, concurrency=2))
        await failed.wait()
        for _ in range(20):
            await asyncio.sleep(0.005)  # it is about to halt, and waits for the first call
        desk.gate.close()
        release.set()
        await desk.until_committed(1)
        stopped = await running.drained()
        assert stopped.reason is StopReason.HALTED and "no" in stopped.detail
        assert await desk.committed() == 1


async def test_a_drain_does_not_wait_for_a_busy_key(redis_url: str) -> None:
    """After half a second it begins nothing more; what is done behind the gap is done again."""
    watch = Watch()
    handler = watched(watch, lambda n: 0.05 if n % 2 else 0)
    async with bench(redis_url) as desk:
        orders = [Order(n, "busy" if n % 2 else f"k{n}") for n in range(200)]
        await desk.producer.send_many(orders)
        spec = desk.spec(handler, concurrency=8)
        running = await desk.start(spec)
        await wait_for_async(lambda: 198 in watch.ended, "all that may overlap is done")
        began = time.monotonic()
        assert (await running.drained()).reason is StopReason.DRAINED
        assert time.monotonic() - began < 20
        committed = await desk.committed()
        assert 0 < committed < 100
        before = len(watch.begun)
        watch.begun.clear()
        await desk.start(desk.spec(watched(watch, lambda _: 0), concurrency=8), owner="w2")
        await desk.until_committed(200)
        assert len(watch.begun) == 200 - committed
        assert before + len(watch.begun) > 200
        assert await numbers_of(desk) == list(range(200))


async def test_a_closed_gate_lets_calls_end_and_none_begin(redis_url: str) -> None:
    """When it opens they go on, as many at a time as before."""
    watch, release = Watch(), asyncio.Event()

    async def price(order: Order) -> None:
        watch.begin(order)
        await (asyncio.sleep(0.01) if release.is_set() else release.wait())
        watch.end(order)

    async with handling(redis_url, price, range(100), concurrency=4) as (desk, running):
        await wait_for_async(lambda: len(watch.begun) == 4, "four calls have begun")
        desk.gate.close()
        release.set()
        await desk.until_committed(4)
        assert len(watch.begun) == 4
        watch.widest = 0
        desk.gate.open()
        await desk.until_committed(100)
        assert watch.widest == 4
        desk.gate.close()
        assert (await running.drained()).reason is StopReason.DRAINED


@pytest.mark.full("kills owners")
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_becomes_of_its_owners_the_log_is_exact(redis_url: str, seed: int) -> None:
    """Drained, cancelled and overtaken at any time, with handlers that fail and hang about."""
    rng, count = random.Random(seed), 600
    failures: dict[int, int] = {n: rng.randrange(1, 3) for n in rng.sample(range(count), 60)}
    poison = set(rng.sample(range(count), 10))
    watches: list[Watch] = []

    async def until_handled(desk: Bench, calls: int) -> None:
        # By calls and not by time: on a busy machine none of the owners would get anything done.
        with anyio.fail_after(60):
            while len(watches[-1].ended) < calls and await desk.committed() < count:
                await asyncio.sleep(0)

    def owner() -> Callable[..., Any]:
        watch = Watch()
        watches.append(watch)

        async def price(order: Order, ctx: Context) -> Priced:
            watch.begin(order)
            try:
                await asyncio.sleep(rng.random() / 200)
                if order.number in poison or ctx.attempt <= failures.get(order.number, 0):
                    raise ConnectionError("not now")
            finally:
                watch.end(order)
            return Priced(order.number, 1.0)

        return price

    async with bench(redis_url) as desk:
        await desk.send(range(count), keys=30)
        options: dict[str, Any] = {
            "concurrency": 12,
            "errors": Retry(attempts=3, backoff=0.001, then=DeadLetter()),
        }
        turn = 0
        while await desk.committed() < count:
            running = await desk.start(desk.spec(owner(), **options), owner=f"w{(turn := turn + 1)}")
            await until_handled(desk, rng.randrange(150))
            match rng.choice(["drain", "cancel", "fence"]):
                case "drain":
                    await running.drained()
                case "cancel":
                    await running.cancelled()
                case _:
                    await desk.acquire(0, "rival")
                    if await desk.committed() < count:
                        await wait_for_async(running.ended.is_set, "it is fenced")
                    await running.cancelled()
        assert turn > 1
        assert await numbers_of(desk) == [n for n in range(count) if n not in poison]
        ids, dead = await desk.ids(), await desk.dead()
        assert [letter[b"id"].decode() for letter in dead] == [ids[n] for n in sorted(poison)]
        assert all(b"ConnectionError" in letter[b"error"] for letter in dead)
    for watch in watches:
        watch.check_order(keys=30, repeated=True)


# -- bounds and figures --------------------------------------------------------------------------


async def test_the_window_holds_no_more_bytes_than_the_budget(redis_url: str) -> None:
    """While the first record does not end, what the others hold is bounded; commits give all of it back."""
    release, limit = asyncio.Event(), 200_000

    async def price(order: Order) -> None:
        if order.number == 0:
            await release.wait()

    async with bench(redis_url, prefetch_bytes=limit, entry_bytes_max=10_000) as desk:
        await desk.producer.send_many([Order(n, f"{n:05}" * 1_000) for n in range(200)])
        running = await desk.start(desk.spec(price, concurrency=4))
        await wait_for_async(lambda: desk.budget.used > limit / 2, "the budget is in use")
        await wait_for_async(
            lambda: not running.runner.intake.buffer.waiting, "all that was fetched is in the window"
        )
        assert desk.budget.used <= limit
        release.set()
        await desk.until_committed(200)
        await wait_for_async(lambda: desk.budget.used == 0, "all bytes are given back")


async def test_a_full_acked_log_holds_calls_back_and_loses_nothing(redis_url: str) -> None:
    """The reason is visible while it lasts; no record is handled twice."""
    watch = Watch()
    async with bench(redis_url, acked_entries_max=2) as desk:
        await desk.send(range(4_000), KEYS)
        running = await desk.start(desk.spec(watched(watch, lambda _: 0), concurrency=4))
        await wait_for_async(lambda: bool(running.states), "the state says why it waits")
        assert "acked log full" in running.states[0]
        committed = await desk.committed()
        await wait_for_async(lambda: not running.runner.activity.busy_since_ms, "nothing more is handled")
        assert len(watch.begun) <= committed + WINDOW_MIN + 2 * 500
        rows: list[int] = []
        with anyio.fail_after(20):
            while await desk.committed() < 4_000:
                rows += await numbers_of(desk)
                await desk.backend.execute("XTRIM", desk.keys.acked(0), "MAXLEN", 0)
                await asyncio.sleep(0.02)
        assert len(watch.begun) == 4_000
    watch.check_order()


async def test_it_counts_as_work_while_any_call_runs(redis_url: str) -> None:
    """Waiting for entries beside calls that run is no rest; what shares by load looks at this."""
    release = asyncio.Event()

    async def price(_: Order) -> None:
        await release.wait()

    async with bench(redis_url) as desk:
        began_ms = time.monotonic_ns() // 1_000_000
        running = await desk.start(desk.spec(price, concurrency=4))
        await desk.send(range(2), KEYS)
        await wait_for_async(lambda: running.runner.activity.busy_since_ms is not None, "a call runs")
        await asyncio.sleep(0.2)
        now_ms = time.monotonic_ns() // 1_000_000
        busy_ms = running.runner.activity.worked_ms(now_ms)
        assert running.runner.activity.worked_ms(now_ms + 1_000) - busy_ms == 1_000
        release.set()
        await desk.until_committed(2)
        now_ms = time.monotonic_ns() // 1_000_000
        assert 190 <= running.runner.activity.worked_ms(now_ms) <= now_ms - began_ms
        assert running.runner.activity.worked_ms(now_ms + 1_000) == running.runner.activity.worked_ms(now_ms)


async def test_calls_that_never_wait_leave_the_event_loop_to_others(redis_url: str) -> None:
    """All calls of a partition together get a slice of each turn, and not a window of records."""
    handled, in_one_turn = 0, 0

    async def price(_: Order) -> None:
        nonlocal handled
        handled += 1

    async with handling(redis_url, price, range(10_000), keys=1_000, concurrency=64) as (_, running):
        while running.runner.commits.records_done < 10_000:
            before = handled
            await asyncio.sleep(0)
            in_one_turn = max(in_one_turn, handled - before)
    # Between 300 and 500 (measured); with a turn of the event loop for each record it would be 64.
    assert 100 < in_one_turn < 1_000


async def rate(desk: Bench, handler: Callable[..., Any]) -> float:
    """Return how many records a second a handler gets through, in one partition, 64 at a time."""
    count, before = 10_000, await desk.committed()
    desk.gate.close()
    running = await desk.start(desk.spec(handler, concurrency=64))
    await desk.send(range(count), keys=1_000)
    buffer = running.runner.intake.buffer
    await wait_for_async(lambda: buffer.waiting == count or not buffer.needs_more, "records wait")
    began = time.process_time()
    desk.gate.open()
    while running.runner.commits.records_done < count:
        await asyncio.sleep(0.001)
    took = time.process_time() - began
    await running.drained()
    assert await desk.committed() == before + count
    return count / took


async def rate_by_hand(handler: Callable[..., Any]) -> float:
    """Return how many records a second a bare loop gets through: a task each, 64 at a time."""
    orders = [Order(n, f"k{n % 1_000}") for n in range(20_000)]
    places = asyncio.Semaphore(64)

    async def one(order: Order) -> None:
        await handler(order)
        places.release()

    began = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for order in orders:
            await places.acquire()
            tasks.create_task(one(order))
    return len(orders) / (time.process_time() - began)


@pytest.mark.soak  # It measures rates for a while, by itself; nothing is wrong if they are lower for a day.
@pytest.mark.alone("measures rates")
async def test_what_concurrency_costs_a_record(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading, order by key, commits and rows cost a few times what a task by itself does, whatever waits.

    Against a loop by hand in the same round: the machine is slower for seconds at a time, which tells
    nothing of either. By this process' time: what others do on the machine would count against the one
    that takes longer. Without what pytest has collected: the collector of garbage goes through all of it.
    """

    async def nothing(_: Order) -> None: ...

    async def forward(order: Order) -> Priced:
        return Priced(order.number, 1.0)

    rates: dict[str, list[float]] = {"by hand": [], "side by side": [], "forwarding a row": []}
    async with bench(redis_url) as desk:
        gc.collect()
        gc.freeze()
        for _ in range(5):
            rates["by hand"].append(await rate_by_hand(nothing))
            rates["side by side"].append(await rate(desk, nothing))
            rates["forwarding a row"].append(await rate(desk, forward))
        gc.unfreeze()
    shares = {
        name: median(ours / bare for ours, bare in zip(found, rates["by hand"], strict=True))
        for name, found in rates.items()
    }
    with capsys.disabled():
        said = (f"{name} {median(found):,.0f}/s ({shares[name]:.3f})" for name, found in rates.items())
        print("\ninstant handlers: " + ", ".join(said))
    # 0.35 to 0.36, and 0.136 to 0.142, in three runs of the whole collection, on two builds of Python.
    # With a look at all records in hand for each of them (`min(self._in_hand)` in KeyedMode._finish): 0.095
    # and 0.069 in two.
    assert shares["side by side"] > 0.18
    assert shares["forwarding a row"] > 0.09
