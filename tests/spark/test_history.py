"""History as a whole: what a new processor and a new query find of the hours before them."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamworker import App
from streamworker.dev.server import EmbeddedServer
from streamworker.runtime.run import trims
from streamworker.testing import local_worker
from tests.conftest import CI
from tests.helpers import wait_for_async
from tests.raw import opened
from tests.spark.conftest import Connect
from tests.spark.reading import read
from tests.stage.disturbed import FAKETIME, FakeClock

pytestmark = [
    pytest.mark.skipif(FAKETIME is None and not CI, reason="libfaketime is not installed"),
    pytest.mark.full("five workers at five times take seconds"),
]

AGES = [timedelta(minutes=minutes) for minutes in (180, 90, 45, 20, 0)]
EACH = 400
ALL = list(range(len(AGES) * EACH))


class Order(msgspec.Struct):
    n: int
    customer: str


def shop(url: str, seen: list[int], kept: str | None, name: str) -> App:
    app = App("kept", redis_url=url, trim_interval_ms=50)
    orders = app.stream("orders", Order, key="customer", partitions=4, single_entries=True, retention=kept)

    @app.processor(orders, batch=50, name=name, log_retention=kept)
    async def pass_on(batch: list[Order]) -> list[Order]:
        seen.extend(order.n for order in batch)
        return batch

    return app


async def fill(url: str, clock: FakeClock, kept: str | None, oldest: int) -> None:
    """Send and handle some orders at each of these times, by the server's clock; then trim."""
    for place, age in enumerate(AGES):
        clock.step(-age.total_seconds())
        app = shop(url, [], kept, "price")
        async with local_worker(app, url=url) as worker:
            numbers = range(place * EACH, (place + 1) * EACH)
            await app.registry.streams["orders"].send_many(Order(n, f"c{n % 50}") for n in numbers)
            await worker.until_drained()
            if not age:

                async def is_trimmed(app: App = app, worker: Any = worker) -> bool:
                    left = {order.n for order in await worker.sent(app.registry.streams["orders"])}
                    rows = {row["n"] for row in await worker.rows("price")}
                    return left == set(ALL[oldest:]) and (rows == (left if kept else set(ALL)))

                await wait_for_async(is_trimmed, "what is older than an hour was dropped")


async def read_by_a_new_processor(url: str, kept: str | None) -> list[int]:
    seen: list[int] = []
    async with local_worker(shop(url, seen, kept, "another"), url=url) as worker:
        await worker.until_drained()
    return sorted(seen)


@pytest.mark.parametrize(
    ("kept", "to_processor", "to_query"),
    [("1 hour", ALL[2 * EACH :], ALL[2 * EACH :]), (None, [], ALL)],
    ids=["an hour", "without retention"],
)
def test_a_new_processor_and_a_new_query_begin_an_hour_back(
    connect: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: str | None,
    to_processor: list[int],
    to_query: list[int],
) -> None:
    """Each order of the last hour once, and none before; without retention a stream keeps nothing, and a log
    that nobody reads a day.
    """
    monkeypatch.setattr(trims, "LOOK_MS", 50)
    monkeypatch.setattr(trims, "LOOK_MS_PER_PARTITION", 0)
    clock = FakeClock(tmp_path / "clock")
    with clock.around():
        server = EmbeddedServer().start()
    with server:
        connect("default", server.url)
        with opened(server.url) as raw:
            raw.config_set("stream-node-max-entries", 1)
        asyncio.run(fill(server.url, clock, kept, len(ALL) - len(to_processor)))
        rows = read({"app": "kept", "stream": "orders", "processor": "price"})
        assert sorted(rows["n"].to_pylist()) == to_query
        assert asyncio.run(read_by_a_new_processor(server.url, kept)) == to_processor
