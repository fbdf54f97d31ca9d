"""The view of a group that everything which shows something is made from."""

from dataclasses import replace

import pytest
from msgspec import structs

from streamworker.core.control import GroupChanged
from streamworker.core.data.placement import Placement
from streamworker.core.data.readers import ReaderPosition
from streamworker.core.events import MarkLock, StartRunner
from streamworker.core.protocols.membership.events import ChangeDocument
from streamworker.core.snapshot import GroupSnapshot
from streamworker.redisio.data import streams
from streamworker.redisio.data.commit import DeadEntry
from streamworker.redisio.group import locks, membership
from streamworker.redisio.group.following import finish_many
from streamworker.redisio.scripts import SEAL
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.durability import MEMORY
from tests.contract.support import GROUP, STREAM, Group, Raw, everything, register_reader, request

pytestmark = pytest.mark.anyio


async def test_a_snapshot_shows_owners_progress_and_members(group: Group) -> None:
    """All figures at one moment, by the server's clock."""
    await streams.provision(group.backend, STREAM, 4, "json")
    _, changed = await group.join("a", "b", "c", "d", "e", partitions=4)
    entries = await group.send(10)
    lock = await group.own("a.1", generation=changed.generation)
    letter = DeadEntry(entries[0].id, {b"v": b"x"}, "no", 1)
    await group.commit(request(lock, entries[:4], owner="a.1", rows=40, dead=[letter]))
    await group.own("b.1", 1, generation=changed.generation)
    marked = await group.own("c.1", 2, generation=changed.generation)
    await locks.mark_many(
        group.backend, GROUP, [MarkLock(2, "c.1", marked.epoch, "halted", "ValueError: no")]
    )
    await register_reader(group.backend, GROUP, "spark", ReaderPosition({0: 25}, {0: lock.log}, 99))

    view = await take_snapshot(group.backend, "shop", "orders", "price", silent_after_ms=600_000)
    assert (view.app, view.stream, view.processor) == ("shop", "orders", "price")
    assert view.generation == changed.generation
    assert view.taken_ms >= changed.generation

    first = view.partitions[0]
    assert (first.owner, first.assigned, first.epoch, first.state) == ("a.1", "a.1", lock.epoch, "running")
    assert first.checkpoint == str(entries[3].id)
    assert (first.records, first.lag, first.length) == (4, 6, 10)
    assert (first.rows, first.acked_length, first.dead) == (40, 1, 1)
    assert first.since_ms > 0
    assert [(p.owner, p.state, p.reason) for p in view.partitions[1:]] == [
        ("b.1", "running", ""),
        ("c.1", "halted", "ValueError: no"),
        (None, "acquiring", ""),
    ]
    assert [(m.name, m.state, m.partitions) for m in view.members] == [
        ("a", "active", (0,)),
        ("b", "active", (1,)),
        ("c", "active", (2,)),
        ("d", "active", ()),  # Assigned partition 3, and on its way to it.
        ("e", "standby", ()),
    ]
    assert all(m.beat_age_ms is not None and 0 <= m.beat_age_ms < 600_000 for m in view.members)
    (reader,) = view.readers
    assert (reader.name, reader.positions, reader.lag_rows, reader.updated_ms) == ("spark", {0: 25}, 15, 99)
    assert view.lag == 6


