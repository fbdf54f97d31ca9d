"""What the simulator makes of documents: over damage, before there is one, and of a later release."""

import pytest

from tests.simulator.faults import Fault, FaultKind
from tests.simulator.server.damage import DAMAGES, LATER, LATER_FROM
from tests.simulator.simulation import Schedule, run
from tests.simulator.transcript import Transcript


def damage(at_ms: int, how: str) -> Fault:
    """Return the fault that does this to the document, and nothing to the keys beside it."""
    return Fault(at_ms, FaultKind.DAMAGE, LATER_FROM if how == LATER else tuple(DAMAGES).index(how))


def noted(*plan: Fault) -> list[str]:
    """Run a schedule; return what it notes of the document, after it came to rest without a fault."""
    trace = Transcript()
    outcome = run(Schedule(seed=1, workers=3, partitions=4, plan=plan), trace=trace)
    assert outcome.violations == () and outcome.settled_ms is not None
    return [line.split("(")[1].rstrip(")") for line in trace.lines if "document" in line and "  (" in line]


KINDS = ("is of another type", "has no owners", LATER)
"""A value that is no text, a text that can be read in part, and one that nobody touches."""


@pytest.mark.parametrize("how", KINDS)
def test_damage_before_there_is_a_document_is_put_aside(how: str) -> None:
    """Nobody knows the group yet, and it begins as if nothing had been there."""
    assert len(noted(damage(0, how))) == 1


@pytest.mark.parametrize("how", KINDS)
def test_damage_on_top_of_damage_is_mended(how: str) -> None:
    """The second comes before the first is repaired, whether there is something to read in it or not."""
    assert len(noted(damage(4_000, "is other JSON"), damage(4_010, how))) == 2
    assert len(noted(damage(4_000, how), damage(4_010, "is empty"))) == 2


def test_a_document_of_a_later_release_is_there_until_it_is_taken_away() -> None:
    """Workers leave it alone, whoever comes or dies meanwhile; then they go on with what was there."""
    plan = (damage(4_000, LATER), Fault(5_000, FaultKind.START, 0), Fault(6_000, FaultKind.KILL, 0))
    away = "the document of a later release is taken away again"
    assert noted(*plan) == [f"the membership document {LATER}", away]
    twice = [damage(at_ms, how) for at_ms, how in ((4_000, LATER), (5_000, "has no owners"), (6_000, LATER))]
    assert [line == away for line in noted(*twice)] == [False, False, False, True]
