"""Reads a partition's keyed state; ``commit`` writes it atomically with the checkpoint."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import pairs_of

SCAN_COUNT = 1_000
TIMERS = "\0"
"""Prefix of the fields that belong to timers, and not to the function's state."""
RAN = "\0ran:"
"""Prefix of the fields that tell of a timer's last call, as JSON."""
RUN = "\0run:"
"""Prefix of the fields by which somebody asks for a call now: the time to call it for (ms). The name of a
field ends with that time, too: the end of a call takes away no request that came while it ran."""


class Ran(msgspec.Struct, frozen=True):
    """The last call of a timer in one partition."""

    at: int
    """The planned time."""
    began: int
    """When it began; all times are the server's, in ms."""
    took: int
    by: str
    """The member that made it."""


async def read_calls(backend: Backend, keys: GroupKeys, partitions: Sequence[int], timer: str) -> list[Ran]:
    """Return the last call of a timer in each partition that had one."""
    replies = await backend.pipeline([("HGET", keys.state(p), RAN + timer) for p in partitions])
    return [msgspec.json.decode(reply, type=Ran) for reply in all_answered(replies) if reply is not None]


async def ask_for_calls(
    backend: Backend, keys: GroupKeys, partitions: Sequence[int], timer: str, at_ms: int
) -> None:
    """Ask for a call of a timer now, in some partitions; their owners see it when they read the state."""
    asked = [("HSET", keys.state(p), f"{RUN}{timer}/{at_ms}", at_ms) for p in partitions]
    all_answered(await backend.pipeline(asked))


class Calls(NamedTuple):
    """Partitions by what became of a call that was asked for."""

    waiting: list[int]
    made: list[int]
    gone: list[int]
    """Nobody waits for it any more, and no call is known: the state was deleted, and the request with it."""


async def calls_asked_for(
    backend: Backend, keys: GroupKeys, partitions: Sequence[int], timer: str, at_ms: int
) -> Calls:
    """Return what became of the call of a timer that was asked for at a time."""
    asked = [("HMGET", keys.state(p), f"{RUN}{timer}/{at_ms}", RAN + timer) for p in partitions]
    found = Calls([], [], [])
    for p, (waits, ran) in zip(partitions, all_answered(await backend.pipeline(asked)), strict=True):
        (found.waiting if waits else found.made if ran else found.gone).append(p)
    return found


async def read_state(backend: Backend, keys: GroupKeys, partition: int) -> dict[str, bytes]:
    """Return a partition's whole state."""
    found: dict[str, bytes] = {}
    async for page in scan_hash(backend, keys.state(partition)):
        found.update((field.decode("utf-8", "replace"), value) for field, value in page.items())
    return found


async def clear_state(backend: Backend, keys: GroupKeys, partition: int) -> None:
    """Remove a partition's state, but what belongs to timers. The call may be repeated."""
    async for page in scan_hash(backend, keys.state(partition)):
        if fields := [field for field in page if not field.startswith(TIMERS.encode())]:
            await backend.execute("HDEL", keys.state(partition), *fields)


async def scan_hash(backend: Backend, key: str) -> AsyncIterator[Mapping[bytes, bytes]]:
    """Iterate over a hash to which nothing is added meanwhile, in slices that do not block the server."""
    cursor = b"0"
    while True:
        cursor, flat = await backend.execute("HSCAN", key, cursor, "COUNT", SCAN_COUNT)
        yield pairs_of(flat)
        if int(cursor) == 0:
            return
