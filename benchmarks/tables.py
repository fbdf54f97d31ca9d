"""``python -m benchmarks.tables``: a table of many keys, beside a loop of HMGET and HSET written by hand.

Both count the same events in batches of 1,000. Ours reads a stream, and commits its table with the
checkpoint. The loop reads a plain stream with XREADGROUP, and calls HMGET, HSET and XACK. The keys are in
Redis beforehand, and the events spread over them evenly, so that a cache is of little use.
"""

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any, TypeVar

import anyio
import msgspec
import redis
import typer

from benchmarks.measuring.figures import compact
from streamworker import App, Table
from streamworker.cli.output import say
from streamworker.core.data.placement import Placement
from streamworker.dev.server import EmbeddedServer
from streamworker.testing import local_worker, quiet_logs

T = TypeVar("T")

BATCH = 1_000
FILL = 10_000
"""Keys of one command while the tables are filled."""
DRAINED_S = 3_600.0


class Event(msgspec.Struct):
    """What is counted."""

    key: str
    amount: float


class Total(msgspec.Struct):
    """The value of a key."""

    events: int = 0
    sum: float = 0.0


class Result(msgspec.Struct):
    """What a program reached."""

    updates_per_s: float
    memory_mib: float


def opened(url: str) -> Any:
    """Return a client that is patient: to drop ten million keys takes the server seconds."""
    return redis.Redis.from_url(url, protocol=2, socket_timeout=600)


