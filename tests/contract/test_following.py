"""How a group goes on from the partitions that a stream had to those that follow."""

import pytest

from streamworker.core.data.entries import ZERO
from streamworker.core.data.placement import Placement
from streamworker.core.events import StartRunner
from streamworker.core.ownership.locks import Acquired
from streamworker.core.time.lifetimes import Lifetime
from streamworker.redisio.admin import inheriting
from streamworker.redisio.data import streams
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.group import following, locks
from streamworker.redisio.scripts import SEAL
from streamworker.redisio.wire.durability import MEMORY, Durability, NotDurable
from streamworker.redisio.wire.info import pairs_of
from tests.contract.support import GROUP, Group, Raw, request

pytestmark = pytest.mark.anyio

TOTALS = {"totals": Lifetime()}
GROWN = Placement(2, 3)
"""Partition 3 has two parents, 2 and 4 have one."""


async def seal(group: Group, *partitions: int) -> None:
    await group.backend.run_many(SEAL, [SEAL.at(GROUP, p, map="2 2+3") for p in partitions])


async def finish(group: Group, lock: Acquired, partition: int = 0, owner: str = "w1") -> bool:
    starts = {partition: StartRunner(partition, owner, lock)}
    return partition in await following.finish_many(group.backend, GROUP, starts, MEMORY)


async def left(group: Group) -> set[int]:
    return await following.unfinished(group.backend, GROUP, GROWN.all)


async def test_a_group_is_done_with_a_partition_when_nothing_is_left_of_it(group: Group, raw: Raw) -> None:
    """It is sealed, all records are committed, and all messages have arrived."""
    await group.register(2)
    entries = await group.send(2)
    lock = await group.own()
    assert not await finish(group, lock)
    await seal(group, 0)
    assert not await finish(group, lock)
    first = request(lock, entries[:1])
    assert (await group.commit(first)).code is CommitCode.OK
    assert not await finish(group, lock)
    raw.xadd(GROUP.outbox(0).messages, {"to": "priced/0"}, id="1-1")
    assert (await group.commit(request(lock, entries[1:], previous=entries[0].id))).code is CommitCode.OK
    assert not await finish(group, lock)
    raw.delete(GROUP.outbox(0).messages)
    assert await left(group) == set(GROWN.all)
    for _ in range(2):
        assert await finish(group, lock)
        assert await left(group) == {1, 2, 3, 4}
    assert await following.read_first(group.backend, GROUP, GROWN) == 0
    other = await group.own("w2", 1)
    await seal(group, 1)
    assert await finish(group, other, 1, "w2")
    assert await following.read_first(group.backend, GROUP, GROWN) == 2


async def test_a_group_is_not_done_before_its_last_commit_is_durable(group: Group) -> None:
    """Who sees that it is done acts on it at once."""
    await group.register()
    await seal(group, 0)
    starts = {0: StartRunner(0, "w1", await group.own())}
    with pytest.raises(NotDurable):
        await following.finish_many(group.backend, GROUP, starts, Durability("replicas", 3, 10))
    assert 0 in await left(group)
    assert await following.finish_many(group.backend, GROUP, starts, MEMORY) == {0}


async def test_only_the_owner_says_that_the_group_is_done(group: Group) -> None:
    """Also of a partition that is empty, and not at an epoch before."""
    await group.register()
    await seal(group, 0)
    lock = await group.own()
    new = await group.own("w2")
    assert not await finish(group, lock)
    assert not await finish(group, new, owner="w1")
    assert await finish(group, new, owner="w2")


async def test_what_has_moved_is_removed_unless_a_reset_has_come_since(group: Group, raw: Raw) -> None:
    """A worker that slept between its look and that would take what the group has counted anew."""
    await group.register()
    await seal(group, 0)
    lock = await group.own()
    assert await following.done_at(group.backend, GROUP, [0]) == {}
    assert await finish(group, lock)
    seen = await following.done_at(group.backend, GROUP, [0])
    await group.release("w1", lock.epoch)
    await locks.move_checkpoint(group.backend, GROUP, 0, ZERO, entries=0)
    raw.hset(GROUP.table(0, "totals"), "ann", " 1")
    assert await following.remove_moved(group.backend, GROUP, seen, TOTALS) == set()
    assert await finish(group, await group.own("w2"), owner="w2")
    assert await following.remove_moved(group.backend, GROUP, seen, TOTALS) == set()
    assert raw.exists(GROUP.table(0, "totals")) and await following.moved(group.backend, GROUP, [0]) == set()
    seen = await following.done_at(group.backend, GROUP, [0])
    for _ in range(2):
        assert await following.remove_moved(group.backend, GROUP, seen, TOTALS) == {0}
    assert not raw.exists(GROUP.table(0, "totals")) and await following.moved(group.backend, GROUP, [0]) == {
        0
    }


