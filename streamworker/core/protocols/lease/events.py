"""The calls of the lease-grab race to Redis, the answers, and its two kinds of message to the group.

Two hashes map each partition to a node: **grab** holds the node that won the challenge for it, and
**allocation** the node that processes it. A value holds a number beside the node: the generation of the win,
which begins with the server's clock and grows with each win. So a late call of an older winner can be told
from a call of the newest one.
"""

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from streamworker.core.control import PartitionsMessage
from streamworker.core.events import Effect, Event
from streamworker.core.words import by_words, name_of, ranges


class Challenge(Enum):
    """The condition under which a partition is challenged."""

    FREE = "free"
    """Only if it is in neither hash: no node processes it, and none is about to."""
    DUE = "due"
    """Its normal lease has ended: challenge it only if it has no winner now."""
    OVERDUE = "overdue"
    """Nothing was heard of its winner for the maximum lease: clear it from both hashes first."""


# -- messages: to and from the group ----------------------------------------------------------


class LeaseMessage(PartitionsMessage):
    """A message of a node about leases; its generation is the server's time in ms."""

    def __str__(self) -> str:
        return f"{self.kind} {ranges(self.partitions)} by {name_of(self.owner)}"


class LeaseChallenged(LeaseMessage):
    """A node challenged the leases of some partitions, and the race for them begins."""

    kind: ClassVar[str] = "challenged"
    is_news: ClassVar[bool] = True
    """A node's wait begins."""


class LeaseEnded(LeaseMessage):
    """A node stopped processing some partitions."""

    kind: ClassVar[str] = "ended"


# -- effects: out ----------------------------------------------------------------------------


class ChallengeLeases(Effect):
    """Signal that this node challenges some partitions. Answer: ``LeasesChallenged``."""

    owner: str
    challenges: Mapping[int, Challenge]

    def __str__(self) -> str:
        return "ChallengeLeases " + by_words({p: how.value for p, how in self.challenges.items()})


class RaceForLease(Effect):
    """Enter this node into the grab hash, unless another is there. Answer: ``LeaseRaced``."""

    owner: str
    partition: int

    def __str__(self) -> str:
        return f"RaceForLease {self.partition}"


class UpdateLeases(Effect):
    """Update this node's values in the hashes. May be repeated. Answer: ``LeasesUpdated``."""

    owner: str
    allocate: Mapping[int, int]
    """The partitions that the node processes now, and the generations at which it won them."""
    end: tuple[int, ...]
    """The partitions that the node no longer processes; the same step signals their end."""
    clear: Mapping[int, int]
    """Wins to remove from the grab hash, so that these partitions can be challenged again."""

    def __str__(self) -> str:
        parts = (("allocate", self.allocate), ("end", self.end), ("clear", self.clear))
        return "UpdateLeases: " + "; ".join(f"{what} {ranges(which)}" for what, which in parts if which)


# -- events: in ------------------------------------------------------------------------------


class LeasesChallenged(Event):
    """Answer to ``ChallengeLeases``."""

    asked: tuple[int, ...]
    signalled: frozenset[int]
    """The partitions that were signalled."""

    def __str__(self) -> str:
        return f"LeasesChallenged: {ranges(self.signalled)}"


class LeaseRaced(Event):
    """Answer to ``RaceForLease``."""

    partition: int
    winner: str
    """The node in the grab hash now."""
    generation: int
    allocated: str = ""
    """The node that processes the partition; empty if none does."""

    def __str__(self) -> str:
        by = f", processed by {name_of(self.allocated)}" if self.allocated else ""
        return f"LeaseRaced: {self.partition} won by {name_of(self.winner)}, generation {self.generation}{by}"


class LeasesUpdated(Event):
    """Answer to ``UpdateLeases``."""

    is_routine: ClassVar[bool] = True
