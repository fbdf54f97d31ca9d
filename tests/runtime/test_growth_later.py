"""What is scheduled in a stream that grows is sent once, by the owner of the partition of its key."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamworker import Stream
from streamworker.log import get_logger
from streamworker.redisio.data import later
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.runtime.send.due import send_due
from tests.helpers import PATIENCE_S, wait_for_async
from tests.raw import opened
from tests.runtime.test_growth import KEYS, NAMES, Order, declared
from tests.runtime.test_growth_ids import grow, records

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def owners(backend: Backend, stream: Stream[Order], count: int = 2) -> AsyncIterator[None]:
    """Some workers own what takes records, as owners in several groups do."""

    def owned() -> range:
        return stream.spec.placement.active

    log = get_logger("test")
    tasks = [asyncio.create_task(send_due(backend, stream.spec, owned, MEMORY, log)) for _ in range(count)]
    yield
    for task in tasks:
        task.cancel()


async def test_what_waits_when_its_stream_grows_is_sent_from_the_partitions_that_follow(
    redis_url: str,
) -> None:
    """Also what a program of an earlier release puts there, which knows of no seal, and what has no key."""
    app, orders = declared(redis_url)
    async with app, Backend.open(redis_url, name="tool") as backend:
        for n, name in enumerate([*NAMES, None]):
            await orders.schedule(Order(name, "me", n), id=str(n), after=0)
        await grow(backend, 12)
        note = await backend.execute("HGET", KEYS.counts(3), "sealed")
        await backend.execute("HDEL", KEYS.counts(3), "sealed")
        await orders.schedule(Order("ann", "old", 99), id="old", after=0)
        await backend.execute("HSET", KEYS.counts(3), "sealed", note)
        orders.spec.placement.become(8, 12)
        with opened(redis_url) as raw:
            async with owners(backend, orders):
                await wait_for_async(lambda: len(records(raw)) == len(NAMES) + 2, "all are sent")
                await wait_for_async(
                    lambda: not raw.exists(*(KEYS.later(p) for p in range(8))), "nothing is left behind"
                )
            assert sorted(order.n for order in records(raw)) == [*range(len(NAMES) + 1), 99]
            assert sum(raw.xlen(KEYS.events(p)) for p in range(8)) == 0


async def test_programs_with_the_old_map_and_the_new_one_mean_the_same_record(redis_url: str) -> None:
    """They schedule, put off and cancel what was scheduled before the stream grew."""
    app, orders = declared(redis_url)
    async with app, Backend.open(redis_url, name="tool") as backend:
        firsts = [await orders.schedule(Order("ann", "me", n), id=str(n), after=60) for n in range(6)]
        assert await orders.cancel("5", key="ann")
        await grow(backend, 12)
        new_app, new = declared(redis_url)
        async with new_app:
            for stream, name in (new, "0"), (orders, "1"):
                assert orders.spec.placement.base == 0
                again = await stream.schedule(Order("ann", "me", 7), id=name, after=1)
                assert (again.duplicate, again.due) == (True, firsts[int(name)].due)
            assert await new.cancel("2", key="ann")
            assert await orders.cancel("3", key="ann")
            assert not await new.cancel("3", key="ann")
            assert not (await new.schedule(Order("ann", "me", 8), id="5", after=60)).duplicate
            assert not (await new.schedule(Order("ann", "me", 9), id="4", after=0, replace=True)).duplicate
            assert {each.id for each in await later.waiting(backend, KEYS, 13)} >= {"4", "5"}
            async with owners(backend, new):
                with opened(redis_url) as raw:
                    await wait_for_async(lambda: records(raw), "the fourth is sent")
                    await wait_for_async(lambda: not later_in(raw, 3), "nothing waits in the old one")
                    assert [order.n for order in records(raw)] == [9]
            waiting = await later.waiting(backend, KEYS, 13)
            assert sorted(each.id for each in waiting) == ["0", "1", "5"]


def later_in(raw: Any, partition: int) -> bool:
    """Whether something waits in a partition."""
    return any(value.startswith(b"w ") for value in raw.hvals(KEYS.delayed(partition)))


async def test_what_is_cancelled_while_its_stream_grows_is_never_sent(redis_url: str) -> None:
    """Programs schedule, put off and cancel, with connections that are cut; nothing is sent twice."""
    programs = [declared(redis_url) for _ in range(2)]
    promised, cancelled = set[int](), set[int]()
    grown = asyncio.Event()

    async def work(stream: Stream[Order], seed: int) -> None:
        rng, n = random.Random(seed), seed
        ends = 10**9
        while n < ends:
            if grown.is_set():
                ends = min(ends, n + 200)
            n += 2
            order, how = Order(rng.choice(NAMES), "me", n), rng.choice(("keep", "cancel", "replace"))
            after_s = 60 if how == "replace" else rng.choice((0.01, 0.1, 0.6))
            await stream.schedule(order, id=str(n), after=after_s)
            promised.add(n)
            if how == "replace":
                await stream.schedule(order, id=str(n), after=0, replace=True)
            elif how == "cancel" and await stream.cancel(str(n), key=order.customer):
                cancelled.add(n)
                promised.discard(n)

    async with asyncio.timeout(PATIENCE_S), Backend.open(redis_url, name="tool") as backend:
        with opened(redis_url) as raw:
            async with programs[0][0], programs[1][0], owners(backend, programs[0][1]):
                async with asyncio.TaskGroup() as works:
                    for seed, (_, orders) in enumerate(programs):
                        works.create_task(work(orders, seed))
                    for count in 12, 25:
                        await asyncio.sleep(0.3)
                        for _ in range(3):
                            raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                            await asyncio.sleep(0.05)
                        await grow(backend, count)
                    grown.set()
                await wait_for_async(
                    lambda: not any(later_in(raw, p) for p in range(45)), "all that waits is sent"
                )
            found = [order.n for order in records(raw)]
    assert len(found) == len(set(found))
    assert promised <= set(found)
    assert not cancelled & set(found)
