"""The calls of the claim protocol to its store, and the store's answers.

An **entry** says who owns a partition. The store gives it a new **ETag** with each change, and changes it
only for a worker that knows its current ETag. Two workers that claim one partition in the same instant both
send the same ETag, and the store refuses one of them.

In this implementation ETags are numbers that only grow, so they also tell which of two claims is the later
one: a worker asks for a partition's lock with the ETag of its claim.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from streamworker.core.events import Effect, Event
from streamworker.core.words import by_owner, by_words, name_of, ranges

NO_ENTRY = 0
"""The ETag of a partition that has no entry: the document's "null"."""

OWNER_LEVEL = 0
"""The document's owner level: "set to 0 for now, may be used later"."""


@dataclass(frozen=True, slots=True)
class OwnershipEntry:
    """The owner of a partition, as the store has it."""

    partition: int
    owner: str
    etag: int
    modified_ms: int
    """When the entry last changed, by the server's clock."""
    sequence: str
    """The checkpoint at that time, for information. A new owner continues from the checkpoint in the lock."""
    level: int = OWNER_LEVEL


# -- effects: out ----------------------------------------------------------------------------


class StoreCall(Effect):
    """A call of the store; there is at most one at a time."""


class ListOwnership(StoreCall):
    """Read all entries and the number of partitions. Answer: ``OwnershipListed``."""


class _WriteEntries(StoreCall):
    owner: str
    etags: Mapping[int, int]
    """The ETag that each partition's entry must still have; ``NO_ENTRY`` if there is no entry."""

    def __str__(self) -> str:
        words = {
            p: "if there is no entry" if etag == NO_ENTRY else f"if the ETag is {etag}"
            for p, etag in self.etags.items()
        }
        return f"{type(self).__name__} {by_words(words)}"


class ClaimPartitions(_WriteEntries):
    """Claim some partitions. Answer: ``PartitionsClaimed``."""


class UpdateCheckpoints(_WriteEntries):
    """Write the checkpoints of the worker's partitions, which renews their entries."""


class GiveUpPartitions(StoreCall):
    """Delete the worker's own entries. Answer: ``PartitionsGivenUp``."""

    owner: str
    partitions: tuple[int, ...]

    def __str__(self) -> str:
        return f"GiveUpPartitions {ranges(self.partitions)}"


# -- events: in ------------------------------------------------------------------------------


class OwnershipListed(Event):
    """Answer to ``ListOwnership``."""

    partitions: int
    """How many partitions the stream has now; 0 if the store does not know."""
    entries: tuple[OwnershipEntry, ...]
    server_ms: int

    def __str__(self) -> str:
        owners = {entry.partition: name_of(entry.owner) for entry in self.entries}
        return f"OwnershipListed: of {self.partitions}, {by_owner(owners) or 'no entry'}"


class _EntriesWritten(Event):
    done: Mapping[int, int]
    """The partitions that were claimed or renewed, and their new ETags."""
    refused: Mapping[int, OwnershipEntry | None]
    """The other partitions and their current entries; None if there is no entry."""

    def __str__(self) -> str:
        words = {p: f"with ETag {etag}" for p, etag in self.done.items()}
        for partition, entry in self.refused.items():
            has_it = f"{name_of(entry.owner)} has it with ETag {entry.etag}" if entry else "no entry"
            words[partition] = f"refused, {has_it}"
        return f"{type(self).__name__}: {by_words(words)}"


class PartitionsClaimed(_EntriesWritten):
    """Answer to ``ClaimPartitions``."""


class CheckpointsUpdated(_EntriesWritten):
    """Answer to ``UpdateCheckpoints``."""


class PartitionsGivenUp(Event):
    """Answer to ``GiveUpPartitions``: this worker no longer owns any of them."""

    partitions: tuple[int, ...]

    def __str__(self) -> str:
        return f"PartitionsGivenUp: {ranges(self.partitions)}"
