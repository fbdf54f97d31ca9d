"""What the lease-grab race asks of Redis, and what it is told.

Two hashes, each from partition to node: **grab** says who won the challenge for it, **allocation**
who processes it. A value carries a number beside the node: the generation of the win, which
begins with the server's clock and grows with each one, so that what an older winner does late is
told from what the newest one did.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from streamworker.core.events import Effect, Event


class Challenge(Enum):
    """When a partition is to be challenged."""

    FREE = "free"
    """Only if it is in neither hash: nobody processes it, and nobody is about to."""
    DUE = "due"
    """Its normal lease is over: only if it has no winner now."""
    OVERDUE = "overdue"
    """Its winner was not heard of for the maximum lease: clear it from both hashes first."""


# -- effects: out ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChallengeLeases(Effect):
    """Signal that some partitions are challenged. Answer: ``LeasesChallenged``."""

    owner: str
    challenges: Mapping[int, Challenge]


@dataclass(frozen=True, slots=True)
class RaceForLease(Effect):
    """Put us into the grab hash, unless somebody is there. Answer: ``LeaseRaced``."""

    owner: str
    partition: int


@dataclass(frozen=True, slots=True)
class UpdateLeases(Effect):
    """Bring the hashes up to date with us. May be repeated. Answer: ``LeasesUpdated``."""

    owner: str
    allocate: Mapping[int, int]
    """Partitions that we process now, and the generations at which they were won."""
    end: tuple[int, ...]
    """Partitions that we do not process any more; their end is signalled in the same step."""
    clear: Mapping[int, int]
    """Wins to take out of the grab hash, so that they can be challenged again."""


# -- events: in ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeasesChallenged(Event):
    """Answer to ``ChallengeLeases``."""

    asked: tuple[int, ...]
    signalled: frozenset[int] | None
    """Those that were; None without an answer."""


@dataclass(frozen=True, slots=True)
class LeaseRaced(Event):
    """Answer to ``RaceForLease``."""

    partition: int
    winner: str | None
    """Whoever is in the grab hash now; None without an answer."""
    generation: int = 0
    allocated: str = ""
    """Who processes the partition; empty if nobody does."""


@dataclass(frozen=True, slots=True)
class LeasesUpdated(Event):
    """Answer to ``UpdateLeases``."""

    done: bool
    """False without an answer."""
