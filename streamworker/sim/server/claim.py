"""The store of the claim protocol in memory; it follows redisio's scripts.

The contract tests perform the same effects on this model and on real servers, and compare the results.
"""

from collections.abc import Callable, Mapping

from streamworker.core.events import Effect, Event
from streamworker.core.protocols.claim.events import (
    NO_ENTRY,
    CheckpointsUpdated,
    ClaimPartitions,
    GiveUpPartitions,
    ListOwnership,
    OwnershipEntry,
    OwnershipListed,
    PartitionsClaimed,
    PartitionsGivenUp,
    UpdateCheckpoints,
)


class ModelClaims:
    """The ownership entries of one group; the functions return what the streams have."""

    def __init__(
        self, partitions: Callable[[], int], checkpoint: Callable[[int], str] = lambda _: "0-0"
    ) -> None:
        self._partitions = partitions
        self._checkpoint = checkpoint
        self.entries: dict[int, OwnershipEntry] = {}
        self.last = 0
        """The latest ETag."""
        self.is_declared = True
        """Whether the server knows the number of partitions; each worker declares it at its start."""

    def perform(self, effect: Effect, server_ms: int) -> Event | None:
        """Perform an effect at a server time; return None if the effect is not the protocol's."""
        match effect:
            case ListOwnership():
                partitions = self._partitions() if self.is_declared else 0
                return OwnershipListed(partitions, tuple(self.entries.values()), server_ms)
            case ClaimPartitions(owner, etags):
                return PartitionsClaimed(*self._claim(owner, etags, server_ms))
            case UpdateCheckpoints(owner, etags):
                return CheckpointsUpdated(*self._update(owner, etags, server_ms))
            case GiveUpPartitions(owner, partitions):
                for partition in partitions:
                    if partition in self.entries and self.entries[partition].owner == owner:
                        del self.entries[partition]
                return PartitionsGivenUp(partitions)
            case _:
                return None

    def declare(self) -> None:
        """Learn how many partitions there are."""
        self.is_declared = True

    def flush(self) -> None:
        """Delete all data, as FLUSHALL or a restart without data does."""
        self.entries.clear()
        self.last = 0
        self.is_declared = False

    def _claim(
        self, owner: str, etags: Mapping[int, int], server_ms: int
    ) -> tuple[dict[int, int], dict[int, OwnershipEntry | None]]:
        free = {p for p, etag in etags.items() if self._etag(p) == etag}
        return self._write(owner, etags, free, server_ms)

    def _update(
        self, owner: str, etags: Mapping[int, int], server_ms: int
    ) -> tuple[dict[int, int], dict[int, OwnershipEntry | None]]:
        ours = {p for p, etag in etags.items() if self._etag(p) == etag and self._owner(p) == owner}
        return self._write(owner, etags, ours, server_ms)

    def _write(
        self, owner: str, asked: Mapping[int, int], allowed: set[int], server_ms: int
    ) -> tuple[dict[int, int], dict[int, OwnershipEntry | None]]:
        self.last = max(server_ms, self.last + 1)
        for partition in allowed:
            self.entries[partition] = OwnershipEntry(
                partition, owner, self.last, server_ms, self._checkpoint(partition)
            )
        refused = {p: self.entries.get(p) for p in asked if p not in allowed}
        return {p: self.last for p in asked if p in allowed}, refused

    def _etag(self, partition: int) -> int:
        return self.entries[partition].etag if partition in self.entries else NO_ENTRY

    def _owner(self, partition: int) -> str:
        return self.entries[partition].owner if partition in self.entries else ""
