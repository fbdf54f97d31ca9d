"""Letting in together who joins at once."""

import pytest
from msgspec import structs

from streamworker.core.protocols.membership.document import Member
from streamworker.core.protocols.membership.joining import (
    GATHER_MAX_MS,
    GATHER_MS,
    PATIENCE_MS,
    Applicant,
    Door,
    JoinWanted,
)
from tests.core.workbench import group

PACE_MS = 500
ASKED_MS = 6_950
"""When they asked, by the server's clock."""


def applicant(name: str, *former: str, static_id: str = "") -> Applicant:
    member = Member(f"{name}.1", name, "host", 1, ASKED_MS, capacity=2, static_id=static_id)
    return Applicant(**structs.asdict(member), strategy="range", former=former)


def test_who_wants_in_is_read_as_it_was_written() -> None:
    """With its capacity, its assignment and what it was before."""
    assert Applicant.read(applicant("w9", "w9.0").message()) == applicant("w9", "w9.0")


def test_a_message_that_cannot_be_read_or_is_of_a_static_member_lets_nobody_in() -> None:
    """It joins by itself. A static member may find its seat taken, and must hear that itself."""
    door = Door(PACE_MS, lambda most: most)
    whole = applicant("w9").message().applicant
    endless = whole.replace('"pid":1', '"pid":Infinity')
    of_a_later_release = whole.replace('"strategy":"range"', '"strategy":"by-rack"')
    assert endless != whole != of_a_later_release
    for text in ("", "[]", "{}", "null", '{"id":"a","former":3}', endless, of_a_later_release):
        door.heard(JoinWanted("w9", text), 0)
    door.heard(applicant("w2", static_id="pod-2").message(), 0)
    assert door.next_deadline_ms(is_in=True) is None


def test_all_who_ask_within_a_moment_are_let_in_by_one_change() -> None:
    """Each with its share, and dated by the server's clock; who was removed is not there twice."""
    door, now = Door(PACE_MS, lambda most: most), group("w1.1", "w3.0", generation=5)
    door.look(now, "w1.1")
    door.heard(applicant("w2").message(), 100)
    door.heard(applicant("w3", "w3.0").message(), 130)
    assert door.others_wait
    assert door.let_in(now, 130 + GATHER_MS - 1, 7_000) is None
    change = door.let_in(now, 130 + GATHER_MS, 7_000)
    assert change is not None
    cause, names, after = change
    assert (cause, names, after.ids) == ("join", "w2 w3", ("w1.1", "w2.1", "w3.1"))
    assert {member.joined_ms for member in after.members[1:]} == {7_000}
    assert after.members[1].capacity == 2
    assert sorted(len(after.owned_by(each)) for each in after.ids) == [2, 3, 3]


def test_those_who_come_one_after_another_are_not_gathered_for_ever() -> None:
    """And who asks twice, since it heard nothing, does not keep the others waiting."""
    door, now = Door(PACE_MS, lambda most: most), group("w1.1", generation=5)
    door.look(now, "w1.1")
    for number, at_ms in enumerate(range(0, GATHER_MAX_MS, GATHER_MS - 1)):
        assert door.let_in(now, at_ms, 7_000) is None
        door.heard(applicant(f"w{number + 2}").message(), at_ms)
    assert door.next_deadline_ms(is_in=True) == GATHER_MAX_MS
    assert door.let_in(now, GATHER_MAX_MS, 7_000) is not None
    assert not door.others_wait
    for at_ms in (0, 10, 20):
        door.heard(applicant("w9").message(), 1_000 + at_ms)
    assert door.next_deadline_ms(is_in=True) == 1_000 + GATHER_MS


def test_the_next_in_join_order_lets_in_what_the_first_did_not() -> None:
    """The first may be dead, and nobody knows yet."""
    door, now = Door(PACE_MS, lambda most: most), group("w1.1", "w2.1", generation=5)
    door.look(now, "w2.1")
    door.heard(applicant("w3").message(), 0)
    assert door.next_deadline_ms(is_in=True) == GATHER_MS + PACE_MS
    door.look(group("w1.1", "w2.1", "w3.1", generation=6), "w2.1")
    assert door.next_deadline_ms(is_in=True) is None, "somebody else did it"


@pytest.mark.parametrize(
    "at_ms, server_ms",
    [(PATIENCE_MS, 7_000), (GATHER_MS, ASKED_MS + 2 * PATIENCE_MS + 1)],
    ids=["it has given up waiting", "it was heard long after it was said"],
)
def test_nobody_is_let_in_whose_wish_is_old(at_ms: int, server_ms: int) -> None:
    """A member that slept must not bring back who joined by itself and left, or has another id by now."""
    door, now = Door(PACE_MS, lambda most: most), group("w1.1", generation=5)
    door.look(now, "w1.1")
    door.heard(applicant("w2").message(), 0)
    assert door.let_in(now, at_ms, server_ms) is None
    assert door.next_deadline_ms(is_in=True) is None
