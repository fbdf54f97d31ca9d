"""Attempts at records, counted by owners of a partition that die one after the other."""

import pytest

from streamworker import DeadLetter, Retry
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.core.ownership.tries import Tries
from streamworker.core.policies import Policies


def entry_of(number: int) -> Entry:
    return Entry(EntryId(number, 0), {}, 0)


FIRST, SECOND, LAST = entry_of(1), entry_of(2), entry_of(9)


def owner(stored: dict[EntryId, int], deaths: int | None, checkpoint: EntryId = ZERO) -> Tries:
    """Return what an owner knows when it acquires the lock."""
    lock = Acquired(7, checkpoint, 0, 0, "a", deaths=deaths, tries=tuple(sorted(stored.items())))
    return Tries(lock, Policies(Retry(attempts=3, then=DeadLetter())), window=4)


@pytest.mark.parametrize("deaths", [None, 0, 1])
def test_owners_that_die_before_they_call_a_record_leave_its_attempts_as_they_are(deaths: int | None) -> None:
    """However many die, and whatever they store of other records, alone or not."""
    stored = {LAST.id: 2} if deaths != 1 else {FIRST.id: 1, LAST.id: 2}
    for _ in range(5):
        its = owner(stored, deaths)
        assert its.before[LAST.id] == (2 if deaths is None else 1)
        named = its.suspect(FIRST)
        assert not isinstance(named, Exception)
        stored = dict(its.begin(SECOND.id, 2, ZERO) if deaths is None else named)
        assert stored[LAST.id] == 2


def test_the_call_in_which_an_owner_died_counts_and_others_under_way_do_not() -> None:
    """The record of it was called alone, and is the first of those that are stored."""
    its = owner({FIRST.id: 2, LAST.id: 2}, deaths=1)
    assert its.made([FIRST]) == 2 and its.made([LAST]) == 1


def test_no_record_has_had_less_than_no_attempt() -> None:
    """Another program may have written to the lock; without an attempt a failure is not tried again."""
    its = owner({FIRST.id: 0, LAST.id: -3}, deaths=0)
    assert its.made([FIRST]) == 0 and its.made([LAST]) == 0
