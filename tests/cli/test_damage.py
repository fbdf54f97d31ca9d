"""What another program damages in Redis: the table of docs/operations.md, each cell of it run."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest
import redis
import structlog.testing

from streamworker.cli.doctor.command import in_redis
from streamworker.importing import resolve_app
from streamworker.testing import local_worker
from tests.cli.conftest import Invoke, rewrite
from tests.helpers import wait_for_async

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
LOCK = "sw:{shop.orders.0}:lock:price"
APP = """
import msgspec
from streamworker import App, DeadLetter

app = App("shop", heartbeat_interval_ms=100, trim_interval_ms=100)
handled = []


class Order(msgspec.Struct):
    n: int


orders = app.stream("orders", Order, partitions=1, single_entries=True)


@app.processor(orders, batch=10, errors=DeadLetter(), forward=True)
async def price(batch: list[Order]) -> list[Order]:
    handled.extend(order.n for order in batch)
    return batch
"""


class Damage(NamedTuple):
    """A line of the table."""

    done: str
    said: str
    lost: str
    goes_on: str


def table() -> list[Damage]:
    section = PAGE.read_text("utf-8").partition("## When another program wrote to Redis\n")[2]
    lines = [line for line in section.partition("\n### ")[0].splitlines() if line.startswith("| ")][1:]
    return [Damage(*line.strip("| ").split(" | ")) for line in lines]


def spans(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


async def said(worker: Any, damage: Damage, log: list[Any], done: Callable[[], bool]) -> None:
    """Wait until it is said where the table says so."""
    who, _, what = damage.said.partition(": ")
    text = spans(what)[0] if spans(what) else ""
    match who:
        case "`status`":
            await worker.until(lambda now: text in now.processors["price"].partitions[0].reason)
        case "`doctor`":

            async def is_found() -> bool:
                found = await in_redis(resolve_app("shop:app"), "shop:app")
                return any(text in check.found for check in found)

            await wait_for_async(is_found, text)
        case "the log":
            await worker.until(lambda _: any(line["event"] == text for line in log))
        case _:
            await worker.until(lambda _: done())


@pytest.mark.anyio
@pytest.mark.parametrize("damage", table(), ids=lambda each: each.done)
async def test_what_another_program_damages_is_said_and_loses_nothing(
    damage: Damage, streamworker: Invoke, shop: Path, redis_url: str
) -> None:
    """Records come before and after it, and all of them are handled once somebody did what the table says."""
    rewrite(shop, APP)
    app = resolve_app("shop:app")
    module: Any = __import__("shop")
    raw = redis.Redis.from_url(redis_url)
    with structlog.testing.capture_logs() as log:
        is_away = "unread" in damage.done
        async with local_worker(app, url=redis_url) as worker:
            await module.orders.send_many([module.Order(n) for n in range(20)])
            await worker.until_drained()
            if not is_away:
                await break_and_mend(worker, damage, log, streamworker, raw, module)
        if is_away:
            async with app:
                await module.orders.send_many([module.Order(n) for n in range(20, 40)])
            raw.execute_command(*shlex.split(spans(damage.done)[0]))
            async with local_worker(app, url=redis_url) as worker:
                await said(worker, damage, log, lambda: True)
                await worker.until_drained()
    deleted = range(20, 35) if is_away else ()
    assert (damage.lost == "nothing") is not is_away
    assert set(module.handled) == set(range(40)) - set(deleted)


async def break_and_mend(
    worker: Any, damage: Damage, log: list[Any], invoke: Invoke, raw: Any, module: Any
) -> None:
    """Damage what stands there, send more, wait for what is said, and do what goes on."""
    checkpoint = raw.hget(LOCK, "checkpoint").decode()
    for command in spans(damage.done):
        raw.execute_command(*shlex.split(command))
    events = raw.type("sw:{shop.orders.0}:events") == b"stream"
    more = [module.Order(n) for n in range(20, 40)]
    if events:
        await module.orders.send_many(more)
    await said(worker, damage, log, lambda: 39 in module.handled)
    for command in spans(damage.goes_on):
        if command.startswith("streamworker "):
            result = await anyio.to_thread.run_sync(lambda: invoke(*shlex.split(command)[1:]))  # noqa: B023
            assert result.exit_code == 0, result.output
        else:
            assert raw.execute_command(*shlex.split(command.replace(" ID", f" {checkpoint}"))) is not None
    if not events:
        await module.orders.send_many(more)
    await worker.until_drained()
