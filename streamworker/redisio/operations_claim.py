"""What the effects of the claim protocol do at Redis; ``core.claim_events`` says what they mean.

The entries of a group are one hash. Checkpoints live in the locks, which are elsewhere in a
Cluster: they are read before, and written into the entries for who looks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from streamworker.core.claim_events import (
    OWNER_LEVEL,
    CheckpointsUpdated,
    ClaimPartitions,
    GiveUpPartitions,
    ListOwnership,
    OwnershipEntry,
    OwnershipListed,
    PartitionsClaimed,
    PartitionsGivenUp,
    StoreFailed,
    UpdateCheckpoints,
)
from streamworker.core.events import Effect, Event
from streamworker.errors import BackendError
from streamworker.redisio.keys import StreamKeys, partitions_in
from streamworker.redisio.link import Argument
from streamworker.redisio.operation import Access, Operation
from streamworker.redisio.scripts import (
    CLAIM_GIVE_UP,
    CLAIM_LIST,
    CLAIM_TAKE,
    CLAIM_UPDATE,
    Script,
    checked,
)

UNKNOWN_CHECKPOINT = "0-0"
"""Of a partition that the group was never registered in: work begins at the earliest entry."""


async def list_ownership(access: Access, effect: ListOwnership) -> Event:
    """Read all entries, and how many partitions the stream has now."""
    del effect
    keys = access.keys
    declared = await access.backend.execute("HGET", StreamKeys(keys.app, keys.stream).meta, "partitions")
    _, server_ms, *flat = checked(await access.backend.run(CLAIM_LIST, (keys.claims,), ()))
    entries = (_entry(name, text) for name, text in zip(flat[::2], flat[1::2], strict=True))
    return OwnershipListed(
        partitions_in(declared), tuple(entry for entry in entries if entry is not None), int(server_ms)
    )


async def claim_partitions(access: Access, effect: ClaimPartitions) -> Event:
    """Claim partitions by compare-and-set on their ETags."""
    won, refused = await _change(access, CLAIM_TAKE, effect.owner, effect.etags)
    return PartitionsClaimed(won, refused)


async def update_checkpoints(access: Access, effect: UpdateCheckpoints) -> Event:
    """Renew entries by compare-and-set on their ETags and owner."""
    updated, refused = await _change(access, CLAIM_UPDATE, effect.owner, effect.etags)
    return CheckpointsUpdated(updated, refused)


async def give_up_partitions(access: Access, effect: GiveUpPartitions) -> Event:
    """Take our entries away."""
    keys = access.keys
    checked(await access.backend.run(CLAIM_GIVE_UP, (keys.claims,), (effect.owner, *effect.partitions)))
    return PartitionsGivenUp(effect.partitions)


async def _change(
    access: Access, script: Script, owner: str, etags: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, OwnershipEntry | None]]:
    """Return the ETags of what was changed, and the entries of what was not."""
    args: list[Argument] = [owner]
    for (partition, etag), checkpoint in zip(
        etags.items(), await _checkpoints(access, tuple(etags)), strict=True
    ):
        args += (partition, etag, OWNER_LEVEL, checkpoint)
    _, etag, *flat = checked(await access.backend.run(script, (access.keys.claims,), args))
    done: dict[int, int] = {}
    refused: dict[int, OwnershipEntry | None] = {}
    for name, text in zip(flat[::2], flat[1::2], strict=True):
        entry = _entry(name, text)
        if entry is not None and entry.etag == int(etag):
            done[entry.partition] = entry.etag
        else:
            refused[int(name)] = entry
    return done, refused


async def _checkpoints(access: Access, partitions: Sequence[int]) -> list[Argument]:
    replies: list[Any] = await access.backend.pipeline(
        [("HGET", access.keys.lock(p), "checkpoint") for p in partitions]
    )
    # One lock that cannot be read must not keep all claims from being renewed.
    return [
        UNKNOWN_CHECKPOINT if reply is None or isinstance(reply, BackendError) else reply for reply in replies
    ]


def _entry(name: bytes, text: bytes) -> OwnershipEntry | None:
    """Read a field of the hash; None for one that is no entry."""
    try:
        etag, modified_ms, level, sequence, owner = text.decode().split("|", 4)
        return OwnershipEntry(int(name), owner, int(etag), int(modified_ms), sequence, int(level))
    except ValueError:
        return None


OPERATIONS: dict[type[Effect], Operation] = {
    ListOwnership: Operation(list_ownership, lambda _: StoreFailed()),
    ClaimPartitions: Operation(claim_partitions, lambda _: StoreFailed()),
    UpdateCheckpoints: Operation(update_checkpoints, lambda _: StoreFailed()),
    GiveUpPartitions: Operation(give_up_partitions, lambda _: StoreFailed()),
}
"""A repeated claim or update is refused with our own name in the entry, by which the core knows."""
