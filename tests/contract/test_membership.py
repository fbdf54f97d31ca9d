"""The membership document, heartbeats and control messages."""

from collections.abc import Sequence
from typing import Any

import pytest

from streamworker.core.control import GroupChanged
from streamworker.core.data.entries import ZERO
from streamworker.core.events import Event
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.membership.events import (
    ChangeDocument,
    ChangeRefused,
    DocumentChanged,
    HeartbeatDone,
)
from streamworker.redisio.group import control, loads, membership
from streamworker.redisio.group.membership import Renewal
from streamworker.redisio.keys import GroupKeys
from tests.contract.support import GROUP, OTHER_GROUP, Group, Raw

pytestmark = pytest.mark.anyio

DOCUMENT = Membership.empty(1, "range")
MESSAGE = GroupChanged(0, "join", "a", (0, 1))


async def change(
    group: Group, expected: int, *, added: Sequence[str] = (), removed: Sequence[str] = (), at_least: int = 0
) -> Event:
    return await group.do(ChangeDocument(expected, DOCUMENT, MESSAGE, tuple(added), tuple(removed), at_least))


async def changed(group: Group, expected: int, **more: Any) -> DocumentChanged:
    reply = await change(group, expected, **more)
    assert isinstance(reply, DocumentChanged)
    return reply


async def test_a_generation_is_not_below_what_a_lock_knows(group: Group) -> None:
    """The server's clock was ahead when the lock was taken, and is right again."""
    first = await changed(group, 0)
    ahead = first.generation + 600_000
    assert (await changed(group, first.generation, at_least=ahead)).generation == ahead
    assert (await changed(group, ahead)).generation == ahead + 1


async def beat(group: Group, *beats: tuple[GroupKeys, str, int, str, int]) -> list[HeartbeatDone]:
    replies = await membership.heartbeat(group.backend, [Renewal(*each) for each in beats])
    answered = [reply for reply in replies if isinstance(reply, HeartbeatDone)]
    assert len(answered) == len(beats), replies
    return answered


async def test_heartbeats_of_a_document_that_was_deleted_do_not_outlive_it(group: Group, raw: Raw) -> None:
    """Nobody would take them away: who sent them is no member, and comes back under another id."""
    await change(group, 0, added=["a.1", "b.1"])
    raw.hset(GROUP.loads, "b.1", "0:5")
    raw.delete(GROUP.members)
    await change(group, 0, added=["a.2"])
    assert raw.hkeys(GROUP.beats) == [b"a.2"]
    assert not raw.exists(GROUP.loads)
    (reply,) = await beat(group, (GROUP, "b.1", 8, "run", 0))
    assert reply.lost


@pytest.mark.parametrize("document", ["", "[]", "garbage", '{"v":1}', ' {"generation":5,"v":1}'])
async def test_a_document_of_somebody_else_is_not_overwritten(group: Group, raw: Raw, document: str) -> None:
    """Whoever reads it says so; no worker takes it for an empty group."""
    raw.set(GROUP.members, document)
    reply = await change(group, 0)
    assert isinstance(reply, ChangeRefused)
    assert reply.document == document.encode()
    assert raw.get(GROUP.members) == document.encode()


async def test_a_heartbeat_carries_what_was_measured_and_only_who_asks_reads_it(
    group: Group, raw: Raw
) -> None:
    """A measurement stands until the next one, and goes when its member does."""
    first = await changed(group, 0, added=["a.1", "b.1"])
    a = Renewal(GROUP, "a.1", 5, "run", 420, {3: 300, 0: 120})
    await membership.heartbeat(group.backend, [a, Renewal(GROUP, "b.1", 6, "run", 0, {})])
    (reply,) = await beat(group, (GROUP, "a.1", 5, "run", 420))
    assert reply.beats["a.1"].load == 420
    found = await loads.read_loads(group.backend, GROUP)
    assert found.loads == {"a.1": {0: 120, 3: 300}, "b.1": {}}
    assert found.server_ms >= reply.beats["a.1"].server_ms
    await change(group, first.generation, removed=["a.1"])
    await membership.heartbeat(group.backend, [a])
    assert (await loads.read_loads(group.backend, GROUP)).loads == {"b.1": {}}
    raw.hset(GROUP.loads, mapping={"x": "nonsense", "y": "1:2,", "z": b"\xff", "": "3:4:5"})
    assert (await loads.read_loads(group.backend, GROUP)).loads == {"b.1": {}}


async def test_a_broken_key_of_one_group_holds_up_no_heartbeat_of_another(group: Group, raw: Raw) -> None:
    """The worker's other processors go on, and the answer names the key."""
    await change(group, 0, added=["a.1"])
    raw.set(OTHER_GROUP.members, "mine")
    raw.lpush(OTHER_GROUP.beats, "mine")
    calls = [Renewal(OTHER_GROUP, "a.2", 5, "run"), Renewal(GROUP, "a.1", 5, "run")]
    theirs, ours = await membership.heartbeat(group.backend, calls)
    assert isinstance(theirs, HeartbeatDone)
    assert (theirs.foreign, theirs.beats) == (OTHER_GROUP.beats, {})
    assert isinstance(ours, HeartbeatDone)
    assert not ours.lost


async def test_a_beat_that_is_not_ours_is_ignored(group: Group, raw: Raw) -> None:
    await change(group, 0, added=["a.1"])
    raw.hset(GROUP.beats, mapping={"x": "nonsense", "y": "1|2|3|z", "z": b"\xff"})
    (reply,) = await beat(group, (GROUP, "a.1", 5, "run", 0))
    assert sorted(reply.beats) == ["a.1"]


@pytest.mark.one_server  # two groups by one read; on a Cluster each has a read of its own
async def test_messages_are_posted_and_waited_for(group: Group, raw: Raw) -> None:
    """A listener starts at the newest, or at the start, and gets those of all its groups, oldest first."""
    await control.post(group.backend, GROUP, [{"kind": "old"}])
    positions = {keys: await control.newest_id(group.backend, keys.control) for keys in (GROUP, OTHER_GROUP)}
    assert positions[GROUP] > positions[OTHER_GROUP] == ZERO
    connection = group.backend.blocking()
    assert await control.read_control(connection, positions, 5) == []
    await control.post(group.backend, GROUP, [{"kind": "one", "n": "1"}, {"kind": "two"}])
    await control.post(group.backend, OTHER_GROUP, [{"kind": "three"}])
    got = await control.read_control(connection, positions, 1_000)
    assert sorted((key, fields["kind"]) for key, _, fields in got) == sorted(
        [(GROUP.control, "one"), (GROUP.control, "two"), (OTHER_GROUP.control, "three")]
    )
    await connection.aclose()


async def test_the_control_stream_does_not_grow_for_ever(
    group: Group, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MESSAGES_MAX", 150)
    await control.post(group.backend, GROUP, [{"kind": "x"}] * 1_000)
    assert raw.xlen(GROUP.control) <= 250
