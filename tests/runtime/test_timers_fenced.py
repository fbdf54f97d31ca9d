"""Leaders that are killed, or sleep and wake, while they run a timer: each planned time is done once."""

import random
import time
from dataclasses import dataclass, field
from datetime import datetime

import anyio
import msgspec
import pytest

from streamworker import App, Context
from streamworker.redisio.data.state import TIMERS, read_state
from streamworker.redisio.keys import TICK
from streamworker.runtime.risks import turns
from tests.helpers import PATIENCE_S, wait_for_async
from tests.runtime.workbench import Order, bench

pytestmark = pytest.mark.anyio

PERIOD_MS = 100


@dataclass
class Leader:
    """How many calls a leader makes before its end, and how it ends."""

    calls: int
    sleeps: bool
    """Whether it sleeps within its last call, and wakes after its successor has died."""
    in_last: anyio.Event = field(default_factory=anyio.Event)
    wakes: anyio.Event = field(default_factory=anyio.Event)


@pytest.mark.parametrize(
    # Of one kind: the few find the mistakes that are planted in tests/planted/timers.txt.
    ("ticks", "kills"),
    [(600, 30), pytest.param(10_000, 300, marks=pytest.mark.soak)],
)
@pytest.mark.timeout(600)
async def test_no_leader_stores_a_time_that_another_has_done(redis_url: str, ticks: int, kills: int) -> None:
    """With missed="all" none is left out either.

    Each leader ends at a random moment of a call or its commit. Every third sleeps within its call, as a
    paused process does: its successor acquires the lock, runs the same times and dies; then it wakes, and
    commits.
    """
    app, rng, leaders = App("shop"), random.Random(5), dict[int, Leader]()

    @app.timer(every="0.1 seconds", missed="all")
    async def sweep(at: datetime, ctx: Context) -> None:
        leader = leaders[ctx.epoch]
        leader.calls -= 1
        if leader.sleeps and leader.calls < 0:
            await anyio.sleep_forever()  # It was not fenced, and shall not hide what its last commit did.
        planned = str(round(at.timestamp() * 1000))
        ctx.state[planned] = [*ctx.state.get(planned, []), ctx.epoch]
        if leader.calls == 0:
            leader.in_last.set()
            if leader.sleeps:
                await leader.wakes.wait()

    [group] = app.registry.groups
    deployed_ms = round(time.time() * 1000) // PERIOD_MS * PERIOD_MS - ticks * PERIOD_MS
    async with bench(redis_url) as desk:
        await desk.backend.execute("HSET", desk.keys.state(0), TICK + sweep.name, deployed_ms)
        for number in range(kills):
            first = await desk.start(group, owner=f"w{number}")
            leader = Leader(rng.randrange(4, 2 * ticks // kills - 2), sleeps=number % 3 == 0)
            leaders[first.lock.epoch] = leader
            with anyio.fail_after(PATIENCE_S):
                await leader.in_last.wait()
            if leader.sleeps:
                asleep, sleeper = first, leader
                turns().leave(first.runner.intake, 0)  # Its process is another one.
                continue
            await anyio.sleep(rng.random() / 500)
            await first.cancelled()
            if not sleeper.wakes.is_set():
                sleeper.wakes.set()
                await wait_for_async(
                    lambda asleep=asleep, sleeper=sleeper: asleep.stopped or sleeper.calls < 0,  # type: ignore[misc]
                    "the leader that woke is fenced",
                )
                await asleep.cancelled()
        last = await desk.start(group, owner="last")
        leaders[last.lock.epoch] = Leader(-1, sleeps=False)

        async def stored() -> dict[int, list[int]]:
            found = await read_state(desk.backend, desk.keys, 0)
            return {
                int(name): msgspec.msgpack.decode(value)
                for name, value in found.items()
                if not name.startswith(TIMERS)
            }

        async def caught_up() -> bool:
            return len(await stored()) >= ticks

        await wait_for_async(caught_up, "all that was due has run")
        await last.drained()
        done = await stored()

    epochs = [done[planned] for planned in sorted(done)]
    assert sorted(done) == [deployed_ms + PERIOD_MS * (n + 1) for n in range(len(done))], "none is missing"
    assert [each for each in epochs if len(each) > 1] == [], "none is done twice"
    assert epochs == sorted(epochs), "and later ones by later leaders"
    assert len({epoch for [epoch] in epochs}) > kills / 2, "they led in turn"


async def test_a_timer_waits_for_no_entry_that_somebody_deleted(redis_url: str) -> None:
    """The newest entry goes before it is read; what is left is handled, and the timer runs."""
    app, calls, go_on = App("shop"), list[int](), anyio.Event()
    done: list[int] = []

    @app.processor(app.stream("orders", Order, key="customer", partitions=1), name="price")
    async def price(order: Order) -> None:
        await go_on.wait()
        done.append(order.number)

    @price.timer(every="0.1 seconds", missed="once", when="caught up")
    async def tell(at: datetime) -> None:
        calls.append(len(done))

    async with bench(redis_url, fetch_count=1, prefetch_bytes=2 * 1024 * 1024) as desk:
        await desk.backend.execute("HSET", desk.keys.state(0), TICK + tell.name, 1)
        for number in range(6):
            await desk.producer.send(Order(number, "x" * 1_000_000))
        ids = await desk.ids()
        running = await desk.start(app.registry.processors["price"])
        [timer] = running.runner.intake.timers.calls
        await wait_for_async(lambda: timer.held and str(timer.held[1]) == ids[-1], "a tick waits")
        await desk.backend.execute("XDEL", desk.keys.events(0), *ids[-2:])
        go_on.set()
        await wait_for_async(lambda: calls, "it runs")
        await running.drained()
    assert calls[0] == 4
