"""What the claim protocol asks of its store, and the store's answers.

An **entry** says who owns a partition. The store gives it a new **ETag** with each change, and
changes it only for who knows the ETag that it has: two workers that claim one partition in the
same instant both send the same ETag, and one of them is refused.

Our ETags are numbers that only grow, so that they also tell which of two claims is the later one:
a worker asks for a partition's lock with the ETag of its claim.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from streamworker.core.events import Effect, Event

NO_ENTRY = 0
"""The ETag of a partition that has no entry: the document's "null"."""

OWNER_LEVEL = 0
"""The document's owner level: "set to 0 for now, may be used later"."""


@dataclass(frozen=True, slots=True)
class OwnershipEntry:
    """Who owns a partition, as the store has it."""

    partition: int
    owner: str
    etag: int
    modified_ms: int
    """When it was last changed, by the server's clock."""
    sequence: str
    """The checkpoint at that time, for who looks. Work goes on from the one in the lock."""
    level: int = OWNER_LEVEL


# -- effects: out ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListOwnership(Effect):
    """Read all entries and the number of partitions. Answer: ``OwnershipListed`` or ``StoreFailed``."""


@dataclass(frozen=True, slots=True)
class ClaimPartitions(Effect):
    """Claim some partitions. Answer: ``PartitionsClaimed`` or ``StoreFailed``."""

    owner: str
    etags: Mapping[int, int]
    """Partition to the ETag that its entry must still have; ``NO_ENTRY`` where there is none."""


@dataclass(frozen=True, slots=True)
class UpdateCheckpoints(Effect):
    """Write the checkpoints of what we own, which renews it.

    Answer: ``CheckpointsUpdated`` or ``StoreFailed``.
    """

    owner: str
    etags: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class GiveUpPartitions(Effect):
    """Take our own entries away. Answer: ``PartitionsGivenUp`` or ``StoreFailed``."""

    owner: str
    partitions: tuple[int, ...]


# -- events: in ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnershipListed(Event):
    """Answer to ``ListOwnership``."""

    partitions: int
    """How many the stream has now; 0 where the store does not know."""
    entries: tuple[OwnershipEntry, ...]
    server_ms: int


@dataclass(frozen=True, slots=True)
class PartitionsClaimed(Event):
    """Answer to ``ClaimPartitions``."""

    won: Mapping[int, int]
    """The partitions that were claimed, and their new ETags."""
    refused: Mapping[int, OwnershipEntry | None]
    """The others, as they stand; None where there is no entry."""


@dataclass(frozen=True, slots=True)
class CheckpointsUpdated(Event):
    """Answer to ``UpdateCheckpoints``."""

    updated: Mapping[int, int]
    """The partitions that were renewed, and their new ETags."""
    refused: Mapping[int, OwnershipEntry | None]
    """The others, as they stand; None where there is no entry."""


@dataclass(frozen=True, slots=True)
class PartitionsGivenUp(Event):
    """Answer to ``GiveUpPartitions``: none of them is ours any more."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoreFailed(Event):
    """No answer from the store: what was asked may or may not have been done."""
