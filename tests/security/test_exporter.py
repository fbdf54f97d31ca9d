"""The exporter needs no more than the rights of a viewer, and provokes each metric of its table."""

from typing import Any

import anyio
import msgspec
import pytest
import redis

from streamworker import App
from streamworker.cli.workers.exporter import METRICS, Groups
from streamworker.core.data.readers import ReaderPosition
from streamworker.importing import Selection
from streamworker.redisio.keys import GroupKeys
from streamworker.testing import local_worker
from tests.security.conftest import UrlOf


class Order(msgspec.Struct):
    order_id: str


def shop_app(url: str) -> App:
    """Return an app with all that a viewer may look at: a table, timers, a chain."""
    app = App("shop", redis_url=url)
    orders = app.stream("orders", Order, key="order_id", partitions=2, archive="memory://exporter")
    priced = app.stream("priced", Order, partitions=2)
    totals = app.table("totals", int, ttl="1 hour")

    @app.processor(orders, into=priced, tables=[totals], forward=True)
    async def price(order: Order) -> Order:
        totals.set(order.order_id, 1)
        return order

    @price.expired(totals)
    def forgotten(order_id: str, count: int) -> None: ...

    @app.processor(priced)
    def audit(order: Order) -> None: ...

    @price.timer(every="1 hour")
    def sweep() -> None: ...

    @app.timer(every="1 hour")
    def report() -> None: ...

    return app


async def _worked(url: str) -> None:
    app = shop_app(url)
    async with local_worker(app, url=url) as worker:
        for number in range(10):
            await app.registry.streams["orders"].send(Order(f"{number}"), id=f"order-{number}")
        await worker.until_drained()


def _samples(groups: Groups) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[Any]] = {name: [] for name in METRICS}
    for metric in groups.collect():
        for sample in metric.samples:
            found[sample.name].append((sample.labels, sample.value))
    return found


def test_a_viewer_may_see_each_metric_of_the_exporter(
    url_of: UrlOf, redis_url: str, admin: "redis.Redis", request: pytest.FixtureRequest
) -> None:
    """Nothing is refused, and each metric of the table has a value that is right."""
    anyio.run(_worked, redis_url)
    keys = GroupKeys("shop", "orders", "price")
    told = ReaderPosition({0: 1}, {0: "n"}, 1, failed="no disk", batch_ms=1_500, dropped_rows=7)
    admin.hset(keys.readers, "lake", told.text())
    before = admin.config_get("maxmemory")["maxmemory"] or 0
    request.addfinalizer(lambda: redis.Redis.from_url(redis_url).config_set("maxmemory", before))
    admin.config_set("maxmemory", 1 << 30)
    app = shop_app(url_of("viewer"))
    found = _samples(Groups(Selection(app, tuple(app.registry.processors.values()))))
    assert [name for name, samples in found.items() if not samples] == []

    group = {"app": "shop", "stream": "orders", "processor": "price"}
    assert found["streamworker_up"] == [({"app": "shop"}, 1)]
    committed = found["streamworker_committed_records_total"]
    assert sum(value for labels, value in committed if labels["processor"] == "price") == 10
    reader = {**group, "reader": "lake"}
    assert found["streamworker_reader_batch_seconds"] == [(reader, 1.5)]
    assert found["streamworker_reader_failed"] == [(reader, 1)]
    assert found["streamworker_reader_dropped_rows_total"] == [(reader, 7)]
    assert found["streamworker_reader_lag_rows"] == [(reader, 9)]
    last, following = (
        {
            labels["timer"]: value
            for labels, value in found[f"streamworker_timer_{which}_run_timestamp_seconds"]
        }
        for which in ("last", "next")
    )
    assert last.keys() == following.keys() == {"sweep", "report"}
    assert all(0 < following[timer] - last[timer] <= 3_600 for timer in last)
    memory = {(labels["kind"], labels["name"]): value for labels, value in found["streamworker_memory_bytes"]}
    assert all(
        memory[each] > 0 for each in [("stream", "orders"), ("table", "totals"), ("acked_log", "price")]
    )
    assert found["streamworker_table_due"] == [({**group, "table": "totals"}, 10)]
    ids = list(admin.scan_iter("*:seen:*"))
    used = sum(admin.memory_usage(key) or 0 for key in ids)
    assert (len(ids), used < memory["ids", ""]) == (10, True)
