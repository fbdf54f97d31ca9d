"""What somebody wrote in place of a membership document: put aside, and a document in its place."""

import json
from dataclasses import replace
from typing import Any

import pytest

from streamworker.core.protocols.membership import events as membership_events
from streamworker.core.protocols.membership.assignment import STRATEGIES
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.membership.mending import LOOKED_AT_BYTES, fingerprint
from tests.contract.support import GROUP, OTHER_TYPES, Group, Raw, mending, put

pytestmark = pytest.mark.anyio

KEPT_BYTES = 65_536


def known(*ids: str) -> Membership:
    members = tuple(Member(each, each.partition(".")[0], "host", 1, 1) for each in ids)
    owners = STRATEGIES["range"](ids, 4, ())
    return replace(Membership.empty(4, "range"), generation=10, members=members, owners=owners)


async def repaired(group: Group, seen: str, after: Membership) -> membership_events.DocumentChanged:
    done = await group.do(mending(seen, after))
    assert isinstance(done, membership_events.DocumentChanged)
    return done


@pytest.mark.parametrize("kind", sorted(OTHER_TYPES.keys() - {"string"}))
async def test_a_value_of_another_type_is_put_aside_as_it_is(group: Group, raw: Raw, kind: str) -> None:
    """The other program finds what it wrote under the other key."""
    put(raw, GROUP.members, kind)
    read: Any = await group.do(membership_events.ReadDocument())
    assert (read.document, read.foreign) == (None, kind)
    await repaired(group, kind, known("a.1"))
    assert raw.type(GROUP.members) == b"string" and raw.type(GROUP.damaged) == kind.encode()


@pytest.mark.parametrize("length", [0, 1, KEPT_BYTES, KEPT_BYTES + 1, LOOKED_AT_BYTES, LOOKED_AT_BYTES + 7])
async def test_what_is_kept_is_bounded_whatever_was_written(group: Group, raw: Raw, length: int) -> None:
    """Python and Lua make the same fingerprint of a value of any length; the last copy is there."""
    raw.rpush(GROUP.damaged, "an older one")
    raw.set(GROUP.members, b"\xff" * length)
    await repaired(group, fingerprint(b"\xff" * length), known("a.1"))
    assert raw.get(GROUP.damaged) == b"\xff" * min(length, KEPT_BYTES)


async def test_a_large_value_of_another_type_is_named_and_not_kept(group: Group, raw: Raw) -> None:
    """A megabyte and more would stay for as long as nobody looks."""
    raw.rpush(GROUP.members, *["x" * 10_000] * 200)
    assert isinstance(await group.do(mending("list", known("a.1"))), membership_events.DocumentChanged)
    assert b"a list of about" in raw.get(GROUP.damaged)  # type: ignore[operator]


async def test_the_generation_is_above_the_last_whatever_the_clock_says(group: Group, raw: Raw) -> None:
    raw.set(GROUP.members, "x")
    after = replace(known("a.1"), generation=2**52)
    done = await group.do(mending(fingerprint(b"x"), after))
    assert isinstance(done, membership_events.DocumentChanged) and done.generation == 2**52 + 1


async def test_a_heartbeat_goes_on_whatever_stands_in_place_of_the_document(group: Group, raw: Raw) -> None:
    """Without a generation; a group of up to three makes the fingerprint at each of them."""
    document = known("a.1").document()
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
    assert (reply.lost, reply.generation, reply.fingerprint) == (False, None, "list")


async def test_the_fingerprint_is_made_by_a_few_members_a_round(group: Group, raw: Raw) -> None:
    """It takes the whole document, which is large where the members are many."""
    members = [f"w{n}.1" for n in range(100)]
    raw.set(GROUP.members, known("a.1").document())
    raw.hset(GROUP.beats, mapping=dict.fromkeys(members, "5|6|run|0"))
    made = [bool((await group.beat(member)).fingerprint) for _ in range(5) for member in members]
    assert 1 <= sum(made) <= 45
