"""Other programs move groups of Redis and delete entries: nothing unread is trimmed, and counts are right."""

from collections import Counter
from random import Random

import pytest
import redis

from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.redisio.data import streams, trimming
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from tests.contract.support import GROUP, OTHER_GROUP, STREAM, Group, Raw, request

pytestmark = pytest.mark.anyio

SEEDS, STEPS = 6, 60
KEY = STREAM.events(0)


class Party:
    """One group in one partition, and what must be true of it."""

    def __init__(self, group: Group, name: str) -> None:
        self.group = group
        self.name = name
        self.checkpoint = ZERO
        self.gone = 0
        """Entries that were deleted before it committed them."""
        self.told = 0
        """How many of them its worker was told of."""
        self._lock: Acquired | None = None

    async def own(self) -> Acquired:
        self._lock = await self.group.own(self.name)
        self.told += self._lock.gone
        return self._lock

    async def commit(self, count: int, *, trim: bool) -> None:
        """Commit the next entries, as a worker that reads from its checkpoint would."""
        lock = self._lock or await self.own()
        after = self.checkpoint.successor()
        entries = await streams.range_entries(self.group.backend, KEY, after, None, count)
        if entries:
            done = request(lock, entries, owner=self.name, previous=self.checkpoint, trim=trim)
            assert (await self.group.commit(done)).code.name == "OK"
            self.checkpoint = entries[-1].id

    async def trim(self) -> None:
        trimmed = await trimming.trim_many(self.group.backend, self.group.keys, {0: 0})
        self.told += trimmed[0].gone


def meddle(raw: Raw, random: Random) -> None:
    """Move, remove or make a group of Redis by hand."""
    name = random.choice(["price", "audit"])
    ids = ["$", "0", f"{random.randrange(2**42)}-0"]
    what = random.choice(["SETID", "SETID", "DESTROY", "CREATE"])
    try:
        if what == "DESTROY":
            raw.xgroup_destroy(KEY, name)
        else:
            rest = ["ENTRIESREAD", random.randrange(50)] if random.random() < 0.5 else []
            raw.execute_command("XGROUP", what, KEY, name, random.choice(ids), *rest)
    except redis.ResponseError:
        pass  # It is not there, or there already.


def delete(raw: Raw, random: Random, there: list[EntryId]) -> None:
    """Delete one entry, all of them, or the oldest ones."""
    if there and random.random() < 0.7:
        raw.xdel(KEY, *map(str, random.sample(there, random.choice([1, 1, len(there)]))))
    elif there:
        raw.xtrim(KEY, maxlen=random.randrange(len(there)), approximate=False)


async def ids_in(backend: Backend) -> set[EntryId]:
    return {entry.id for entry in await streams.range_entries(backend, KEY, ZERO, None, 10_000)}


@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_unread_is_trimmed_and_lag_is_right_whatever_others_do(
    group: Group, raw: Raw, seed: int
) -> None:
    """Two groups, of which one is often away; groups are moved and entries deleted at every moment."""
    random, deletes = Random(seed), seed % 2
    await streams.provision(group.backend, STREAM, 1, "json")
    parties = [Party(group, "w1"), Party(group.other(OTHER_GROUP), "w2")]
    sent: list[Entry] = await group.send(random.randrange(1, 20))
    deleted = set[EntryId]()
    for party in parties:
        await party.own()
    steps = ["send", "commit", "commit", "trim", "meddle", "meddle", "own", *["delete"] * deletes]
    for _ in range(STEPS):
        party = random.choice(parties[: random.choice([1, 1, 2])])
        match random.choice(steps):
            case "send":
                sent += await group.send(random.randrange(1, 8))
            case "commit":
                await party.commit(random.randrange(1, 8), trim=random.random() < 0.5)
            case "trim":
                await party.trim()
            case "own":
                await party.own()
            case "meddle":
                meddle(raw, random)
            case "delete":
                before = await ids_in(group.backend)
                delete(raw, random, sorted(before))
                lost = before - await ids_in(group.backend)
                deleted |= lost
                for each in parties:
                    each.gone += sum(entry > each.checkpoint for entry in lost)
        await check(group.backend, parties, sent, deleted)
    for party in parties:
        await party.commit(10_000, trim=False)
        await party.own()
        assert party.told == party.gone
        snapshot = await take_snapshot(group.backend, "shop", "orders", party.group.keys.group)
        assert snapshot.lag == 0


