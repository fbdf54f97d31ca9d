"""Hands on what a producer has queued for partitions that take no more to those that follow them.

A stream that grows seals its partitions and opens others (``core/data/placement.py``). A producer learns of
it when an append is answered ``SEALED``: nothing of that append is there, and nothing will be. These rules
keep the records of a key in order, and each once:

1. What is in flight to a sealed partition is put back to its place in the queue.
2. The queue waits until the stream's map says which partitions follow. Then it goes to the front of their
   queues, also what is put back later: what these have is younger.
3. A record that was routed by an older map, and is queued now, goes to the end of the queue that follows.
4. A partition gets nothing while a lane of an older one that shares keys with it has anything left.

The key of a queued record is not kept, since only what moves needs it: the record is decoded again.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import Any

from streamworker.core.data.placement import RoundRobin, canonical_key
from streamworker.core.pauses import Pauses
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import BackendUnavailable, StreamworkerError
from streamworker.log import get_logger
from streamworker.redisio.data import maps
from streamworker.redisio.keys import StreamKeys, map_in
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.runtime.send.lane import Batch, Encoded, Lane, Part, shared
from streamworker.runtime.send.refusals import unreadable
from streamworker.runtime.telling import warn

map_pauses = partial(Pauses, first_ms=20, max_ms=500)
"""The pauses before the map of a stream that grows is read again."""

_log = get_logger("streamworker.producer")


async def follow_map(backend: Backend, spec: StreamSpec) -> None:
    """Take in the stream's map, if it has grown and Redis answers."""
    try:
        counts = await maps.stored_map(backend, StreamKeys(spec.app, spec.name))
    except BackendUnavailable as error:
        warn(_log, "map_unread", error, stream=spec.name)
        return
    if len(counts) > len(spec.placement.counts):
        spec.placement.become(*counts)


async def follow_targets(backend: Backend, streams: Sequence[StreamSpec]) -> None:
    """Take in the maps of some streams that have grown; raise BackendError if one cannot be read."""
    asked = [("HGET", StreamKeys(stream.app, stream.name).meta, "partitions") for stream in streams]
    for stream, counts in zip(streams, all_answered(await backend.pipeline(asked)), strict=True):
        if counts and len(found := map_in(counts)) > len(stream.placement.counts):
            stream.placement.become(*found)


class StoredKeys:
    """Reads the keys of records that are encoded."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec

    @cached_property
    def _decode(self) -> Callable[[Mapping[bytes, bytes]], Any]:
        if self._spec.codec == "arrow":
            raise ValueError("an entry of columns is not taken apart")
        return self._spec.record.decoder(self._spec.codec)

    def of(self, entry: Encoded) -> bytes | None:
        """Return a record's key, None for no key; raise whatever a user's key function or codec raises."""
        payload = entry[0] if isinstance(entry, tuple) else entry
        fields = {b"v": payload} if isinstance(payload, bytes) else payload
        return canonical_key(self._spec.key(self._decode(fields)))


class StreamGrowth:
    """What one producer does when its stream grows."""

    def __init__(
        self,
        backend: Backend,
        spec: StreamSpec,
        lanes: Mapping[int, Lane],
        lane_of: Callable[[int], Lane],
        rng: random.Random,
    ) -> None:
        self._backend, self._spec, self._lanes, self._lane_of = backend, spec, lanes, lane_of
        self._rng = rng
        self._deal, self._keys = RoundRobin(rng.randrange(1 << 30)), StoredKeys(spec)
        self.is_looking = False

    def holds(self, lane: Lane) -> bool:
        """Whether a lane must begin nothing: its partition is old, or an older one has something left."""
        placement = self._spec.placement
        if lane.partition not in placement.active:
            return True
        older = map(self._lanes.get, placement.ancestors_of(lane.partition))
        return any(each is not None and (each.in_flight or each.parts) for each in older)

    def sealed(self, batch: Batch) -> bool:
        """Put back an append to a partition that takes no more; return whether the map must be looked at."""
        batch.lane.is_sealed = True
        batch.lane.put_back(batch)
        return batch.lane.partition in self._spec.placement.active and not self.is_looking

    async def look(self) -> None:
        """Wait until the map says which partitions follow those that are sealed."""
        self.is_looking = True
        pauses = map_pauses(self._rng.random)
        try:
            while True:
                if await self._has_grown():
                    break
                pause_ms = pauses.next_ms()
                _log.warning("send_sealed", stream=self._spec.name, retry_in_ms=pause_ms)
                await asyncio.sleep(pause_ms / 1000)
        except StreamworkerError as error:
            for lane in self._lanes.values():
                for part in lane.parts if lane.is_sealed else ():
                    part.refuse(error)
        finally:
            self.is_looking = False
        self.settle()

    async def _has_grown(self) -> bool:
        await follow_map(self._backend, self._spec)
        active = map(self._lanes.get, self._spec.placement.active)
        return not any(lane.is_sealed for lane in active if lane is not None)

    def settle(self) -> None:
        """Move what waits in lanes of old partitions."""
        for lane in sorted(self._lanes.values(), key=lambda lane: -lane.partition):
            self._move(lane)  # What is older goes to the front last.

    def _move(self, lane: Lane) -> None:
        if lane.partition in self._spec.placement.active:
            return
        moved: dict[int, list[Part]] = {}
        for _, its in groupby(lane.parts, key=lambda part: id(part.done)):
            for share in self._shares(list(its)):
                moved.setdefault(share.partition, []).append(share)
        lane.parts.clear()
        for partition, parts in moved.items():
            self._lane_of(partition).parts.extendleft(reversed(parts))

    def late(self, part: Part) -> None:
        """Queue what was routed by an older map."""
        self.settle()
        for share in self._shares([part]):
            self._lane_of(share.partition).parts.append(share)

    def _shares(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return what is left of one send by where its keys go now; nothing if nobody waits for it."""
        if parts[0].given_up:
            return ()
        by: dict[int, list[Encoded]] = {}
        try:
            for part in parts:
                for entry in part.entries if part.single is None else (part.single,):
                    by.setdefault(self._partition_of(entry), []).append(entry)
        except Exception as error:  # noqa: BLE001 - whatever a user's key function or codec raises
            parts[0].refuse(unreadable(self._spec, error))
            return ()
        return shared(parts, by)

    def _partition_of(self, entry: Encoded) -> int:
        key, placement = self._keys.of(entry), self._spec.placement
        return self._deal.next(placement.active) if key is None else placement.partition_of(key)