def peak_mib() -> float:
    """Return the most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def in_lists(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Return items in lists of a size."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def name_of(number: int) -> str:
    """Return a key."""
    return f"customer-{number}"


def events(keys: int, updates: int) -> Iterator[Event]:
    """Return events whose keys are drawn evenly; the same ones each time."""
    rng = random.Random(7)
    return (Event(name_of(rng.randrange(keys)), 1.5) for _ in range(updates))


# -- ours --------------------------------------------------------------------------------------


def app_with_table(url: str, partitions: int, begun: list[float]) -> tuple[App, Table[str, Total]]:
    """Return an app that counts events by key; it notes when the first call began."""
    app = App("bench", redis_url=url)
    stream = app.stream("events", Event, key="key", partitions=partitions)
    totals = app.table("totals", Total)

    @app.processor(stream, batch=BATCH, tables=[totals])
    async def count(batch: list[Event]) -> None:
        if not begun:
            begun.append(time.monotonic())
        known = await totals.get_many({event.key for event in batch})
        for event in batch:
            total = known.get(event.key)
            if total is None:
                total = known[event.key] = Total()
            total.events += 1
            total.sum += event.amount
        totals.set_many(known)

    return app, totals


async def run_ours(url: str, partitions: int, updates: int) -> Result:
    """Run a worker until all events are counted."""
    begun: list[float] = []
    app, _ = app_with_table(url, partitions, begun)
    async with local_worker(app, url=url) as worker:
        await worker.until_drained(DRAINED_S)
        spent_s = time.monotonic() - begun[0]
    return Result(updates / spent_s, peak_mib())


def fill_ours(client: Any, url: str, keys: int, partitions: int, updates: int) -> None:
    """Store a value for each key, and send the events."""
    app, totals = app_with_table(url, partitions, [])
    body = b" " + totals.spec.form.body("", Total())
    fill(client, keys, partitions, "sw:{{bench.events.{}}}:table:totals", body)
    app.registry.streams["events"].sync.send_many(events(keys, updates))
    app.close()


# -- by hand -----------------------------------------------------------------------------------


def run_by_hand(url: str, partitions: int, updates: int) -> Result:
    """Read a batch of each stream in turn, and count it."""
    decode = msgspec.json.Decoder(Event).decode
    encode = msgspec.msgpack.Encoder().encode
    total_of = msgspec.msgpack.Decoder(Total).decode
    client = opened(url)
    done, begun = 0, time.monotonic()
    while done < updates:
        for p in range(partitions):
            found = client.xreadgroup("g", "c", {f"hand:events:{p}": ">"}, count=BATCH)
            for stream, entries in found:
                batch = [decode(fields[b"v"]) for _, fields in entries]
                names = list({event.key for event in batch})
                stored = client.hmget(f"hand:totals:{p}", names)
                known = {
                    name: Total() if value is None else total_of(value)
                    for name, value in zip(names, stored, strict=True)
                }
                for event in batch:
                    total = known[event.key]
                    total.events += 1
                    total.sum += event.amount
                client.hset(f"hand:totals:{p}", mapping={name: encode(each) for name, each in known.items()})
                client.xack(stream, "g", *[entry for entry, _ in entries])
                done += len(batch)
    return Result(updates / (time.monotonic() - begun), peak_mib())


def fill_by_hand(client: Any, keys: int, partitions: int, updates: int) -> None:
    """Store a value for each key, and add the events."""
    fill(client, keys, partitions, "hand:totals:{}", msgspec.msgpack.encode(Total()))
    encode, placement = msgspec.json.Encoder().encode, Placement(partitions)
    for some in in_lists(events(keys, updates), BATCH):
        pipe = client.pipeline(transaction=False)
        for event in some:
            pipe.xadd(f"hand:events:{placement.partition_of(event.key.encode())}", {"v": encode(event)})
        pipe.execute()
    for p in range(partitions):
        client.xgroup_create(f"hand:events:{p}", "g", "0", mkstream=True)


def fill(client: Any, keys: int, partitions: int, name: str, body: bytes) -> None:
    """Store a value for each key in the hash of its partition."""
    placement = Placement(partitions)
    for numbers in in_lists(range(keys), FILL):
        by_partition: dict[int, list[bytes]] = {}
        for number in numbers:
            key = name_of(number).encode()
            by_partition.setdefault(placement.partition_of(key), []).extend((key, body))
        pipe = client.pipeline(transaction=False)
        for p, flat in by_partition.items():
            pipe.execute_command("HSET", name.format(p), *flat)
        pipe.execute()


# -- both --------------------------------------------------------------------------------------


def compare(keys: int, updates: int, partitions: int) -> dict[str, Result]:
    """Run both programs, each in a process of its own, on a server that holds its keys alone."""
    found: dict[str, Result] = {}
    options = [f"--partitions={partitions}", f"--updates={updates}"]
    with EmbeddedServer(maxmemory="16gb") as server, opened(server.url) as client:
        for program in ("ours", "by hand"):
            client.flushall(asynchronous=True)
            if program == "ours":
                fill_ours(client, server.url, keys, partitions, updates)
            else:
                fill_by_hand(client, keys, partitions, updates)
            told = subprocess.run(
                [sys.executable, "-m", "benchmarks.tables", f"--program={program}", *options],
                env={**os.environ, "STREAMWORKER_REDIS_URL": server.url},
                stdout=subprocess.PIPE,
                check=True,
            )
            found[program] = msgspec.json.decode(told.stdout.splitlines()[-1], type=Result)
            say(
                f"{program}: {compact(found[program].updates_per_s)} updates/s, "
                f"{found[program].memory_mib:.0f} MiB",
            )
    return found


def main(
    keys: Annotated[int, typer.Option(help="Keys that are stored beforehand.")] = 10_000_000,
    updates: Annotated[int, typer.Option(help="Events to count.")] = 1_000_000,
    partitions: Annotated[int, typer.Option(help="Partitions of the stream.")] = 16,
    program: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Count events by key in a table, and by hand."""
    quiet_logs()
    url = os.environ.get("STREAMWORKER_REDIS_URL", "")
    if program == "ours":
        result = anyio.run(run_ours, url, partitions, updates, backend_options={"use_uvloop": True})
        say(msgspec.json.encode(result).decode())
    elif program:
        say(msgspec.json.encode(run_by_hand(url, partitions, updates)).decode())
    else:
        found = compare(keys, updates, partitions)
        say(f"ratio: {found['ours'].updates_per_s / found['by hand'].updates_per_s:.2f}")


if __name__ == "__main__":
    typer.run(main)
