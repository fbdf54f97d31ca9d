"""The ends of a table's values: in which index they stand, and that they move with deploys and growth."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from streamworker.core.data.placement import Placement
from streamworker.core.events import StartRunner
from streamworker.core.ownership.locks import Acquired
from streamworker.core.time.lifetimes import Lifetime, Timed
from streamworker.redisio.admin import retiming
from streamworker.redisio.admin.inheriting import take_over
from streamworker.redisio.admin.retiming import MOST, retime
from streamworker.redisio.data.commit import CommitCode, CommitRequest
from streamworker.redisio.data.statetables import (
    TableReads,
    count_values,
    expire_many,
    read_ended,
    view_table,
)
from streamworker.redisio.wire.durability import MEMORY
from streamworker.runtime.run.state import Changes
from tests.contract.support import GROUP, Group, Raw, put, request

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
SILENT, CALLED = {"totals": Lifetime(HOUR_MS)}, {"totals": Lifetime(HOUR_MS, is_called=True)}
VALUES, EXPIRY, DUE = GROUP.table(0, "totals"), GROUP.expiry(0, "totals"), GROUP.due(0, "totals")
FAR_MS = 99_000_000_000_000


async def set_values(
    group: Group,
    lock: Acquired,
    values: Mapping[str, bytes | None],
    tables: Mapping[str, Lifetime],
    **changed: object,
) -> tuple[Acquired, int]:
    """Commit an entry with these values; return the lock as it is then, and the server's time."""
    its = {("totals", key.encode()): value for key, value in values.items()}
    made: CommitRequest = replace(
        request(lock, await group.send(1), state=its),
        tables=tables,
        **changed,  # type: ignore[arg-type]
    )
    reply = await group.commit(made)
    assert reply.code is CommitCode.OK, reply
    return replace(lock, checkpoint=made.new, entries=lock.entries + 1), reply.at_ms


async def indexed(group: Group, index: str) -> dict[bytes, int]:
    found = await group.backend.execute("ZRANGE", index, 0, -1, "WITHSCORES")
    return {key: int(score) for key, score in zip(found[::2], found[1::2], strict=True)}


async def read(group: Group, tables: Mapping[str, Lifetime], partition: int = 0) -> dict[bytes, bytes]:
    return await TableReads(group.backend, GROUP, "totals", tables["totals"], 0, Placement(1)).scan(partition)


@pytest.mark.parametrize("tables", [SILENT, CALLED])
async def test_each_value_has_its_own_end_or_that_of_the_table(
    group: Group, tables: dict[str, Lifetime]
) -> None:
    """One commit may set both, and replaces what stood there; what is deleted has no end."""
    lock = await group.own()
    first = {"ann": Timed.at(b"1", FAR_MS), "bob": b"1", "eve": b"1", "joe": Timed.at(b"1", FAR_MS)}
    lock, _ = await set_values(group, lock, first, tables)
    second = {"ann": b"2", "bob": Timed.at(b"2", FAR_MS + 1), "eve": None, "joe": Timed.at(b"2", FAR_MS + 2)}
    lock, at_ms = await set_values(group, lock, second, tables)
    (index,) = GROUP.tables(0, tables)[1:]
    ends = {b"ann": at_ms + HOUR_MS, b"bob": FAR_MS + 1, b"joe": FAR_MS + 2}
    assert await indexed(group, index) == ends
    assert await read(group, tables) == dict.fromkeys(ends, b"2")
    assert await group.backend.execute("EXISTS", EXPIRY, DUE) == 1


async def test_a_table_without_ttl_may_have_values_that_end(group: Group) -> None:
    lock, tables = await group.own(), {"totals": Lifetime()}
    lock, _ = await set_values(group, lock, {"ann": Timed.at(b"1", FAR_MS), "bob": b"1"}, tables)
    assert await indexed(group, EXPIRY) == {b"ann": FAR_MS}
    await set_values(group, lock, {"ann": b"2"}, tables)
    assert await group.backend.execute("EXISTS", EXPIRY) == 0
    assert await read(group, tables) == {b"ann": b"2", b"bob": b"1"}


