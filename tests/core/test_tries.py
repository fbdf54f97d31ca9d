"""Attempts at records, counted by owners of a partition that die one after the other."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@dataclass
class Lock:
    """What the lock of a partition keeps, as ``acquire`` and ``store_tries`` of Redis do."""

    checkpoint: EntryId = ZERO
    died_at: tuple[EntryId, int] | None = None
    tries: dict[EntryId, int] = field(default_factory=dict)
    named: EntryId | None = None

    def acquired(self, epoch: int, *, has_died: bool) -> Acquired:
        if has_died:
            at, deaths = self.died_at or (ZERO, 0)
            its = int(self.named is not None and self.named > self.checkpoint)
            self.died_at = self.checkpoint, (deaths if at == self.checkpoint else 0) + its
        self.named = None
        at, deaths = self.died_at or (EntryId(-1, 0), 0)
        tries = tuple(sorted(self.tries.items()))
        known = deaths if at == self.checkpoint else None
        return Acquired(epoch, self.checkpoint, 0, 0, "a", deaths=known, tries=tries)


@dataclass
class Partition:
    """Records in entries, some of which kill the process that calls or decodes them."""

    lock: Lock
    sizes: Sequence[int]
    """Records of each entry; each comes ten milliseconds after the one before, and so does each owner."""
    kills: dict[int, str]
    """What is done with a record when it kills, by its number in order."""
    batch: int
    deaths: Counter[int] = field(default_factory=Counter)
    accused: list[int] = field(default_factory=list)
    now: int = 0
    """The time: no owner takes a record before it came."""

    def __post_init__(self) -> None:
        self.ids = [EntryId(10 * ms, seq) for ms, size in enumerate(self.sizes, 1) for seq in range(size)]
        self.ends: list[int] = []
        """The last record of the entry that holds each record."""
        for size in self.sizes:
            self.ends += [len(self.ends) + size - 1] * size

    def run(self, tries: Tries, *, lands: bool) -> bool:
        """Be one owner; return whether it dies. If so, its last commit ``lands`` or not."""
        at = sum(each <= self.lock.checkpoint for each in self.ids)
        in_commit = self.lock.checkpoint
        while at < len(self.ids):
            end = min(at + (1 if tries.alone else self.batch), len(self.ids))
            self.now = max(self.now, self.ids[end - 1].ms)
            if tries.alone:
                # Nothing else is in work: the record is committed before the next one is taken.
                found = tries.suspect(Entry(self.ids[at], {}, 0), ends=at == self.ends[at])
                if isinstance(found, Exception):
                    self.accused.append(at)
                else:
                    self.lock.tries, self.lock.named = dict(found), self.ids[at]
                    if at in self.kills:
                        self.deaths[at] += 1
                        return True
                in_commit = self.lock.checkpoint = self.ids[at]
                at += 1
                continue
            decoded = [n for n in range(at, self.ends[end - 1] + 1) if self.kills.get(n) == "decoding"]
            called = [n for n in range(at, end) if n in self.kills]
            if killer := [*decoded, *called][:1]:
                self.deaths[killer[0]] += 1
                self.lock.checkpoint = in_commit if lands else self.lock.checkpoint
                return True
            self.lock.checkpoint, in_commit = in_commit, self.ids[end - 1]
            at = end
        self.lock.checkpoint = in_commit
        return False


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 20), st.sampled_from(["call", "decoding"]), max_size=6),
    st.integers(1, 5),
    st.sets(st.integers(0, 40)),
    st.integers(0, 100),
)
def test_whatever_kills_costs_four_owners_at_most_and_no_innocent_record_is_accused(
    sizes: list[int], kills: dict[int, str], batch: int, lands: set[int], now: int
) -> None:
    """Killers among others, of a call or of decoding, in entries of many; commits arrive or do not."""
    kills = {n: how for n, how in kills.items() if n < sum(sizes)}
    partition = Partition(Lock(), sizes, kills, batch, now=now)
    has_died = False
    for owner in range(40):
        lock = partition.lock.acquired(partition.now, has_died=has_died)
        has_died = partition.run(Tries(lock, Policies(DeadLetter()), window=2 * batch), lands=owner in lands)
        if not has_died:
            break
    assert not has_died and sorted(partition.accused) == sorted(kills)
    assert all(deaths <= 4 for deaths in partition.deaths.values()), partition.deaths
