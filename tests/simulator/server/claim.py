"""The store of the claim protocol in memory; it follows redisio's scripts."""

from collections.abc import Mapping, Sequence

from streamworker.core.events import Effect, Event
from streamworker.core.protocols.claim import events as calls
from streamworker.core.protocols.claim.events import NO_ENTRY, OwnershipEntry
from tests.simulator.server.documents import Documents
from tests.simulator.server.stored import Lock


class ModelClaims:
    """The ownership entries of one group; the functions return what the streams have."""

    def __init__(self) -> None:
        self.entries: dict[int, OwnershipEntry] = {}
        self.last = 0
        """The latest ETag."""

    def perform(self, server: Documents, effect: Effect, server_ms: int) -> Event | None:
        """Perform an effect at a server time; return None if the effect is not the protocol's."""
        locks = server.stored.locks
        match effect:
            case calls.ListOwnership():
                partitions = len(locks) if server.stored.is_declared else 0
                return calls.OwnershipListed(partitions, tuple(self.entries.values()), server_ms)
            case calls.ClaimPartitions(owner, etags):
                written = self._write(locks, owner, etags, server_ms, is_renewal=False)
                return calls.PartitionsClaimed(*written)
            case calls.UpdateCheckpoints(owner, etags):
                written = self._write(locks, owner, etags, server_ms, is_renewal=True)
                return calls.CheckpointsUpdated(*written)
            case calls.GiveUpPartitions(owner, partitions):
                for partition in partitions:
                    if partition in self.entries and self.entries[partition].owner == owner:
                        del self.entries[partition]
                return calls.PartitionsGivenUp(partitions)
        return None

    def _write(
        self, locks: Sequence[Lock], owner: str, etags: Mapping[int, int], server_ms: int, *, is_renewal: bool
    ) -> tuple[dict[int, int], dict[int, OwnershipEntry | None]]:
        """Write the entries that have these ETags; a renewal writes only those of the same owner."""
        self.last = max(server_ms, self.last + 1)
        done: dict[int, int] = {}
        refused: dict[int, OwnershipEntry | None] = {}
        for partition, etag in etags.items():
            entry = self.entries.get(partition)
            is_known = etag == (NO_ENTRY if entry is None else entry.etag)
            if is_known and (not is_renewal or (entry is not None and entry.owner == owner)):
                checkpoint = f"{locks[partition].checkpoint}-0"
                self.entries[partition] = OwnershipEntry(partition, owner, self.last, server_ms, checkpoint)
                done[partition] = self.last
            else:
                refused[partition] = entry
        return done, refused
