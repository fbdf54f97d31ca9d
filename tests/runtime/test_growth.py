"""Producers go on while their stream grows: each record is there once, and a key keeps its order."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from streamworker import App, Stream
from streamworker.core.data.placement import Placement
from streamworker.errors import BackendError, ProducerError
from streamworker.records import RecordType
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.scripts import SEAL
from streamworker.redisio.wire.client import Backend
from tests.chaos.proxy import proxied
from tests.helpers import PATIENCE_S, wait_for_async
from tests.raw import opened, records_in

pytestmark = pytest.mark.anyio

KEYS = StreamKeys("shop", "orders")
NAMES = [f"customer-{n}" for n in range(40)]


class Order(msgspec.Struct):
    customer: str | None
    who: str
    n: int


def declared(url: str, **more: object) -> tuple[App, Stream[Order]]:
    app = App("shop", redis_url=url)
    return app, app.stream("orders", Order, key="customer", partitions=8, **more)  # type: ignore[arg-type]


async def seal(backend: Backend, *counts: int) -> None:
    """Seal the partitions that take records, as the first step of a growth."""
    (text,) = await backend.execute("HMGET", KEYS.meta, "partitions")
    placement = Placement(*map(int, text.split(b"+")))
    after = "+".join(map(str, (*placement.counts, *counts)))
    for partition in placement.active:
        (reply,) = await backend.run_many(SEAL, [SEAL.at(KEYS, partition, map=after)])
        assert reply[0] == b"OK"


async def open_next(backend: Backend, *counts: int) -> None:
    """Say which partitions follow, as its last step."""
    (text,) = await backend.execute("HMGET", KEYS.meta, "partitions")
    opened = f"opened:{Placement(*map(int, text.split(b'+'))).total}"
    await backend.execute("HSETNX", KEYS.meta, opened, await backend.time_ms(near=KEYS.meta))
    await backend.execute("HSET", KEYS.meta, "partitions", "+".join((text.decode(), *map(str, counts))))


async def repeated(step: Callable[[Backend, int], Awaitable[None]], backend: Backend, count: int) -> None:
    """Do a step again until Redis has answered."""
    while True:
        try:
            return await step(backend, count)
        except BackendError:
            await asyncio.sleep(0.01)


class Crowd:
    """Some producers that send in different ways until they are told to stop."""

    def __init__(self, stream: Stream[Order], seed: int) -> None:
        self.stream, self.seed = stream, seed
        self.numbers = Counter[tuple[str, str | None]]()
        self.told: dict[tuple[str, str, int], tuple[int, str]] = {}
        self.sent = 0
        self.ends = False

    def order(self, who: str, customer: str | None) -> Order:
        self.numbers[who, customer] += 1
        return Order(customer, who, self.numbers[who, customer])

    def orders(self, who: str, rng: random.Random, count: int) -> list[Order]:
        return [self.order(who, rng.choice(NAMES)) for _ in range(count)]

    async def one_by_one(self) -> None:
        rng = random.Random(f"{self.seed} one")
        while not self.ends:
            await self._send(self.orders("one", rng, 1), None)

    async def at_once(self) -> None:
        rng = random.Random(f"{self.seed} at once")
        while not self.ends:
            await self._send(self.orders("at once", rng, 200), {"trace": "x"} if rng.random() < 0.3 else None)

    async def _send(self, orders: Sequence[Order], headers: dict[str, str] | None) -> None:
        answers = await asyncio.gather(*(self.stream.send(order, headers=headers) for order in orders))
        for order, sent in zip(orders, answers, strict=True):
            assert order.customer is not None
            self.told[order.who, order.customer, order.n] = sent.partition, str(sent.entry_id)
        self.sent += len(orders)

    async def lists(self) -> None:
        rng = random.Random(f"{self.seed} lists")
        while not self.ends:
            count = await self.stream.send_many(self.orders("lists", rng, 2_500))
            self.sent += count
            await asyncio.sleep(0)

    async def generators(self) -> None:
        rng = random.Random(f"{self.seed} generators")
        while not self.ends:
            orders = self.orders("generators", rng, 1_200)
            count = await self.stream.send_many(order for order in orders)
            self.sent += count

    async def without_a_key(self) -> None:
        while not self.ends:
            count = await self.stream.send_many([self.order("none", None) for _ in range(300)])
            self.sent += count
            await asyncio.sleep(0.01)

    async def sends(self, more: int) -> None:
        """Wait until so many more records are sent."""
        until = self.sent + more
        await wait_for_async(lambda: self.sent > until, "records were sent")

    async def run(self) -> None:
        ways = (self.one_by_one, self.at_once, self.lists, self.generators, self.without_a_key)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(way() for way in ways))


def check(raw: Any, crowd: Crowd, *counts: int) -> None:
    """Check that each record is there once, in the partition of its key, and in the order of its key."""
    decode = RecordType.of(Order).decoder("json")
    found, last = Counter[tuple[str, str | None, int]](), dict[tuple[str, str | None], int]()
    where: dict[tuple[str, str, int], tuple[int, str]] = {}
    for generation in range(len(counts)):
        placement = Placement(*counts[: generation + 1])
        for partition in placement.active:
            for entry_id, fields in records_in(raw, KEYS.events(partition)):
                order = decode(fields)
                found[order.who, order.customer, order.n] += 1
                if order.customer is None:
                    continue
                assert placement.partition_of(order.customer.encode()) == partition
                assert last.get((order.who, order.customer), 0) < order.n
                last[order.who, order.customer] = order.n
                where[order.who, order.customer, order.n] = partition, entry_id.decode()
    assert set(found.values()) == {1}
    assert sum(found.values()) == crowd.sent
    assert {name: where[name] for name in crowd.told} == crowd.told


@pytest.mark.parametrize("is_cut", [False, True])
async def test_producers_go_on_in_order_while_their_stream_grows_twice(redis_url: str, is_cut: bool) -> None:
    """They send in five ways, and in one of the runs all connections are cut again and again."""
    app, orders = declared(redis_url)
    crowd = Crowd(orders, seed=1)
    with opened(redis_url) as raw:
        async with app, Backend.open(redis_url, name="tool") as backend:
            running = asyncio.create_task(crowd.run())
            cuts = asyncio.create_task(_cut(raw) if is_cut else asyncio.sleep(0))
            for count in (12, 25):
                await crowd.sends(10_000)
                await repeated(seal, backend, count)
                await asyncio.sleep(0.2)
                await repeated(open_next, backend, count)
            await crowd.sends(10_000)
            crowd.ends = True
            await running
            cuts.cancel()
        check(raw, crowd, 8, 12, 25)


async def _cut(raw: Any) -> None:
    rng = random.Random(1)
    while True:
        await asyncio.sleep(rng.uniform(0.1, 0.3))
        raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def test_a_send_waits_for_the_map_and_is_told_if_its_time_ends_before(redis_url: str) -> None:
    """The partitions are sealed, and nothing says which follow: nothing is written, and the others go on."""
    app, orders = declared(redis_url)
    async with app, Backend.open(redis_url, name="tool") as backend:
        first = await orders.send(Order("ann", "me", 1))
        await seal(backend, 12)
        with pytest.raises(ProducerError, match=r"partition 3 takes no more records.*Nothing was written"):
            await orders.send(Order("ann", "me", 2), timeout="0.3 seconds")
        waits = asyncio.create_task(orders.send(Order("ann", "me", 3)))
        await asyncio.sleep(0.1)
        await open_next(backend, 12)
        sent = await waits
        assert (first.partition, sent.partition) == (3, 13)
        with opened(redis_url) as raw:
            assert (raw.xlen(KEYS.events(3)), raw.xlen(KEYS.events(13))) == (1, 1)


async def test_columns_that_waited_are_refused_and_those_that_follow_go_on(redis_url: str) -> None:
    """An entry of columns may hold keys of several partitions; it is not taken apart, and nothing is lost."""
    app, orders = declared(redis_url, codec="arrow")
    async with app, Backend.open(redis_url, name="tool") as backend:
        await orders.send(Order("ann", "me", 1))
        await seal(backend, 12)
        waits = asyncio.create_task(orders.send(Order("ann", "me", 2)))
        await asyncio.sleep(0.1)
        await open_next(backend, 12)
        with pytest.raises(ProducerError, match=r"has grown, and a record that waited cannot be read again"):
            await waits
        assert (await orders.send(Order("ann", "me", 3))).partition == 13
    with opened(redis_url) as raw:
        assert (raw.xlen(KEYS.events(3)), raw.xlen(KEYS.events(13))) == (1, 1)


async def test_what_is_in_flight_when_the_map_is_learned_comes_first(redis_url: str) -> None:
    """Another producer of the process has learned it, while the first sends of a key have not arrived."""
    async with proxied(redis_url) as proxy, Backend.open(redis_url, name="tool") as backend:
        app, orders = declared(proxy.url)
        async with app:
            await orders.send(Order("ann", "me", 1))
            await orders.send_many([Order("ann", "me", n) for n in (2, 3)])  # makes the second connection
            proxy.hold(down=False)
            older = [asyncio.create_task(orders.send(Order("ann", "me", n))) for n in (4, 5)]
            await asyncio.sleep(0.05)
            older.append(asyncio.create_task(orders.send(Order("ann", "me", 6))))
            await asyncio.sleep(0.05)
            await seal(backend, 12)
            await open_next(backend, 12)
            orders.spec.placement.become(8, 12)
            newer = [asyncio.create_task(orders.send(Order("ann", "me", n))) for n in (7, 8)]
            await asyncio.sleep(0.05)
            proxy.let_pass()
            assert [sent.partition for sent in await asyncio.gather(*older, *newer)] == [13] * 5
    with opened(redis_url) as raw:
        decode = RecordType.of(Order).decoder("json")
        there = [decode(fields).n for p in (3, 13) for _, fields in records_in(raw, KEYS.events(p))]
        assert there == list(range(1, 9))


@pytest.mark.parametrize("partitions", [8, 12])
async def test_a_producer_that_starts_after_the_growth_sends_by_the_map(
    redis_url: str, partitions: int
) -> None:
    """It may declare the first number of partitions, or the newest."""
    async with Backend.open(redis_url, name="tool") as backend:
        app, orders = declared(redis_url)
        async with app:
            await orders.send(Order("ann", "me", 1))
        await seal(backend, 12)
        await open_next(backend, 12)
        app = App("shop", redis_url=redis_url)
        orders = app.stream("orders", Order, key="customer", partitions=partitions)
        async with app:
            assert (await orders.send(Order("ann", "me", 2))).partition == 13
