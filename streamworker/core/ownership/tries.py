"""Attempts at records, counted across the owners of a partition.

The first call of a record writes nothing. Where a policy limits the attempts, each later call is written to
the lock before it begins, so that the next owner goes on counting, however this one ends.

A record that kills its process leaves nobody to count. So the acquisition of the lock notes that an owner
died at a checkpoint. The next owner takes one record at a time, commits it before the next, and names it in
the lock before its call. An owner that dies then has died in the call of that record, which counts against
it. After too many such deaths in a row, the next owner calls it no more, and does what the policy says.
"""

from collections.abc import Mapping, Sequence

from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.core.policies import Policies
from streamworker.errors import ProcessDied, ProcessingError

DEATHS_MIN = 3
"""Workers that must die in a row in the call of a record before it is not called again. A worker also dies of
another cause while a call runs; three in one call are no chance, unless the call takes very long."""
STORED_MAX = 100
"""Most records whose attempts are stored at a time, the oldest; with concurrency many may fail together."""


class Tries:
    """The attempts at records of one partition; ``window`` is how many an owner may have had in work.

    With ``layers`` the first record is taken alone at least, and names the middleware: an owner of another
    partition has died, perhaps in it. Otherwise one owner of each partition would die in it unnamed.
    """

    def __init__(self, lock: Acquired, errors: Policies, window: int, layers: bool = False) -> None:
        self._deaths, self._epoch = lock.deaths or 0, lock.epoch
        self._limit = errors.attempts_of(ProcessDied)
        self.begun = {each: count for each, count in lock.tries if each > lock.checkpoint}
        """Calls that were begun, by record: what is stored. So whoever comes next takes off the same call."""
        accused = min(self.begun, default=None) if lock.deaths else None
        # Of other calls that were under way when the last owner died nobody knows what became.
        unknown = 0 if lock.deaths is None else 1
        self.before = {
            each: count if each == accused else max(0, count - unknown) for each, count in self.begun.items()
        }
        """Calls that earlier owners have made, by record."""
        self.alone = 0 if self._limit is None else int(layers) if lock.deaths is None else window
        """How many of the next records are taken one by one: one of them may have killed the last owner."""

    @property
    def is_suspect(self) -> bool:
        """Whether the last owner died in the call of the next record, which may be called again."""
        return self.alone > 0 and self._deaths > 0 and not self._is_over(min(self.before, default=None))

    def made(self, entries: Sequence[Entry]) -> int:
        """Return how many calls with these records earlier owners have made."""
        return max((self.before.pop(entry.id, 0) for entry in entries), default=0) if self.before else 0

    def begin(self, entry_id: EntryId, attempt: int, checkpoint: EntryId) -> Mapping[EntryId, int]:
        """Note that a call of a record begins that is not its first; return what to store."""
        self.begun[entry_id] = attempt
        self.begun = dict(sorted(each for each in self.begun.items() if each[0] > checkpoint)[:STORED_MAX])
        return self.begun

    def suspect(self, entry: Entry, *, ends: bool = True) -> ProcessingError | Mapping[EntryId, int]:
        """Name a record that is taken alone; return what to store, or its error if it kills its owners.

        ``ends`` tells whether it is the last of its entry. An entry of many records is decoded as a whole, so
        its last record may have killed the owner that had the first in work.
        """
        self.before = {each: count for each, count in self.before.items() if each >= entry.id}
        self.begun = {each: count for each, count in self.begun.items() if each >= entry.id}
        deaths, is_over = self._deaths, self._is_over(entry.id)
        self._deaths = 0
        # What has come since the last owner died cannot have killed it. What was there can, though another
        # record is removed for earlier deaths: it was in work at the first of them, too.
        self.alone = 0 if entry.id.ms > self._epoch else max(self.alone - 1, 0 if ends else 1)
        if is_over:
            return ProcessDied(f"{deaths} workers died in a row in the call of this record.")
        self.begun[entry.id] = self.before.setdefault(entry.id, 0) + 1
        return self.begun

    def _is_over(self, record: EntryId | None) -> bool:
        """Whether a record is not called again, which the last owners were calling when they died."""
        made = 0 if record is None else self.before.get(record, 0)
        return made > 0 and self._deaths >= DEATHS_MIN and max(made, self._deaths) >= (self._limit or 0)
