"""Sends records: encoded, routed by their keys, combined into few round trips, never written twice.

How that is done without an answer, and at a partition that is full, is in ``lanes``.
"""

import random
from collections import defaultdict, deque
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, NamedTuple

from streamworker.core.entries import EntryId
from streamworker.core.partitioner import RoundRobin, canonical_key, partition_for
from streamworker.errors import RecordError
from streamworker.processors import StreamSpec
from streamworker.redisio.client import Backend
from streamworker.runtime.lanes import Encoded, Lanes, OnFull, Part
from streamworker.settings import Settings

HEADERS_MAX = 500
"""A script passes on some thousand fields of an entry at most, and an append is done as a whole."""
CHUNK_ENTRIES = 2_000
"""Records that ``send_many`` encodes before it gives way to others: 2 ms (measured)."""
CHUNK_BYTES = 1024 * 1024
CHUNKS_AHEAD = 2
"""Chunks that ``send_many`` has under way: one is encoded while others are sent."""


class Sent(NamedTuple):
    """Where a record is."""

    partition: int
    entry_id: EntryId


class Producer:
    """Sends records of one stream from one event loop.

    Parameters
    ----------
    backend
        Where to; stays open when the producer is done.
    spec
        The stream.
    settings
        ``entry_bytes_max`` is used.
    rng
        For jitter, and the first partition of records without a key.

    Examples
    --------
    >>> async def main(backend: Backend, orders: StreamSpec) -> None:
    ...     producer = Producer(backend, orders, Settings())
    ...     sent = await producer.send({"customer": "ann"})
    ...     print(sent.partition, sent.entry_id)
    """

    def __init__(
        self, backend: Backend, spec: StreamSpec, settings: Settings, *, rng: random.Random | None = None
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._encode = spec.record.encoder(spec.codec)
        self._key = spec.key
        rng = rng or random.Random()
        self._deal = RoundRobin(rng.randrange(spec.partitions))
        self._lanes = Lanes(backend, spec, rng)

    # -- sending -----------------------------------------------------------------------------

    async def send(
        self,
        record: Any,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        on_full: OnFull = "wait",
        timeout: float | None = None,
    ) -> Sent:
        """Append one record; returns once Redis has it.

        Sends that run at the same time share round trips. Records of one task that are sent one
        after the other keep their order, and so do those of one key in one ``gather``.

        Parameters
        ----------
        record
            A record of the stream's type.
        headers
            Carried beside the record; a processor finds them in ``ctx.headers``.
        on_full
            ``wait`` until there is room, or ``raise`` StreamFull.
        timeout
            Seconds to wait at most; for ever if None.

        Raises
        ------
        RecordError
            If the record cannot be encoded or routed, or is too large.
        StreamFull
            If there is no room, or none within ``timeout``. Nothing was written.
        ProducerError
            If Redis gave no answer within ``timeout``: the record may or may not be there.
        BackendRefused
            If Redis said no. Nothing was written.
        ConfigurationError
            If the stream was declared otherwise: partitions, codec.
        """
        partition, entry, size = self.prepared(record, _header_fields(headers))
        part = self._lanes.queue(partition, [entry], size, on_full)
        return Sent(partition, await self._lanes.confirmed(part, partition, timeout))

    async def send_many(
        self,
        records: Iterable[Any] | AsyncIterable[Any],
        *,
        on_full: OnFull = "wait",
        timeout: float | None = None,
    ) -> int:
        """Append many records in few round trips, in order; returns how many.

        Takes endless iterables too: a bounded number of records is in memory at a time. If it
        raises because of one record, the records before it are there; if because of Redis,
        those before the chunk that failed (a chunk has at most 2,000).

        Parameters
        ----------
        records
            Records of the stream's type; an iterable or an async iterable.
        on_full, timeout
            As for :meth:`send`; ``timeout`` is for one chunk.

        Raises
        ------
        StreamworkerError
            As :meth:`send`.
        """
        sender = _ManySender(self, self._lanes, on_full, timeout)
        try:
            if isinstance(records, AsyncIterable):
                async for record in records:
                    if sender.add(record):
                        await sender.send_chunk()
            else:
                for record in records:
                    if sender.add(record):
                        await sender.send_chunk()
        except BaseException as error:
            if isinstance(error, Exception) and not sender.failed:
                # The source or a record is at fault: what came before it is sent all the same.
                await sender.finish()
            sender.give_up()
            raise
        await sender.finish()
        return sender.count

    async def aclose(self) -> None:
        """Send what waits, then take no more. The backend stays open."""
        await self._lanes.aclose()

    # -- encoding ----------------------------------------------------------------------------

    def prepared(self, record: Any, headers: Mapping[bytes, bytes] | None) -> tuple[int, Encoded, int]:
        """Encode and route a record: its partition, its entry and the entry's bytes."""
        payload = self._encode(record)
        size = (
            len(payload) if isinstance(payload, bytes) else sum(len(k) + len(v) for k, v in payload.items())
        )
        if headers:
            size += sum(len(k) + len(v) for k, v in headers.items())
        if size > self._settings.entry_bytes_max:
            raise RecordError(
                f"A record of stream {self._spec.name!r} has {size} bytes, and entry_bytes_max is "
                f"{self._settings.entry_bytes_max}.",
                remedy="Keep large values elsewhere and send where they are, or raise entry_bytes_max.",
            )
        key = canonical_key(self._key(record))
        partitions = self._spec.partitions
        partition = self._deal.next(partitions) if key is None else partition_for(key, partitions)
        return partition, (payload, headers), size


class _ManySender:
    """One ``send_many``: gathers records into chunks and keeps a few of them under way."""

    def __init__(self, producer: Producer, lanes: Lanes, on_full: OnFull, timeout: float | None) -> None:
        self.count = 0
        """Records that Redis has."""
        self.failed = False
        self._producer = producer
        self._lanes = lanes
        self._on_full: OnFull = on_full
        self._timeout = timeout
        self._entries: defaultdict[int, list[Encoded]] = defaultdict(list)
        self._sizes: defaultdict[int, int] = defaultdict(int)
        self._gathered = self._size = 0
        self._under_way: deque[list[tuple[int, int, Part]]] = deque()

    def add(self, record: Any) -> bool:
        """Add a record to the chunk; True if the chunk is to be sent."""
        partition, entry, size = self._producer.prepared(record, None)
        self._entries[partition].append(entry)
        self._sizes[partition] += size
        self._gathered += 1
        self._size += size
        return self._gathered >= CHUNK_ENTRIES or self._size >= CHUNK_BYTES

    async def send_chunk(self) -> None:
        """Send what was gathered; waits for earlier chunks."""
        self._under_way.append(
            [
                (
                    partition,
                    len(entries),
                    self._lanes.queue(partition, entries, self._sizes[partition], self._on_full),
                )
                for partition, entries in self._entries.items()
            ]
        )
        self._entries.clear()
        self._sizes.clear()
        self._gathered = self._size = 0
        while len(self._under_way) > CHUNKS_AHEAD:
            await self._confirm_oldest()

    async def finish(self) -> None:
        """Send the rest, and wait for all."""
        if self._gathered:
            await self.send_chunk()
        while self._under_way:
            await self._confirm_oldest()

    async def _confirm_oldest(self) -> None:
        try:
            for partition, count, part in self._under_way[0]:
                await self._lanes.confirmed(part, partition, self._timeout)
                self.count += count
        except BaseException:
            self.failed = True
            raise
        self._under_way.popleft()

    def give_up(self) -> None:
        """Send nothing of what has not been sent."""
        for chunk in self._under_way:
            for _, _, part in chunk:
                part.done.cancel()
        self._under_way.clear()


def _header_fields(headers: Mapping[Any, Any] | None) -> dict[bytes, bytes] | None:
    if not headers:
        return None
    if len(headers) > HEADERS_MAX:
        raise RecordError(
            f"A record was sent with {len(headers)} headers.", remedy=f"It may have {HEADERS_MAX}."
        )
    fields: dict[bytes, bytes] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str | bytes):
            raise RecordError(
                f"Header {name!r} is {value!r}, of type {type(value).__name__}.",
                remedy="Names of headers are text, and their values text or bytes.",
            )
        try:
            fields[name.encode()] = value.encode() if isinstance(value, str) else value
        except UnicodeEncodeError:
            raise RecordError(
                f"Header {name!r} is {value!r}, which is no text that UTF-8 can hold.",
                remedy="Send such a value as bytes.",
            ) from None
    return fields
