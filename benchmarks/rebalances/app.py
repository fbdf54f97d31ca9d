"""The app of the measured workers: ``python -m benchmarks.rebalances.app NAME``.

A worker imports all its modules and then waits for a signal to join, so that no figure includes the start
of a Python process. Its handler forwards its records, so the acked log shows when each partition was
handled, and by which worker.
"""

import asyncio
import os
import sys
import time

import msgspec
import pyarrow as pa

from streamworker import App
from streamworker.core.data.placement import Placement, canonical_key
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.worker import run_worker

PREFIX = "STREAMWORKER_REBALANCES_"
WAIT_MS = 10_000
SLICES = 8
"""Number of parts in which a round of records is sent, so that the load is even."""


class Tick(msgspec.Struct):
    """One record; the key chooses the partition."""

    key: str


def make_app(environ: "os._Environ[str] | dict[str, str]") -> App:
    """Create the app from the variables that the measuring process sets."""
    made = App(
        environ.get(f"{PREFIX}APP", "rebalances"),
        redis_url=environ.get("STREAMWORKER_REDIS_URL"),
        coordination=environ.get(f"{PREFIX}PROTOCOL", "membership"),
        assignment=environ.get(f"{PREFIX}ASSIGNMENT", "range"),
    )
    partitions = int(environ.get(f"{PREFIX}PARTITIONS", "16"))
    ticks = made.stream("ticks", Tick, key="key", partitions=partitions)

    @made.processor(ticks, batch=100, within=0.001)
    async def handled(batch: list[Tick]) -> list[Tick]:
        return batch

    return made


async def send_ticks(app: App, partitions: int, per_second: float) -> None:
    """Send records to all partitions at the same rate, until this is cancelled."""
    keys = key_of_each_partition(partitions)
    parts = [keys[part::SLICES] for part in range(SLICES)]
    stream = app.registry.streams["ticks"]
    pause_s = 1 / per_second / SLICES
    due = time.monotonic()
    while True:
        for part in parts:
            await stream.send_many(Tick(key) for key in part)
            due = max(due + pause_s, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due - time.monotonic()))


def key_of_each_partition(partitions: int) -> list[str]:
    """Return a key for each partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < partitions:
        key = f"k{number}"
        found.setdefault(Placement(partitions).partition_of(canonical_key(key) or b""), key)
        number += 1
    return [found[p] for p in range(partitions)]


def gate_key(app: str, worker: str) -> str:
    """Return the key of the list from which a worker pops its signal to join."""
    return f"sw:{{{app}.gate}}:{worker}"


async def wait_at_the_gate(app: App, worker: str) -> None:
    """Report that the worker is ready, and wait for the measuring process's signal to join."""
    settings = app.settings
    async with Backend.open(
        settings.redis_url, name=f"{worker}:gate", allow_plaintext=settings.allow_plaintext
    ) as backend:
        connection = backend.blocking()
        ready, gate = gate_key(app.name, "ready"), gate_key(app.name, worker)
        await backend.execute("SADD", ready, worker)
        while not await connection.execute("BLPOP", gate, WAIT_MS // 1000, block_ms=WAIT_MS):
            pass
        await connection.aclose()


def main() -> int:
    """Run one worker."""
    app, name = make_app(os.environ), sys.argv[1]
    pa.array([0])  # Imports pandas if it is installed, which takes a second.
    asyncio.run(wait_at_the_gate(app, name))
    return run_worker(app, name=name)


if __name__ == "__main__":
    sys.exit(main())
