"""Something else in place of a document, heartbeats, loads or the control stream.

A group goes on, says which key it is, and puts the first two in order.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from streamworker.core.control import GroupChanged
from streamworker.core.protocols.lease.events import (
    Challenge,
    ChallengeLeases,
    LeasesChallenged,
    UpdateLeases,
)
from streamworker.core.protocols.membership import events as membership_events
from streamworker.core.protocols.membership.document import FORMATS, Member, Membership
from streamworker.core.protocols.membership.mending import LOOKED_AT_BYTES, fingerprint
from streamworker.errors import BackendRefused
from streamworker.redisio.admin import health, repair
from streamworker.redisio.group import loads, membership
from streamworker.redisio.wire.client import Backend
from tests.contract.support import GROUP, Group, Raw, everything, mending, put, url_of_user

pytestmark = pytest.mark.anyio

Done = membership_events.DocumentChanged

KEPT_BYTES = 65_536
HELD = Member("h.1", "h", "host", 1, 1, "held", static_id="h", held_until_ms=1)
LEAVES = Member("l.1", "l", "host", 1, 1, "leaving")
MEMBERS = (Member("a.1", "a", "host", 1, 1), Member("b.1", "b", "host", 1, 1), LEAVES, HELD)
KNOWN = Membership(10, 2, "range", MEMBERS, ("a.1", "b.1"))


async def changed(group: Group, after: Membership, *, removed: tuple[str, ...] = ()) -> Done:
    """Make a change that a core asks for, of the document that is known."""
    added = tuple(each for each in after.present_ids if each not in KNOWN.present_ids)
    message = GroupChanged(0, "join", "c", ())
    effect = membership_events.ChangeDocument(after.generation, after, message, added, removed)
    done = await group.do(effect)
    assert isinstance(done, Done)
    return done


# -- the document ---------------------------------------------------------------------------------


async def test_a_value_of_another_type_is_put_aside_as_it_is(group: Group, raw: Raw) -> None:
    """The other program finds what it wrote under the other key."""
    put(raw, GROUP.members, "zset")
    read: Any = await group.do(membership_events.ReadDocument())
    assert (read.document, read.foreign) == (None, "zset")
    assert isinstance(await group.do(mending("zset", KNOWN)), Done)
    assert raw.type(GROUP.members) == b"string" and raw.type(GROUP.damaged) == b"zset"


@pytest.mark.parametrize("length", [0, KEPT_BYTES + 1, LOOKED_AT_BYTES + 7])
async def test_what_is_kept_is_bounded_whatever_was_written(group: Group, raw: Raw, length: int) -> None:
    """Python and Lua make the same fingerprint of a value of any length; the last copy is there."""
    raw.rpush(GROUP.damaged, "an older one")
    raw.set(GROUP.members, b"\xff" * length)
    assert isinstance(await group.do(mending(fingerprint(b"\xff" * length), KNOWN)), Done)
    assert raw.get(GROUP.damaged) == b"\xff" * min(length, KEPT_BYTES)


async def test_a_large_value_of_another_type_is_named_and_not_kept(group: Group, raw: Raw) -> None:
    """A megabyte and more would stay for as long as nobody looks."""
    raw.rpush(GROUP.members, *["x" * 10_000] * 200)
    assert isinstance(await group.do(mending("list", KNOWN)), Done)
    assert b"a list of about" in raw.get(GROUP.damaged)  # type: ignore[operator]


async def test_who_is_not_in_the_document_learns_it_from_its_next_heartbeat(group: Group, raw: Raw) -> None:
    """It joined by a change that the writer had not read, and joins again."""
    raw.set(GROUP.members, "x")
    raw.hset(GROUP.beats, mapping={"a.1": "5|6|run|0", "new.1": "5|6|run|0"})
    assert isinstance(await group.do(mending(fingerprint(b"x"), KNOWN)), Done)
    assert [(await group.beat(member)).lost for member in ("a.1", "new.1")] == [False, True]


async def test_the_generation_is_above_the_last_whatever_the_clock_says(group: Group, raw: Raw) -> None:
    raw.set(GROUP.members, "x")
    after = replace(KNOWN, generation=2**52)
    done = await group.do(mending(fingerprint(b"x"), after))
    assert isinstance(done, Done) and done.generation == 2**52 + 1


async def test_a_heartbeat_goes_on_whatever_stands_in_place_of_the_document(group: Group, raw: Raw) -> None:
    """Without a generation; a group of up to three makes the fingerprint at each of them."""
    document = KNOWN.document()
    raw.hset(GROUP.beats, "a.1", "5|6|run|0")
    assert (await group.beat("a.1")).fingerprint == ""
    raw.set(GROUP.members, document)
    reply = await group.beat("a.1")
    assert (reply.generation, reply.fingerprint) == (10, fingerprint(document))
    other = json.dumps({**json.loads(document), "owners": []}, separators=(",", ":"))
    raw.set(GROUP.members, other)
    reply = await group.beat("a.1")
    assert (reply.generation, reply.fingerprint) == (10, fingerprint(other.encode()))
    raw.delete(GROUP.members)
    raw.rpush(GROUP.members, "x")
    reply = await group.beat("a.1")
    assert (reply.lost, reply.generation, reply.fingerprint) == (False, 0, "list")


async def test_the_fingerprint_is_made_by_a_few_members_a_round(group: Group, raw: Raw) -> None:
    """It takes the whole document, which is large where the members are many."""
    members = [f"w{n}.1" for n in range(100)]
    raw.set(GROUP.members, KNOWN.document())
    raw.hset(GROUP.beats, mapping=dict.fromkeys(members, "5|6|run|0"))
    made = [bool((await group.beat(member)).fingerprint) for _ in range(5) for member in members]
    assert 1 <= sum(made) <= 45


# -- heartbeats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FORMATS)
async def test_heartbeats_begin_anew_with_the_members_of_the_document(
    group: Group, raw: Raw, version: int
) -> None:
    """Nobody is lost, who was removed stays so, and what stood there is kept, in each format."""
    known = KNOWN if version == FORMATS[0] else KNOWN.with_active(range(1, KNOWN.partitions + 1))
    assert b'"v":%d,' % version in known.document()
    raw.set(GROUP.members, known.document())
    put(raw, GROUP.beats)
    first = await group.beat("b.1")
    assert (first.lost, first.generation, first.foreign) == (False, 10, GROUP.beats)
    assert first.beats.keys() == {"a.1", "b.1", "l.1"}
    assert (first.beats["b.1"].connection, first.beats["a.1"].connection) == (1, 0)
    assert 0 <= first.beats["b.1"].server_ms - first.beats["a.1"].server_ms <= 1_000
    assert raw.type(GROUP.damaged) == b"list"
    for member, lost in (("a.1", False), ("l.1", False), ("h.1", True), ("gone.1", True)):
        reply = await group.beat(member)
        assert (reply.lost, reply.foreign) == (lost, ""), member


BROKEN = {
    "cut off": KNOWN.document()[:40],
    "of a later release": KNOWN.document().replace(b'"v":%d' % FORMATS[0], b'"v":%d' % (FORMATS[-1] + 1)),
    "members without ids": KNOWN.document().replace(b'"id":"a.1"', b'"id":null'),
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("what", BROKEN)
async def test_nobody_is_lost_where_the_document_cannot_be_read_either(
    group: Group, raw: Raw, what: str
) -> None:
    """Nothing is written; the fingerprint tells of the document, and who mends it mends both."""
    raw.set(GROUP.members, BROKEN[what])
    put(raw, GROUP.beats)
    before = everything(raw)
    for member in ("a.1", "gone.1"):
        reply = await group.beat(member)
        assert (reply.lost, reply.beats, reply.foreign) == (False, {}, GROUP.beats)
        assert reply.fingerprint == fingerprint(BROKEN[what])
    assert everything(raw) == before
    assert isinstance(await group.do(mending(fingerprint(BROKEN[what]), KNOWN)), Done)
    assert raw.type(GROUP.damaged) == b"string"
    assert not (await group.beat("b.1")).lost
    assert (await group.beat("gone.1")).lost


async def test_heartbeats_begin_anew_when_memory_is_full(group: Group, full_memory: Raw) -> None:
    """Something is moved or removed first, and that is allowed."""
    full_memory.set(GROUP.members, KNOWN.document())
    for _ in range(2):
        full_memory.config_set("maxmemory", "1gb")
        put(full_memory, GROUP.beats)
        full_memory.config_set("maxmemory", 1)
        assert (await group.beat("a.1")).beats.keys() == {"a.1", "b.1", "l.1"}


async def test_who_lacks_the_right_changes_nothing_and_names_the_key(
    group: Group, raw: Raw, redis_url: str
) -> None:
    """Rules of an earlier release let nobody put heartbeats aside; the worker's other groups go on."""
    raw.set(GROUP.members, KNOWN.document())
    for kept in (False, True):
        if kept:
            raw.set(GROUP.damaged, "x")
        put(raw, GROUP.beats)
        rules = ("reset", "on", ">secret", "~*", "+@all", "-rename", "-unlink")
        raw.execute_command("ACL", "SETUSER", "narrow", *rules)
        before = everything(raw)
        async with Backend.open(url_of_user(redis_url, "narrow", "secret"), name="narrow") as backend:
            renewal = membership.Renewal(GROUP, "a.1", 1, "run")
            (refused,) = await membership.heartbeat(backend, [renewal])
        assert isinstance(refused, BackendRefused) and GROUP.beats in str(refused)
        assert everything(raw) == before
    raw.execute_command("ACL", "DELUSER", "narrow")


