"""Waiting in a young group before partitions are taken."""

from dataclasses import replace

from msgspec import structs

from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.membership.founding import YOUNG_PAUSES, Founding
from tests.core.workbench import group

PAUSE_MS = 80
BEGUN_MS = 5_000
"""When the oldest member wished to join, by the server's clock."""


def begun(after_ms: int, *ids: str) -> Membership:
    """Return a group as it is so long after it began."""
    whole = group(*ids, generation=BEGUN_MS + after_ms)
    members = tuple(
        structs.replace(each, joined_ms=BEGUN_MS + place) for place, each in enumerate(whole.members)
    )
    return replace(whole, members=members)


def test_who_founds_a_group_takes_nothing_for_a_moment() -> None:
    """What is due then waits; what is due later does not come sooner, and nothing comes of nothing."""
    founding = Founding(PAUSE_MS)
    founding.look(begun(2, "w1"), 100)
    assert founding.is_resting(100, others_wait=False)
    assert founding.not_before_ms(100) == 100 + PAUSE_MS
    assert founding.not_before_ms(900) == 900
    assert founding.not_before_ms(None) is None
    assert founding.is_resting(100 + PAUSE_MS - 1, others_wait=False)
    assert not founding.is_resting(100 + PAUSE_MS, others_wait=False)
    assert founding.not_before_ms(100) == 100


def test_each_change_of_a_young_group_is_waited_after() -> None:
    """The same version, read once more, is no change."""
    founding = Founding(PAUSE_MS)
    founding.look(begun(2, "w1"), 100)
    founding.look(begun(30, "w1", "w2"), 130)
    assert founding.is_resting(130 + PAUSE_MS - 1, others_wait=False)
    founding.look(begun(30, "w1", "w2"), 170)
    assert not founding.is_resting(130 + PAUSE_MS, others_wait=False)


def test_while_others_wait_at_the_door_nothing_is_taken_until_the_group_is_not_young_any_more() -> None:
    """Whoever should let them in may be dead."""
    founding, young_ms = Founding(PAUSE_MS), YOUNG_PAUSES * PAUSE_MS
    founding.look(begun(2, "w1"), 100)
    assert founding.is_resting(100 + young_ms - 2 - 1, others_wait=True)
    assert founding.not_before_ms(0) == 100 + young_ms - 2
    assert not founding.is_resting(100 + young_ms - 2, others_wait=True)


def test_a_group_that_has_been_there_for_a_while_is_not_waited_in_nor_any_without_a_pause() -> None:
    """Its partitions stand still until they are taken. As with ``founding_pause_ms=0``."""
    founding = Founding(PAUSE_MS)
    founding.look(begun(YOUNG_PAUSES * PAUSE_MS, "w1", "w2"), 100)
    assert not founding.is_resting(100, others_wait=True)
    assert founding.not_before_ms(100) == 100
    founding = Founding(0)
    founding.look(begun(0, "w1"), 100)
    assert not founding.is_resting(100, others_wait=True)
