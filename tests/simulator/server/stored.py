"""What a partition of the simulator holds, as runners make it and observers see it."""

from dataclasses import dataclass
from typing import NamedTuple

from streamworker.core.data.entries import EntryId
from streamworker.core.time.lifetimes import Lifetime
from streamworker.core.time.schedules import Every
from streamworker.records.entries import StoredEntry
from streamworker.redisio.data.outbox import OutboxWrite
from streamworker.redisio.keys import TICK
from tests.simulator.store.values import Other

TIMER = Every(1_000)
"""When the timer of each partition runs, if the group has timers; it leaves no planned time out."""
ENDS = Lifetime(700, is_called=True)
"""When the values of a table end, if the group has timers; a function is called for each."""
Changes = dict[str | tuple[str, bytes], bytes | None]
"""New values of state and of tables; None removes one."""
TIMER_FIELD, ENDS_FIELD = f"{TICK}all", f"{TICK}gone"


class Record(NamedTuple):
    """One source record."""

    id: EntryId
    number: int
    """Its number among the records of its producer."""
    entry: StoredEntry
    """The entry that holds it."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What a runner commits: records after ``previous`` up to ``new``, or the call of a timer."""

    owner: str
    epoch: int
    previous: EntryId
    new: EntryId
    rows: tuple[Record, ...] = ()
    aside: tuple[EntryId, ...] = ()
    """Ids of those rows that are set aside: they are dead letters, and not in the acked log."""
    tick: int = 0
    """The planned time of a timer whose results this stores; there are no rows then. 0 for records."""
    tick_before: int = 0
    ticked: tuple[str, int] = ("", 0)
    """The field and the time of the last call by time that this owner has committed."""
    called: tuple[tuple[bytes, bytes], ...] = ()
    """The keys and values that have ended, for which this is the call; ``tick`` is the time of the look."""
    sends: OutboxWrite | None = None
    """What it adds to the outbox; None if it sends nothing."""

    @property
    def handled(self) -> list[Record]:
        """The rows that a handler was called with."""
        return [row for row in self.rows if row.id not in self.aside]

    @property
    def timer(self) -> str:
        """The field that says that a call by time is done."""
        return ENDS_FIELD if self.called else TIMER_FIELD

    @property
    def known_by(self) -> tuple[object, ...]:
        """What tells a commit from others."""
        return self.owner, self.epoch, self.new, self.tick, self.called


@dataclass(frozen=True, slots=True)
class LockChange:
    """A change of a lock's owner, epoch or generation, as an observer with MONITOR would see it."""

    partition: int
    command: str
    """``acquire`` or ``release``."""
    by: str
    owner_before: str
    owner: str
    epoch: int
    generation: int
    server_ms: int


@dataclass(frozen=True, slots=True)
class Witnessed(Other):
    """The commits of a partition that an observer has seen, the newest first.

    It is kept in the store, which loses it and brings it back with the data that the commits have changed.
    """

    commit: Commit
    at_ms: int
    """The server's time."""
    before: "Witnessed | None"

    def commits(self) -> list["Witnessed"]:
        """Return the commits in order."""
        found = list[Witnessed]()
        at: Witnessed | None = self
        while at is not None:
            found.append(at)
            at = at.before
        return found[::-1]
