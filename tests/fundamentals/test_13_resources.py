"""What functions are given by their types, and what is around their calls."""

import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import anyio
import msgspec
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from streamworker import App, Context, DeadLetter
from streamworker.errors import ProcessingError
from streamworker.redisio.group.locks import read_lock
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.testing import Snapshot, local_worker

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    """What is sent."""

    customer: str
    number: int


class Client:
    """What a resource yields."""

    def __init__(self, name: str = "real") -> None:
        self.name = name


def unreachable() -> Client:
    """Fail as a client does whose server is away."""
    raise ConnectionError("nobody there")


async def test_a_resource_is_made_once_in_a_worker_and_closed_after_its_last_call(redis_url: str) -> None:
    """Only those that some function needs; one resource may ask for another."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=4)
    steps: list[str] = []

    @app.resource
    async def address() -> AsyncIterator[str]:
        steps.append("address")
        yield "somewhere"
        steps.append("address closed")

    @app.resource
    async def client(address: str) -> AsyncIterator[Client]:
        steps.append(f"client of {address}")
        yield Client()
        steps.append("client closed")

    @app.resource
    async def unused() -> AsyncIterator[int]:
        steps.append("unused")
        yield 1

    @app.processor(orders)
    async def look_up(order: Order, client: Client) -> None:
        steps.append(f"call with {client.name}")

    async with local_worker(app, url=redis_url) as worker:
        await orders.send_many(Order(f"c{n}", n) for n in range(20))
        await worker.until_drained()
    calls = ["call with real"] * 20
    assert steps == ["address", "client of somewhere", *calls, "client closed", "address closed"]


async def test_each_partition_may_have_a_resource_of_its_own(redis_url: str) -> None:
    """Made before its first record and closed at its end. One that stays away is tried again and again: each
    partition shows why it waits, and logs it once.
    """
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=3)
    tried, made, closed, is_away = 0, 0, 0, True
    used = Counter[int]()

    @app.resource(each="partition")
    async def number() -> AsyncIterator[int]:
        nonlocal tried, made, closed
        tried += 1
        if is_away:
            raise ConnectionError("nobody there")
        made += 1
        yield made
        closed += 1

    @app.processor(orders, batch=10)
    def use(batch: list[Order], own: Annotated[int, number]) -> None:
        used[own] += len(batch)

    def reasons(now: Snapshot) -> set[str]:
        return {view.reason for view in now.processors["use"].partitions}

    why = "Resource 'number' could not be made: ConnectionError: nobody there"
    with capture_logs() as logs:
        async with local_worker(app, url=redis_url) as worker:
            await orders.send_many(Order(f"c{n}", n) for n in range(60))
            await worker.until(lambda now: tried >= 9 and all(why in said for said in reasons(now)))
            is_away = False
            await worker.until_drained()
            await worker.until(lambda now: reasons(now) == {""})
            assert closed == 0
    assert (made, len(used), used.total(), closed) == (3, 3, 60, 3)
    assert [log["event"] for log in logs].count("resource_not_made") == 3


async def test_a_test_gives_a_value_in_place_of_a_resource(redis_url: str) -> None:
    """The generator is not called then, nor are those that it asks for."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=1)
    seen: list[str] = []

    @app.resource
    async def client() -> AsyncIterator[Client]:
        yield unreachable()

    @app.processor(orders)
    async def look_up(order: Order, ctx: Context, client: Client) -> None:
        seen.append(client.name)

    async with local_worker(app, url=redis_url, resources=[client.override(Client("fake"))]) as worker:
        await orders.send(Order("ann", 1))
        await worker.until_drained()
    assert seen == ["fake"]


async def test_what_fails_to_close_keeps_no_worker_from_leaving(redis_url: str) -> None:
    """Its work is done, and the log says what failed."""
    app = App("shop")
    orders = app.stream("orders", Order, partitions=1)

    @app.resource
    async def client() -> AsyncIterator[Client]:
        yield Client()
        raise ConnectionError("nobody there any more")

    @app.processor(orders)
    async def look_up(order: Order, client: Client) -> None: ...

    async with local_worker(app, url=redis_url) as worker:
        await orders.send(Order("ann", 1))
        await worker.until_drained()


WAYS: dict[str, tuple[Any, bool, dict[str, Any]]] = {
    "one": (Order, False, {}),
    "in-a-thread": (Order, True, {}),
    "in-time": (Order, True, {"timeout": 30}),
    "some": (list[Order], False, {"batch": 10}),
    "overlapping": (Order, False, {"concurrency": 4}),
    "columns": (pa.RecordBatch, False, {}),
}
"""What a function takes, whether it runs in a thread, and its options."""


def _noting(steps: list[str], kind: Any, *, in_thread: bool) -> Callable[..., Any]:
    def take(records: Any) -> None:
        assert (threading.current_thread() is threading.main_thread()) is not in_thread
        steps.append("call")

    async def take_on_the_loop(records: Any) -> None:
        take(records)

    function = take if in_thread else take_on_the_loop
    function.__annotations__ = {"records": kind, "return": None}
    return function


