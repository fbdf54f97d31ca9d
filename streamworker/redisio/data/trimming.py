"""Drops source entries that every group has committed, and acked entries that every reader has read."""

from collections.abc import Mapping
from typing import NamedTuple

from streamworker.redisio.group.locks import answered
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import TRIM
from streamworker.redisio.wire.client import Backend, ScriptCall

TRIM_ENTRIES = 10_000
"""Maximum entries that one trim drops from one partition; it takes some milliseconds of server time."""


class Trimmed(NamedTuple):
    """The number of entries dropped from one partition."""

    events: int
    """Source entries that every group has committed."""
    acked: int
    """Entries of the acked log that every reader has read."""
    gone: int = 0
    """Source entries that another program deleted before the group had committed them, and that no
    earlier reply has reported."""


async def trim_many(
    backend: Backend, keys: GroupKeys, acked_rows: Mapping[int, int], *, limit: int = TRIM_ENTRIES
) -> dict[int, Trimmed]:
    """Drop the entries that are no longer needed, in one round trip; any process may repeat the call.

    ``acked_rows`` maps each partition to the rows of its acked log that all readers have read; 0 keeps the
    whole log. Partitions that Redis refused are missing in the result; if it refused all, this raises.
    """
    calls: list[ScriptCall] = [
        ((keys.events(p), keys.acked(p), keys.lock(p), keys.groups(p)), (rows, limit, keys.group))
        for p, rows in acked_rows.items()
    ]
    replies = await backend.run_many(TRIM, calls)
    return dict(answered(list(acked_rows), replies, lambda reply: Trimmed(*map(int, reply[1:]))))
