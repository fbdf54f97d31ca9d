"""A stage for chains: real workers that are killed, and what arrives at the far end."""

import asyncio
from pathlib import Path

from streamworker import App
from streamworker.core.snapshot import GroupSnapshot
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from tests.chains.chain_app import Item, item
from tests.chaos.forked import Forge
from tests.chaos.times import FAST
from tests.stage.crew import Crew

CHAIN = {"price": "items", "sum_up": "priced", "report": "summed"}
"""The processors, and what each reads."""


class ChainScene(Crew):
    def __init__(self, url: str, forge: Forge, folder: Path, durability: str = "memory") -> None:
        its = {"STREAMWORKER_REDIS_URL": url, "STREAMWORKER_DURABILITY": durability}
        super().__init__(forge, folder, {**FAST, **its, "WORKER_APP": "tests.chains.chain_app"})
        self.url, self.durability, self.sent = url, durability, 0

    def send(self, count: int) -> None:
        """Send the next records."""

        async def send() -> None:
            app = App("chain", redis_url=self.url, durability=self.durability)
            items = app.stream("items", Item, key="customer", partitions=4)
            async with app:
                await items.send_many([item(n) for n in range(self.sent, self.sent + count)])

        asyncio.run(send())
        self.sent += count

    def snapshots(self) -> list[GroupSnapshot]:
        async def look() -> list[GroupSnapshot]:
            async with Backend.open(self.url, name="observer", call_timeout_ms=10_000) as backend:
                return [await take_snapshot(backend, "chain", stream, name) for name, stream in CHAIN.items()]

        return asyncio.run(look())

    def arrived(self) -> int:
        """Return how many records the last processor has committed."""
        return self.snapshots()[-1].committed
