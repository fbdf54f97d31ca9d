"""The roads through the package: the files that one warm action enters. ``python -m tests.roads``.

A worker in memory has done each action some times, so that nothing is entered for the first time. Then a
profiler notes each file of the package in which a function is called until the action is done. The clock is
virtual and heartbeats are far apart, so that nothing else runs meanwhile: the count is the same each time.
Files of ``testing`` are not counted: they stand for the server and its clock.

docs/architecture.md tells the roads by their main stations. ``tests/test_roads.py`` holds their lengths.
"""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import msgspec

import streamworker
from streamworker import App, Context, Stream
from streamworker.testing import local_worker, quiet_logs

ROOT = Path(streamworker.__file__).parent
WARM = 5
PERIOD_S = 0.5
"""Of the timer: neither a look for scheduled records nor the end of a read without entries is measured."""
REST_S = 0.15
"""What follows an action is measured for so long: a commit gathers for 0.1 s (``run/committer.py``)."""
FAR_MS = 3_600_000
CALM: dict[str, Any] = {
    "heartbeat_interval_ms": FAR_MS,
    "balance_interval_ms": FAR_MS,
    **dict.fromkeys(("dead_after_ms", "session_timeout_ms", "slow_after_ms"), 3 * FAR_MS),
}

Act = Callable[[], Awaitable[Any]]


class Order(msgspec.Struct):
    """What is sent."""

    customer: str
    amount: int


def _stream(app: App, name: str) -> Stream[Order]:
    return app.stream(name, Order, key="customer", partitions=1)


def _record(app: App) -> Act:
    orders = _stream(app, "orders")

    @app.processor(orders, batch=100, within=0.001)
    async def price(batch: list[Order]) -> list[Order]:
        return batch

    return lambda: orders.send(Order("ann", 1))


def _hop(app: App) -> Act:
    orders, bills = _stream(app, "orders"), _stream(app, "bills")

    @app.processor(orders, into=bills)
    async def bill(order: Order) -> Order:
        return order

    @app.processor(bills)
    async def post(order: Order) -> None: ...

    return lambda: orders.send(Order("ann", 1))


def _table_write(app: App) -> Act:
    orders, totals = _stream(app, "orders"), app.table("totals", int)

    @app.processor(orders, tables=[totals])
    async def add(order: Order) -> None:
        totals.set(order.customer, (await totals.get(order.customer) or 0) + order.amount)

    return lambda: orders.send(Order("ann", 1))


def _tick(app: App) -> Act:
    @app.processor(_stream(app, "orders"))
    async def count(order: Order, ctx: Context) -> None: ...

    @count.timer(every=PERIOD_S)
    async def report(ctx: Context) -> None:
        ctx.state["reports"] = ctx.state.get("reports", 0) + 1

    return lambda: anyio.sleep(PERIOD_S)


ROADS: dict[str, Callable[[App], Act]] = {
    "record": _record, "hop": _hop, "table write": _table_write, "tick": _tick,
}  # fmt: skip
"""By the name of a road: what declares its processors, and returns the action."""


def entered(road: str) -> dict[str, set[str]]:
    """Return the files that one action enters, each with the functions that are called in it."""
    app = App("roads", **CALM)
    act = ROADS[road](app)
    found: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            name = Path(code.co_filename).relative_to(ROOT).as_posix()
            if not name.startswith("testing/"):
                found.setdefault(name, set()).add(code.co_qualname)

    async def run() -> None:
        async with local_worker(app, clock="virtual") as worker:
            for _ in range(WARM):
                await act()
                await worker.until_drained()
            sys.setprofile(note)
            await act()
            await anyio.sleep(REST_S)
            sys.setprofile(None)

    anyio.run(run)
    return found


if __name__ == "__main__":
    quiet_logs()
    for road in ROADS:
        files = entered(road)
        print(f"{road}: {len(files)} files, {sum(map(len, files.values()))} functions")
        if "--files" in sys.argv:
            print(*(f"    {name}: {', '.join(sorted(files[name]))}" for name in sorted(files)), sep="\n")
