"""Acked logs that others wrote to, and locks that others put back, at random: a repair loses no commit.

Each log is made on the server, with what other programs did to it. A worker tries to commit, the repair does
what it plans, workers go on, and a reader reads as Spark does. Seconds by default. 50,000 logs on each
server, others in each run, by ``pytest -m soak -s tests/contract/test_forged_logs.py``; it prints the seed.
"""

import asyncio
import random
import re
import time
from collections import Counter
from dataclasses import replace

import pytest

from streamworker.cli.doctor.repair_plan import plan_group
from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.errors import BackendError, DataLoss
from streamworker.redisio.admin import repair
from streamworker.redisio.data.commit import CommitCode, CommitReply
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.spark.source.offsets import Position, find_losses, slices
from tests.contract.histories import History, draw, tail_of
from tests.contract.support import NOBODY_IS_DEAD, STREAM, Group, mend_logs, request
from tests.security.forged import LOG, Fields, Shelf, batch_of, cut

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

LOGS, LOGS_SOAK = 150, 10_000
SOURCE = 400
"""More source entries than any history has."""
GROUPS = 8
"""Logs at a time."""

Log = list[tuple[EntryId, Fields]]


class Place(Group):
    """One group's log of a partition, on a server; all groups have the same source."""

    def __init__(self, backend: Backend, name: str) -> None:
        super().__init__(backend, STREAM, GroupKeys(STREAM.app, STREAM.stream, name))
        self.acked, self.held, self.copy = self.keys.acked(0), self.keys.lock(0), self.keys.copy(0)

    async def make(self, history: History) -> None:
        lock = [part for pair in history.lock.fields().items() for part in pair]
        keys = [self.acked, self.held, self.copy, self.keys.control]
        made = [[name, self.acked, *rest] for name, *rest in history.commands]
        replies = await self.backend.pipeline([["DEL", *keys], *made, ["HSET", self.held, *lock]])
        assert not [reply for reply in replies if isinstance(reply, BackendError)]

    async def look(self) -> tuple[Log, Fields, list[bytes]]:
        """Return the log and its lock, and what is stored in all."""
        commands = [["XRANGE", self.acked, "-", "+"], ["HGETALL", self.held]]
        found, flat, *stored = await self.backend.pipeline(
            [*commands, *(["DUMP", key] for key in (self.acked, self.held, self.copy))]
        )
        log: Log = [
            (EntryId.parse(entry_id), dict(zip(each[::2], each[1::2], strict=True)))
            for entry_id, each in found
        ]
        return log, dict(zip(flat[::2], flat[1::2], strict=True)), stored

    async def try_commit(self, history: History, held: Acquired, owner: str) -> CommitReply:
        """Try a commit, which the history remembers if it was taken."""
        count, rows = history.rng.randint(1, 3), history.rng.randint(1, 6)
        entries = [Entry(EntryId(held.checkpoint.ms + n, 0), {}, 1) for n in range(1, count + 1)]
        sent = request(held, entries, owner=owner)
        sent.batch = replace(batch_of(history.next_value(), rows), first=entries[0].id)
        reply = await self.commit(sent)
        if reply.code is CommitCode.OK:
            entry_id = EntryId(held.rows + rows, 0)
            ((_, flat),) = await self.backend.execute("XRANGE", self.acked, str(entry_id), str(entry_id))
            history.was_committed(entry_id, dict(zip(flat[::2], flat[1::2], strict=True)))
        return reply


def answer(log: Log, lock: Fields, start: Position, rng: random.Random) -> list[int] | None:
    """Read as the Spark source does; returns None for an error, which names entries or rows."""
    at, tails = {0: start}, {0: tail_of(lock)}
    if find_losses(at, tails):
        return None
    found: list[int] = []
    try:
        for whole_slice in slices(at, tails):
            for part in cut(rng, whole_slice):
                found += Shelf(log).values(part)
    except DataLoss as loss:
        if re.search(r"([Ee]ntry|[Rr]ows?) \d+", loss.message):
            return None
        raise
    return found