async def test_nothing_is_committed_before_a_partition_is_open(group: Group) -> None:
    """And only the owner opens it that has waited for what the lock says."""
    await streams.register(group.backend, GROUP, GROWN, "earliest")
    entries = await group.send(1, partition=3)
    lock = await group.own(partition=3)
    assert lock.waits_for == (0, 1)
    assert (await group.commit(request(lock, entries, partition=3))).code is CommitCode.GAP
    for owner, waited, opens in (("w2", (0, 1), False), ("w1", (0,), False), *[("w1", (0, 1), True)] * 2):
        known = Acquired(lock.epoch, lock.checkpoint, 0, 0, "log", waits_for=waited)
        start = StartRunner(3, owner, known)
        assert await following.open_partition(group.backend, GROUP, start, MEMORY) is opens
    assert (await group.commit(request(lock, entries, partition=3))).code is CommitCode.OK
    assert (await group.own(partition=3)).waits_for == ()


async def test_only_the_owner_that_has_waited_copies_and_only_until_it_is_open(group: Group) -> None:
    """A copy that comes late would undo what was committed since."""
    await streams.register(group.backend, GROUP, GROWN, "earliest")
    old, (values, index) = GROUP.table(0, "totals"), GROUP.tables(3, TOTALS)
    stored = {b"customer-%d" % n: b"%d v" % n if n % 2 else b" v" for n in range(300)}
    keys = {key: value for key, value in stored.items() if GROWN.path_of(key)[0] == 0}
    mine = {key: value for key, value in keys.items() if GROWN.partition_of(key) == 3}
    await group.backend.execute("HSET", old, *(part for pair in keys.items() for part in pair))
    lock = await group.own(partition=3)

    async def takes_over(
        owner: str = "w1", waited: tuple[int, ...] = (0, 1), more: int = 0, durability: Durability = MEMORY
    ) -> bool:
        known = Acquired(lock.epoch + more, lock.checkpoint, 0, 0, "log", waits_for=waited)
        how = GROWN, StartRunner(3, owner, known), {"totals": (Lifetime(), 0)}, lambda _: True, durability
        return await inheriting.take_over(group.backend, GROUP, *how)

    assert not await takes_over(owner="w2")
    assert not await takes_over(more=1)
    assert not await takes_over(waited=(0,))
    assert await group.backend.execute("EXISTS", values) == 0
    with pytest.raises(NotDurable):  # A failover could lose the copy, and leave the lock.
        await takes_over(durability=Durability("replicas", 3, 10))
    for _ in range(2):
        assert await takes_over()
        assert pairs_of(await group.backend.execute("HGETALL", values)) == mine
        assert await group.backend.execute("ZCARD", index) == sum(value != b" v" for value in mine.values())
    await following.open_partition(group.backend, GROUP, StartRunner(3, "w1", lock), MEMORY)
    await group.backend.execute("DEL", values)
    assert not await takes_over()
    assert await group.backend.execute("EXISTS", values) == 0


async def test_a_group_is_registered_durably_where_that_is_asked(group: Group) -> None:
    """Also when it is there: the call before may not have been durable."""
    for _ in range(2):
        with pytest.raises(NotDurable):
            await streams.register(
                group.backend, GROUP, GROWN, "earliest", GROWN.active, Durability("replicas", 3, 10)
            )
    assert len(await streams.register(group.backend, GROUP, GROWN, "earliest")) == GROWN.total


async def test_a_partition_that_waits_itself_is_not_done(group: Group) -> None:
    """It has not taken over yet what those that follow it would copy."""
    await streams.register(group.backend, GROUP, GROWN, "earliest")
    await group.backend.run_many(SEAL, [SEAL.at(GROUP, 3, map="2+3+5")])
    lock = await group.own(partition=3)
    assert not await finish(group, lock, partition=3)
    await following.open_partition(group.backend, GROUP, StartRunner(3, "w1", lock), MEMORY)
    assert await finish(group, lock, partition=3)
