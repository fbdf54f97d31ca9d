"""The app whose workers are measured: ``python -m streamworker.dev.rebalance_app NAME``.

A worker loads all that it needs and then waits to be let go, so that no figure holds the start of a
Python process. Its handler forwards what it gets: the acked log then says when each partition was
worked on, and by whom.
"""

import asyncio
import os
import sys

import msgspec
import pyarrow as pa

from streamworker import App
from streamworker.redisio.client import Backend
from streamworker.runtime.worker import run_worker

PREFIX = "STREAMWORKER_REBALANCES_"
WAIT_MS = 10_000


class Tick(msgspec.Struct):
    """One record; the key chooses the partition."""

    key: str


def make_app(environ: "os._Environ[str] | dict[str, str]") -> App:
    """Make the app from the variables that the measuring process sets."""
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


def gate_key(app: str, worker: str) -> str:
    """Return the list that a worker waits at."""
    return f"sw:{{{app}.gate}}:{worker}"


async def wait_at_the_gate(app: App, worker: str) -> None:
    """Return when the measuring process lets the worker go."""
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
    pa.array([0])  # Loads pandas where that is installed, which takes a second.
    asyncio.run(wait_at_the_gate(app, name))
    return run_worker(app, name=name)


if __name__ == "__main__":
    sys.exit(main())
