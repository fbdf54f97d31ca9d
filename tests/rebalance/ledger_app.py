"""The app of the rebalance tests: each worker writes down what it executed, and when.

A line is one call of the handler: partition, epoch, the records' numbers, and the times of its
start and end by CLOCK_MONOTONIC, which all processes of a machine share. What the variables
``HANDLER`` and ``HANDLER_S`` say happens in between; ``HOT`` names a partition that takes ``HOT_S``.
"""

import asyncio
import json
import os
import time
from pathlib import Path

import msgspec

from streamworker import App, Context

app = App(
    "ledger",
    coordination=os.environ.get("COORDINATION", "membership"),
    assignment=os.environ.get("ASSIGNMENT", "range"),
)


class Item(msgspec.Struct):
    key: str
    n: int


items = app.stream("items", Item, key="key", partitions=int(os.environ.get("PARTITIONS", "8")))

LEDGER = Path(os.environ.get("LEDGER", "."))
HANDLER = os.environ.get("HANDLER", "sleep")
HANDLER_S = float(os.environ.get("HANDLER_S", "0.01"))
HOT = int(os.environ.get("HOT", "-1"))
HOT_S = float(os.environ.get("HOT_S", "0.01"))


def write_down(ctx: Context, numbers: list[int], started: float) -> None:
    line = {"partition": ctx.partition, "epoch": ctx.epoch, "n": numbers, "start": started}
    with (LEDGER / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line | {"end": time.monotonic()}) + "\n")


async def record(batch: list[Item], ctx: Context) -> list[Item]:
    started = time.monotonic()
    (LEDGER / f"{os.getpid()}.started").touch()
    seconds = HOT_S if ctx.partition == HOT else HANDLER_S
    if HANDLER == "block":
        time.sleep(seconds)
    else:
        await asyncio.sleep(seconds)
    write_down(ctx, [item.n for item in batch], started)
    return batch


app.processor(items, batch=int(os.environ.get("BATCH", "20")), within=0.01)(record)
