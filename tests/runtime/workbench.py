"""A workbench for the data plane: a stream, a processor and its runners, on a real server."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
import msgspec
import redis
import structlog

from streamworker.context import Context
from streamworker.core.data.entries import EntryId
from streamworker.core.events import AcquireLocks, StartRunner
from streamworker.core.ownership.locks import Acquired
from streamworker.core.policies import Halt
from streamworker.declaring.functions import describe
from streamworker.declaring.options import ProcessorOptions
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.feed import Records
from streamworker.records import RecordType
from streamworker.records.entries import Entries
from streamworker.redisio.data.ackedlog import (
    decode_entry,
    deserialize_schema,
    schema_fingerprint,
    serialize_schema,
)
from streamworker.redisio.data.commit import CommitReply, CommitRequest
from streamworker.redisio.data.state import read_state
from streamworker.redisio.group import locks
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend, retrying
from streamworker.runtime.read.buffer import ByteBudget
from streamworker.runtime.read.polling import fetcher_for
from streamworker.runtime.run.committer import Committer
from streamworker.runtime.run.runner import PartitionRunner, Stopped, build_runner
from streamworker.runtime.run.state import TableCache
from streamworker.runtime.send.producer import Producer
from streamworker.runtime.signals import Gate
from streamworker.settings import Settings
from tests.helpers import PATIENCE_S, wait_for_async


@contextlib.contextmanager
def full_memory(url: str) -> Iterator[None]:
    """Leave a server no memory meanwhile: whatever needs some is refused."""
    with redis.Redis.from_url(url) as client:
        room = client.config_get("maxmemory")["maxmemory"]
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", room)


class Order(msgspec.Struct):
    number: int
    customer: str = "ann"


class Priced(msgspec.Struct):
    number: int
    price: float


__all__ = ["MODES", "OVERLAPPING", "Bench", "Context", "Each", "Order", "Priced", "Records", "Running"]
__all__ += ["bench", "handling", "settings", "start"]
MODES = ["batch", "record", "stream", "thread"]
OVERLAPPING = "overlapping"
"""By record too, with calls that overlap by key; without state."""
Each = Callable[[Order, Context], Priced | Awaitable[Priced]]


def handler(mode: str, each: Each) -> Callable[..., Any]:
    """Make a processor function of a mode that does this with one order after the other, and forwards.

    Only a thread needs a plain function.
    """

    async def by_record(order: Order, ctx: Context) -> Priced:
        done = each(order, ctx)
        return done if isinstance(done, Priced) else await done

    async def in_batches(batch: list[Order], ctx: Context) -> list[Priced]:
        return [await by_record(order, ctx) for order in batch]

    async def as_stream(records: Records[Order], ctx: Context) -> None:
        async for part in records.take(10):
            for order in part:
                ctx.forward(Priced(order.number, 0.0))
                ctx.forward(await by_record(order, ctx))

    def in_thread(order: Order, ctx: Context) -> Priced:
        done = each(order, ctx)
        assert isinstance(done, Priced)
        return done

    functions: dict[str, Callable[..., Any]]
    functions = {"batch": in_batches, "record": by_record, "stream": as_stream, "thread": in_thread}
    return functions.get(mode, by_record)


def settings(**changed: Any) -> Settings:
    """Settings for tests; the URL is not used."""
    return replace(Settings(), **changed)


@dataclass
class Running:
    """A runner that runs, and what it said."""

    runner: PartitionRunner
    lock: Acquired
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    stopped: Stopped | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    halted: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    async def drained(self) -> Stopped:
        self.runner.intake.drain()
        with anyio.fail_after(PATIENCE_S):
            await self.ended.wait()
        assert self.stopped is not None
        return self.stopped

    async def halts(self) -> str:
        await wait_for_async(lambda: bool(self.halted), "the partition halts")
        return self.halted[0]

    async def cancelled(self) -> None:
        self.scope.cancel()
        with anyio.fail_after(PATIENCE_S):
            await self.ended.wait()


async def start(desk: "Bench", mode: str, each: Each, *, owner: str = "w1", **given: Any) -> Running:
    """Run such a function."""
    by_mode: dict[str, dict[str, Any]] = {
        "batch": {"batch": 10},
        "stream": {"output": Priced, "forward": True},
        OVERLAPPING: {"concurrency": 4},
    }
    options = by_mode.get(mode, {})
    return await desk.start(desk.spec(handler(mode, each), **(options | given)), owner=owner)


class Bench:
    """One processor over one stream."""

    def __init__(
        self, backend: Backend, tasks: anyio.abc.TaskGroup, stream: StreamSpec, changed: Settings
    ) -> None:
        self.backend = backend
        self.tasks = tasks
        self.stream = stream
        self.settings = changed
        self.rng = random.Random(7)
        self.stream_keys = StreamKeys(stream.app, stream.name)
        self.keys = GroupKeys(stream.app, stream.name, "price")
        self.producer = Producer(backend, stream, changed, rng=self.rng)
        self.budget = ByteBudget(changed.prefetch_bytes)
        self.regressed: list[tuple[int, str]] = []
        self.unreadable: list[tuple[int, str]] = []
        self.fetcher = fetcher_for(backend)(
            backend,
            self.stream_keys,
            changed,
            self.budget,
            on_regressed=lambda p, reason: self.regressed.append((p, reason)),
            on_unreadable=lambda p, reason: self.unreadable.append((p, reason)),
            rng=self.rng,
        )
        self.committer = Committer(backend, self.keys, changed, self.rng)
        self.cache = TableCache(1024 * 1024)
        self.gate = Gate()
        self.generation = 1

    def spec(self, function: Callable[..., Any], **given: Any) -> ProcessorSpec:
        """Declare a function as the processor ``price``."""
        options: dict[str, Any] = {
            "name": "price",
            "within": 0.0,
            "errors": Halt(),
        }
        return describe(function, self.stream, ProcessorOptions(**(options | given)))

    async def send(self, numbers: Sequence[int], keys: int = 0) -> None:
        """Send orders with these numbers, in this order, by one key or by so many in turn."""
        customers = [f"k{n % keys}" for n in numbers] if keys else ["ann"] * len(numbers)
        await self.producer.send_many(map(Order, numbers, customers))

    async def acquire(self, partition: int, owner: str, live: Sequence[str] | None = None) -> Acquired:
        """Take a partition's lock."""
        self.generation += 1
        access = Access(self.backend, self.keys, 10_000)
        alive = (owner,) if live is None else tuple(live)
        answer = await locks.acquire(access, AcquireLocks((partition,), owner, self.generation, alive))
        lock = answer.replies[partition]
        assert isinstance(lock, Acquired)
        return lock

    async def start(self, spec: ProcessorSpec, partition: int = 0, owner: str = "w1") -> Running:
        """Acquire a partition and run the processor over it."""
        lock = await self.acquire(partition, owner)
        halted: list[str] = []
        states: list[str] = []
        runner = build_runner(
            spec=spec,
            start=StartRunner(partition, owner, lock),
            state=await read_state(self.backend, self.keys, partition),
            buffer=self.fetcher.add(partition, lock.checkpoint),
            committer=self.committer,
            settings=self.settings,
            rng=self.rng,
            gate=self.gate,
            on_halted=halted.append,
            on_state=lambda reason, _: states.append(reason),
            log=structlog.get_logger("test"),
            cache=self.cache,
        )
        running = Running(runner, lock, halted=halted, states=states)
        self.tasks.start_soon(self._run, running)
        return running

    async def _run(self, running: Running) -> None:
        with running.scope:
            running.stopped = await running.runner.run()
        running.ended.set()

    async def commit(
        self, request: CommitRequest, on_trouble: Callable[[CommitReply], None] = lambda _: None
    ) -> CommitReply:
        answered: asyncio.Future[CommitReply] = asyncio.get_running_loop().create_future()
        ticket = self.committer.hand_in(request, answered.set_result, on_trouble)
        try:
            return await answered
        finally:
            ticket.withdrawn = True

    # -- what is in Redis --------------------------------------------------------------------

    async def checkpoint(self, partition: int = 0) -> str:
        lock = await locks.read_lock(self.backend, self.keys, partition)
        assert lock is not None
        return str(lock.checkpoint)

    async def committed(self, partition: int = 0) -> int:
        lock = await locks.read_lock(self.backend, self.keys, partition)
        return 0 if lock is None else lock.entries

    async def until_committed(self, count: int, partition: int = 0) -> None:
        """Wait until so many source entries are committed."""

        async def enough() -> bool:
            return await self.committed(partition) >= count

        await wait_for_async(enough, f"{count} entries are committed")

    async def entries(self, key: str) -> list[tuple[EntryId, dict[bytes, bytes]]]:
        """Return the records of a stream of ours; a busy machine may take longer than a test's timeout."""
        read = partial(self.backend.execute, "XRANGE", key, "-", "+")
        found = Entries.of(await retrying(read, rng=random.Random(), tries=60))
        return [(each.id, dict(each.fields)) for each in found]

    async def ids(self, partition: int = 0) -> list[str]:
        return [str(entry_id) for entry_id, _ in await self.entries(self.stream_keys.events(partition))]

    async def numbers(self, partition: int = 0) -> list[int]:
        """Return the numbers of the orders that were sent to a partition."""
        decode = self.stream.record.decoder("json")
        return [decode(fields).number for _, fields in await self.entries(self.stream_keys.events(partition))]

    async def acked_entries(self, partition: int = 0) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await self.entries(self.keys.acked(partition))]

    async def rows(self, kind: type = Priced, partition: int = 0) -> list[dict[str, Any]]:
        schema = RecordType.of(kind).arrow_schema()
        schemas = {schema_fingerprint(schema): deserialize_schema(serialize_schema(schema))}
        rows: list[dict[str, Any]] = []
        for entry_id, fields in await self.entries(self.keys.acked(partition)):
            rows += decode_entry(entry_id, fields, schemas).to_pylist()
        return rows

    async def dead(self, partition: int = 0) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await self.entries(self.keys.dead(partition))]

    async def add_raw(self, payload: bytes, partition: int = 0) -> str:
        """Append an entry as another program might."""
        entry_id = await self.backend.execute("XADD", self.stream_keys.events(partition), "*", "v", payload)
        return str(entry_id.decode())