async def check(place: Place, history: History) -> str:
    """Commit to a log, mend it, go on, and read it; returns what became of it."""
    await place.make(history)
    rng, lock = history.rng, history.lock
    is_ahead = history.last > EntryId(lock.rows, 0)
    if rng.randrange(4):
        held = Acquired(lock.epoch, EntryId(lock.checkpoint, 0), lock.checkpoint, lock.rows, LOG, 0)
        tried = await place.try_commit(history, held, "w")
        if is_ahead := is_ahead and tried.code is not CommitCode.OK:
            assert tried.code is CommitCode.AHEAD
            assert f"its last id is {history.last}, and its lock counts {lock.rows} rows" in str(tried.error)
    start, is_only_ahead = rng.choice(history.positions), history.is_only_ahead()
    log, seen, _ = await place.look()
    assert answer(log, seen, start, rng) in (None, history.values[start.rows : tail_of(seen).rows])

    assert await mend_logs(place) == (["done"] if is_ahead else [])
    repaired, fields, stored = await place.look()
    assert list(history.ours(repaired).items()) == list(history.ours(log).items()), "a commit is lost"
    rest = iter(log)
    assert all(entry in rest for entry in repaired), "the repair has changed an entry, or the order of two"
    tail = tail_of(fields)
    assert fields == seen or tail.rows > tail_of(seen).rows, "an owner is fenced by what is not its own"
    assert answer(repaired, fields, start, rng) in (None, history.values[start.rows : tail.rows])
    checkpoint = EntryId.parse(fields[b"checkpoint"])
    if is_only_ahead and is_ahead and not history.has_gone_on and tail.rows > lock.rows:
        assert checkpoint.ms <= history.last_checkpoint(), "source entries are passed over"

    facts = await repair.look(place.backend, place.keys, 1)
    assert plan_group(facts, NOBODY_IS_DEAD) == []
    assert await repair.repair_log(place.backend, place.keys, 0, facts.locks[0])
    assert (await place.look())[2] == stored, "a second repair has changed something"

    for _ in range(rng.randint(1, 2)):
        held = Acquired(int(fields[b"epoch"]), checkpoint, 0, tail.rows, LOG, 0)
        owner = fields[b"owner"].decode()
        if not owner or rng.randrange(3) == 0:
            held, owner = await place.own("w2", generation=2), "w2"
        assert (await place.try_commit(history, held, owner)).code is CommitCode.OK
        repaired, fields, _ = await place.look()
        tail, checkpoint = tail_of(fields), EntryId.parse(fields[b"checkpoint"])
    found = answer(repaired, fields, start, rng)
    assert found in (None, history.values[start.rows :])
    assert found is not None or not is_only_ahead, "the log is not repaired"
    if is_only_ahead:
        return "repaired" if is_ahead else "read"
    return "refused" if found is None else "read"


async def check_many(url: str, seed: int, count: int) -> Counter[str]:
    """Check logs drawn from a seed; return what became of them."""
    found: Counter[str] = Counter()
    numbers = iter(range(count))

    async def check_some(place: Place) -> None:
        for number in numbers:
            try:
                found[await check(place, draw(random.Random(f"{seed}-{number}")))] += 1
            except BaseException as error:
                error.add_note(f"The log is draw(random.Random('{seed}-{number}')).")
                raise

    async with Backend.open(url, name="forged", call_timeout_ms=30_000) as backend:
        source = [["XADD", STREAM.events(0), f"{n}-0", "v", "x"] for n in range(1, SOURCE + 1)]
        await backend.pipeline(source)
        async with asyncio.TaskGroup() as tasks:
            for n in range(GROUPS):
                tasks.create_task(check_some(Place(backend, f"price{n}")))
    return found


@pytest.mark.parametrize(
    "count", [LOGS, pytest.param(LOGS_SOAK, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
async def test_of_forged_logs_no_commit_is_lost_and_nothing_wrong_is_read(redis_url: str, count: int) -> None:
    """Those that were only ahead are repaired, and the others are read right or refused.

    In full with a new seed in each run.
    """
    seed = 1 if count == LOGS else int(time.time())
    found = await check_many(redis_url, seed, count)
    print(
        f"seed {seed}: {found['repaired']:,} logs were repaired, {found['read']:,} read right, "
        f"{found['refused']:,} refused; no commit was lost, and nothing was read wrong"
    )
    assert min(found.values()) > count // 10, found
    assert found.keys() == {"repaired", "read", "refused"}
