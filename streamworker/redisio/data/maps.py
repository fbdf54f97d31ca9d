"""The map of a stream in Redis: which partitions it has (``core/data/placement.py``)."""

from collections.abc import Sequence

from streamworker.core.data.placement import Placement
from streamworker.errors import BackendRefused, ConfigurationError
from streamworker.redisio.keys import StreamKeys, map_in
from streamworker.redisio.wire.client import Backend


async def stored_map(backend: Backend, keys: StreamKeys) -> tuple[int, ...]:
    """Return how many partitions each generation of a stream has; empty if there is no stream."""
    (value,) = await backend.execute("HMGET", keys.meta, "partitions")
    return () if value is None else map_in(value)


async def check_made(backend: Backend, keys: StreamKeys, partitions: int) -> tuple[int, ...]:
    """Refuse to go through the partitions of a stream that is declared otherwise, some as if all.

    The result is the stream's map. It is empty if there is no stream, and for a user that may read a table
    alone: that may not read the map, and does without this check.
    """
    try:
        value = await backend.execute("HGET", keys.meta, "partitions")
    except BackendRefused:
        return ()
    return () if value is None else checked_map(keys, value, partitions)


async def follow_maps(backend: Backend, streams: Sequence[tuple[StreamKeys, Placement]]) -> None:
    """Let placements become the maps of their streams in Redis, in one round trip.

    One stays as it is declared if its stream is not there, cannot be read, or is declared otherwise.
    """
    asked = [("HGET", keys.meta, "partitions") for keys, _ in streams]
    for reply, (_, placement) in zip(await backend.pipeline(asked), streams, strict=True):
        counts = map_in(reply) if isinstance(reply, bytes) else placement.counts
        if placement.counts[0] in (counts[0], counts[-1]) and counts != placement.counts:
            placement.become(*counts)


def checked_map(keys: StreamKeys, value: bytes, declared: int) -> tuple[int, ...]:
    """Return a stream's map; refuse a declaration that has neither its first number nor its newest."""
    counts = map_in(value)
    if declared not in (counts[0], counts[-1]):
        raise ConfigurationError(
            f"Stream {keys.stream!r} has partitions={value.decode()} in Redis and {declared} in the app.",
            remedy=f"Declare it with partitions={counts[-1]}. Another number would send the records of a key "
            "to another partition; `streamworker partitions` gives it more.",
        )
    return counts