@contextlib.asynccontextmanager
async def bench(
    url: str, *, partitions: int = 1, run: bool = True, stream: dict[str, Any] | None = None, **changed: Any
) -> AsyncIterator[Bench]:
    """Open a bench; its fetcher and committer run until the end."""
    kind = RecordType.of(Order)
    made = StreamSpec(
        app="shop",
        name="orders",
        record=kind,
        key=kind.key_function("customer"),
        declared_partitions=partitions,
        codec="json",
        records_max=1_000_000,
    )
    chosen = settings(**changed)
    # A test that is not about a server which does not answer has patience with one on a busy machine.
    timeout_ms = changed.get("call_timeout_ms", round(PATIENCE_S * 1000))
    async with Backend.open(url, name="bench", call_timeout_ms=timeout_ms) as backend:
        async with anyio.create_task_group() as tasks:
            desk = Bench(backend, tasks, replace(made, **(stream or {})), chosen)
            if run:
                tasks.start_soon(desk.fetcher.run)
                tasks.start_soon(desk.committer.run)
            yield desk
            tasks.cancel_scope.cancel()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def handling(
    url: str, function: Callable[..., Any], orders: Iterable[int | Order], **options: Any
) -> AsyncIterator[tuple[Bench, Running]]:
    """Open a bench on which a function handles these orders, or orders with these numbers."""
    async with bench(url) as desk:
        await desk.producer.send_many(Order(each) if isinstance(each, int) else each for each in orders)
        yield desk, await desk.start(desk.spec(function, **options))
