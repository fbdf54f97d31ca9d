"""Drops what nobody needs from partitions and their acked logs; see ``lua/data/trim.lua``."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from streamworker.redisio.group.locks import answered
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import TRIM, Call
from streamworker.redisio.wire.client import Backend

TRIM_ENTRIES = 10_000
"""Maximum entries that one trim drops from one partition; it takes some milliseconds of server time."""


class Trimmed(NamedTuple):
    """The number of entries dropped from one partition."""

    events: int
    """Source entries that every group has committed and no retention keeps."""
    acked: int
    """Entries of the acked log that every reader has read and no retention keeps."""
    gone: int = 0
    """Source entries that another program deleted before the group had committed them, and that no
    earlier reply has reported."""


class Keep(NamedTuple):
    """What retention keeps of one partition although everybody has passed it; see ``lua/data/trim.lua``."""

    events_ms: int | None = None
    """How old a source entry gets; ``ANY_AGE`` without a limit, None without retention."""
    events_max: int | None = None
    """How many source entries stay at most, however young; None for any number. It is no number to drop, so
    that of two workers that measured at the same time the second drops nothing."""
    acked_ms: int | None = None
    acked_max: int | None = None


ANY_AGE = -1


async def trim_many(
    backend: Backend,
    keys: GroupKeys,
    acked_rows: Mapping[int, int],
    keep: Callable[[int], Keep] = lambda _: Keep(),
) -> dict[int, Trimmed]:
    """Drop the entries that are no longer needed, in one round trip; any process may repeat the call.

    ``acked_rows`` maps each partition to the rows of its acked log that all readers have read; 0 keeps the
    whole log. ``keep`` returns what retention keeps of a partition. Partitions that Redis refused are missing
    in the result; if it refused all, this raises.
    """
    calls: list[Call] = []
    for p, rows in acked_rows.items():
        kept = {name: "" if each is None else each for name, each in keep(p)._asdict().items()}
        calls.append(TRIM.at(keys, p, rows=rows, most=TRIM_ENTRIES, **kept))
    replies = await backend.run_many(TRIM, calls)
    return dict(answered(list(acked_rows), replies, lambda reply: Trimmed(*map(int, reply[1:]))))
