"""Groups go on while their stream grows: each record once in each group, and a key in its order."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextvars import ContextVar
from typing import Any

import anyio
import msgspec
import pytest

from streamworker import App, Halt, Stream
from streamworker.core.data.placement import Placement
from streamworker.core.events import StartRunner
from streamworker.redisio.admin import growth
from streamworker.redisio.data.streams import register
from streamworker.redisio.group import following
from streamworker.redisio.group.locks import LockView, read_locks
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import SEAL
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.redisio.wire.info import pairs_of
from streamworker.runtime import provisioning
from streamworker.runtime.run import generations, trims
from streamworker.runtime.worker import Worker
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio

GROUPS = [GroupKeys("shop", "orders", name) for name in ("price", "audit")]
NAMES = [f"customer-{n}" for n in range(60)]


SLOW = pytest.mark.full("takes several seconds")
NAME = ContextVar[str]("NAME")
"""The worker in whose task this is."""


class Order(msgspec.Struct):
    customer: str
    n: int


class Shop:
    """A stream, what was sent to it, and what its two groups have handled."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.settings = {"heartbeat_interval_ms": 200, "trim_interval_ms": 200, **settings}
        self.declared: dict[str, Any] = {"partitions": 2}
        self.sent = Counter[str]()
        self.handled: dict[str, list[tuple[str, int]]] = {keys.group: [] for keys in GROUPS}
        self.halts: Callable[[str, Order], bool] = lambda *_: False
        self.rng = random.Random(7)
        self.ends = self.may_repeat = False
        self.running: dict[str, Worker] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}

    def app(self) -> tuple[App, Stream[Order]]:
        """Return an app of its own, as another process has one."""
        app = App("shop", redis_url=self.url, **self.settings)
        orders = app.stream("orders", Order, key="customer", **self.declared)

        def declare(group: str) -> None:
            async def handle(order: Order) -> None:
                if self.halts(group, order):
                    raise ValueError("it is told to")
                if group == "audit":
                    await asyncio.sleep(0.001)  # This group is behind when the stream grows.
                self.handled[group].append((order.customer, order.n))

            app.processor(orders, name=group, errors=Halt())(handle)

        for keys in GROUPS:
            declare(keys.group)
        return app, orders

    @contextlib.asynccontextmanager
    async def workers(self, *names: str) -> AsyncIterator[None]:
        """Run workers meanwhile, which :meth:`kill` ends without a word."""
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(self.run, name)
            yield
            for worker in self.running.values():
                worker.stop()

    async def run(self, name: str) -> None:
        app, _ = self.app()
        NAME.set(name)
        self.running[name], self.scopes[name] = Worker(app, name=name), anyio.CancelScope()
        with self.scopes[name]:
            await self.running[name].run()

    async def kill(self) -> None:
        """End the worker that calls this as a SIGKILL does: its locks stay, and it is silent."""
        self.may_repeat = True
        self.scopes[NAME.get()].cancel()
        await anyio.sleep_forever()

    async def send(self, count: int) -> None:
        """Send some records by a producer of its own."""
        app, orders = self.app()
        async with app:
            await self._send(orders, count)

    async def _send(self, orders: Stream[Order], count: int) -> None:
        records = []
        for customer in self.rng.choices(NAMES, k=count):
            self.sent[customer] += 1
            records.append(Order(customer, self.sent[customer]))
        await orders.send_many(records)

    @contextlib.asynccontextmanager
    async def sending(self, pause_s: float = 0.01) -> AsyncIterator[None]:
        """Send meanwhile, fifty records and then a pause."""
        app, orders = self.app()

        async def run() -> None:
            while not self.ends:
                await self._send(orders, 50)
                await asyncio.sleep(pause_s)

        async with app, anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            yield
            self.ends = True

    async def sends(self, more: int) -> None:
        """Wait until so many more records are sent."""
        until = self.sent.total() + more
        await wait_for_async(lambda: self.sent.total() > until, "they are sent")

    async def all_handled(self) -> None:
        """Wait until both groups have handled all records, and check that each was handled in its order.

        None was handled twice, but what could not be committed.
        """
        count = self.sent.total()
        await wait_for_async(
            lambda: all(len(set(its)) >= count for its in self.handled.values()), "all is handled"
        )
        for its in self.handled.values():
            last = Counter[str]()
            for customer, n in its:
                assert n == last[customer] + 1 or (n <= last[customer] and self.may_repeat), (customer, n)
                last[customer] = max(n, last[customer])
            assert last == self.sent


