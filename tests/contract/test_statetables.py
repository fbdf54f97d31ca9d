"""Tables of state: written by the commit, expired by the owner, read by anybody."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from streamworker.core.data.placement import Placement
from streamworker.core.time.lifetimes import Lifetime
from streamworker.redisio.data.commit import CommitCode, CommitRequest
from streamworker.redisio.data.statetables import TableReads, count_values, expire_many, read_fields
from tests.contract.support import GROUP, Group, request
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
TOTALS = {"totals": Lifetime()}
VALUES, INDEX = GROUP.tables(0, TOTALS)


async def commits(group: Group, *changes: dict[str, int | None], ttl_ms: int = 0) -> list[CommitRequest]:
    """Return commits that follow each other, of an entry each, with these changes of a table."""
    entries, lock = await group.begun(len(changes))
    made: list[CommitRequest] = []
    for entry, change in zip(entries, changes, strict=True):
        values = {("totals", key.encode()): None if n is None else b"%d" % n for key, n in change.items()}
        before = made[-1].new if made else lock.checkpoint
        made.append(
            replace(
                request(lock, [entry], state=values, previous=before), tables={"totals": Lifetime(ttl_ms)}
            )
        )
    return made


async def values_of(group: Group) -> dict[bytes, bytes]:
    """Return all values of the table in partition 0 that have not expired."""
    return await TableReads(group.backend, GROUP, "totals", Lifetime(), 0, Placement(1)).scan(0)


async def done(group: Group, requests: Sequence[CommitRequest]) -> int:
    """Do some commits; return the server's time of the last one."""
    for each in requests:
        reply = await group.commit(each)
        assert reply.code is CommitCode.OK
    return reply.at_ms


async def test_a_commit_sets_and_deletes_keys_of_a_table(group: Group) -> None:
    """In the same step as the checkpoint; one that was done already changes nothing when it is repeated."""
    first, second = await commits(group, {"ann": 1, "bob": 2}, {"ann": 3, "bob": None, "eve": 4})
    await done(group, [first, second])
    assert await values_of(group) == {b"ann": b"3", b"eve": b"4"}
    assert (await group.commit(second)).code is CommitCode.DUP
    assert (await group.commit(first)).code is CommitCode.GAP
    assert await count_values(group.backend, GROUP, TOTALS, [0]) == {0: 2}


@pytest.mark.parametrize("ttl_ms", [0, HOUR_MS])
async def test_a_commit_may_change_ten_thousand_keys(group: Group, ttl_ms: int) -> None:
    """More than Lua unpacks at a time."""
    many: dict[str, int | None] = {f"k{n}": n for n in range(10_000)}
    gone: dict[str, int | None] = {f"k{n}": None for n in range(9_000)}
    await done(group, await commits(group, many, gone, ttl_ms=ttl_ms))
    assert len(await values_of(group)) == 1_000
    assert await group.backend.execute("ZCARD", INDEX) == (1_000 if ttl_ms else 0)


async def test_a_value_expires_to_the_millisecond_by_the_clock_of_the_server(group: Group) -> None:
    """Its expiry is the time of the commit that wrote it last, and its ``ttl``."""
    first, second = await commits(group, {"ann": 1, "bob": 2}, {"ann": 3}, ttl_ms=HOUR_MS)
    began_ms = await done(group, [first])

    async def later() -> bool:
        return await group.backend.time_ms() > began_ms

    await wait_for_async(later, "the server's clock goes on")
    at_ms = await done(group, [second])
    values, now_ms = await read_fields(group.backend, VALUES, [b"ann", b"bob", b"eve"])
    assert at_ms <= now_ms
    assert values[0] == b"%d 3" % (at_ms + HOUR_MS)
    assert values[1:] == [b"%d 2" % (began_ms + HOUR_MS), None]
    assert began_ms < at_ms
    assert await group.backend.execute("ZSCORE", INDEX, "ann") == b"%d" % (at_ms + HOUR_MS)


async def test_what_has_expired_is_seen_by_nobody_before_it_is_removed(group: Group) -> None:
    """The next commit of the partition removes it, and so does its owner without a commit."""
    await done(group, await commits(group, {f"k{n}": n for n in range(2_500)}, ttl_ms=30))

    async def unseen() -> bool:
        return await values_of(group) == {}

    await wait_for_async(unseen, "the values have expired")
    assert await count_values(group.backend, GROUP, TOTALS, [0]) == {0: 0}
    assert await group.backend.execute("HLEN", VALUES) == 2_500
    lock = await group.lock()
    await expire_many(group.backend, GROUP, TOTALS, {0: ("w2", lock.epoch)})
    assert await group.backend.execute("HLEN", VALUES) == 2_500
    await expire_many(group.backend, GROUP, TOTALS, {0: ("w1", lock.epoch)})
    assert await group.backend.execute("EXISTS", VALUES) == 0
    assert await group.backend.execute("EXISTS", INDEX) == 0


async def test_a_commit_removes_some_of_what_has_expired(group: Group) -> None:
    """At least as many keys as it writes, so that a table does not grow without end."""
    old, new = await commits(group, {f"k{n}": n for n in range(300)}, {"ann": 1}, ttl_ms=30)
    await done(group, [old])

    async def unseen() -> bool:
        return await count_values(group.backend, GROUP, TOTALS, [0]) == {0: 0}

    await wait_for_async(unseen, "the values have expired")
    await done(group, [replace(new, tables={"totals": Lifetime(HOUR_MS)})])
    assert await group.backend.execute("HLEN", VALUES) == 300 + 1 - 101


async def test_a_table_that_keeps_values_for_ever_from_now_on_keeps_them(group: Group) -> None:
    """What is written again is not removed at the time that it had before."""
    old, new = await commits(group, {"ann": 1, "bob": 1}, {"ann": 2}, ttl_ms=HOUR_MS)
    await done(group, [old, replace(new, tables={"totals": Lifetime(0)})])
    values, _ = await read_fields(group.backend, VALUES, [b"ann"])
    assert values == [b" 2"]
    assert await group.backend.execute("ZRANGE", INDEX, 0, -1) == [b"bob"]
