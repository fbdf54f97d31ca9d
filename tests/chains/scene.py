"""A stage for chains: real workers that are killed, and what arrives at the far end."""

import asyncio
from pathlib import Path
from typing import Any

from streamworker import App
from streamworker.core.snapshot import GroupSnapshot
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from tests.chains.chain_app import Item, item
from tests.chaos.forked import Forge, Forked
from tests.chaos.times import FAST
from tests.helpers import logged

CHAIN = {"price": "items", "sum_up": "priced", "report": "summed"}
"""The processors, and what each reads."""


class ChainScene:
    def __init__(self, url: str, forge: Forge, folder: Path, durability: str = "memory") -> None:
        self.url = url
        self.durability = durability
        self.sent = 0
        self.workers: list[Forked] = []
        self._forge, self._folder = forge, folder

    def worker(self, **environ: str) -> Forked:
        name = f"w{len(self.workers) + 1}"
        its = {"STREAMWORKER_REDIS_URL": self.url, "STREAMWORKER_DURABILITY": self.durability}
        its["WORKER_APP"] = "tests.chains.chain_app"
        worker = self._forge.fork(name, {**FAST, **its, **environ}, self._folder / f"{name}.log")
        self.workers.append(worker)
        return worker

    def send(self, count: int) -> None:
        """Send the next records."""

        async def send() -> None:
            app = App("chain", redis_url=self.url, durability=self.durability)
            items = app.stream("items", Item, key="customer", partitions=4)
            async with app:
                await items.send_many([item(n) for n in range(self.sent, self.sent + count)])

        asyncio.run(send())
        self.sent += count

    def told(self, *events: str) -> list[dict[str, Any]]:
        """Return what workers have logged of some events."""
        return logged((worker.log_path for worker in self.workers), *events)

    def snapshots(self) -> list[GroupSnapshot]:
        async def look() -> list[GroupSnapshot]:
            async with Backend.open(self.url, name="observer", call_timeout_ms=10_000) as backend:
                return [await take_snapshot(backend, "chain", stream, name) for name, stream in CHAIN.items()]

        return asyncio.run(look())

    def arrived(self) -> int:
        """Return how many records the last processor has committed."""
        return self.snapshots()[-1].committed
