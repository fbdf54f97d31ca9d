"""A partition's keyed state as Redis holds it; ``commit`` writes it, in the same step."""

from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys

SCAN_COUNT = 1_000


async def read_state(backend: Backend, keys: GroupKeys, partition: int) -> dict[str, bytes]:
    """Return all of a partition's state, in pieces that do not block the server."""
    found: dict[str, bytes] = {}
    cursor = b"0"
    while True:
        cursor, flat = await backend.execute("HSCAN", keys.state(partition), cursor, "COUNT", SCAN_COUNT)
        items = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
        found.update((bytes(key).decode("utf-8", "replace"), value) for key, value in items)
        if int(cursor) == 0:
            return found
