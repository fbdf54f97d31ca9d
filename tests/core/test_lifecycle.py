"""The table of one partition's life."""

import pytest

from streamworker.core.ownership.lifecycle import HANDLING, TRANSITIONS, State, Trigger, as_table, step
from streamworker.errors import InternalError

LEGAL = [(state, trigger, after) for state, row in TRANSITIONS.items() for trigger, after in row.items()]
ILLEGAL = [(s, t) for s in State for t in Trigger if t not in TRANSITIONS[s]]


def reachable(start: State) -> set[State]:
    found, todo = {start}, [start]
    while todo:
        news = set(TRANSITIONS[todo.pop()].values()) - found
        found |= news
        todo += news
    return found


def test_every_state_can_be_reached_and_left_for_idle_and_every_trigger_means_something() -> None:
    """No row is missing, no state or trigger is dead text, and no state is a trap."""
    assert set(TRANSITIONS) == set(State) == reachable(State.IDLE)
    assert all(State.IDLE in reachable(state) for state in State)
    assert {trigger for _, trigger, _ in LEGAL} == set(Trigger)


@pytest.mark.parametrize(("state", "trigger", "after"), LEGAL)
def test_a_trigger_of_the_table_leads_where_the_table_says(
    state: State, trigger: Trigger, after: State
) -> None:
    """``step`` adds nothing to the table."""
    assert step(state, trigger) is after


@pytest.mark.parametrize(("state", "trigger"), ILLEGAL)
def test_a_trigger_that_the_table_does_not_have_is_a_bug(state: State, trigger: Trigger) -> None:
    """It says which one, and that it is ours."""
    with pytest.raises(InternalError, match=rf"{state.value} cannot be {trigger.value}.*bug in streamworker"):
        step(state, trigger)


def test_records_are_handled_only_after_the_lock_was_granted() -> None:
    """The one way into the states with a runner is RUNNING, and the one way there is GRANTED."""
    entries = {(trigger, after) for state, trigger, after in LEGAL if state not in HANDLING}
    assert {each for each in entries if each[1] in HANDLING} == {(Trigger.GRANTED, State.RUNNING)}


def test_a_partition_that_drains_never_runs_again_without_a_new_lock() -> None:
    """One road in, one road out."""
    assert State.RUNNING not in TRANSITIONS[State.DRAINING].values()
    assert State.RUNNING not in TRANSITIONS[State.RELEASING].values()


def test_a_fenced_partition_is_not_released() -> None:
    """The lock is somebody else's by then."""
    for state in HANDLING:
        assert TRANSITIONS[state][Trigger.FENCED] not in (State.RELEASING, State.DRAINING)


def test_a_call_without_an_answer_is_repeated() -> None:
    """FAILED never gives a partition up, wherever a call may be under way."""
    for state in (State.ACQUIRING, State.WITHDRAWING, State.RELEASING):
        assert TRANSITIONS[state][Trigger.FAILED] is not State.IDLE


def test_the_documented_table_shows_every_transition() -> None:
    """Each state has a row, with what leads out of it."""
    rows = {row.split(" | ")[0]: row for row in as_table().splitlines()}
    assert as_table().count("→") == len(LEGAL)
    for state, trigger, after in LEGAL:
        assert f"{trigger.value} → `{after.value}`" in rows[f"| `{state.value}`"]
