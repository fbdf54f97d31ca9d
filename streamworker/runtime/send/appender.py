"""The calls of one producer to Redis."""

import random
import secrets
from collections.abc import Sequence

from streamworker.processors import StreamSpec
from streamworker.redisio.data import streams
from streamworker.redisio.data.streams import AppendReply
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend, retrying
from streamworker.runtime.durability import check_durability, durability_of
from streamworker.runtime.send.lane import Batch
from streamworker.settings import Settings


class Appender:
    """Appends to one stream under a producer id of its own; declares the stream before the first append."""

    def __init__(self, backend: Backend, spec: StreamSpec, settings: Settings) -> None:
        self._backend = backend
        self._spec = spec
        self._settings = settings
        self.durability = durability_of(settings)
        self._keys = StreamKeys(spec.app, spec.name)
        self._id = secrets.token_hex(8)
        self.declared = False
        """Whether the stream is declared: before that no append was sent."""

    def place_of(self, partition: int) -> str:
        """Return the node of a partition, as far as is known."""
        return self._backend.known_place_of(self._keys.events(partition))

    async def append(self, batches: Sequence[Batch]) -> list[AppendReply]:
        """Append batches of different partitions in one round trip."""
        if not self.declared:
            await check_durability(self._backend, self._settings)
            await streams.declare(self._backend, self._keys, self._spec.partitions, self._spec.codec)
            self.declared = True
        appends = [batch.append(self._id, self._spec.entries_max) for batch in batches]
        return await streams.append_many(self._backend, self._keys, appends, self.durability)

    async def last_numbers(self, partitions: Sequence[int], rng: random.Random) -> dict[int, int | None]:
        """Return the number of this producer's last append to each partition, as Redis knows it."""
        return await retrying(
            lambda: streams.last_numbers(self._backend, self._keys, self._id, partitions), rng=rng
        )