async def all_committed(backend: Backend, shop: Shop, *counts: int) -> None:
    """Wait until each group has committed all records; locks count each commit of a record."""
    for keys in GROUPS:

        async def is_committed(keys: GroupKeys = keys) -> bool:
            locks = await read(backend, keys, sum(counts))
            return sum(lock.entries for lock in locks.values()) == shop.sent.total()

        await wait_for_async(is_committed, f"{keys.group} has committed all, and nothing twice")


async def grow(backend: Backend, count: int) -> None:
    await growth.prepare(backend, GROUPS[0], count, MEMORY)
    await growth.go_on(backend, GROUPS[0], MEMORY, "test")


async def read(backend: Backend, keys: GroupKeys, total: int) -> dict[int, LockView]:
    found = await read_locks(backend, keys, range(total))
    return {p: lock for p, lock in found.items() if isinstance(lock, LockView)}


async def settled(backend: Backend, *counts: int, living: Collection[str] = ("w1", "w2", "w3")) -> None:
    """Wait until each group is done with all partitions but the newest, which have living owners alone."""
    placement = Placement(*counts)
    for keys in GROUPS:

        async def is_settled(keys: GroupKeys = keys) -> bool:
            locks = await read(backend, keys, placement.total)
            return (
                all(
                    not lock.waits_for
                    and lock.done == (p < placement.base)
                    and (lock.owner.partition(".")[0] not in living) == (p < placement.base)
                    for p, lock in locks.items()
                )
                and len(locks) == placement.total
            )

        await wait_for_async(is_settled, f"{keys.group} goes on")


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "LOOK_S", 1.0)


@pytest.mark.parametrize(
    "coordination", ["membership", *(pytest.param(each, marks=SLOW) for each in ("claim", "lease"))]
)
async def test_groups_go_on_in_order_while_their_stream_grows_twice(
    redis_url: str, coordination: str
) -> None:
    """Under a producer that sends all the time, with three workers."""
    shop = Shop(redis_url, coordination=coordination)
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1", "w2", "w3"):
        async with shop.sending():
            await shop.sends(500)
            for count in (3, 5):
                await grow(backend, count)
                await shop.sends(500)
        await shop.all_handled()
        await settled(backend, 2, 3, 5)
        await all_committed(backend, shop, 2, 3, 5)


STEPS = ["before the group registers", "after the group has registered", "before it is done"]
STEPS += ["after it is done", "before it opens", "after it has opened"]


