"""What `streamworker repair` does at Redis: only what has not changed since somebody looked."""

from typing import Any

import pytest

from streamworker.core.data.placement import Placement
from streamworker.core.data.readers import ReaderPosition
from streamworker.redisio.admin import repair
from streamworker.redisio.data import streams
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.group import membership, readers
from streamworker.redisio.keys import GroupKeys, declaration, declared_by
from tests.contract.support import Group, Raw, everything, register_reader, request

pytestmark = pytest.mark.anyio


async def test_members_that_are_dead_are_removed_as_a_peer_would(group: Group, raw: Raw) -> None:
    """With their heartbeats, a higher generation, and a message for the history."""
    _, joined = await group.join("w1", "w2")
    facts = await repair.look(group.backend, group.keys, 1)
    assert await repair.remove_members(group.backend, facts, ["w1.1", "w2.1"])
    after = await repair.look(group.backend, group.keys, 1)
    assert after.membership is not None
    assert (after.membership.members, after.beats) == ((), {})
    assert after.membership.generation > joined.generation
    messages: Any = raw.xrevrange(group.keys.control)
    fields = messages[0][1]
    assert (fields[b"kind"], fields[b"cause"], fields[b"member"]) == (b"changed", b"repair", b"w1 w2")
    assert int(fields[b"generation"]) == after.membership.generation
    assert not await repair.remove_members(group.backend, facts, ["w1.1", "w2.1"])


@pytest.mark.parametrize("change", ["a heartbeat", "a join"])
async def test_members_stay_where_one_of_them_woke_meanwhile(group: Group, raw: Raw, change: str) -> None:
    """One heartbeat of one of them is enough, and nothing at all is changed."""
    _, joined = await group.join("w1", "w2")
    facts = await repair.look(group.backend, group.keys, 1)
    if change == "a heartbeat":
        await membership.heartbeat(group.backend, [membership.Renewal(group.keys, "w2.1", 1, "run")])
    else:
        raw.set(group.keys.members, f'{{"generation":{joined.generation + 1},"v":1}}')
    before = everything(raw)
    assert not await repair.remove_members(group.backend, facts, ["w1.1", "w2.1"])
    assert not await repair.forget_group(group.backend, facts)
    assert everything(raw) == before


async def test_a_heartbeat_that_is_no_text_counts_as_none(group: Group, raw: Raw) -> None:
    """Another program wrote it; the plan of a repair asks for it."""
    await group.join("w1")
    raw.hset(group.keys.beats, "w1.1", b"\xff\xfe")
    facts = await repair.look(group.backend, group.keys, 1)
    assert facts.beat("w1.1") is None


async def test_a_released_lock_fences_its_former_owner_and_keeps_the_checkpoint(group: Group) -> None:
    """Should it be alive after all, it commits nothing; the next owner goes on where it was."""
    await group.register()
    entries = await group.send(2)
    held = await group.own("w1.1")
    seen = await group.lock()
    assert await repair.release_lock(group.backend, group.keys, 0, seen)
    assert (await group.commit(request(held, entries, owner="w1.1"))).code is CommitCode.FENCED
    after = await group.lock()
    assert (after.owner, after.checkpoint, after.epoch > seen.epoch) == ("", seen.checkpoint, True)
    assert not await repair.release_lock(group.backend, group.keys, 0, seen)
    taken = await group.own("w2.1")
    assert (await group.commit(request(taken, entries, owner="w2.1"))).code is CommitCode.OK


@pytest.mark.parametrize("epoch", ["x", "", "9" * 19, "007", "nan"])
async def test_a_lock_is_released_and_forgotten_whatever_was_written_for_its_epoch(
    group: Group, raw: Raw, epoch: str
) -> None:
    """Script and looker read it alike: it was left alone for ever, as one that had changed meanwhile."""
    await group.register()
    raw.hset(group.keys.lock(0), mapping={"owner": "w1.1", "epoch": epoch})
    assert await repair.release_lock(group.backend, group.keys, 0, await group.lock())
    raw.hset(group.keys.lock(0), "epoch", epoch)
    facts = await repair.look(group.backend, group.keys, 1)
    assert await repair.forget_partition(group.backend, facts, 0)
    assert not raw.exists(group.keys.lock(0))


@pytest.mark.parametrize(
    "taken", [{"owner": "w2.1"}, {"epoch": 6}, {"owner": "w2.1", "epoch": 6}], ids=["owner", "epoch", "both"]
)
async def test_a_lock_that_was_taken_meanwhile_stays(group: Group, raw: Raw, taken: dict[Any, Any]) -> None:
    """By another, again by the same owner, or, after a failover, by another under the same number."""
    await group.register()
    raw.hset(group.keys.lock(0), mapping={"owner": "w1.1", "epoch": 5})
    facts = await repair.look(group.backend, group.keys, 1)
    raw.hset(group.keys.lock(0), mapping=taken)
    before = everything(raw)
    assert not await repair.release_lock(group.backend, group.keys, 0, facts.locks[0])
    assert not await repair.forget_partition(group.backend, facts, 0)
    assert everything(raw) == before


async def test_a_reader_that_moved_meanwhile_is_not_forgotten(group: Group, raw: Raw) -> None:
    position = ReaderPosition({0: 5}, {0: "L"}, 1)
    await register_reader(group.backend, group.keys, "spark", position)
    facts = await repair.look(group.backend, group.keys, 1)
    moved = ReaderPosition({0: 6}, {0: "L"}, 2)
    await register_reader(group.backend, group.keys, "spark", moved)
    assert not await repair.forget_reader(group.backend, facts, "spark")
    assert await readers.positions(group.backend, group.keys) == {"spark": moved}
    await register_reader(group.backend, group.keys, "spark", position)
    assert await repair.forget_reader(group.backend, facts, "spark")
    assert not raw.exists(group.keys.readers)


async def test_a_forgotten_group_leaves_nothing_behind_and_no_other_group_notices(
    group: Group, raw: Raw
) -> None:
    """The stream keeps its entries, and is trimmed without waiting for it from now on."""
    other = group.other(GroupKeys("shop", "orders", "audit"))
    for each in (group, other):
        await each.register()
        await each.join("w1")
    await group.send(3)
    raw.hset(group.keys.state(0), "a", "1")
    raw.xadd(group.keys.dead(0), {"id": "1-0"})
    raw.set(group.keys.damaged, "x")
    names = [declaration("processor", each, group.keys.stream) for each in ("price", "audit")]
    raw.hset(declared_by(group.keys.app), mapping=dict.fromkeys(names, ""))
    of_others = {key: value for key, value in everything(raw).items() if b"price" not in key}
    of_both = {
        group.keys.events(0).encode(),
        group.keys.groups(0).encode(),
        declared_by(group.keys.app).encode(),
    }
    facts = await repair.look(group.backend, group.keys, 1)
    assert await repair.forget_partition(group.backend, facts, 0)
    assert await repair.forget_group(group.backend, facts)
    assert [key for key in everything(raw) if key.endswith(b":price") or b":price}" in key] == []
    assert [each["name"] for each in raw.xinfo_groups(group.keys.events(0))] == [b"audit"]
    assert raw.xlen(group.keys.events(0)) == 3
    assert raw.hkeys(declared_by(group.keys.app)) == [names[1].encode()]
    left = everything(raw)
    assert raw.hkeys(group.keys.groups(0)) == [b"audit"]
    assert {key: left[key] for key in of_others if key not in of_both} == {
        key: value for key, value in of_others.items() if key not in of_both
    }
    await streams.register(group.backend, group.keys, Placement(1), "earliest")
    assert (await group.lock()).entries == 0
