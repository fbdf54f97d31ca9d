"""What holds a partition up is shown, and a server that is away does not fill the log."""

import asyncio
import random
from collections import Counter
from typing import Any, cast

import pytest
import structlog
from structlog.stdlib import BoundLogger
from structlog.testing import capture_logs

from streamworker import App, Context
from streamworker.core.events import StartRunner
from streamworker.core.ownership.locks import Acquired
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime import telling
from streamworker.runtime.run.rollback import Witness
from streamworker.testing import local_worker
from tests.chaos.proxy import proxied
from tests.helpers import PATIENCE_S, wait_for_async
from tests.runtime.workbench import Order, Priced, bench

pytestmark = pytest.mark.anyio

UNREADABLE = "key events holds a string and not a stream"


async def price(batch: list[Order]) -> list[Priced]:
    return [Priced(order.number, 1.0) for order in batch]


async def test_what_holds_up_reads_and_what_holds_up_commits_do_not_hide_each_other(redis_url: str) -> None:
    """The log is full, and something else stands in place of the stream; each is put right by itself."""
    async with bench(redis_url, acked_entries_max=1) as desk:
        await desk.send(range(20))
        running = await desk.start(desk.spec(price, batch=10))
        activity = running.runner.activity
        await wait_for_async(lambda: bool(running.states), "the commit is held up")
        assert "acked log full" in activity.trouble
        activity.hinder("reads", UNREADABLE)
        assert activity.trouble == running.states[-1] == UNREADABLE
        activity.hinder("reads", "")
        assert "acked log full" in activity.trouble and running.states[-1] == activity.trouble
        activity.hinder("reads", UNREADABLE)
        await desk.backend.execute("XTRIM", desk.keys.acked(0), "MAXLEN", 0)
        await desk.until_committed(20)
        await wait_for_async(lambda: not running.runner.commits.is_committing, "the commit is done")
        assert activity.trouble == running.states[-1] == UNREADABLE
        activity.hinder("reads", "")
        assert activity.trouble == running.states[-1] == ""


class Runner:
    """A partition that runs: what is known of its last commit."""

    def __init__(self, committed: Acquired) -> None:
        self.commits = self.ending = self
        self.committed = committed
        self.start = StartRunner(0, "w1", committed)
        self.outbox = None

    def abandon(self, reason: str) -> None:
        pass


async def test_who_asks_about_one_partition_waits_for_no_other_whose_lock_cannot_be_read(
    redis_url: str,
) -> None:
    """The server gave no answer for a moment; something else stands in place of the other's lock."""
    keys = GroupKeys("shop", "orders", "price")
    async with proxied(redis_url) as proxy, bench(proxy.url, partitions=2, call_timeout_ms=1_000) as desk:
        locks = {p: await desk.acquire(p, "w1") for p in range(2)}
        await desk.backend.execute("DEL", keys.lock(1))
        await desk.backend.execute("SET", keys.lock(1), "x")
        runners = cast(Any, {p: Runner(lock) for p, lock in locks.items()})
        log = cast(BoundLogger, structlog.get_logger("test"))
        witness = Witness(desk.backend, desk.keys, lambda: runners, random.Random(1), log)
        proxy.hold()
        both = [asyncio.create_task(witness.compare(0)), asyncio.create_task(witness.compare())]
        await wait_for_async(lambda: 0 in witness._unanswered, "there was no answer")
        proxy.heal()
        proxy.reset()
        await asyncio.wait_for(both[0], PATIENCE_S)
        assert not both[1].done()
        await desk.backend.execute("DEL", keys.lock(1))
        await desk.acquire(1, "w1")
        await asyncio.wait_for(both[1], PATIENCE_S)


# -- what is told while a server is away -------------------------------------------------------


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
