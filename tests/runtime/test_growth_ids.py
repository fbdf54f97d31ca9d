"""An id is one record of its key, also while its stream grows."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from streamworker import Sent, Stream
from streamworker.errors import ProducerError
from streamworker.records import RecordType
from streamworker.redisio.wire.client import Backend
from tests.chaos.proxy import proxied
from tests.helpers import PATIENCE_S, wait_for_async
from tests.raw import opened, records_in
from tests.runtime.test_growth import KEYS, NAMES, Order, declared, open_next, repeated, seal

pytestmark = pytest.mark.anyio


async def grow(backend: Backend, count: int) -> None:
    """Let the stream grow, in one go."""
    await repeated(seal, backend, count)
    await repeated(open_next, backend, count)


def records(raw: Any) -> list[Order]:
    """Return all records of the stream, in all of its partitions."""
    decode = RecordType.of(Order).decoder("json")
    return [decode(fields) for p in range(45) for _, fields in records_in(raw, KEYS.events(p))]


def scripts_run(raw: Any) -> int:
    """Return how many scripts the server has run, and commands that read the map."""
    stats = raw.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "time"))


async def test_an_id_that_was_sent_before_the_growth_is_known_after_it(redis_url: str) -> None:
    """To a producer that lived through it, and to one that starts later, and after a second growth."""
    app, orders = declared(redis_url)
    async with app, Backend.open(redis_url, name="tool") as backend:
        first = await orders.send(Order("ann", "me", 1), id="a")
        await grow(backend, 12)
        again = Sent(first.partition, first.entry_id, True)
        assert await orders.send(Order("ann", "me", 2), id="a") == again
        second = await orders.send(Order("ann", "me", 3), id="b")
        assert (first.partition, second.partition, second.duplicate) == (3, 13, False)
        await grow(backend, 25)
        new_app, new = declared(redis_url)
        async with new_app:
            for each in orders, new:
                assert await each.send(Order("ann", "me", 4), id="a") == again
                assert await each.send(Order("ann", "me", 5), id="b") == Sent(13, second.entry_id, True)
    with opened(redis_url) as raw:
        assert [order.n for order in records(raw)] == [1, 3]


async def test_a_try_without_an_answer_before_the_seal_is_found_after_it(redis_url: str) -> None:
    """The record is there once, and its send is told where, as if the answer had come."""
    async with proxied(redis_url) as proxy, Backend.open(redis_url, name="tool") as backend:
        app, orders = declared(proxy.url)
        async with app:
            await orders.send(Order("bob", "me", 0), id="a")
            proxy.hold(down=False)
            sends = [asyncio.create_task(orders.send(Order("ann", "me", n), id="a")) for n in (1, 2)]
            with opened(redis_url) as raw:
                await asyncio.sleep(0.05)
                proxy.lose, proxy.refuse = 2, True
                proxy.let_pass()
                await wait_for_async(lambda: raw.xlen(KEYS.events(3)) == 1, "the first is written")
                await wait_for_async(lambda: proxy.lost == 2, "both answers are lost")
                await grow(backend, 12)
                orders.spec.placement.become(8, 12)  # Another producer of the process has learned it.
                proxy.heal()
                one, two = await asyncio.gather(*sends)
                assert one[:2] == two[:2] == (3, one.entry_id)
                assert sorted((one.duplicate, two.duplicate)) == [False, True]
                assert len(records(raw)) == 2


async def test_old_partitions_are_asked_for_as_long_as_they_may_know_an_id(redis_url: str) -> None:
    """A send costs one script then; and so in a stream that never grew."""
    app, orders = declared(redis_url)
    async with app, Backend.open(redis_url, name="tool") as backend:
        with opened(redis_url) as raw:

            async def cost(n: int, stream: Stream[Order]) -> int:
                before = scripts_run(raw)
                await stream.send(Order("ann", "me", n), id=str(n))
                return scripts_run(raw) - before

            costs = [await cost(n, orders) for n in range(2)][1:]
            await grow(backend, 12)
            await orders.send(Order("ann", "me", 9), id="9")
            costs.append(await cost(3, orders))
            raw.hset(KEYS.meta, "opened:8", raw.time()[0] * 1000 - 86_400_000)
            later_app, later = declared(redis_url)
            async with later_app:
                await later.send(Order("ann", "me", 10), id="10")
                costs.append(await cost(4, later))
            assert costs == [1, 2, 1]


async def test_a_send_with_an_id_waits_for_the_map(redis_url: str) -> None:
    """It is told if its time ends before."""
    app, orders = declared(redis_url)
    async with app, Backend.open(redis_url, name="tool") as backend:
        await orders.send(Order("ann", "me", 1), id="a")
        await seal(backend, 12)
        with pytest.raises(ProducerError, match=r"partition 3 takes no more records.*Nothing was written"):
            await orders.send(Order("ann", "me", 2), id="b", timeout="0.3 seconds")
        assert (await orders.send(Order("ann", "me", 3), id="a")).duplicate
        waits = asyncio.create_task(orders.send(Order("ann", "me", 4), id="b"))
        await asyncio.sleep(0.1)
        await open_next(backend, 12)
        assert (await waits)[::2] == (13, False)


class Repeaters:
    """Some programs that send the same records with the same ids, each at its own time."""

    def __init__(self) -> None:
        self.told: dict[int, set[tuple[int, str]]] = {}
        self.firsts = Counter[int]()
        self.ends = False

    async def run(self, stream: Stream[Order], seed: int) -> None:
        rng = random.Random(seed)
        numbers = iter(range(10**9))
        while not self.ends:
            wanted = [next(numbers) for _ in range(20)]
            rng.shuffle(wanted)
            await asyncio.gather(*(self.send(stream, n) for n in wanted))
            await asyncio.sleep(rng.uniform(0, 0.02))

    async def send(self, stream: Stream[Order], n: int) -> None:
        sent = await stream.send(Order(NAMES[n % len(NAMES)], "me", n), id=f"id-{n}")
        self.told.setdefault(n, set()).add((sent.partition, str(sent.entry_id)))
        self.firsts[n] += not sent.duplicate


async def test_senders_of_one_id_with_the_old_map_and_with_the_new_write_it_once(redis_url: str) -> None:
    """Their connections are cut again and again while the stream grows twice."""
    crowd = Repeaters()
    apps = [declared(redis_url) for _ in range(3)]
    with opened(redis_url) as raw:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(asyncio.timeout(PATIENCE_S))
            backend = await stack.enter_async_context(Backend.open(redis_url, name="tool"))
            for app, _ in apps:
                await stack.enter_async_context(app)
            async with asyncio.TaskGroup() as runs:
                for seed, (_, orders) in enumerate(apps):
                    runs.create_task(crowd.run(orders, seed))
                for count in (12, 25, 0):
                    until = len(crowd.told) + 200
                    while len(crowd.told) < until:
                        await asyncio.sleep(0.05)
                        raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                    if count:
                        await grow(backend, count)
                crowd.ends = True
        assert Counter(order.n for order in records(raw)) == Counter(dict.fromkeys(crowd.told, 1))
        assert {len(places) for places in crowd.told.values()} == {1}
        assert set(crowd.firsts.values()) == {1}
