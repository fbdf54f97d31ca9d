"""A chain goes on while a stream that it sends into grows: each record once, and a key in its order."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from streamworker import App, Context, DeadLetter, Halt, Stream
from streamworker.core.data.outbox import OutboxPosition, Target
from streamworker.core.data.placement import Placement
from streamworker.errors import BackendUnavailable
from streamworker.redisio.admin import growth
from streamworker.redisio.admin.outboxes import accept_target, find_diverged
from streamworker.redisio.data import outbox
from streamworker.redisio.data.outbox import open_outbox, read_chains
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.scripts import SEAL
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.runtime.run import generations
from streamworker.runtime.worker import Worker
from tests.helpers import wait_for_async
from tests.raw import opened, records_of
from tests.runtime.test_grown_groups import NAME, Order, Shop

pytestmark = pytest.mark.anyio

SLOW = pytest.mark.full("takes several seconds")
ORDERS, PRICED = StreamKeys("shop", "orders"), StreamKeys("shop", "priced")
PRICE = GroupKeys("shop", "orders", "price")


class Priced(msgspec.Struct):
    customer: str
    n: int


class Chain(Shop):
    """Processor ``price`` reads ``orders`` and sends into ``priced``, which ``report`` reads."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        self.priced: dict[str, Any] = {"partitions": 3}
        self.handled = {"report": []}
        self.reads = True
        """Whether an app has the processor ``report``."""
        self.waits: Callable[[str], bool] = lambda _: False
        """Whether a processor handles nothing now."""

    def app(self) -> tuple[App, Stream[Order]]:
        """Return an app of its own, as another process has one."""
        app = App("shop", redis_url=self.url, **self.settings)
        orders = app.stream("orders", Order, key="customer", **self.declared)
        priced = app.stream("priced", Priced, key="customer", **{"retention": "1 h", **self.priced})

        async def price(order: Order) -> Priced:
            await self._stay("price")
            return Priced(order.customer, order.n)

        async def report(row: Priced) -> None:
            await self._stay("report")
            self.handled["report"].append((row.customer, row.n))

        app.processor(orders, into=priced, errors=Halt(), forward=False)(price)
        if self.reads:
            app.processor(priced, errors=Halt(), forward=False)(report)
        return app, orders

    async def _stay(self, name: str) -> None:
        while self.waits(name):
            await asyncio.sleep(0.01)

    def arrived(self, total: int) -> dict[str, list[int]]:
        """Return the numbers that arrived of each customer, one generation after the other."""
        found = defaultdict[str, list[int]](list)
        with opened(self.url) as client:
            for p in range(total):
                for fields in records_of(client, PRICED.events(p)):
                    record = msgspec.json.decode(fields[b"v"], type=Priced)
                    found[record.customer].append(record.n)
        return found

    async def arrives_once(self, *counts: int) -> None:
        """Wait until all has arrived and is handled, and check that each arrived once and in its order."""
        await self.all_handled()
        total = sum(counts)
        assert self.arrived(total) == {name: [*range(1, its + 1)] for name, its in self.sent.items()}


async def grow(backend: Backend, keys: StreamKeys, count: int) -> None:
    await growth.prepare(backend, keys, count, MEMORY)
    await growth.go_on(backend, keys, MEMORY, "test")


async def waiting(backend: Backend) -> int:
    """Return how many messages wait in the outboxes of the first two partitions."""
    return sum([int(await backend.execute("XLEN", PRICE.messages(p))) for p in (0, 1)])


def moved(logs: list[Any]) -> int:
    """Return how many records were moved, as the log tells."""
    return sum(log["records"] for log in logs if log["event"] == "messages_moved")


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "LOOK_S", 1.0)


