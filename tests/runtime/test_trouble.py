"""What holds a partition up is shown; the reasons of its reads and its commits do not clear each other."""

import asyncio
import random
from typing import Any, cast

import pytest
import structlog
from structlog.stdlib import BoundLogger

from streamworker.core.ownership.locks import Acquired
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.run.rollback import Witness
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
        self.commits = self
        self.committed = committed
        self.outbox = None


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
        assert await asyncio.wait_for(both[0], PATIENCE_S) == []
        assert not both[1].done()
        await desk.backend.execute("DEL", keys.lock(1))
        await desk.acquire(1, "w1")
        assert await asyncio.wait_for(both[1], PATIENCE_S) == []