@pytest.mark.parametrize("tables", [SILENT, CALLED])
async def test_a_commit_may_give_ten_thousand_values_ends_of_their_own(
    group: Group, tables: dict[str, Lifetime]
) -> None:
    """More than Lua unpacks at a time."""
    lock = await group.own()
    many = {f"k{n}": Timed.at(b"%d" % n, FAR_MS + n) for n in range(10_000)}
    lock, _ = await set_values(group, lock, many, tables)
    (index,) = GROUP.tables(0, tables)[1:]
    assert await indexed(group, index) == {key.encode(): its.until_ms for key, its in many.items()}
    await set_values(group, lock, dict.fromkeys(list(many)[:9_999]), tables)
    assert await indexed(group, index) == {b"k9999": FAR_MS + 9_999}
    assert await read(group, tables) == {b"k9999": b"9999"}


async def test_a_value_whose_end_calls_a_function_stays_and_others_do_not(group: Group) -> None:
    """Nobody removes it but the commit of its call: not the next commit, and not what expires values."""
    lock = await group.own()
    old = {"ann": Timed.at(b"1", 1_000)}
    lock, _ = await set_values(group, lock, old, CALLED)
    lock, at_ms = await set_values(group, lock, {"bob": b"1"}, CALLED)
    assert await read(group, CALLED) == {b"ann": b"1", b"bob": b"1"}
    assert await count_values(group.backend, GROUP, CALLED, [0]) == {0: 2}
    assert await read_ended(group.backend, DUE, at_ms, 10) == [b"ann"]
    assert await read_ended(group.backend, DUE, 999, 10) == []
    view = await view_table(group.backend, GROUP, CALLED, {0: True})
    assert (view.keys, view.due, view.next_ms, view.overdue) == (2, 2, 1_000, 1)
    lock, _ = await set_values(group, lock, {"joe": Timed.at(b"1", 1_000)}, SILENT)
    assert b"joe" not in await read(group, SILENT)


async def test_a_call_removes_the_values_with_what_it_sends_or_not_at_all(group: Group) -> None:
    """Its commit counts at the checkpoint and the time before it, by its owner, once."""
    lock = await group.own()
    lock, at_ms = await set_values(group, lock, {"ann": Timed.at(b"1", 1_000), "bob": b"1"}, CALLED)
    changes: Changes = {"#tick/gone": b"%d/1" % at_ms, ("totals", b"ann"): None}
    tick = CommitRequest(
        0, "w1", lock.epoch, lock.checkpoint, lock.checkpoint, 0,
        timer="#tick/gone", state=changes, tables=CALLED,
    )  # fmt: skip
    assert (await group.commit(replace(tick, owner="w2"))).code is CommitCode.FENCED
    assert (await group.commit(replace(tick, before=b"1/1"))).code is CommitCode.GAP
    lock, _ = await set_values(group, lock, {"ann": b"2"}, CALLED)
    assert (await group.commit(tick)).code is CommitCode.GAP, "a record came before it"
    assert await read(group, CALLED) == {b"ann": b"2", b"bob": b"1"}
    tick = replace(tick, previous=lock.checkpoint, new=lock.checkpoint)
    assert [(await group.commit(tick)).code for _ in range(2)] == [CommitCode.OK, CommitCode.DUP]
    assert await read(group, CALLED) == {b"bob": b"1"}
    assert set(await indexed(group, DUE)) == {b"bob"}


@pytest.mark.parametrize("before", [SILENT, CALLED])
async def test_ends_move_to_the_index_of_the_release_that_runs(
    group: Group, before: dict[str, Lifetime]
) -> None:
    """To a worker of another owner nothing moves; a second time changes nothing; all of many move."""
    lock = await group.own()
    after, count = (SILENT if before is CALLED else CALLED), 2 * MOST + 7
    ends = {b"k%d" % n: FAR_MS + n for n in range(count)}
    values = {key.decode(): Timed.at(b"%d" % n, ms) for n, (key, ms) in enumerate(ends.items())}
    lock, _ = await set_values(
        group, lock, {**values, "stays": b"x"}, {"totals": before["totals"]._replace(ttl_ms=0)}
    )
    (old,), (new,) = GROUP.tables(0, before)[1:], GROUP.tables(0, after)[1:]
    await retime(group.backend, GROUP, after, StartRunner(0, "w2", lock))
    assert (await indexed(group, old), await indexed(group, new)) == (ends, {})
    for _ in range(2):
        await retime(group.backend, GROUP, after, StartRunner(0, "w1", lock))
        assert (await indexed(group, old), await indexed(group, new)) == ({}, ends)
    assert await read(group, after) == {b"stays": b"x"} | dict(zip(ends, values.values(), strict=True))
    stored = await group.backend.execute("HGET", VALUES, "k0")
    assert stored == (b" 0" if after is CALLED else b"%d 0" % FAR_MS)