async def test_a_snapshot_shows_the_partitions_that_the_group_works_on(group: Group) -> None:
    """Of the others it keeps what was counted; who waits for the old ones says so, and what halts them."""
    await streams.provision(group.backend, STREAM, 2, "json")
    await group.register(2)
    (entry,) = await group.send(1, 1)
    owners = [await group.own("a.1", p) for p in (0, 1)]
    letter = DeadEntry(entry.id, {b"v": b"x"}, "no", 1)
    await group.commit(replace(request(owners[1], [entry], owner="a.1", rows=7, dead=[letter]), partition=1))
    assert await streams.set_field(group.backend, STREAM.meta, "partitions", "2", "2+3")
    await streams.register(group.backend, GROUP, Placement(2, 3), "earliest")
    for p in (0, 1):
        await group.backend.run(SEAL, SEAL.at(STREAM, p, map="2+3"))
    await group.own("b.1", 2)
    halted = MarkLock(0, "a.1", owners[0].epoch, "halted", "ValueError: no")
    await locks.mark_many(group.backend, GROUP, [halted])

    async def done(*partitions: int) -> None:
        starts = {p: StartRunner(p, "a.1", owners[p]) for p in partitions}
        assert await finish_many(group.backend, GROUP, starts, MEMORY) == set(partitions)

    async def look() -> GroupSnapshot:
        return await take_snapshot(group.backend, "shop", "orders", "price")

    view = await look()
    assert [each.partition for each in view.partitions] == [0, 1, 2, 3, 4]
    assert [(each.reason, each.waits_for) for each in view.partitions[1:3]] == [
        ("", ()),
        ("waits for 0; 0 is halted", (0,)),
    ]
    assert view.partitions[2].is_held_up
    await done(1)
    view = await look()
    assert [each.partition for each in view.partitions] == [0, 1, 2, 3, 4]
    assert (view.done, view.committed, view.dead) == ((), 1, 1)
    await locks.mark_many(group.backend, GROUP, [replace(halted, state="running", reason="")])
    view = await look()
    assert view.partitions[2].reason == "waits for 0" and not view.partitions[2].is_held_up
    await done(0)
    view = await look()
    assert ([each.partition for each in view.partitions], view.partitions[0].reason) == ([2, 3, 4], "")
    assert ([each.partition for each in view.done], view.committed, view.dead) == ([0, 1], 1, 1)
    assert [(m.name, m.partitions) for m in view.members] == [("b", (2,))]


async def test_a_group_that_never_ran_is_an_empty_snapshot(group: Group, raw: Raw) -> None:
    await streams.provision(group.backend, STREAM, 2, "json")
    await group.send(3, 1)
    before = everything(raw)
    view = await take_snapshot(group.backend, "shop", "orders", "price")
    assert (view.generation, view.members, view.rebalances) == (0, (), ())
    assert [(p.state, p.lag) for p in view.partitions] == [("unowned", 0), ("unowned", 3)]
    assert everything(raw) == before


async def test_a_silent_and_a_leaving_member_are_told_apart(group: Group, raw: Raw) -> None:
    """Silent is who sent no heartbeat for a while, leaving is who said so."""
    document, changed = await group.join("a", "b", partitions=4)
    left = document.with_leaving("b.1")
    message = GroupChanged(0, "leave", "b", ())
    await group.do(ChangeDocument(changed.generation, left, message, (), ()))
    for member, since_ms in (("a.1", -60_000), ("b.1", 60_000)):
        raw.hset(GROUP.beats, member, f"{changed.generation + since_ms}|1|run|0")
    view = await take_snapshot(group.backend, "shop", "orders", "price")
    assert [(m.name, m.state) for m in view.members] == [("a", "silent"), ("b", "leaving")]
    assert view.members[1].beat_age_ms == 0, "it came before a failover to a clock that is behind"


async def test_partitions_of_which_no_member_is_alive_have_no_owner(group: Group, raw: Raw) -> None:
    """They were shown as running for as long as nobody came to remove the dead."""
    document, changed = await group.join("a", "b", partitions=3)
    for partition, owner in enumerate(("a.1", "b.1")):
        await group.own(owner, partition, generation=changed.generation)
    raw.hset(GROUP.beats, "a.1", f"{changed.generation - 60_000}|1|run|0")
    view = await take_snapshot(group.backend, "shop", "orders", "price")
    states = [each.state for each in view.partitions]
    assert states == ["running", "running", "acquiring"], "the other takes it over"
    raw.hset(GROUP.beats, "b.1", f"{changed.generation - 60_000}|1|run|0")
    view = await take_snapshot(group.backend, "shop", "orders", "price")
    assert [(each.state, each.reason) for each in view.partitions] == 3 * [("unowned", "no member is alive")]
    held = structs.replace(document.members[1], state="held", static_id="b")
    kept = replace(document, members=(document.members[0], held), owners=("a.1", "a.1", "b.1"))
    await group.do(ChangeDocument(changed.generation, kept, GroupChanged(0, "leave", "b", ()), (), ()))
    view = await take_snapshot(group.backend, "shop", "orders", "price")
    last = view.partitions[2]
    assert (last.state, "b is away, and its static id keeps" in last.reason) == ("unowned", True)


