"""An app in which something that is no record kills its process; what is said by its variables."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from streamworker import App, Context, DeadLetter
from tests.chaos.killers_app import app_of

STREAM, PARTITIONS = "items", 3
KINDS = {
    "timer of the app": "timer sweep",
    "timer of a partition": "timer sweep",
    "end of a value": "function ended",
    "resource of a worker": "resource connection",
    "resource of a partition": "resource connection",
    "middleware": "middleware watched",
}
"""What may kill, and how it is named."""


class Item(msgspec.Struct):
    key: str
    n: int


def dies() -> None:
    """End this process, if it is a worker and nobody has put it right."""
    deaths = Path(os.environ["OTHERS_DEATHS"])
    if "OTHERS_KILLS" in os.environ and not deaths.with_suffix(".right").exists():
        with deaths.open("a", encoding="utf-8") as file:
            file.write("died\n")
        os.kill(os.getpid(), signal.SIGKILL)


def make_app(environ: Mapping[str, str]) -> App:
    """Make it; its processor ``two`` has nothing to do with what kills, but for a resource of a worker."""
    kind = environ["OTHERS_KIND"]
    app, items = declare(environ)

    ends = app.table("ends", int, ttl="0.2 seconds")

    async def handled(item: Item) -> None:
        await asyncio.sleep(0.02)

    async def kept(item: Item) -> None:
        ends.set(item.key, item.n)

    async def connected(item: Item, connection: dict[str, int]) -> None:
        await asyncio.sleep(0.02)

    takes: Any = handled
    if kind.startswith("resource"):

        @app.resource(each="worker" if kind == "resource of a worker" else "partition")
        async def connection() -> AsyncIterator[dict[str, int]]:
            dies()
            yield {}

        takes = connected
    if kind == "end of a value":
        takes = kept
    tables = [ends] if takes is kept else []
    one = app.processor(items, name="one", errors=DeadLetter(), forward=False, tables=tables)(takes)
    app.processor(items, name="two", errors=DeadLetter(), forward=False)(handled)
    if kind == "middleware":

        @app.middleware
        async def watched(ctx: Context) -> AsyncIterator[None]:
            if ctx.processor == "one":
                dies()
            yield

    if kind == "end of a value":

        @one.expired(ends)
        async def ended(key: str, n: int) -> None:
            dies()

    if kind.startswith("timer"):

        async def sweep() -> None:
            dies()

        (app if kind == "timer of the app" else one).timer(every="0.5 seconds", missed="once")(sweep)
    return app


def declare(environ: Mapping[str, str]) -> tuple[App, Any]:
    app = app_of(environ)
    return app, app.stream(STREAM, Item, key="key", partitions=PARTITIONS)