async def test_ends_of_values_that_others_have_removed_do_not_move(group: Group, raw: Raw) -> None:
    """Nor do those of values that are none of ours."""
    lock = await group.own()
    raw.hset(VALUES, "strange", "nospace")
    raw.zadd(EXPIRY, {"strange": 5, "gone": 6})
    await retime(group.backend, GROUP, CALLED, StartRunner(0, "w1", lock))
    assert raw.exists(EXPIRY, DUE) == 0
    assert raw.hgetall(VALUES) == {b"strange": b"nospace"}


async def test_a_retime_goes_on_where_the_one_before_ended(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier release has set meanwhile has its later end."""
    lock = await group.own()
    lock, _ = await set_values(
        group, lock, {"ann": Timed.at(b"1", FAR_MS), "bob": Timed.at(b"1", FAR_MS)}, SILENT
    )
    monkeypatch.setattr(retiming, "MOST", 1)
    await retime(group.backend, GROUP, CALLED, StartRunner(0, "w1", lock))
    await set_values(
        group, lock, {"ann": Timed.at(b"2", FAR_MS + 5)}, SILENT
    )  # It does not know the other index.
    await retime(group.backend, GROUP, CALLED, StartRunner(0, "w1", lock))
    assert await indexed(group, DUE) == {b"ann": FAR_MS + 5, b"bob": FAR_MS}
    assert await read(group, CALLED) == {b"ann": b"2", b"bob": b"1"}


@pytest.mark.parametrize("tables", [SILENT, CALLED])
async def test_values_take_their_ends_to_a_partition_that_follows(
    group: Group, raw: Raw, tables: dict[str, Lifetime]
) -> None:
    lock = await group.own()
    values = {f"k{n}": Timed.at(b"%d" % n, FAR_MS + n) for n in range(40)} | {"k40": b"40"}
    await set_values(group, lock, values, {"totals": tables["totals"]._replace(ttl_ms=0)})
    follows = replace(await group.own("w1", 2), waits_for=(0,))
    raw.hset(GROUP.lock(2), "from", "0")
    placement = Placement(1, 3)
    assert await take_over(
        group.backend,
        GROUP,
        placement,
        StartRunner(2, "w1", follows),
        {"totals": (tables["totals"], 0)},
        lambda _: True,
        MEMORY,
    )
    mine = {key: its for key, its in values.items() if placement.partition_of(key.encode()) == 2}
    assert 0 < len(mine) < 40
    (index,) = GROUP.tables(2, tables)[1:]
    assert await indexed(group, index) == {
        key.encode(): its.until_ms for key, its in mine.items() if isinstance(its, Timed)
    }
    found = raw.hgetall(GROUP.table(2, "totals"))
    head = {
        key: b"%d " % its.until_ms if tables is SILENT and isinstance(its, Timed) else b" "
        for key, its in mine.items()
    }
    assert found == {key.encode(): head[key] + its for key, its in mine.items()}


@pytest.mark.parametrize("key", [VALUES, DUE])
async def test_a_key_of_another_type_refuses_the_commit_and_is_named(
    group: Group, raw: Raw, key: str
) -> None:
    lock = await group.own()
    put(raw, key)
    its = {("totals", b"ann"): Timed.at(b"1", 1)}
    reply = await group.commit(replace(request(lock, await group.send(1), state=its), tables=CALLED))
    assert reply.code is CommitCode.BADTYPE
    assert key in str(reply.error)


async def test_expiring_leaves_a_table_alone_whose_ends_call(group: Group) -> None:
    """By whatever release of ours it is done: the index has another name."""
    lock = await group.own()
    lock, _ = await set_values(group, lock, {"ann": Timed.at(b"1", 1_000)}, CALLED)
    await expire_many(group.backend, GROUP, SILENT, {0: ("w1", lock.epoch)})
    await set_values(group, lock, {"bob": b"1"}, SILENT)
    assert set(await read(group, SILENT)) == {b"ann", b"bob"}
