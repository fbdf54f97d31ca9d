"""As ``ledger_app``, with calls that overlap: a line is one call with one record."""

import asyncio
import json
import os
import time
from pathlib import Path

from streamworker import App, Context
from tests.rebalance.ledger_app import Item

app = App("ledger")
items = app.stream("items", Item, key="key", partitions=int(os.environ.get("PARTITIONS", "8")))

LEDGER = Path(os.environ.get("LEDGER", "."))


@app.processor(items, concurrency=int(os.environ.get("CONCURRENCY", "32")))
async def record(item: Item, ctx: Context) -> Item:
    """Wait for a while, write down that it was done, and forward the record."""
    started = time.monotonic()
    (LEDGER / f"{os.getpid()}.started").touch()
    await asyncio.sleep(0.005 + item.n % 7 / 500)
    line = {"partition": ctx.partition, "epoch": ctx.epoch, "n": [item.n], "start": started}
    with (LEDGER / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line | {"end": time.monotonic()}) + "\n")
    return item