# -- loads and the control stream ------------------------------------------------------------------


async def test_something_else_in_place_of_the_loads_is_named_and_left_alone(group: Group, raw: Raw) -> None:
    """Heartbeats, changes and repairs do without; the balancer sees that nothing was measured."""
    raw.set(GROUP.members, KNOWN.document())
    raw.hset(GROUP.beats, mapping={"a.1": "5|6|run|0", "b.1": "5|6|run|0"})
    put(raw, GROUP.loads)
    for measured in ({0: 7}, None):
        reply = await group.beat("a.1", measured)
        assert (reply.lost, reply.foreign, len(reply.beats)) == (False, GROUP.loads, 2)
    assert (await loads.read_loads(group.backend, GROUP)).loads == {}
    await changed(group, KNOWN.without(["b.1"]), removed=("b.1",))
    facts = await repair.look(group.backend, GROUP, 2)
    assert await repair.remove_members(group.backend, facts, ["a.1"])
    raw.set(GROUP.members, "x")
    assert isinstance(await group.do(mending(fingerprint(b"x"), KNOWN)), Done)
    assert raw.type(GROUP.loads) == b"list"
    raw.delete(GROUP.loads)
    assert (await group.beat("a.1", {0: 7})).foreign == ""
    assert (await loads.read_loads(group.backend, GROUP)).loads == {"a.1": {0: 7}}


