"""Readers of the acked logs, and their positions; trimming waits for the slowest reader.

Batch reads have no reader name. Each writes a hold instead, which ends by itself. Holds have a key of their
own: workers of earlier versions would take one for a reader that never moves.

An operator must remove a reader that will never come back: otherwise the logs fill up to their limit and
commits wait.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from streamworker.core.data.placement import Placement
from streamworker.core.data.readers import ReaderPosition, read_position
from streamworker.errors import BackendError
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import ms_of, pairs_of
from streamworker.redisio.wire.link import Argument


async def positions(backend: Backend, keys: GroupKeys) -> dict[str, ReaderPosition]:
    """Return all readers with their positions."""
    return read_readers(await backend.execute("HGETALL", keys.readers))


ALL_ROWS = 2**53 - 1
"""More rows than any log has; Lua represents it exactly."""


class Passed(NamedTuple):
    """How far the readers of the acked logs are."""

    rows: dict[int, int]
    """The rows that all have read, by partition."""
    is_read: bool
    """Whether there is a reader."""


async def slowest_rows(backend: Backend, keys: GroupKeys, partitions: Collection[int] = ()) -> Passed:
    """Return the rows that all readers have read, for each partition that every reader has begun.

    A position in a log that was replaced since says nothing about the new log, and counts as no
    position. Without readers the result is ``ALL_ROWS`` for each of ``partitions``: nobody waits for any
    row. Holds never let rows be dropped, they only keep them; the call deletes those that are over.
    """
    asked = [("HGETALL", keys.readers), ("HGETALL", keys.holds), ("TIME",)]
    flat_readers, flat_holds, time = all_answered(await backend.pipeline(asked))
    readers, now_ms = read_readers(flat_readers).values(), ms_of(time)
    holds = {name: read_position(value) for name, value in pairs_of(flat_holds).items()}
    # This may also delete a hold that is renewed right now, after its end; its task soon renews it again.
    if over := [name for name, hold in holds.items() if not hold.holds(now_ms)]:
        await backend.execute("HDEL", keys.holds, *over)
    held = [hold for name, hold in holds.items() if name not in over]
    if not readers and not held:
        return Passed(dict.fromkeys(partitions, ALL_ROWS), False)
    begun = [set(reader.rows) for reader in readers] or [set(partitions)]
    shared = sorted(set.intersection(*begun))
    commands: list[Sequence[Argument]] = [("HGET", keys.lock(p), "log") for p in shared]
    slowest: dict[int, int] = {}
    for partition, log in zip(shared, await backend.pipeline(commands), strict=True):
        identity = log.decode("utf-8", "replace") if isinstance(log, bytes) else None
        if identity is not None and all(r.logs.get(partition) == identity for r in readers):
            here = [hold for hold in held if hold.logs.get(partition) == identity]
            rows = (each.rows.get(partition, 0) for each in (*readers, *here))
            slowest[partition] = min(rows, default=ALL_ROWS)
        elif isinstance(log, BackendError) and len(shared) == 1:
            raise log
    return Passed(slowest, bool(readers))


async def forget(backend: Backend, keys: GroupKeys, name: str) -> bool:
    """Remove a reader that will not come back; return whether it existed. The call may be repeated."""
    return bool(await backend.execute("HDEL", keys.readers, name))


def mark_of(pipeline: str) -> str:
    """Return the field in which a partition keeps where it stands with what a pipeline sends to it."""
    return f"pipeline {pipeline}"


async def forget_marks(
    backend: Backend, streams: Sequence[tuple[StreamKeys, Placement]], pipeline: str
) -> None:
    """Remove where the partitions of some streams stand with a pipeline that will not come back.

    Also with the sinks that its function names itself. The call may be repeated.
    """
    places = [keys.taken(p) for keys, placement in streams for p in placement.all]
    found = all_answered(await backend.pipeline([("HGETALL", each) for each in places]))
    mark = mark_of(pipeline).encode()
    for place, flat in zip(places, found, strict=True):
        if its := [each for each in flat[::2] if each == mark or each.startswith(mark + b"/")]:
            await backend.execute("HDEL", place, *its)


def read_readers(flat: Sequence[bytes]) -> dict[str, ReaderPosition]:
    """Parse the hash of readers."""
    return {name.decode("utf-8", "replace"): read_position(value) for name, value in pairs_of(flat).items()}
