"""Who may own a partition: the answers to acquiring its lock.

A lock is a hash beside its partition with an owner and an **epoch**. It has no expiry:
whether an owner is alive is the membership's business, and safety does not rest on anybody
being right about it. Safety rests on the epoch: each acquisition raises it, and a commit
carries (owner, epoch), which the script that writes compares. Two processes may both believe
that they own a partition; only one of them can commit. (M. Kleppmann, "How to do distributed
locking", 2016: the resource itself must check a fencing token.)

The owner is compared as well as the epoch, because a failover may lose the last acquisition:
then two owners can hold the same number, but never the same name.
"""

from dataclasses import dataclass

from streamworker.core.entries import EntryId


@dataclass(frozen=True, slots=True)
class Acquired:
    """The lock is ours; work goes on after ``checkpoint``."""

    epoch: int
    checkpoint: EntryId
    entries: int
    """Source entries that the group has committed in this partition."""
    rows: int
    """Rows in the partition's acked log."""
    log: str
    """Identity of the acked log."""


@dataclass(frozen=True, slots=True)
class Held:
    """A live owner has it; it will release, or its drain deadline will pass."""

    owner: str
    waited_ms: int


@dataclass(frozen=True, slots=True)
class Stale:
    """Somebody acquired it at a later generation; our view of the group is old."""

    generation: int


AcquireReply = Acquired | Held | Stale
