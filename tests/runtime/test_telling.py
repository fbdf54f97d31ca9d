"""A server that is away does not fill the log."""

import asyncio
from collections import Counter

import pytest
from structlog.testing import capture_logs

from streamworker import App, Context
from streamworker.runtime import telling
from streamworker.testing import local_worker
from tests.chaos.proxy import proxied
from tests.helpers import wait_for_async
from tests.runtime.workbench import Order

pytestmark = pytest.mark.anyio


@pytest.mark.full("waits for a server that hangs")
async def test_calls_that_get_no_answer_are_told_once_a_kind_and_not_by_each_partition(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day without Redis would fill a disk: each partition tries again every second or two."""
    monkeypatch.setattr(telling, "_told_s", {})
    app = App("told", call_timeout_ms=1_000, trim_interval_ms=100)
    orders = app.stream("orders", Order, key="number", partitions=4)

    @app.processor(orders)
    async def take(order: Order) -> Order:
        return order

    @take.timer(every="0.1 seconds")
    async def tick(ctx: Context) -> None: ...

    async with proxied(redis_url) as proxy, local_worker(app, url=proxy.url) as worker:
        await orders.send(Order(1))
        await worker.until_drained()
        with capture_logs() as logs:
            proxy.hold()
            telling._told_s.clear()  # A call that a busy machine held up would have told of its kind already.
            sends = [asyncio.create_task(orders.send(Order(n))) for n in range(40)]
            wanted = {"fetch_failed", "timers_wait", "trim_failed", "schema_unreadable", "send_unanswered"}
            await wait_for_async(lambda: wanted <= {log["event"] for log in logs}, "each kind of call failed")
            proxy.let_pass()
            await asyncio.gather(*sends)
            await worker.until_drained()
        told = Counter(log["event"] for log in logs if log["log_level"] == "warning")
        assert {event: told[event] for event in wanted} == dict.fromkeys(wanted, 1)
