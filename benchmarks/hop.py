"""What a hop of a chain adds: `python -m benchmarks.hop`.

It measures on a server of its own how long after one function's call with a record the next processor gets
it, beside how long a send takes to reach the first one; and how many records a second a processor sends into
a stream, beside one that forwards the same rows into its acked log. Runs alternate.
"""

import asyncio
import statistics
import time

import msgspec

from streamworker import App
from streamworker.cli.output import say
from streamworker.dev.server import EmbeddedServer
from streamworker.testing import local_worker, quiet_logs

RECORDS, SENDS, RUNS, PARTITIONS = 100_000, 300, 5, 4


class Item(msgspec.Struct):
    """A record of both streams."""

    n: int
    key: str


def item(n: int) -> Item:
    """Return the record with a number."""
    return Item(n, f"k{n % 1_000}")


async def added_ms(url: str) -> tuple[float, float]:
    """Return the median ms from a send to the first function's call, and from that to the next one's."""
    app = App("hop", redis_url=url)
    first = app.stream("first", Item, key="key", partitions=PARTITIONS)
    second = app.stream("second", Item, key="key", partitions=PARTITIONS)
    sent: dict[int, float] = {}
    left: dict[int, float] = {}
    first_took: list[float] = []
    took: list[float] = []

    @app.processor(first, into=second, forward=False)
    async def one(record: Item) -> Item:
        left[record.n] = now = time.perf_counter()
        first_took.append(1_000 * (now - sent[record.n]))
        return record

    @app.processor(second)
    async def two(record: Item) -> None:
        took.append(1_000 * (time.perf_counter() - left[record.n]))

    async with local_worker(app, url=url) as worker:
        for n in range(SENDS):
            sent[n] = time.perf_counter()
            await first.send(item(n))
            await asyncio.sleep(0.01)
        await worker.until_drained()
    return statistics.median(first_took), statistics.median(took)


async def per_second(url: str, name: str, *, into_stream: bool) -> float:
    """Return the records a second of one processor, from its start until all are where they go."""
    app = App(name, redis_url=url)
    first = app.stream("first", Item, key="key", partitions=PARTITIONS)
    second = app.stream("second", Item, key="key", partitions=PARTITIONS)
    async with app:
        await first.send_many(item(n) for n in range(RECORDS))

    async def pass_on(batch: list[Item]) -> list[Item]:
        return batch

    if into_stream:
        app.processor(first, into=second, batch=1_000, forward=False)(pass_on)
    else:
        app.processor(first, batch=1_000)(pass_on)
    async with local_worker(app, url=url) as worker:
        began = time.perf_counter()
        await worker.until(lambda now: now.processors["pass_on"].lag == now.processors["pass_on"].outbox == 0)
        return RECORDS / (time.perf_counter() - began)


def main() -> None:
    """Print the figures."""
    quiet_logs()
    with EmbeddedServer() as server:
        by_send, by_hop = asyncio.run(added_ms(server.url))
    say(f"a send takes {by_send:.2f} ms to the first function, a hop adds {by_hop:.2f} ms (medians)")
    ratios, sent, forwarded = [], [], []
    with EmbeddedServer() as server:
        for run in range(RUNS):
            sent.append(asyncio.run(per_second(server.url, f"into{run}", into_stream=True)))
            forwarded.append(asyncio.run(per_second(server.url, f"log{run}", into_stream=False)))
            ratios.append(sent[-1] / forwarded[-1])
    say(
        f"into a stream {statistics.median(sent):,.0f} records/s, into the acked log "
        f"{statistics.median(forwarded):,.0f} records/s: ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