@SLOW
@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_that_is_killed_at_a_step_leaves_it_to_the_others(
    redis_url: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it has done of it is done again, or goes on from there."""
    shop = Shop(redis_url, dead_after_ms=600)
    killed: list[str] = []

    async def at(here: str) -> None:
        if here == step and not killed:
            killed.append(NAME.get())
            await shop.kill()

    finish, opens, declare = following.finish_many, following.open_partition, provisioning.provision

    async def finishing(
        backend: Backend, keys: GroupKeys, starts: Mapping[int, StartRunner], wait: Any
    ) -> Any:
        await at("before it is done")
        done = await finish(backend, keys, starts, wait)
        if done:
            await at("after it is done")
        return done

    async def opening(backend: Backend, keys: GroupKeys, start: StartRunner, wait: Any) -> bool:
        await at("before it opens")
        is_open = await opens(backend, keys, start, wait)
        await at("after it has opened")
        return is_open

    async def declaring(backend: Backend, *args: Any, **named: Any) -> int:
        await at("before the group registers")
        count = await declare(backend, *args, **named)
        await at("after the group has registered")
        return count

    monkeypatch.setattr(following, "finish_many", finishing)
    monkeypatch.setattr(following, "open_partition", opening)
    monkeypatch.setattr(generations, "provision", declaring)
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1", "w2"):
        await shop.send(400)
        await grow(backend, 3)
        await shop.send(400)
        await shop.all_handled()
        assert len(killed) == 1
        await settled(backend, 2, 3, living={"w1", "w2"} - {*killed})
        await all_committed(backend, shop, 2, 3)


@SLOW
async def test_a_halted_partition_holds_up_only_those_that_follow_it(redis_url: str) -> None:
    """In that group alone; their locks name it, and they go on when it does."""
    shop = Shop(redis_url)
    old, new = Placement(2), Placement(2, 3)
    await shop.send(400)
    bad = next(name for name in NAMES if old.partition_of(name.encode()) == 0 and shop.sent[name])
    last = Order(bad, shop.sent[bad])
    shop.halts = lambda group, order: group == "price" and order == last
    price, audit = GROUPS

    async def is_held_up() -> bool:
        locks = await read(backend, price, 5)
        return (
            {p for p, lock in locks.items() if "done with partition 0" in lock.reason} == {2, 3}
            and all(locks[p].waits_for == new.parents_of(p) for p in (2, 3))
            and (await backend.execute("XREVRANGE", price.events(4), "+", "-", "COUNT", 1))[0][0].decode()
            == str(locks[4].checkpoint)
        )

    async with Backend.open(redis_url, name="tool") as backend:
        async with shop.workers("w1", "w2"):
            await grow(backend, 3)
            await shop.send(400)
            await wait_for_async(is_held_up, "they wait")
            await wait_for_async(lambda: len(shop.handled[audit.group]) == 800, "the other group goes on")
            # A failover loses that the group is done with a partition that still has its owner.
            await backend.execute("HDEL", price.lock(1), "done")
            await wait_for_async(lambda: backend.execute("HGET", price.lock(1), "done"), "it is noted again")
            behind = {name for name, _ in shop.handled[price.group][400:]}
            assert all(new.partition_of(name.encode()) == 4 for name in behind - {bad})
        shop.halts = lambda *_: False
        async with shop.workers("w3"):
            await shop.all_handled()
            await settled(backend, 2, 3)
            await all_committed(backend, shop, 2, 3)


async def test_what_nobody_owns_any_more_is_trimmed_when_no_group_needs_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that nobody runs keeps all records, until it is removed."""
    monkeypatch.setattr(trims, "LOOK_MS", 100)
    monkeypatch.setattr(trims, "LOOK_MS_PER_PARTITION", 0)
    shop = Shop(redis_url)
    shop.declared["retention"] = "1 ms"
    late = GroupKeys("shop", "orders", "late")
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1"):
        await register(backend, late, Placement(2), "earliest")
        await backend.execute("CONFIG", "SET", "stream-node-max-entries", 1)
        await shop.send(400)
        await grow(backend, 3)
        await settled(backend, 2, 3)
        held = [await backend.execute("XLEN", late.events(p)) for p in (0, 1)]
        await backend.execute("CONFIG", "SET", "stream-node-max-entries", 100)
        assert min(held) > 0
        for p in (0, 1):
            await backend.execute("HDEL", late.groups(p), late.group)
            await backend.execute("XGROUP", "DESTROY", late.events(p), late.group)

        async def is_empty() -> bool:
            return [await backend.execute("XLEN", late.events(p)) for p in (0, 1)] == [0, 0]

        await wait_for_async(is_empty, "they are trimmed")


@SLOW
async def test_what_a_failover_loses_of_it_is_done_again(redis_url: str) -> None:
    """A partition waits again, and one that nobody owned any more gets an owner until it is done."""
    shop = Shop(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1", "w2"):
        await shop.send(400)
        await grow(backend, 3)
        await shop.send(400)
        await shop.all_handled()
        await settled(backend, 2, 3)
        await all_committed(backend, shop, 2, 3)
        for keys in GROUPS:
            await backend.execute("HDEL", keys.lock(1), "done")
            await backend.execute("HSET", keys.lock(3), "from", "0 1")
        shop.may_repeat = True
        await shop.send(400)
        await shop.all_handled()
        await settled(backend, 2, 3)
        await all_committed(backend, shop, 2, 3)


@SLOW
async def test_a_group_that_comes_later_handles_one_generation_after_the_other(redis_url: str) -> None:
    """Also if its app declares the newest number of partitions."""
    shop = Shop(redis_url)
    async with Backend.open(redis_url, name="tool") as backend:
        for count in (3, 5):
            await shop.send(400)
            await grow(backend, count)
        await shop.send(400)
        shop.declared["partitions"] = 5
        async with shop.workers("w1"):
            await shop.all_handled()
            await settled(backend, 2, 3, 5)
            await all_committed(backend, shop, 2, 3, 5)


async def unseal(backend: Backend, partition: int) -> None:
    """Take a partition's seal away, as a failover does that loses it."""
    events, counts = GROUPS[0].events(partition), GROUPS[0].counts(partition)
    await backend.execute("XSETID", events, (await backend.execute("HGET", counts, "sealed")).split()[0])
    await backend.execute("HDEL", counts, "sealed")


@SLOW
async def test_a_seal_that_is_lost_while_groups_wait_for_it_is_made_again(redis_url: str) -> None:
    """Nobody runs a new partition until then."""
    shop = Shop(redis_url)
    async with Backend.open(redis_url, name="tool") as backend:
        await shop.send(400)
        async with shop.workers("w1"):
            await shop.all_handled()
        await grow(backend, 3)
        await shop.send(400)
        await unseal(backend, 0)
        async with shop.workers("w2"):
            await shop.all_handled()
            await settled(backend, 2, 3)
            await all_committed(backend, shop, 2, 3)


@SLOW
async def test_a_database_that_is_emptied_gets_the_map_that_workers_know(redis_url: str) -> None:
    """Senders that know it, and those that begin anew, go on."""
    shop = Shop(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1", "w2"):
        for count in (3, 5):
            await shop.send(400)
            await grow(backend, count)
        await shop.send(400)
        await shop.all_handled()
        await settled(backend, 2, 3, 5)
        await backend.execute("FLUSHALL")
        shop.may_repeat = True
        await shop.send(400)
        await shop.all_handled()
        await settled(backend, 2, 3, 5)
        assert await backend.execute("HGET", GROUPS[0].meta, "partitions") == b"2+3+5"


@SLOW
@pytest.mark.parametrize("left", ["prepared", "sealed", "the map is lost", "a seal is lost"])
async def test_workers_go_on_with_a_change_that_somebody_has_left(redis_url: str, left: str) -> None:
    """The command was killed, or a failover has lost a step."""
    shop = Shop(redis_url)
    (keys, *_) = GROUPS
    async with Backend.open(redis_url, name="tool") as backend, shop.workers("w1", "w2"):
        await shop.send(400)
        if left in ("prepared", "sealed"):
            await growth.prepare(backend, keys, 3, MEMORY)
        else:
            await grow(backend, 3)
            await settled(backend, 2, 3)
            await all_committed(backend, shop, 2, 3)
        if left == "sealed":
            await backend.run_many(SEAL, [SEAL.at(keys, p, map="2+3") for p in (0, 1)])
        if left == "the map is lost":
            await backend.execute("HSET", keys.meta, "partitions", "2")
            await backend.execute("HDEL", keys.meta, "growing")
        if left == "a seal is lost":
            await unseal(backend, 0)

        async def is_through() -> bool:
            infos = [await backend.execute("XINFO", "STREAM", keys.events(p)) for p in (0, 1)]
            is_sealed = all(pairs_of(info)[b"last-generated-id"].startswith(b"1844674") for info in infos)
            return is_sealed and await backend.execute("HGET", keys.meta, "partitions") == b"2+3"

        await wait_for_async(is_through, "it is through")
        await shop.send(400)
        await shop.all_handled()
        await settled(backend, 2, 3)
        await all_committed(backend, shop, 2, 3)