async def test_owners_under_a_protocol_without_heartbeats_have_none(group: Group, raw: Raw) -> None:
    """The age of one would say that a killed worker lives."""
    await streams.provision(group.backend, STREAM, 2, "json")
    _, changed = await group.join("a", partitions=2)
    await group.own("a.1", generation=changed.generation)
    raw.delete(GROUP.members)
    view = await take_snapshot(group.backend, "shop", "orders", "price")
    assert [(m.name, m.state, m.beat_age_ms) for m in view.members] == [("a", "active", None)]
    assert [each.state for each in view.partitions] == ["running", "unowned"]


async def test_a_member_shows_what_its_heartbeat_carries_and_what_it_can_carry(group: Group) -> None:
    """Load as it measured it, and the capacity with which it joined."""
    document, changed = await group.join("a", "b", partitions=4)
    strong = structs.replace(document.members[0], capacity=3)
    written = replace(document, members=(strong, document.members[1]))
    message = GroupChanged(0, "weights", "a", ())
    await group.do(ChangeDocument(changed.generation, written, message, (), ()))
    await membership.heartbeat(group.backend, [membership.Renewal(GROUP, "a.1", 5, "run", 420, {0: 420})])
    view = await take_snapshot(group.backend, "shop", "orders", "price")
    assert [(m.name, m.load, m.capacity) for m in view.members] == [("a", 420, 3), ("b", 0, 1)]


async def test_the_lock_of_a_removed_member_shows_as_being_acquired(group: Group) -> None:
    await group.own("dead.1", generation=1)
    await group.join("a", partitions=1)
    view = await take_snapshot(group.backend, "shop", "orders", "price")
    assert (view.partitions[0].state, view.partitions[0].assigned) == ("acquiring", "a.1")


async def test_a_key_of_somebody_else_shows_as_a_halted_partition(group: Group, raw: Raw) -> None:
    await group.join("a", partitions=2)
    await group.own("a.1", 1)
    raw.set(GROUP.lock(0), "mine")
    view = await take_snapshot(group.backend, "shop", "orders", "price")
    assert view.partitions[0].state == "halted"
    assert "WRONGTYPE" in view.partitions[0].reason
    assert view.partitions[1].state == "running"


@pytest.mark.parametrize("name", ["beats", "readers", "control"])
async def test_a_key_of_the_group_that_was_written_over_is_named_and_the_rest_is_shown(
    group: Group, raw: Raw, name: str
) -> None:
    """Who looks when something is wrong must see what is right."""
    await streams.provision(group.backend, STREAM, 4, "json")
    await group.join("a", partitions=4)
    await group.own("a.1")
    key = getattr(GROUP, name)
    raw.delete(key)
    raw.set(key, "mine")
    view = await take_snapshot(group.backend, "shop", "orders", "price")
    (problem,) = view.problems
    assert key in problem
    assert [member.name for member in view.members] == ["a"]
    assert (view.partitions[0].owner, len(view.partitions)) == ("a.1", 4)


async def test_a_group_without_a_membership_shows_who_holds_its_locks(group: Group) -> None:
    """There is no document and no heartbeat: the owners of locks are the members."""
    await group.backend.execute("HSET", group.stream.meta, "partitions", 3)
    await group.own("w1.a", 0)
    await group.own("w2.b", 2)
    taken = await take_snapshot(group.backend, "shop", "orders", "price")
    assert [(member.name, member.state, member.partitions) for member in taken.members] == [
        ("w1", "active", (0,)),
        ("w2", "active", (2,)),
    ]
    assert [view.state for view in taken.partitions] == ["running", "unowned", "running"]
