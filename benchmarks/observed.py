"""What metrics add to a worker's work: `python -m benchmarks.observed`.

It measures by itself what is told of one call and its commit. Then, on a server of its own, a batch handler
(1,000) that forwards nothing and a record handler work off the same records, with and without metrics. Runs
alternate. It tells the CPU time of the process for each record, which a busy machine changes less than the
time that passes.
"""

import asyncio
import gc
import statistics
import time

import msgspec
from prometheus_client import CollectorRegistry

from streamworker import App
from streamworker.cli.output import say
from streamworker.core.data.entries import EntryId
from streamworker.dev.server import EmbeddedServer
from streamworker.metrics import measure
from streamworker.testing import local_worker, quiet_logs

RECORDS, RUNS, PARTITIONS, TOLD = 1_000_000, 9, 4, 20_000


class Item(msgspec.Struct):
    """A record."""

    n: int
    key: str


async def cpu_us(url: str, number: int, *, by_record: bool, is_measured: bool) -> float:
    """Return the CPU time for each record, in µs, from the worker's start until all are committed."""
    app = App("observed", redis_url=url)
    items = app.stream("items", Item, key="key", partitions=PARTITIONS, retention="1 day")
    if number == 0:
        async with app:
            await items.send_many(Item(n, f"k{n % 1_000}") for n in range(RECORDS))
    if is_measured:
        measure(app, CollectorRegistry())

    async def one(record: Item) -> None: ...

    async def many(batch: list[Item]) -> None: ...

    if by_record:
        app.processor(items, name=f"g{number}")(one)
    else:
        app.processor(items, name=f"g{number}", batch=1_000)(many)
    async with local_worker(app, url=url) as worker:
        gc.collect()
        began_s = time.process_time()
        await worker.until(lambda now: now.processors[f"g{number}"].lag == 0)
        return (time.process_time() - began_s) * 1e6 / RECORDS


def added_us() -> float:
    """Return the CPU time of what is told of one call and its commit, in µs; the least of some runs."""
    app = App("told")
    items = app.stream("items", Item)

    @app.processor(items, batch=1_000)
    async def many(batch: list[Item]) -> None: ...

    measure(app, CollectorRegistry())
    spec, observer, took = app.registry.processors["many"], app.observer, list[float]()
    assert observer is not None
    oldest = EntryId(time.time_ns() // 1_000_000, 0)
    for _ in range(RUNS):
        began_s = time.process_time()
        for _ in range(TOLD):
            observer.called(spec, 0.001)
            observer.committed(spec, 0.002, 1_000, 50_000, oldest, 0)
        took.append((time.process_time() - began_s) * 1e6 / TOLD)
    return min(took)


async def main() -> None:
    """Measure in turn, and print the medians and their ratio."""
    quiet_logs()
    say(f"metrics of one call and its commit take {added_us():.1f} µs")
    for by_record, what in ((False, "batch handler"), (True, "record handler")):
        found: dict[bool, list[float]] = {False: [], True: []}
        with EmbeddedServer() as server:
            for number in range(2 * RUNS):
                is_measured = number % 4 in (1, 2)  # Each goes first in every second pair.
                took = await cpu_us(server.url, number, by_record=by_record, is_measured=is_measured)
                found[is_measured].append(took)
        plain, measured = (statistics.median(found[each]) for each in (False, True))
        say(f"{what}: {plain:.2f} µs a record, with metrics {measured:.2f}: {measured / plain:.3f} times")
        say("  " + ", ".join(f"{b / a:.3f}" for a, b in zip(found[False], found[True], strict=True)))


if __name__ == "__main__":
    asyncio.run(main())
