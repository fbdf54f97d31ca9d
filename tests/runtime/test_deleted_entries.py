"""Other programs delete entries that wait: the worker says how many, and its lag stays right."""

import pytest
import redis
import structlog

from streamworker import App
from streamworker.cli.workers.exporter import samples_of
from streamworker.testing import local_worker
from tests.runtime.workbench import Order

pytestmark = pytest.mark.anyio


async def test_a_worker_that_takes_a_partition_says_what_was_deleted_while_nobody_ran_it(
    redis_url: str,
) -> None:
    """Once and with the number; the rest is handled, and the metrics keep the count."""
    app = App("deleted", redis_url=redis_url)
    orders = app.stream("orders", Order, partitions=1, single_entries=True)
    seen: list[int] = []

    @app.processor(orders)
    async def handle(order: Order) -> None:
        seen.append(order.number)

    key = "sw:{deleted.orders.0}:events"
    async with local_worker(app, url=redis_url) as worker:
        await orders.send(Order(0))
        await worker.until_drained()
    async with app:
        await orders.send_many(Order(number) for number in range(1, 11))
    with redis.Redis.from_url(redis_url) as raw:
        raw.xtrim(key, maxlen=6, approximate=False)
        raw.xdel(key, raw.xrange(key)[2][0])
    with structlog.testing.capture_logs() as logged:
        async with local_worker(app, url=redis_url) as worker:
            await worker.until_drained()
            snapshot = (await worker.snapshot()).processors["handle"]
    told = [line for line in logged if line["event"] == "entries_deleted"]
    assert [(line["partition"], line["entries"]) for line in told] == [(0, 5)]
    assert seen == [0, 5, 6, 8, 9, 10]
    (view,) = snapshot.partitions
    assert (view.lag, view.records, view.gone) == (0, 6, 5)
    assert [
        value for name, _, value in samples_of(snapshot) if name == "streamworker_deleted_records_total"
    ] == [5]
    with structlog.testing.capture_logs() as logged:
        async with local_worker(app, url=redis_url) as worker:
            await worker.until_drained()
    assert not [line for line in logged if line["event"] == "entries_deleted"]