async def check(backend: Backend, parties: list[Party], sent: list[Entry], deleted: set[EntryId]) -> None:
    """Nothing that a group has not committed is missing, but what others deleted; else each lag is right."""
    there = await ids_in(backend)
    for party in parties:
        unread = {entry.id for entry in sent if entry.id > party.checkpoint} - deleted
        assert unread <= there
        snapshot = await take_snapshot(backend, "shop", "orders", party.group.keys.group)
        assert deleted or snapshot.lag == len(unread)


async def test_a_group_whose_lock_is_gone_keeps_everything(group: Group, raw: Raw) -> None:
    """Nobody can tell how far it was."""
    entries = await group.send(10)
    await group.commit(request(await group.own(), entries))
    other = group.other(OTHER_GROUP)
    await other.register()
    raw.delete(OTHER_GROUP.lock(0))
    raw.xgroup_destroy(KEY, OTHER_GROUP.group)
    assert (await trimming.trim_many(group.backend, GROUP, {0: 0}))[0].events == 0


async def test_a_group_of_redis_that_somebody_moved_is_put_right(group: Group, raw: Raw) -> None:
    """By the next registration, acquire or trim, for whoever looks at it with other tools."""
    entries, lock = await group.begun(10)

    def shown() -> str:
        return str(raw.xinfo_groups(KEY)[0]["last-delivered-id"].decode())

    await group.commit(request(lock, entries[:4]))
    raw.xgroup_setid(KEY, GROUP.group, "$")
    await group.own()
    assert shown() == str(entries[3].id)
    raw.xgroup_destroy(KEY, GROUP.group)
    await group.register()
    assert shown() == str(entries[3].id)
    raw.xgroup_destroy(KEY, GROUP.group)
    await trimming.trim_many(group.backend, GROUP, {0: 0})
    assert shown() == str(entries[3].id)
    raw.xgroup_setid(KEY, GROUP.group, "0")
    await group.commit(request(lock, entries[4:5], previous=entries[3].id, trim=True))
    assert shown() == str(entries[4].id)


async def test_a_name_that_no_group_can_have_is_named_as_the_slowest(group: Group, raw: Raw) -> None:
    """Nothing is trimmed while it is listed, so a sender at a full partition says which name it is."""
    entries = await group.send(10)
    await group.commit(request(await group.own(), entries))
    assert await streams.slowest_group(group.backend, STREAM, 0) == GROUP.group
    raw.hset(STREAM.groups(0), "not a name", "")
    assert await streams.slowest_group(group.backend, STREAM, 0) == "not a name"


async def test_a_commit_takes_few_commands(group: Group, raw: Raw) -> None:
    """Each of them costs where a commit has one record; what nobody needs at once is left to the trim."""
    entries, lock = await group.begun(3)
    calls = []
    for at, rows in enumerate([0, 0, 1]):
        before = commands_of(raw)
        previous = entries[at - 1].id if at else None
        await group.commit(request(lock, entries[at : at + 1], rows=rows, previous=previous))
        calls.append(sorted((commands_of(raw) - before).elements()))
    # The first one loads the script.
    assert calls[1:] == [
        ["evalsha", "exists", "hmget", "hset", "xrange"],
        ["evalsha", "exists", "hmget", "hset", "time", "xadd", "xrange"],
    ]


OF_OTHERS = {"info", "ping", "publish", "replconf"}
"""Of this test, of sentinels every two seconds, and of replicas each second."""


def commands_of(raw: Raw) -> Counter[str]:
    stats = raw.info("commandstats")
    called = {name.partition("_")[2]: each["calls"] for name, each in stats.items()}
    return Counter({name: count for name, count in called.items() if name not in OF_OTHERS})