async def test_a_group_changes_without_a_control_stream(group: Group, raw: Raw) -> None:
    """Heartbeats say that there is another generation, and mending and repair do without it too."""
    raw.set(GROUP.members, KNOWN.document())
    raw.hset(GROUP.beats, mapping={"a.1": "5|6|run|0", "b.1": "5|6|run|0"})
    raw.set(GROUP.control, "mine")
    done = await changed(group, KNOWN.without(["b.1"]), removed=("b.1",))
    assert (await group.beat("a.1")).generation == done.generation
    assert await repair.remove_members(group.backend, await repair.look(group.backend, GROUP, 2), ["a.1"])
    raw.set(GROUP.members, "x")
    assert isinstance(await group.do(mending(fingerprint(b"x"), KNOWN)), Done)
    assert raw.get(GROUP.control) == b"mine"
    assert await health.wrong_types(group.backend, {GROUP.control: "stream"}) == {GROUP.control: "string"}
    raw.delete(GROUP.control)
    assert await health.wrong_types(group.backend, {GROUP.control: "stream"}) == {}


async def test_a_group_changes_where_nothing_fits_behind_a_message(group: Group, raw: Raw) -> None:
    """Somebody wrote a message with the highest id. A message is a hint: the change is made without it."""
    raw.set(GROUP.members, KNOWN.document())
    raw.xadd(GROUP.control, {"kind": "x"}, id=f"{2**64 - 1}-{2**64 - 1}")
    done = await changed(group, KNOWN.without(["b.1"]), removed=("b.1",))
    assert (await group.beat("a.1")).generation == done.generation


async def test_leases_change_hands_without_a_control_stream(group: Group, raw: Raw) -> None:
    """A message may be missed at any time."""
    raw.set(GROUP.control, "mine")

    challenged = await group.do(ChallengeLeases("a.1", {0: Challenge.FREE}))
    assert isinstance(challenged, LeasesChallenged)
    await group.do(UpdateLeases("a.1", {0: 5}, (), {}))
    assert raw.hget(GROUP.of_group("allocation"), "0") == b"5|a.1"
    await group.do(UpdateLeases("a.1", {}, (0,), {}))
    assert not raw.exists(GROUP.of_group("allocation"))
    assert raw.get(GROUP.control) == b"mine"
