"""Waits until a group has committed a record that was sent."""

import asyncio
import math
import random
from contextlib import suppress

from streamworker.core.data.entries import EntryId
from streamworker.core.pauses import Pauses
from streamworker.errors import BackendUnavailable
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend


async def wait_for_commit(
    backend: Backend, keys: GroupKeys, partition: int, entry_id: EntryId, timeout_s: float | None
) -> bool:
    """Return whether a group's checkpoint comes to an entry within the timeout; looks once at least."""
    pauses = Pauses(random.random, first_ms=2, max_ms=100)
    clock = asyncio.get_running_loop().time
    until_s = math.inf if timeout_s is None else clock() + timeout_s
    while True:
        with suppress(BackendUnavailable):
            checkpoint = await backend.execute("HGET", keys.lock(partition), "checkpoint")
            if checkpoint is not None and EntryId.parse(checkpoint) >= entry_id:
                return True
        if clock() >= until_s:
            return False
        await asyncio.sleep(min(pauses.next_ms() / 1000, max(0.0, until_s - clock())))
