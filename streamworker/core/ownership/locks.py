"""The locks of partitions, and the replies to a worker that acquires one.

A lock is a hash that is stored beside its partition. It holds an owner and an **epoch**. A lock has no
expiry: the membership decides whether an owner is alive, and safety does not depend on that decision being
right. Safety depends on the epoch. Each acquisition raises it, each commit carries (owner, epoch), and the
script that writes the commit compares both with the lock. Two processes may both believe that they own a
partition; only one of them can commit. (M. Kleppmann, "How to do distributed locking", 2016: the resource
itself must check a fencing token.)

The script compares the owner as well as the epoch, because a failover may lose the last acquisition. If the
new primary's clock is behind, two owners can then hold the same epoch, but never the same name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamworker.core.data.entries import EntryId
from streamworker.core.words import name_of


@dataclass(frozen=True, slots=True)
class Acquired:
    """This worker holds the lock and continues after ``checkpoint``."""

    epoch: int
    checkpoint: EntryId
    entries: int
    """Source records up to the checkpoint: those that the group committed, plus those that are ``gone``."""
    rows: int
    """Rows in the partition's acked log."""
    log: str
    """Identity of the acked log."""
    gone: int = 0
    """Source records that another program deleted before the group committed them, and that no worker has
    been told of before."""
    reset: int = 0
    """The epoch at which the checkpoint was last moved by hand; 0 if it never was."""
    requested: int = 0
    """Version of the operators' requests in the lock; 0 if there never was one."""
    is_paused: bool = False
    """Whether an operator's pause stands."""
    aside: Mapping[EntryId, str] = field(default_factory=dict)
    """The records that an operator wants set aside, and why."""
    deaths: int | None = None
    """How many owners have died one after the other in the call of the first record after the checkpoint, as
    far as is known; None if no owner has died at this checkpoint with records to handle."""
    tries: tuple[tuple[EntryId, int], ...] = ()
    """Records that owners have tried again, and how many calls of each they began."""
    waits_for: tuple[int, ...] = ()
    """The partitions of the generation before that share keys with this one, while the group may not be done
    with them; nothing is handled here until then."""
    reason: str = field(default="", compare=False)
    """What the lock shows as holding the partition up; this owner has not written it since it acquired it."""

    def __str__(self) -> str:
        return f"acquired, epoch {self.epoch}" + (", paused" if self.is_paused else "")


@dataclass(frozen=True, slots=True)
class Held:
    """A live owner holds the lock; it will release the lock, or its drain deadline will pass."""

    owner: str
    waited_ms: int

    def __str__(self) -> str:
        return f"held by {name_of(self.owner)}" + (f" for {self.waited_ms} ms" if self.waited_ms else "")


@dataclass(frozen=True, slots=True)
class Stale:
    """Another worker acquired the lock at a later generation; this worker's view of the group is old."""

    generation: int

    def __str__(self) -> str:
        return f"stale, generation {self.generation}"


@dataclass(frozen=True, slots=True)
class Refused:
    """Redis refused the question, for a right that is missing or a command that was removed.

    The script may have written the lock before it was refused. Its owner is this worker then, which runs
    nothing for it; the lock is free once this worker has left.
    """

    def __str__(self) -> str:
        return "refused"


AcquireReply = Acquired | Held | Stale | Refused