async def test_middleware_is_around_each_call_and_sees_its_context(redis_url: str) -> None:
    """Of functions that take one record, several or columns, on the event loop and in threads."""
    app = App("shop")
    json = app.stream("json", Order, key="customer", partitions=1)
    arrow = app.stream("arrow", Order, key="customer", partitions=1, codec="arrow")
    steps: dict[str, list[str]] = defaultdict(list)
    counted = Counter[str]()
    for way, (kind, in_thread, options) in WAYS.items():
        for stream in (json,) if way == "overlapping" else (json, arrow):
            name = f"{way}-{stream.spec.name}"
            app.processor(stream, name=name, **options)(_noting(steps[name], kind, in_thread=in_thread))

    @app.resource
    async def client() -> AsyncIterator[Client]:
        yield Client()

    @app.middleware
    async def watch(client: Client, ctx: Context) -> AsyncIterator[None]:
        assert (client.name, ctx.attempt) == ("real", 1)
        steps[ctx.processor].append("before")
        yield
        steps[ctx.processor].append("after")
        counted[ctx.processor] += ctx.count
        assert 0 <= ctx.elapsed < 30

    async with local_worker(app, url=redis_url) as worker:
        await json.send_many(Order("ann", n) for n in range(5))
        await arrow.send_many(Order("ann", n) for n in range(5))
        await worker.until_drained()
    for name, its in steps.items():
        each = Counter(its)
        assert (name, counted[name]) == (name, 5)
        assert each["before"] == each["after"] > 0
        # Calls that overlap mix their steps; of an entry of columns each record is a call.
        if name not in ("overlapping-json", "one-arrow", "in-a-thread-arrow", "in-time-arrow"):
            assert (name, its) == (name, ["before", "call", "after"] * each["call"])


@pytest.mark.parametrize("layered", [False, True])
async def test_what_no_coroutine_can_raise_has_one_policy_with_middleware_and_without(layered: bool) -> None:
    """It is a RuntimeError, at the line of the function."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=1)

    @app.processor(orders, errors={RuntimeError: DeadLetter()})
    async def take(order: Order, ctx: Context) -> None:
        raise StopAsyncIteration("at its end")

    if layered:

        @app.middleware
        async def watch() -> AsyncIterator[None]:
            yield

    async with local_worker(app) as worker:
        await orders.send(Order("ann", 1))
        await worker.until_drained()
        (letter,) = await worker.dead_letters(take)
    assert letter.error.startswith("RuntimeError: the function raised StopAsyncIteration: at its end (")
    assert "test_13_resources.py" in letter.error


async def test_a_processor_may_begin_with_what_comes_after_it(redis_url: str) -> None:
    """Beside one that begins with what is there."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    seen: dict[str, list[int]] = {"every": [], "new": []}

    @app.processor(orders)
    async def every(order: Order) -> None:
        seen["every"].append(order.number)

    @app.processor(orders, start="latest")
    async def new(order: Order) -> None:
        seen["new"].append(order.number)

    await orders.send(Order("ann", 1))
    async with local_worker(app, url=redis_url) as worker:
        await orders.send(Order("ann", 2))
        await worker.until_drained()
    await app.aclose()
    assert seen == {"every": [1, 2], "new": [2]}


async def test_a_program_runs_a_worker_of_its_own(redis_url: str) -> None:
    """It drains at the end of the block, whatever that raises. If it fails, the block ends with its error;
    one whose resource cannot be made does so before it joins, and others keep their partitions.
    """
    app = App("shop", redis_url=redis_url, durability="memory")
    orders = app.stream("orders", Order, key="customer", partitions=1)
    done = anyio.Event()

    @app.processor(orders)
    async def take(order: Order) -> None:
        done.set()

    async with app.worker(name="mine") as worker:
        assert worker.name == "mine"
        await orders.send(Order("ann", 1))
        with anyio.fail_after(20):
            await done.wait()

    async def fail() -> None:
        nonlocal done
        done = anyio.Event()
        async with app.worker():
            await orders.send(Order("ann", 2))
            with anyio.fail_after(20):
                await done.wait()
            raise ValueError("mine alone")

    with pytest.raises(ValueError, match="mine alone"):
        await fail()
    async with Backend.open(redis_url, name="viewer") as backend:
        lock = await read_lock(backend, GroupKeys("shop", "orders", "take"), 0)
    assert lock is not None
    assert lock.owner == "", "it has left"

    @app.resource
    async def client() -> AsyncIterator[Client]:
        yield unreachable()

    @app.middleware
    async def watch(client: Client) -> AsyncIterator[None]:
        yield

    with pytest.raises(ProcessingError, match="Resource 'client' could not be made: ConnectionError: nobody"):
        async with app.worker():
            await anyio.sleep_forever()
