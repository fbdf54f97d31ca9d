"""The app of killed workers: it writes down what it executes, and does what its variables say meanwhile.

A line of the ledger is one call of the handler: partition, epoch, the records' numbers, and the times of
its start and end by CLOCK_MONOTONIC, which all processes of a machine share.
"""

import asyncio
import functools
import json
import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from streamworker import App, Context

STREAM, PROCESSOR = "items", "handled"


class Item(msgspec.Struct):
    key: str
    n: int


def make_app(environ: Mapping[str, str], **settings: Any) -> App:
    made = App(
        environ["ROWS_APP"],
        redis_url=environ.get("STREAMWORKER_REDIS_URL"),
        assignment=environ.get("ASSIGNMENT", "range"),
        coordination=environ.get("COORDINATION", "membership"),
        **settings,
    )
    # A release before entries of many records cannot read them, and does not know the option.
    options: dict[str, Any] = {"single_entries": True} if "ROWS_SINGLE" in environ else {}
    items = made.stream(STREAM, Item, key="key", partitions=int(environ["ROWS_PARTITIONS"]), **options)
    ledger = environ.get("ROWS_LEDGER")
    usual_s = float(environ.get("ROWS_HANDLER_S", "0.02"))
    hot, hot_s = int(environ.get("ROWS_HOT", "-1")), float(environ.get("ROWS_HOT_S", "0"))
    act = environ.get("ROWS_HANDLER", "sleep")

    @made.processor(
        items,
        batch=int(environ.get("ROWS_BATCH", "20")),
        within=0.01,
    )
    async def handled(batch: list[Item], ctx: Context) -> list[Item]:
        started = time.monotonic()
        if ledger:
            note_begin(ledger)
        seconds = hot_s if ctx.partition == hot else usual_s
        if act == "block":
            time.sleep(seconds)
        elif act == "compute":
            compute(seconds)
        elif act == "gil" and any(item.n % 100 == 0 for item in batch):
            hold_the_interpreter(seconds)
        else:
            await asyncio.sleep(seconds if act == "sleep" else 0.01)
        if ledger:
            line = {
                "partition": ctx.partition,
                "epoch": ctx.epoch,
                "n": [item.n for item in batch],
                "start": started,
                "end": time.monotonic(),
            }
            write_down(Path(ledger, f"{os.getpid()}.jsonl"), line)
        return batch

    return made


def note_begin(ledger: str) -> None:
    """Note when the last call of this process began, as the time of a file."""
    Path(ledger, f"{os.getpid()}.started").touch()


def write_down(path: Path, line: Mapping[str, object]) -> None:
    """Add a line to a ledger; once this returns it outlives the process."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def compute(seconds: float) -> None:
    """Keep the interpreter busy, as a computation in pure Python does."""
    end, total = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        total += sum(range(100))


def hold_the_interpreter(seconds: float) -> None:
    """Run one piece of native code that lets no other thread of this process run for so long."""
    letters = 20
    began = time.monotonic()
    re.match("(a+)+$", "a" * letters + "b")
    took = time.monotonic() - began
    longer = max(0, round(math.log2(seconds / took)))  # Each letter doubles it.
    re.match("(a+)+$", "a" * (letters + longer) + "b")


@functools.cache
def __getattr__(name: str) -> App:
    """Make the app once a command asks for ``tests.chaos.rows_app:app``: by then its variables are set."""
    if name != "app":
        raise AttributeError(name)
    return make_app(os.environ)
