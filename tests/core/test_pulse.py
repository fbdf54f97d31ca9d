"""Whether our own heartbeats get through."""

from streamworker.core.events import Note, PauseBatches, ResumeBatches
from streamworker.core.ownership.pulse import Pulse

LIMIT_MS = 2_000
LATE = [PauseBatches(), Note("heartbeats_late", {"member": "w1.1"})]


def started() -> Pulse:
    """Return a pulse whose member joined at 0."""
    pulse = Pulse("w1.1", LIMIT_MS)
    pulse.start(0)
    return pulse


def test_who_is_no_member_is_never_late() -> None:
    """There is nothing to lose yet."""
    pulse = Pulse("w1.1", LIMIT_MS)
    assert not pulse.is_started
    assert pulse.next_deadline_ms() is None
    assert pulse.check(60_000) == []


def test_joining_counts_as_a_heartbeat_and_being_late_is_said_once() -> None:
    """The first one has the whole time to get through; then there is no deadline to wake for."""
    pulse = started()
    assert pulse.next_deadline_ms() == LIMIT_MS
    assert pulse.check(LIMIT_MS - 1) == []
    assert pulse.check(LIMIT_MS) == LATE
    assert pulse.check(60_000) == []
    assert pulse.next_deadline_ms() is None


def test_a_heartbeat_moves_the_deadline_by_when_it_was_sent() -> None:
    """Not by when its answer came."""
    pulse = started()
    assert pulse.renewed(1_000, 1_900) == []
    assert pulse.next_deadline_ms() == 1_000 + LIMIT_MS


def test_only_a_fresh_heartbeat_lets_batches_start_again() -> None:
    """One that was on its way for the whole time proves nothing about now."""
    pulse = started()
    pulse.check(LIMIT_MS)
    assert pulse.renewed(3_000, 3_000 + LIMIT_MS) == []
    assert pulse.renewed(3_001, 3_000 + LIMIT_MS) == [ResumeBatches()]
    assert pulse.renewed(3_002, 3_003) == []


def test_the_end_of_a_membership_ends_the_pause() -> None:
    """The next membership begins with a clean slate."""
    pulse = started()
    assert pulse.end() == []
    pulse.check(LIMIT_MS)
    assert pulse.end() == [ResumeBatches()]