async def test_a_target_grows_twice_while_records_flow(redis_url: str) -> None:
    """Two workers send into it all the time."""
    chain = Chain(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, chain.workers("w1", "w2"):
        async with chain.sending():
            await chain.sends(500)
            for count in (4, 7):
                await grow(backend, PRICED, count)
                await chain.sends(500)
        await chain.arrives_once(3, 4, 7)


async def test_source_and_target_grow_at_once(redis_url: str) -> None:
    """What the old partitions of the source still send arrives before what the new ones send."""
    chain = Chain(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, chain.workers("w1", "w2"):
        async with chain.sending():
            await chain.sends(500)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(grow, backend, PRICED, 4)
                tasks.start_soon(grow, backend, ORDERS, 5)
            await chain.sends(500)
        await chain.arrives_once(3, 4)


async def left_waiting(chain: Chain, backend: Backend, count: int) -> None:
    """Send some records, let their messages wait for a full target, and stop all workers."""
    chain.priced["max_records"], chain.waits = 10, lambda name: name == "report"
    async with chain.workers("w1"):
        for _ in range(count // 50):
            await chain.send(50)

        async def is_full() -> bool:
            done = [int(await backend.execute("HGET", PRICE.lock(p), "entries")) for p in (0, 1)]
            return sum(done) == chain.sent.total() and await waiting(backend) > 0

        await wait_for_async(is_full, "messages wait")
        chain.waits = lambda _: False
        for scope in chain.scopes.values():
            scope.cancel()
    chain.may_repeat = True


async def test_what_waits_while_its_source_is_stopped_is_moved_when_it_runs_again(redis_url: str) -> None:
    """Before anything that is sent later, although the target had no room."""
    chain = Chain(redis_url, dead_after_ms=600)
    async with Backend.open(redis_url, name="tool") as backend:
        await left_waiting(chain, backend, 400)
        chain.priced["max_records"] = None
        await grow(backend, PRICED, 4)
        await chain.send(400)
        with capture_logs() as logs:
            async with chain.workers("w2"):
                await chain.arrives_once(3, 4)
        assert 0 < moved(logs) <= 400
        heads = [await open_outbox(backend, PRICE.outbox(p)) for p in (0, 1)]
        assert all(to.partition >= 3 for its in heads for to in its.positions)
        assert not any(its.lost or its.moved for its in heads)


@pytest.mark.parametrize("is_reopened", [False, True])
async def test_commits_that_wait_for_room_in_the_outbox_go_to_the_new_partitions(
    redis_url: str, is_reopened: bool
) -> None:
    """An outbox that is full of messages for a sealed partition would never have room."""
    chain = Chain(redis_url, outbox_messages_max=3)
    chain.priced["max_records"], chain.waits = 10, lambda name: name == "report"
    async with Backend.open(redis_url, name="tool") as backend, chain.workers("w1", "w2"):

        async def is_full() -> bool:
            reasons = await backend.pipeline([("HGET", PRICE.lock(p), "reason") for p in (0, 1)])
            return all(b"outbox full" in (each or b"") for each in reasons)

        with capture_logs() as logs:
            async with chain.sending():
                await wait_for_async(is_full, "commits wait")
                await grow(backend, PRICED, 4)
                if is_reopened:
                    chain.may_repeat = True
                    chain.running["w1"].stop()
                await wait_for_async(lambda: moved(logs), "messages are moved")
                chain.waits = lambda _: False
                await chain.sends(200)
            await chain.arrives_once(3, 4)
        assert is_reopened or not [log for log in logs if log["event"] == "commit_refused"]


@SLOW
@pytest.mark.parametrize("step", ["before it is moved", "after it is moved", "no answer"])
async def test_an_owner_that_is_killed_while_it_moves_messages_leaves_the_rest_to_the_next(
    redis_url: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they are moved in many steps, of which some were done."""
    chain = Chain(redis_url, dead_after_ms=600)
    monkeypatch.setattr("streamworker.runtime.forward.moving.MOVE_BYTES", 500)
    move, steps = outbox.move_messages, list[str]()

    async def moving(*given: Any) -> str:
        steps.append(NAME.get())
        is_now = len(steps) in (1, 3)
        if is_now and step == "before it is moved" and len(set(steps)) < 3:
            await chain.kill()
        done = await move(*given)
        if is_now and step == "after it is moved" and len(set(steps)) < 3:
            await chain.kill()
        if is_now and step == "no answer":
            raise BackendUnavailable("It is lost.", remedy="None.")
        return done

    async with Backend.open(redis_url, name="tool") as backend:
        await left_waiting(chain, backend, 400)
        monkeypatch.setattr(outbox, "move_messages", moving)
        chain.priced["max_records"] = None
        await grow(backend, PRICED, 4)
        await chain.send(400)
        with capture_logs() as logs:
            async with chain.workers("w2", "w3", "w4"):
                await chain.arrives_once(3, 4)
        assert len(steps) > 3
        heads = [await open_outbox(backend, PRICE.outbox(p)) for p in (0, 1)]
        assert not any(its.lost for its in heads)
        assert "forwarded_records_lost" not in {log["event"] for log in logs}


async def test_an_owner_that_has_not_seen_that_the_target_has_grown_reads_its_map_first(
    redis_url: str,
) -> None:
    """What it would send to a sealed partition would follow nothing that this partition knows."""
    chain = Chain(redis_url, dead_after_ms=600)
    async with Backend.open(redis_url, name="tool") as backend, chain.workers("w1"):
        await chain.send(100)
        await chain.arrives_once(3)
        chain.reads = False  # So the other one does not follow the map of what it sends into.
        async with chain.workers("w2"):

            async def owner_of(partition: int) -> str:
                return str((await backend.execute("HGET", PRICE.lock(partition), "owner")).decode())[:2]

            async def shared() -> bool:
                return {await owner_of(0), await owner_of(1)} == {"w1", "w2"}

            await wait_for_async(shared, "both have a partition")
            [mine] = [p for p in (0, 1) if await owner_of(p) == "w1"]
            await grow(backend, PRICED, 4)
            app, orders = chain.app()
            names = [name for name in chain.sent if Placement(2).partition_of(name.encode()) == mine]

            async def send() -> None:
                for name in names:
                    chain.sent[name] += 1
                    await orders.send(Order(name, chain.sent[name]))

            async with app:
                await send()
                await chain.arrives_once(3, 4)
                chain.scopes["w1"].cancel()
                chain.may_repeat, chain.reads = True, True
                async with chain.workers("w3"):
                    await send()
                    await chain.arrives_once(3, 4)


async def test_a_sealed_target_is_waited_for_until_the_map_says_what_follows(redis_url: str) -> None:
    """The source says so, and takes it in when it is there."""
    chain = Chain(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, chain.workers("w1"):
        await chain.send(100)
        await chain.all_handled()
        await growth.prepare(backend, PRICED, 4, MEMORY)
        await backend.run_many(SEAL, [SEAL.at(PRICED, p, map="3+4") for p in range(3)])
        await chain.send(100)

        async def is_told() -> bool:
            reasons = await backend.pipeline([("HGET", PRICE.lock(p), "reason") for p in (0, 1)])
            return all(b"nothing says yet which partitions follow" in (each or b"") for each in reasons)

        await wait_for_async(is_told, "it is told")
        await growth.go_on(backend, PRICED, MEMORY, "test")
        await chain.arrives_once(3, 4)


async def test_what_a_sealed_target_has_lost_is_told_and_counted(redis_url: str) -> None:
    """Nothing is sent to it any more that would show it."""
    chain = Chain(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, chain.workers("w1"):
        await chain.send(200)
        await chain.all_handled()
        await wait_for_async(lambda: _is_empty(backend), "all is forwarded")
        heads = await open_outbox(backend, PRICE.outbox(0))
        stood = heads.positions[Target("priced", 1)].records
        await backend.execute("HSET", PRICED.taken(1), PRICE.outbox(0).source, "3-0123456789ab")
        await grow(backend, PRICED, 4)
        with capture_logs() as logs:
            await chain.send(200)
            await chain.all_handled()
        told = [log for log in logs if log["event"] == "forwarded_records_lost"]
        assert [log["records"] for log in told] == [stood - 3]
        heads = await open_outbox(backend, PRICE.outbox(0))
        assert heads.lost == {(Target("priced", 1), 4): stood}


async def test_a_sealed_target_that_knows_more_holds_its_source_until_a_person_decides(
    redis_url: str,
) -> None:
    """Nothing says which of the next records it has; `doctor` names it although no message waits."""
    chain = Chain(redis_url)
    async with Backend.open(redis_url, name="tool") as backend, chain.workers("w1"):
        await chain.send(200)
        await chain.all_handled()
        await wait_for_async(lambda: _is_empty(backend), "all is forwarded")
        head = (await open_outbox(backend, PRICE.outbox(0))).positions[Target("priced", 1)]
        more = OutboxPosition(head.records + 5, "0123456789ab")
        await backend.execute("HSET", PRICED.taken(1), PRICE.outbox(0).source, str(more))
        await grow(backend, PRICED, 4)
        with capture_logs() as logs:
            await chain.send(200)

            async def is_held() -> bool:
                reason = await backend.execute("HGET", PRICE.lock(0), "reason")
                return b"partition 1 of priced has records" in (reason or b"")

            await wait_for_async(is_held, "it is held")
            (found,) = await find_diverged(backend, PRICE, 2)
            assert (found.to, found.stands, found.since) == (Target("priced", 1), more, head)
            assert await accept_target(backend, PRICE, found)
            await chain.all_handled()
        assert [log["event"] for log in logs if log["event"] == "outbox_diverged"] == ["outbox_diverged"]
        assert chain.arrived(7) == {name: [*range(1, its + 1)] for name, its in chain.sent.items()}


async def _is_empty(backend: Backend) -> bool:
    return await waiting(backend) == 0


# -- what messages hold ----------------------------------------------------------------------


class Item(msgspec.Struct):
    sku: str | None
    n: int


@pytest.mark.parametrize("codec", ["json", "msgpack", "fields", "arrow"])
async def test_each_form_of_a_message_is_taken_apart_by_key(redis_url: str, codec: Any) -> None:
    """One record, many in an entry, with headers and without a key. What nobody can read goes along, too."""
    app = App("shop", redis_url=redis_url, dead_after_ms=600, heartbeat_interval_ms=200)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    items = app.stream("items", Item, key="sku", partitions=2, codec=codec, validate=False)
    keys, group = StreamKeys("shop", "items"), GroupKeys("shop", "orders", "cut")
    seen: list[tuple[int, str | None, int, str | None]] = []
    wrong: Any = "many"

    @app.processor(orders, batch=40, into=items, forward=False)
    async def cut(batch: list[Order], ctx: Context) -> list[Item]:
        for order in batch if codec != "arrow" else ():
            if order.n % 7 == 0:
                ctx.send(items, Item(order.customer, order.n + 1000), headers={"of": order.customer})
            if order.n == 50:
                ctx.send(items, Item("bad", wrong))
        return [Item(order.customer if order.n % 5 else None, order.n) for order in batch]

    @app.processor(items, errors=DeadLetter(), forward=False)
    async def look(item: Item, ctx: Context) -> None:
        seen.append((item.n, item.sku, ctx.partition, ctx.header("of")))

    async def run(until: Callable[[], Any], name: str, *processors: str) -> None:
        async with anyio.create_task_group() as tasks:
            worker = Worker(app, name=name, processors=processors)
            tasks.start_soon(worker.run)
            await wait_for_async(until, "it has come so far")
            worker.stop()

    async def is_committed() -> bool:
        return bool(await backend.execute("HGET", group.lock(0), "entries") == b"101")

    async with Backend.open(redis_url, name="tool") as backend:
        for p in range(2):
            await backend.execute("SET", keys.taken(p), "of another type")
        async with app:
            await orders.send_many([Order(f"c{n % 9}", n) for n in range(1, 101)])
            await orders.send(Order("c1", 101))
        await run(is_committed, "w1", "cut")
        waited = sum(
            its[-1].through.records for its in (await read_chains(backend, group.outbox(0))).values()
        )
        for p in range(2):
            await backend.execute("DEL", keys.taken(p))
        await grow(backend, keys, 3)
        beside = 0 if codec == "arrow" else 14
        with capture_logs() as logs:
            await run(lambda: len(seen) >= 101 + beside, "w2", "cut", "look")
        assert (
            await backend.execute("XLEN", keys.events(0)) + await backend.execute("XLEN", keys.events(1)) == 0
        )
        letters = sum(
            [int(await backend.execute("XLEN", GroupKeys("shop", "items", "look").dead(p))) for p in range(5)]
        )
    placement = Placement(2, 3)
    assert moved(logs) == waited == 101 + beside + letters
    assert letters == (codec != "arrow")
    assert [log["records"] for log in logs if log["event"] == "rows_not_routed"] == [1] * letters
    assert sorted(n for n, *_ in seen) == [*range(1, 102), *(n + 1000 for n in range(7, 102, 7) if beside)]
    assert all(placement.partition_of(sku.encode()) == p for _, sku, p, _ in seen if sku)
    assert {p for _, sku, p, _ in seen if sku is None} == {2, 3, 4}
    assert all((of == sku) == (n > 1000) for n, sku, _, of in seen if sku or of)
    for sku in {sku for _, sku, *_ in seen if sku}:
        its = [n for n, key, *_ in seen if key == sku and n < 1000]
        assert its == sorted(its)


class Task(msgspec.Struct):
    customer: str
    n: int
    hop: int = 0


async def test_a_stream_that_feeds_itself_grows(redis_url: str) -> None:
    """Old partitions send what they still have to the new ones, which wait for them."""
    app = App("shop", redis_url=redis_url, heartbeat_interval_ms=200)
    tasks = app.stream("tasks", Task, key="customer", partitions=2)
    keys = StreamKeys("shop", "tasks")
    seen: list[tuple[str, int, int]] = []

    @app.processor(tasks, into=tasks, forward=False)
    async def step(task: Task) -> Task | None:
        await asyncio.sleep(0.001)
        seen.append((task.customer, task.n, task.hop))
        return Task(task.customer, task.n, task.hop + 1) if task.hop < 3 else None

    async with Backend.open(redis_url, name="tool") as backend, anyio.create_task_group() as works:
        worker = Worker(app, name="w1")
        works.start_soon(worker.run)
        async with app:
            for batch, count in enumerate((3, 5, 0)):
                await tasks.send_many([Task(f"c{n % 9}", batch * 100 + n) for n in range(100)])
                if count:
                    await grow(backend, keys, count)
        await wait_for_async(lambda: len(seen) >= 1200, "all is handled")
        worker.stop()
    assert len(seen) == len(set(seen)) == 1200
    for name in {name for name, *_ in seen}:
        for hop in range(4):
            its = [n for customer, n, at in seen if (customer, at) == (name, hop)]
            assert its == sorted(its)
