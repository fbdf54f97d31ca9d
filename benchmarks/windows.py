"""What windows cost: records a second beside a bare loop over a table, and what others wait while many close.

    python -m benchmarks.windows

Each run has a server of its own. The bare loop counts in a table by key and time, in batches, and neither
knows event time nor sends or removes anything. The figures are medians of pairs of runs, one after the other.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import msgspec

from streamworker import App, Processor, Stream, Window, Windowed
from streamworker.core.data.placement import Placement
from streamworker.dev.server import EmbeddedServer
from streamworker.testing import local_worker, quiet_logs

RECORDS, USERS, RUNS, MANY = 400_000, 400, 5, 100_000
BEGAN = datetime(2026, 11, 28, 10, tzinfo=UTC)


class Event(msgspec.Struct):
    """What somebody did."""

    user: str
    at: datetime
    amount: int


class Total(msgspec.Struct):
    """The events of a user in a window."""

    user: str
    start: datetime
    events: int = 0
    amount: int = 0


Made = tuple[Stream[Event], Processor[..., Any]]


def declared(url: str) -> tuple[App, Stream[Event], Stream[Total]]:
    """Return an app with a stream of events and one of totals."""
    app = App("windows", redis_url=url)
    events = app.stream("events", Event, key="user", partitions=4)
    return app, events, app.stream("totals", Total, key="user", partitions=4)


def bare(url: str) -> tuple[App, Stream[Event], Processor[..., Any]]:
    """Return a loop over a table."""
    app, events, totals = declared(url)
    table = app.table("sums", Total, key=("user", "start"))

    @app.processor(events, batch=500, tables=[table], into=totals)
    async def count(batch: list[Event]) -> list[Total]:
        keys = [(each.user, str(int(each.at.timestamp() * 1000) // 10_000)) for each in batch]
        known = await table.get_many(set(keys))
        for key, event in zip(keys, batch, strict=True):
            total = known.get(key)
            if total is None:
                total = known[key] = Total(event.user, event.at)
            total.events += 1
            total.amount += event.amount
        table.set_many(known)
        return []

    return app, events, count


def added(total: Total | None, event: Event, window: Window) -> Total:
    """Add an event to a total."""
    total = total or Total(event.user, window.start)
    total.events += 1
    total.amount += event.amount
    return total


def tumbling(url: str, every: str = "10 seconds") -> tuple[App, Stream[Event], Windowed[Event, Total]]:
    """Return windows that follow each other."""
    app, events, totals = declared(url)
    return app, events, app.window(events, every=every, by="at", late="5 seconds", into=totals)(added)


def sessions(url: str) -> tuple[App, Stream[Event], Processor[..., Any]]:
    """Return sessions."""
    app, events, totals = declared(url)
    visits = app.session(events, gap="5 seconds", by="at", late="5 seconds", into=totals)(added)

    @visits.merge
    def joined(one: Total, other: Total) -> Total:
        return Total(one.user, one.start, one.events + other.events, one.amount + other.amount)

    return app, events, visits


async def rate(make: Callable[[str], tuple[App, Stream[Event], Processor[..., Any]]]) -> float:
    """Return how many records a second a worker takes that wait for it."""
    rng = random.Random(5)
    with EmbeddedServer() as server:
        app, events, _ = make(server.url)
        await events.send_many(
            Event(
                f"user-{rng.randrange(USERS)}",
                BEGAN + timedelta(milliseconds=n * 600_000 // RECORDS - rng.randrange(2_000)),
                1,
            )
            for n in range(RECORDS)
        )
        async with local_worker(app, url=server.url) as worker:
            began = time.monotonic()
            await worker.until(lambda now: not any(each.lag for each in now.processors.values()), 300)
            return RECORDS / (time.monotonic() - began)


async def closed_at_once() -> tuple[float, float, float]:
    """Return for how long many windows close, and the median and longest wait of other records meanwhile."""
    with EmbeddedServer() as server:
        app, events, windows = tumbling(server.url, "1 hour")
        await events.send_many(Event(f"user-{n}", BEGAN, 1) for n in range(MANY))
        async with local_worker(app, url=server.url) as worker:
            await worker.until_drained(300)
            of_partition = {Placement(4).partition_of(f"late-{n}".encode()): f"late-{n}" for n in range(60)}
            later = BEGAN + timedelta(hours=1, seconds=10)
            began, waits, left = time.monotonic(), list[float](), MANY
            await asyncio.gather(*(events.send(Event(user, later, 1)) for user in of_partition.values()))
            while left > len(of_partition):
                sent_s = time.monotonic()
                sent = await events.send(Event(of_partition[len(waits) % 4], later, 1))
                await windows.committed(sent)
                waits.append(time.monotonic() - sent_s)
                left = await windows.open.count()
            return time.monotonic() - began, median(waits), max(waits)


async def main() -> None:
    """Measure, and print."""
    quiet_logs()
    for name, make in (("tumbling", tumbling), ("sessions", sessions)):
        pairs = [(await rate(bare), await rate(make)) for _ in range(RUNS)]
        ratios = sorted(its / loop for loop, its in pairs)
        rates = median(its for _, its in pairs)
        sys.stdout.write(
            f"{name}: {median(ratios):.2f} of the bare loop ({ratios[0]:.2f} to {ratios[-1]:.2f}), "
            f"{rates:,.0f} records/s\n"
        )
    took, middle, longest = await closed_at_once()
    sys.stdout.write(
        f"{MANY:,} windows closed at once in {took:.1f} s; others waited {middle * 1000:.0f} ms in the "
        f"median, {longest * 1000:.0f} ms at most\n"
    )


if __name__ == "__main__":
    asyncio.run(main())
