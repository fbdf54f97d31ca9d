"""What a worker does with a membership document that something else wrote over."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core import events as ev
from streamworker.core.control import GroupChanged
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.membership.mending import (
    PAUSE_MS,
    STRANGER_BEATS,
    fingerprint,
)
from streamworker.core.protocols.membership.mending import is_of_later_release as is_later
from streamworker.errors import CoordinationError
from tests.core.workbench import ME, TIMING, Bench, group, names, of_type, stored
from tests.simulator.server.damage import DAMAGES

LATER = b'{"generation":11,"v":3,"shards":[]}'
UNANSWERED = ev.Unanswered(calls.ReadDocument())


def mends(effects: list[ev.Effect]) -> calls.MendDocument:
    (found,) = of_type(effects, calls.MendDocument)
    return found


def shown(bench: Bench, document: bytes) -> list[ev.Effect]:
    bench.heartbeat(generation=0)
    return bench.send(calls.DocumentRead(document, 5_000))


# -- what is damage -------------------------------------------------------------------------------


@pytest.mark.parametrize("what", sorted(set(DAMAGES) - {"is of another type", "gives all to the last"}))
def test_no_kind_of_damage_can_be_read_or_is_taken_for_a_later_release(what: str) -> None:
    """Whatever is not exactly what a group writes."""
    after = DAMAGES[what](stored(group("a.1", "b.1")))
    assert after is not None and not is_later(after)
    with pytest.raises(CoordinationError) as caught:
        Membership.parse(after)
    assert caught.value.remedy


@given(st.binary() | st.text().map(str.encode))
def test_what_is_no_json_is_never_of_a_later_release(document: bytes) -> None:
    """And the question never fails."""
    assert not is_later(document)


@pytest.mark.parametrize(
    "v, expected", [(3, True), (99, True), (2, False), (1, False), (0, False), ("3", False)]
)
def test_a_later_release_is_known_by_its_greater_format(v: object, expected: bool) -> None:
    """Whatever else it says; true and 2.0 are no whole numbers."""
    assert is_later(b'{"generation":7,"v":%s,"x":[1]}' % json.dumps(v).encode()) is expected
    assert not is_later(b'{"v":9,"generation":7}')
    assert not is_later(b"[" * 100_000)


# -- who puts it right, and when -------------------------------------------------------------------


def test_a_member_writes_the_document_anew_as_it_was_known() -> None:
    """After a pause: nothing of what it has stops or moves."""
    bench = Bench.running(ME, "w2.1")
    (note,) = shown(bench, b"[]")
    assert isinstance(note, ev.Note) and note.event == "membership_unreadable"
    assert names(bench.wait(PAUSE_MS - 1)) == []
    asked = mends(bench.wait(1))
    assert asked.seen == fingerprint(b"[]")
    assert asked.membership == group(ME, "w2.1")
    assert asked.message == GroupChanged(0, "repaired", "w1", ())
    assert asked.at_least == 11
    assert bench.send(calls.DocumentChanged(5_001)) == []
    assert bench.core.membership.generation == 5_001
    assert bench.core.member == ME


def test_who_hears_of_a_change_looks_again_before_it_repairs() -> None:
    """Another member was first."""
    bench = Bench.running("w2.1", "w3.1", ME)
    shown(bench, b"")
    assert names(bench.wait(PAUSE_MS - 1)) == []
    assert names(bench.changed(5_001, "repaired")) == ["ReadDocument"]
    assert names(bench.read(group("w2.1", "w3.1", ME, generation=5_001))) == []
    assert of_type(bench.wait(TIMING.heartbeat_interval_ms), calls.MendDocument) == []


def test_who_is_no_member_and_has_read_a_version_writes_that_one() -> None:
    """It wanted to join, and the members died since: the group goes on from what it was."""
    bench = Bench.started()
    assert names(bench.read(group("w2.1", "w3.1"))) == ["ChangeDocument"]
    bench.send(calls.ChangeRefused(b"{}", 5_000))
    assert names(bench.wait(STRANGER_BEATS * TIMING.heartbeat_interval_ms - 1)) == []
    known = mends(bench.wait(TIMING.heartbeat_interval_ms)).membership
    assert (known.generation, known.ids) == (10, ("w2.1", "w3.1"))


def test_a_value_of_another_type_is_damage_too() -> None:
    """It has no bytes that could be read."""
    bench = Bench.running(ME)
    bench.heartbeat(generation=0)
    bench.send(calls.DocumentRead(None, 5_000, "hash"))
    assert mends(bench.wait(PAUSE_MS)).seen == "hash"
    assert names(bench.send(calls.ChangeRefused(None, 5_000, "list"))) == []
    assert mends(bench.wait(PAUSE_MS)).seen == "list"


def test_a_document_of_a_later_release_is_never_put_aside() -> None:
    """By a member, and by who would be one."""
    bench = Bench.running(ME)
    shown(bench, LATER)
    for _ in range(5):
        bench.heartbeat(generation=11)
        assert names(bench.wait(TIMING.heartbeat_interval_ms)) == ["ReadDocument"]
        bench.send(calls.DocumentRead(LATER, 5_000))
    bench = Bench.started()
    for _ in range(5):
        bench.send(calls.DocumentRead(LATER, 5_000))
        assert names(bench.wait(TIMING.heartbeat_interval_ms)) == ["ReadDocument"]


def test_what_cannot_be_put_right_is_tried_at_the_pace_of_heartbeats() -> None:
    """A user may lack the rights for it."""
    bench = Bench.running(ME)
    shown(bench, b"[]")
    mends(bench.wait(PAUSE_MS))
    for _ in range(10):
        effects = bench.send(UNANSWERED)
        effects += bench.wait(TIMING.acquire_retry_ms)
        assert names(effects) == ["ReadDocument"]
        bench.send(calls.DocumentRead(b"[]", 5_000))
        bench.heartbeat(generation=0)
        rest_ms = TIMING.heartbeat_interval_ms - TIMING.acquire_retry_ms
        assert names(bench.wait(rest_ms - 1)) == []
        mends(bench.wait(1))


def test_who_leaves_puts_it_right_first() -> None:
    """Nobody else may be there to do it."""
    bench = Bench.running(ME)
    bench.send(ev.StopRequested())
    bench.send(calls.ChangeRefused(b"[]", 5_000))
    after = mends(bench.wait(PAUSE_MS)).membership
    assert after.active_ids == (ME,)
    (leaves,) = of_type(bench.send(calls.DocumentChanged(5_001)), calls.ChangeDocument)
    assert leaves.message.cause == "leave"


# -- damage that leaves the generation as it is -----------------------------------------------------


def test_a_document_that_we_wrote_ourselves_has_a_fingerprint_as_well() -> None:
    """It was never read."""
    bench = Bench.started()
    (made,) = of_type(bench.read(None), calls.ChangeDocument)
    bench.grant(bench.send(calls.DocumentChanged(5_000)))
    document = b'{"generation":5000,' + made.membership.body()[1:].encode()
    assert "ReadDocument" not in names(bench.heartbeat(fingerprint=fingerprint(document)))
    assert "ReadDocument" in names(bench.heartbeat(fingerprint=fingerprint(document + b" ")))


def test_another_assignment_of_the_same_generation_is_damage() -> None:
    """It could be read; but each change has a generation of its own, and only one of us would act on it."""
    bench = Bench.running(ME, "w2.1")
    (note,) = shown(bench, stored(group("w2.1", ME)))
    assert isinstance(note, ev.Note)
    assert mends(bench.wait(PAUSE_MS)).membership == group(ME, "w2.1")
