"""Calls about locks that go out together."""

from streamworker.core.events import AcquireLocks, Effect, ReleaseLocks
from streamworker.core.ownership.merging import merged
from streamworker.core.protocols.membership.events import ReadDocument


def test_what_drains_at_once_is_released_by_one_call() -> None:
    """One call has one answer, and so there is one message that wakes the group."""
    assert merged([ReleaseLocks("a", {p: 7 + p}) for p in range(3)]) == [
        ReleaseLocks("a", {0: 7, 1: 8, 2: 9})
    ]


def test_locks_are_asked_for_together_only_with_the_same_generation_owner_and_members() -> None:
    """Each of them says whose lock may be taken."""
    apart: list[Effect] = [
        AcquireLocks((0,), "a", 5, ("a",)),
        AcquireLocks((1,), "a", 6, ("a",)),
        AcquireLocks((2,), "b", 5, ("a",)),
        AcquireLocks((3,), "a", 5, ("a", "b")),
    ]
    assert merged(apart) == apart
    assert merged([*apart, AcquireLocks((4,), "a", 5, ("a",))])[0] == AcquireLocks((0, 4), "a", 5, ("a",))


def test_other_calls_stay_as_they_are_and_in_order() -> None:
    """Two readings of the document are two."""
    effects: list[Effect] = [ReadDocument(), ReleaseLocks("a", {1: 1}), ReadDocument()]
    assert merged(effects) == effects
