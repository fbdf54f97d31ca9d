"""Whose turn it is: what may have killed a process is run while nothing else of the process is."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.ownership.risks import TURN_MAX_MS, Turns


@dataclass(eq=False)
class Partition:
    """A partition of the process, and what it does."""

    number: int
    is_suspect: bool = False
    is_at_risk: bool = False
    takes_alone: bool = False


@given(
    st.lists(st.booleans(), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(("start", "stop", "leave"))), max_size=60),
)
def test_while_a_suspect_is_run_nothing_else_of_the_process_is(
    suspects: list[bool], steps: list[tuple[int, str]]
) -> None:
    """In whichever order they ask and end; and when all have ended, each can start."""
    turns = Turns()
    partitions = [Partition(n, is_suspect) for n, is_suspect in enumerate(suspects)]
    for each in partitions:
        turns.join(each)
    for number, step in steps:
        it = partitions[number % len(partitions)]
        if step == "start" and not it.is_at_risk:
            it.is_at_risk = turns.ask(it, 0) if it.is_suspect else turns.may_start(it, 0)
        elif step == "stop" and it.is_at_risk:
            it.is_at_risk = False
            turns.end(it, 0)
        elif step == "leave":
            it.is_at_risk = False
            turns.leave(it, 0)
            turns.join(it)
        running = [each for each in partitions if each.is_at_risk]
        assert len(running) <= 1 or not any(each.is_suspect for each in running)
    for it in partitions:
        it.is_at_risk = False
        turns.end(it, 0)
    for it in partitions:
        assert turns.ask(it, 0) if it.is_suspect else turns.may_start(it, 0)
        turns.end(it, 0)


def test_a_turn_that_takes_long_holds_up_nobody_for_longer_than_a_minute() -> None:
    """A call may take hours."""
    turns, slow, other, calm = Turns(), Partition(0), Partition(1), Partition(2)
    for each in (slow, other, calm):
        turns.join(each)
    assert turns.ask(slow, 0)
    slow.is_at_risk = True
    assert not turns.ask(other, 0) and not turns.may_start(calm, TURN_MAX_MS)
    assert turns.may_start(calm, TURN_MAX_MS + 1) and turns.ask(other, TURN_MAX_MS + 1)


def test_a_turn_begins_when_the_calls_that_run_have_ended() -> None:
    """One that waits for its turn does not run, whatever it seems to do."""
    turns, suspect, busy, waits = Turns(), Partition(0), Partition(1), Partition(2)
    for each in (suspect, busy, waits):
        turns.join(each)
    busy.is_at_risk = waits.is_at_risk = True
    assert not turns.ask(suspect, 0) and not turns.ask(waits, 0)
    busy.is_at_risk = False
    assert turns.ask(suspect, 0) and not turns.ask(waits, 0)
