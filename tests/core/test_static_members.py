"""Static members as one worker sees them: returning to a seat, keeping and removing those of others."""

from dataclasses import replace

import pytest
from msgspec import structs

from streamworker.core import events as ev
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.setup import Phase
from streamworker.errors import ConfigurationError
from tests.core.workbench import ME, TIMING, Bench, change, names, stored

READ_MS = 5_000
"""The server's time when the bench's documents are read."""


def group(*members: Member) -> Membership:
    membership = Membership.empty(8, "range")
    for member in members:
        membership = membership.with_member(member)
    return replace(membership, generation=10)


def member(member_id: str, static_id: str = "") -> Member:
    return Member(member_id, member_id.partition(".")[0], "host", 1, 0, static_id=static_id)


def running(*others: Member, static_id: str = "one") -> Bench:
    """Return a worker that is the first member of this group and runs what it is assigned."""
    return Bench.member_of(group(member(ME, static_id), *others), static_id=static_id)


@pytest.mark.parametrize("noticed", [True, False], ids=["held", "death not noticed yet"])
def test_a_worker_that_returns_takes_its_seat_and_its_partitions(noticed: bool) -> None:
    """Also before anybody has noticed that its former self died; its heartbeats end with that."""
    before = group(member("w1.0", "one"), member("w2.0"))
    if noticed:
        before = before.with_gone(["w1.0"], READ_MS + 1)
    bench = Bench.started(static_id="one")
    asked = change(bench.read(before))
    assert asked.message.cause == "return" and asked.message.moved == ()
    assert asked.membership.ids == (ME, "w2.0")
    assert asked.membership.owned_by(ME) == before.owned_by("w1.0")
    assert (asked.added, asked.removed) == ((ME,), () if noticed else ("w1.0",))


def test_a_static_member_leaves_its_seat_behind() -> None:
    """Drained and released as ever; what it had is parked until the hold is over."""
    bench = running(member("w2.0"))
    stopping = bench.send(ev.StopRequested())
    assert change(stopping).message.moved == ()
    left = change(bench.stop_runners(stopping) + bench.send(calls.DocumentChanged(11)))
    seat = left.membership.get(ME)
    assert left.message.cause == "left" and left.message.moved == ()
    assert seat is not None
    assert (seat.state, seat.held_until_ms) == ("held", READ_MS + TIMING.hold_ms)
    assert (left.removed, left.membership.owned_by(ME)) == ((ME,), frozenset(range(4)))
    assert "Finished" in names(bench.send(calls.DocumentChanged(12)))


def test_a_static_worker_that_was_thought_dead_comes_back_to_its_seat_under_a_new_name() -> None:
    """Its locks are those of its former self, which nobody else has been given."""
    bench = running(member("w2.0"))
    bench.heartbeat(lost=True)
    held = group(member(ME, "one"), member("w2.0")).with_gone([ME], 60_000)
    asked = change(bench.read(replace(held, generation=11)))
    assert asked.message.cause == "return"
    assert asked.membership.ids == ("w1.2", "w2.0")


def test_a_worker_whose_static_id_was_taken_by_another_ends_and_names_it() -> None:
    """Else the two would take the seat from each other for ever."""
    bench = running()
    taken = replace(group(structs.replace(member("w9.0"), static_id="one")), generation=11)
    bench.changed(11)
    dropped = bench.read(taken)
    assert names(dropped).count("DropRunner") == 8
    with pytest.raises(ConfigurationError, match=r"'w9'.*'one'.*of its own"):
        bench.send(calls.DocumentRead(stored(taken), READ_MS))
    assert bench.core.phase is Phase.JOINING
