"""An app whose records kill the process that calls, or decodes, them; how is said by its variables."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from streamworker import App, Context, DeadLetter, Records

STREAM, PROCESSOR = "items", "handled"
MODES = ("record", "def", "keyed", "batch", "columns", "stream", "decode", "decode-batch", "decode-columns")


def decodes() -> bool:
    """Whether records kill while they are decoded; never where they are sent, which makes records, too."""
    return os.environ.get("KILLERS_MODE", "").startswith("decode")


class Item(msgspec.Struct):
    key: str
    n: int
    kills: bool = False

    def __post_init__(self) -> None:
        if decodes():
            call(self.n, kills=self.kills)


def call(n: int, *, kills: bool) -> None:
    """Note the number of a record, and end the process if it kills."""
    with Path(os.environ["KILLERS_CALLS"]).open("a", encoding="utf-8") as calls:
        calls.write(f"{n}\n")
    if kills:
        os.kill(os.getpid(), signal.SIGKILL)


def make_app(environ: Mapping[str, str]) -> App:
    app, items = declare(environ)
    mode, is_set_aside = environ["KILLERS_MODE"], environ["KILLERS_POLICY"] == "dead letter"
    options: dict[str, Any] = {"errors": DeadLetter()} if is_set_aside else {}
    made = app.processor(items, name=PROCESSOR, forward=False, **options, **_OPTIONS.get(mode, {}))
    made(_FUNCTIONS[mode])
    return app


def app_of(environ: Mapping[str, str]) -> App:
    """Return the app of a cell, with its protocol."""
    coordination = environ.get("COORDINATION", "membership")
    return App(environ["CELL"], redis_url=environ["STREAMWORKER_REDIS_URL"], coordination=coordination)


def declare(environ: Mapping[str, str]) -> tuple[App, Any]:
    app = app_of(environ)
    is_single = environ["KILLERS_SINGLE"] == "yes"
    return app, app.stream(STREAM, Item, key="key", partitions=1, single_entries=is_single)


async def by_record(item: Item) -> None:
    if not decodes():
        call(item.n, kills=item.kills)


def in_thread(item: Item) -> None:
    call(item.n, kills=item.kills)


async def in_batches(items: list[Item]) -> None:
    for item in items:
        await by_record(item)


async def in_columns(rows: pa.RecordBatch) -> None:
    if not decodes():
        for row in rows.to_pylist():
            call(row["n"], kills=row["kills"])


async def as_stream(items: Records[Item], ctx: Context) -> None:
    del ctx
    async for part in items.take(5):
        for item in part:
            call(item.n, kills=item.kills)


_FUNCTIONS: Mapping[str, Any] = {
    "def": in_thread,
    "batch": in_batches,
    "decode-batch": in_batches,
    "columns": in_columns,
    "decode-columns": in_columns,
    "stream": as_stream,
    "record": by_record,
    "keyed": by_record,
    "decode": by_record,
}
_OPTIONS: Mapping[str, dict[str, Any]] = {
    "keyed": {"concurrency": 4},
    "batch": {"batch": 4},
    "decode-batch": {"batch": 4},
}
