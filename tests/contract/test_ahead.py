"""An acked log that is ahead of its lock: commits wait and say so, until `streamworker repair`."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from streamworker import App
from streamworker.cli.doctor.repair_plan import plan_group
from streamworker.core.data.entries import EntryId
from streamworker.errors import BackendRefused
from streamworker.redisio.admin import repair
from streamworker.redisio.data.ackedlog import link_of
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from tests.contract.support import GROUP, NOBODY_IS_DEAD, Group, Raw, everything, mend_logs, request

pytestmark = pytest.mark.anyio

ACKED, LOCK = GROUP.acked(0), GROUP.lock(0)


async def test_rows_count_on_from_the_end_where_an_older_lock_was_put_back(group: Group, raw: Any) -> None:
    """No entry goes, the owner is fenced, and readers take the log with what is handled again."""
    entries, held = await group.begun(6)
    assert (await group.commit(request(held, entries[:2], rows=3))).code is CommitCode.OK
    older = raw.hgetall(LOCK)
    later = request(held, entries[2:4], rows=4, previous=entries[1].id)
    assert (await group.commit(later)).code is CommitCode.OK
    raw.delete(LOCK)
    raw.hset(LOCK, mapping=older)
    before = raw.xrange(ACKED)
    again = request(held, entries[2:4], rows=4, previous=entries[1].id)
    refused = await group.commit(again)
    assert refused.code is CommitCode.AHEAD and "streamworker repair" in str(refused.error)
    assert await mend_logs(group) == ["done"]
    assert raw.xrange(ACKED) == before
    assert (await group.commit(again)).code is CommitCode.FENCED
    new = await group.own("w2")
    assert (new.checkpoint, new.rows) == (entries[1].id, 7)
    assert (await group.commit(request(new, entries[2:], rows=5, owner="w2"))).code is CommitCode.OK
    links = [link_of(EntryId.parse(at), fields) for at, fields in raw.xrange(ACKED)]
    assert [link.id.ms for link in links] == [3, 7, 12]
    assert [after.misfit(earlier) for earlier, after in pairwise(links)] == ["", ""]
    assert await mend_logs(group) == []


async def test_a_log_whose_ids_have_come_to_an_end_is_named_and_left_alone(group: Group, raw: Raw) -> None:
    """No row can follow it; and a log that was made anew is another one."""
    await group.register()
    raw.xadd(ACKED, {"foo": "bar"}, id=f"{2**64 - 1}-0")
    facts, before = await repair.look(group.backend, GROUP, 1), everything(raw)
    with pytest.raises(BackendRefused, match="acked:price"):
        await repair.repair_log(group.backend, GROUP, 0, facts.locks[0])
    assert everything(raw) == before
    raw.hset(LOCK, "log", "another")
    assert not await repair.repair_log(group.backend, GROUP, 0, facts.locks[0])


class Order(msgspec.Struct):
    """A record."""

    n: int


@pytest.mark.parametrize("cause", ["entry", "deleted entry", "lock"])
async def test_a_running_worker_goes_on_by_itself_once_its_log_is_mended(
    redis_url: str, backend: Backend, raw: Raw, cause: str
) -> None:
    """It says meanwhile what holds it up; no row is missing, and only an older lock repeats some."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, partitions=1)

    @app.processor(orders, batch=10, forward=True)
    async def price(batch: list[Order]) -> list[Order]:
        return batch

    async with local_worker(app, url=redis_url) as worker:
        older: Any = {}
        for first in range(0, 300, 100):
            await orders.send_many([Order(n) for n in range(first, first + 100)])
            await worker.until_drained()
            older = older or raw.hgetall(LOCK)
        if cause == "lock":
            raw.delete(LOCK)
            raw.hset(LOCK, mapping=older)
        else:
            added = raw.xadd(ACKED, {"foo": "bar"}, id="*")
            if cause == "deleted entry":
                raw.xdel(ACKED, added)
        await orders.send_many([Order(n) for n in range(300, 400)])
        await worker.until(lambda now: "is ahead of its lock" in now.processors["price"].partitions[0].reason)
        (step,) = plan_group(await repair.look(backend, GROUP, 1), NOBODY_IS_DEAD)
        assert (await repair.do_step(backend, step, "ann")).startswith("done")
        await worker.until_drained()
        if cause == "entry":
            raw.xdel(ACKED, added)  # Readers refuse it, as a test of the source shows.
        rows = [row["n"] for row in await worker.rows(price)]
        assert sorted(set(rows)) == list(range(400))
        assert cause == "lock" or len(rows) == 400
