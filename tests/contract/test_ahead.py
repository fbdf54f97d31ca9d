"""An acked log that is ahead of its lock: what `streamworker repair` makes of it, at Redis."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from streamworker import App
from streamworker.cli.doctor.repair_plan import plan_group
from streamworker.core.data.entries import EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.redisio.admin import repair
from streamworker.redisio.data.ackedlog import link_of
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.scripts import REPAIR_AHEAD
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from tests.contract.support import GROUP, NOBODY_IS_DEAD, Group, Raw, everything, mend_logs, request

pytestmark = pytest.mark.anyio

ACKED, LOCK, COPY = GROUP.acked(0), GROUP.lock(0), GROUP.copy(0)
COMMITS = 50
"""More than one call of the script takes."""

Log = list[tuple[bytes, dict[bytes, bytes]]]


class Filled:
    """A group whose log has some entries, and entries of the source that wait."""

    def __init__(self, group: Group, raw: Any) -> None:
        self.group, self.raw = group, raw
        self.waiting: list[Any] = []
        self.held: Acquired | None = None

    async def commit(self, count: int, owner: str = "w1") -> None:
        """Send entries and commit each of them with one to three rows."""
        if self.held is None:
            self.held = await self.group.own(owner)
        previous = (await self.group.lock()).checkpoint
        entries, self.waiting = [*self.waiting, *await self.group.send(count)], []
        for at, entry in enumerate(entries):
            sent = request(self.held, [entry], rows=1 + at % 3, previous=previous, owner=owner)
            assert (await self.group.commit(sent)).code is CommitCode.OK
            previous = entry.id

    def log(self) -> Log:
        found: Log = self.raw.xrange(ACKED)
        return found

    def lock(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.raw.hgetall(LOCK)
        return found

    def put_back(self, lock: dict[bytes, bytes]) -> None:
        self.raw.delete(LOCK)
        self.raw.hset(LOCK, mapping=lock)

    async def step(self, cursor: bytes) -> tuple[bytes, bytes]:
        """Call the script once; returns what it did, and where the copy ends."""
        call = REPAIR_AHEAD.at(GROUP, 0, log=self.lock()[b"log"], group="price", cursor=cursor)
        reply = await self.group.backend.run(REPAIR_AHEAD, call)
        return (reply[1], reply[2]) if reply[0] == b"OK" else (reply[0], b"")

    async def check_goes_on(self, rows: int) -> None:
        """Commit what waits and one more; then the log is a chain, and nothing is left over."""
        self.held, more = None, sum(1 + at % 3 for at in range(len(self.waiting) + 1))
        await self.commit(1)
        links = [link_of(EntryId.parse(entry_id), fields) for entry_id, fields in self.log()]
        assert all(after.misfit(before) == "" for before, after in pairwise(links))
        assert all(after.start == before.id.ms for before, after in pairwise(links))
        assert (links[-1].id.ms, (await self.group.lock()).rows) == (rows + more, rows + more)
        assert not self.raw.exists(COPY)
        assert await mend_logs(self.group) == []


@pytest.fixture
async def filled(group: Group, raw: Raw) -> Filled:
    """A log of some hundred entries."""
    filled = Filled(group, raw)
    await filled.commit(COMMITS)
    return filled


def rows_of(log: Log) -> int:
    return EntryId.parse(log[-1][0]).ms


async def test_a_copy_in_place_of_commits_that_were_deleted_leaves_the_later_ones_in_the_log(
    filled: Filled,
) -> None:
    """Rows are missing before it and no source entries, and each commit has some."""
    older, rows = filled.lock(), rows_of(filled.log())
    await filled.commit(2)
    deleted = filled.log()[-2:]
    fields = {**deleted[0][1], b"last": deleted[1][1][b"last"], b"rows": b"3"}
    filled.raw.xadd(ACKED, fields, id=f"{rows + 4}-0")
    assert filled.held is not None
    before = (await filled.group.lock()).checkpoint
    later = request(filled.held, await filled.group.send(1), rows=3, previous=before)
    assert (await filled.group.commit(later)).code is CommitCode.OK
    filled.raw.xdel(ACKED, *(entry_id for entry_id, _ in deleted))
    newest = filled.log()[-1]
    filled.put_back(older)
    assert await mend_logs(filled.group) == ["done"]
    assert newest in filled.log() and (await filled.group.lock()).rows == rows + 6


async def test_a_lock_that_was_put_back_moves_forward_to_what_was_committed_since(filled: Filled) -> None:
    """Its owner is fenced, the entries are counted again, and another program's entry goes besides."""
    older = filled.lock()
    await filled.commit(COMMITS)
    before, newer = filled.log(), filled.lock()
    filled.put_back(older)
    filled.raw.xadd(ACKED, {"foo": "bar"}, id="*")
    held = await filled.group.own()
    assert await mend_logs(filled.group) == ["done"]
    assert filled.log() == before
    after = filled.lock()
    assert [after[name] for name in (b"rows", b"checkpoint", b"log", b"tail")] == [
        newer[name] for name in (b"rows", b"checkpoint", b"log", b"tail")
    ]
    filled.waiting = await filled.group.send(1)
    assert (await filled.group.commit(request(held, filled.waiting, rows=1))).code is CommitCode.FENCED
    assert int(after[b"epoch"]) > int(newer[b"epoch"])
    await filled.group.own("w2")
    assert int(filled.lock()[b"entries"]) == 2 * COMMITS
    assert not filled.raw.hexists(LOCK, "gone")
    filled.raw.hset(LOCK, "owner", "")
    await filled.check_goes_on(rows_of(before))


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
async def test_a_repair_that_is_killed_between_two_steps_is_done_by_the_next(
    filled: Filled, steps: int
) -> None:
    """The log is whole after each of them, and so it is for readers."""
    older = filled.lock()
    await filled.commit(30)
    before = filled.log()
    filled.put_back(older)
    filled.raw.xadd(ACKED, {"foo": "bar"}, id="*")
    cursor, did = b"", []
    for _ in range(steps):
        what, cursor = await filled.step(cursor)
        did.append(what)
        assert filled.log()[: len(before)] == before
    assert did == [b"moved", b"moved", b"copied", b"copied", b"copied"][:steps]
    assert len(await mend_logs(filled.group)) == 1
    assert filled.log() == before
    await filled.check_goes_on(rows_of(before))


