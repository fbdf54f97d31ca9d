"""Reads a partition's keyed state; ``commit`` writes it atomically with the checkpoint."""

from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import pairs_of

SCAN_COUNT = 1_000


async def read_state(backend: Backend, keys: GroupKeys, partition: int) -> dict[str, bytes]:
    """Return a partition's whole state; it is read in slices that do not block the server."""
    found: dict[str, bytes] = {}
    cursor = b"0"
    while True:
        cursor, flat = await backend.execute("HSCAN", keys.state(partition), cursor, "COUNT", SCAN_COUNT)
        found.update((key.decode("utf-8", "replace"), value) for key, value in pairs_of(flat).items())
        if int(cursor) == 0:
            return found
