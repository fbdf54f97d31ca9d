"""The operations of the claim protocol; ``core.protocols.claim.events`` says what its effects mean.

The ownership entries of a group are one hash. Checkpoints are in the locks, which are on other nodes of a
Cluster: the operations read them first, and copy them to the entries for display.
"""

from collections.abc import Mapping

from streamworker.core.events import Effect, Event
from streamworker.core.protocols.claim.events import (
    OWNER_LEVEL,
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
from streamworker.errors import BackendError
from streamworker.redisio.group.operation import Access, Operation
from streamworker.redisio.keys import KeyRow, map_in
from streamworker.redisio.scripts import checked, load
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import ms_of, pairs_of
from streamworker.redisio.wire.link import Argument

CHANGE, GIVE_UP = SCRIPTS = tuple(load(f"claim/{name}") for name in ("change", "give_up"))
CLAIMS = "claims"
"""The key of the owner of each partition: its ownership entry by ETag, and `last`, the newest ETag."""
KEYS = (KeyRow(f"sw:{{app.stream:GROUP}}:{CLAIMS}", "hash"),)

UNKNOWN_CHECKPOINT = "0-0"
"""Checkpoint of a partition in which the group was never registered: work begins at the first entry."""


async def _list_ownership(access: Access, _: ListOwnership) -> Event:
    keys = access.keys
    declared = await access.backend.execute("HGET", keys.meta, "partitions")
    # The entries are dated by the server's time, which is read after them.
    asked = [("HGETALL", keys.of_group(CLAIMS)), ("TIME",)]
    flat, time = all_answered(await access.backend.pipeline(asked))
    entries = (_entry(name, text) for name, text in pairs_of(flat).items())
    known = tuple(entry for entry in entries if entry is not None)
    return OwnershipListed(sum(map_in(declared)) if declared else 0, known, ms_of(time))


async def _claim_partitions(access: Access, effect: ClaimPartitions) -> Event:
    return PartitionsClaimed(*await _change(access, "claim", effect.owner, effect.etags))


async def _update_checkpoints(access: Access, effect: UpdateCheckpoints) -> Event:
    return CheckpointsUpdated(*await _change(access, "renew", effect.owner, effect.etags))


async def _give_up_partitions(access: Access, effect: GiveUpPartitions) -> Event:
    claims = access.keys.of_group(CLAIMS)
    call = GIVE_UP.call(claims=claims, owner=effect.owner, partitions=effect.partitions)
    checked(await access.backend.run(GIVE_UP, call))
    return PartitionsGivenUp(effect.partitions)


async def _change(
    access: Access, how: str, owner: str, etags: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, OwnershipEntry | None]]:
    """Write entries by compare-and-set; return the ETags of the changed, and the others as they are."""
    changes: list[Argument] = []
    locks = await access.backend.pipeline([("HGET", access.keys.lock(p), "checkpoint") for p in etags])
    for (partition, etag), checkpoint in zip(etags.items(), locks, strict=True):
        # One unreadable lock must not prevent the renewal of all claims.
        is_known = checkpoint is not None and not isinstance(checkpoint, BackendError)
        changes += (partition, etag, OWNER_LEVEL, checkpoint if is_known else UNKNOWN_CHECKPOINT)
    claims = access.keys.of_group(CLAIMS)
    call = CHANGE.call(claims=claims, owner=owner, how=how, changes=changes)
    _, etag, *flat = checked(await access.backend.run(CHANGE, call))
    done: dict[int, int] = {}
    refused: dict[int, OwnershipEntry | None] = {}
    for name, text in zip(flat[::2], flat[1::2], strict=True):
        entry = _entry(name, text)
        if entry is not None and entry.etag == int(etag):
            done[entry.partition] = entry.etag
        else:
            refused[int(name)] = entry
    return done, refused


def _entry(name: bytes, text: bytes) -> OwnershipEntry | None:
    """Parse a field of the hash; None if it is not an entry."""
    try:
        etag, modified_ms, level, sequence, owner = text.decode().split("|", 4)
        return OwnershipEntry(int(name), owner, int(etag), int(modified_ms), sequence, int(level))
    except ValueError:
        return None


OPERATIONS: dict[type[Effect], Operation] = {
    ListOwnership: _list_ownership,
    ClaimPartitions: _claim_partitions,
    UpdateCheckpoints: _update_checkpoints,
    GiveUpPartitions: _give_up_partitions,
}
"""A repeated claim or update is refused, with the caller as owner of the entry, so the core detects it."""