async def test_two_repairs_at_once_do_no_harm(filled: Filled) -> None:
    """One begins anew what the other was at, which leaves it alone then."""
    before = filled.log()
    filled.raw.xadd(ACKED, {"foo": "bar"}, id="*")
    _, first = await filled.step(b"")
    _, first = await filled.step(first)
    what, second = await filled.step(b"")
    assert (what, await filled.step(first)) == (b"copied", (b"CHANGED", b""))
    while what != b"done":
        what, second = await filled.step(second)
    assert filled.log() == before
    await filled.check_goes_on(rows_of(before))


@pytest.mark.parametrize("kept", [0, 35, COMMITS - 1])
async def test_what_is_trimmed_while_the_log_is_copied_does_not_come_back(filled: Filled, kept: int) -> None:
    """A new reader would begin there, and find a gap."""
    before = filled.log()
    filled.raw.xadd(ACKED, {"foo": "bar"}, id="*")
    _, cursor = await filled.step(b"")
    filled.raw.xtrim(ACKED, maxlen=kept + 1, approximate=False)
    what = b""
    while what != b"done":
        what, cursor = await filled.step(cursor)
    assert filled.log() == before[COMMITS - kept :]
    await filled.check_goes_on(rows_of(before))


async def test_a_log_that_was_made_anew_meanwhile_is_left_alone(filled: Filled) -> None:
    filled.raw.xadd(ACKED, {"foo": "bar"}, id="*")
    facts = await repair.look(filled.group.backend, GROUP, 1)
    filled.raw.hset(LOCK, "log", "another.1")
    before = everything(filled.raw)
    (step,) = plan_group(facts, NOBODY_IS_DEAD)
    assert (await repair.do_step(filled.group.backend, step, "ann")).startswith("left alone")
    assert everything(filled.raw) == before


async def test_a_worker_that_committed_past_it_ends_a_repair_that_has_begun(filled: Filled) -> None:
    """Then it is for readers to say; nothing that was committed is taken away."""
    filled.raw.xadd(ACKED, {"foo": "bar"}, id=f"{rows_of(filled.log()) + 1}-0")
    _, cursor = await filled.step(b"")
    assert filled.raw.exists(COPY)
    assert filled.held is not None
    sent = request(
        filled.held, await filled.group.send(1), rows=3, previous=(await filled.group.lock()).checkpoint
    )
    assert (await filled.group.commit(sent)).code is CommitCode.OK
    before = filled.log()
    assert (await filled.step(cursor))[0] == b"done"
    assert filled.log() == before and not filled.raw.exists(COPY)


# -- with a worker that runs --------------------------------------------------------------------


class Order(msgspec.Struct):
    """A record."""

    n: int


@pytest.mark.parametrize("cause", ["entry", "lock"])
async def test_a_running_worker_goes_on_by_itself_once_its_log_is_mended(
    redis_url: str, backend: Backend, raw: Raw, cause: str
) -> None:
    """It says meanwhile what holds it up, and its log has each row once."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, partitions=1)

    @app.processor(orders, batch=10)
    async def price(batch: list[Order]) -> list[Order]:
        return batch

    async with local_worker(app, url=redis_url) as worker:
        older: Any = {}
        for first in range(0, 300, 100):
            await orders.send_many([Order(n) for n in range(first, first + 100)])
            await worker.until_drained()
            older = older or raw.hgetall(LOCK)
        if cause == "entry":
            raw.xadd(ACKED, {"foo": "bar"}, id="*")
        else:
            raw.delete(LOCK)
            raw.hset(LOCK, mapping=older)
        await orders.send_many([Order(n) for n in range(300, 400)])
        await worker.until(lambda now: "is ahead of its lock" in now.processors["price"].partitions[0].reason)
        (step,) = plan_group(await repair.look(backend, GROUP, 1), NOBODY_IS_DEAD)
        assert (await repair.do_step(backend, step, "ann")).startswith("done")
        await worker.until_drained()
        assert [row["n"] for row in await worker.rows(price)] == list(range(400))
