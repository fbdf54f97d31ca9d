"""Attempts at records, counted across the owners of a partition.

The first call of a record writes nothing. Where a policy limits the attempts, each later call is written to
the lock before it begins, so that the next owner goes on counting, however this one ends.

A record that kills its process leaves nobody to count. So the acquisition of the lock counts the owners that
died at one checkpoint. When they are too many for chance, the owner takes one record at a time, commits it
before the next, and names it in the lock before its call. If the owner dies, the next one knows the record,
and does what the policy says after the last attempt.
"""

from collections.abc import Mapping, Sequence

from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.core.policies import Policies
from streamworker.errors import ProcessingError

DEATHS_MIN = 2
"""Owners that must die at one checkpoint before records are named: one death is mostly chance."""
STORED_MAX = 100
"""Most records whose attempts are stored at a time, the oldest; with concurrency many may fail together."""


class Tries:
    """The attempts at records of one partition."""

    def __init__(self, lock: Acquired, errors: Policies, window: int) -> None:
        self._deaths = lock.deaths
        self._limit = errors.attempts_of(ProcessingError)
        # A call that was under way when its owner died may have nothing to do with that.
        chance = 1 if lock.deaths and not lock.alone else 0
        self.before = {each: count - chance for each, count in lock.tries if each > lock.checkpoint}
        """Calls that earlier owners have made, by record."""
        self._begun = dict(self.before)
        self._named = lock.alone
        self._alone = 0
        """How many of the next records are taken one by one."""
        if self._limit is not None and lock.deaths >= DEATHS_MIN:
            self._alone = window

    @property
    def is_alone(self) -> bool:
        """Whether the next record is taken alone: it, or one after it, may have killed the last owner."""
        return self._alone > 0 or (self._deaths > 0 and self._limit is not None and bool(self.before))

    def made(self, entries: Sequence[Entry]) -> int:
        """Return how many calls with these records earlier owners have made."""
        return max((self.before.pop(entry.id, 0) for entry in entries), default=0) if self.before else 0

    def begin(self, entry_id: EntryId, attempt: int, checkpoint: EntryId) -> Mapping[EntryId, int]:
        """Note that a call of a record begins that is not its first; return what to store."""
        self._begun[entry_id] = attempt
        self._begun = dict(sorted(each for each in self._begun.items() if each[0] > checkpoint)[:STORED_MAX])
        return self._begun

    def suspect(self, entry: Entry) -> ProcessingError | Mapping[EntryId, int]:
        """Name a record that is taken alone; return what to store, or its error if it killed its owner."""
        self._alone -= 1
        self.before = {each: count for each, count in self.before.items() if each >= entry.id}
        deaths, limit, count = self._deaths, self._limit or 0, self.before.get(entry.id, 0)
        if deaths and self._named and count >= max(limit, DEATHS_MIN):
            self._deaths = self._alone = 0
            return ProcessingError(f"Its worker died in attempt {count} at this record.")
        # Only calls of a named record count: an owner may also die before it calls anything.
        self._named = False
        self.before[entry.id] = count
        return {**self.before, entry.id: count + 1}
