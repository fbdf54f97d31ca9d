"""What durability costs: ``python -m benchmarks.durability``.

For each server the setting is measured beside ``memory`` on the same server, in turn, round by round
(``aof`` with ``appendfsync always``, which it needs here, and ``memory`` with ``everysec``, the default);
what is printed are medians, and the median of the ratios within a round. Times to confirm come from one
send or commit at a time, rates from many at once over 8 partitions.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from streamworker.core.data.entries import EntryId
from streamworker.redisio.data.commit import CommitCode, CommitRequest
from streamworker.runtime.send.producer import Producer
from streamworker.settings import Settings
from tests.runtime.workbench import Bench, Order, Priced, bench
from tests.stage.pair import Pair
from tests.stage.server import Server

ROUNDS = 5
PARTITIONS = 8
RECORDS = 8_000
MANY = [Order(n, f"c{n}") for n in range(RECORDS)]
COUNT = 100

Measure = Callable[[Bench, int], Awaitable[float]]


async def send(desk: Bench, count: int) -> float:
    """Return how long one send takes until it is confirmed, in ms."""
    began = time.perf_counter()
    for n in range(count):
        await desk.producer.send(Order(n))
    return (time.perf_counter() - began) * 1000 / count


async def commit(desk: Bench, count: int) -> float:
    """Return how long one commit takes until it is confirmed, in ms."""
    ids = [await desk.backend.execute("XADD", desk.keys.events(0), "*", "v", "{}") for _ in range(count)]
    lock = await desk.acquire(0, "cost")
    previous = lock.checkpoint
    began = time.perf_counter()
    for text in ids:
        new = EntryId.parse(text)
        reply = await desk.commit(CommitRequest(0, "cost", lock.epoch, previous, new, 1))
        assert reply.code is CommitCode.OK, reply
        previous = new
    return (time.perf_counter() - began) * 1000 / count


async def send_many(desk: Bench, _count: int) -> float:
    """Return how many records a second are sent."""
    began = time.perf_counter()
    await desk.producer.send_many(MANY)
    return RECORDS / (time.perf_counter() - began)


async def process(desk: Bench, _count: int) -> float:
    """Records a second that are handled by 500 and forwarded."""

    async def price(batch: list[Order]) -> list[Priced]:
        return [Priced(order.number, 1.0) for order in batch]

    spec = desk.spec(price, batch=500)
    await Producer(desk.backend, desk.stream, Settings()).send_many(MANY)
    began = time.perf_counter()
    running = [await desk.start(spec, p) for p in range(PARTITIONS)]
    while sum(each.runner.commits.records_done for each in running) < RECORDS:  # noqa: ASYNC110 - its records tell nobody
        await asyncio.sleep(0.002)
    rate = RECORDS / (time.perf_counter() - began)
    for each in running:
        await each.drained()
    return rate


MEASURES: dict[str, Measure] = {
    "send, ms": send,
    "commit, ms": commit,
    "send_many, records/s": send_many,
    "process by 500, records/s": process,
}


async def measured(server: Server, durability: str, measure: Measure) -> float:
    """Measure once, on an empty server that writes to its disk as the durability asks."""
    with server.client() as client:
        client.flushall()
        client.config_set("appendfsync", "always" if durability == "aof" else "everysec")
    stream = {"partitions": PARTITIONS}
    async with bench(server.url, partitions=PARTITIONS, stream=stream, durability=durability) as desk:
        await desk.producer.send(Order(0))
        return await measure(desk, COUNT)


async def compare(title: str, server: Server, durability: str) -> None:
    """Measure one durability beside ``memory``."""
    for name, measure in MEASURES.items():
        rows: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            memory = await measured(server, "memory", measure)
            rows.append((memory, await measured(server, durability, measure)))
        memory, mine = (statistics.median(column) for column in zip(*rows, strict=True))
        ratio = statistics.median(mine / memory for memory, mine in rows)
        line = (
            f"{title:<22} {name:<27} memory {memory:>12,.2f}   {durability:<8} {mine:>12,.2f}   x {ratio:.3g}"
        )
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


async def main() -> None:
    """Measure on a server with an append-only file, and on one with a replica."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory() as folder, Server(data_dir=folder, port=0) as server:
        await compare("everysec, always", server, "aof")
    pair: Any = Pair()
    pair.start()
    try:
        await compare("a replica beside it", pair.primary, "replicas")
    finally:
        pair.stop()


if __name__ == "__main__":
    asyncio.run(main())
