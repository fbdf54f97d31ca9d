"""Sends records: encoded, routed by their keys, combined into few round trips, never written twice.

How that is done without an answer, and at a partition that is full, is in ``lanes``.
"""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamworker.core.entries import EntryId
from streamworker.core.partitioner import RoundRobin, canonical_key, partition_for
from streamworker.errors import RecordError
from streamworker.processors import StreamSpec
from streamworker.redisio.client import Backend
from streamworker.runtime.lane import Encoded, OnFull, Part
from streamworker.runtime.lanes import Lanes
from streamworker.runtime.ledger import LostSends
from streamworker.runtime.quick import QuickWay
from streamworker.settings import Settings

if TYPE_CHECKING:  # pyarrow takes longer to import than the rest of a producer
    from streamworker.runtime.tables import TablePacker

HEADERS_MAX = 500
"""A script passes on some thousand fields of an entry at most, and an append is done as a whole."""
CHUNK_ENTRIES = 2_000
"""Records that ``send_many`` encodes before it gives way to others: 2 ms (measured)."""
CHUNK_BYTES = 1024 * 1024
LEADS = (200, 400)
"""Records at the head of a list that are sent by themselves, so that Redis has something to do while
the others are encoded. It takes longer for a record than that does, so each part may be larger."""
ROWS_CHUNK = 10_000
"""The same for a stream of columns, where they become one entry a partition: 10 to 20 ms."""
CHUNKS_AHEAD = 2
"""Chunks that ``send_many`` has under way: one is encoded while others are sent."""
WINDOWS_AHEAD = 1
"""Parts of a table that are under way while the next one is packed."""
PACK_IN_THREAD_ROWS = 10_000
"""Rows that are packed in a thread: they take a millisecond, and pyarrow lets go of the GIL."""


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
        ``entry_bytes_max`` and those of durability are used.
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
        self._encode = (
            (lambda record: self.packer.fields([record]))
            if spec.codec == "arrow"
            else spec.record.encoder(spec.codec)
        )
        self._key = spec.key
        rng = rng or random.Random()
        self._deal = RoundRobin(rng.randrange(spec.partitions))
        self._lanes = Lanes(backend, spec, settings, rng)

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
            If Redis gave no answer within ``timeout``, or refused after a try without an answer: the
            record may or may not be there.
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
        kind = _RowSender if self._spec.codec == "arrow" else _ManySender
        sender = kind(self, self._lanes, on_full, timeout)
        try:
            if isinstance(records, AsyncIterable):
                async for record in records:
                    if sender.add(record):
                        await sender.send_chunk()
            elif isinstance(records, list | tuple):
                for start in range(0, len(records), CHUNK_ENTRIES):
                    await sender.send_list(records[start : start + CHUNK_ENTRIES])
            else:
                for record in records:
                    if sender.add(record):
                        await sender.send_chunk()
            await sender.finish()
        except BaseException as error:
            if isinstance(error, Exception) and not sender.failed:
                # The source or a record is at fault: what came before it is sent all the same.
                await sender.finish()
            sender.give_up()
            raise
        return sender.count

    async def send_table(
        self,
        table: object,
        *,
        rows_per_entry: int = 10_000,
        compression: Literal["none", "lz4", "zstd"] = "lz4",
        on_full: OnFull = "wait",
        timeout: float | None = None,
    ) -> int:
        """Append the rows of a table, many in each entry; returns how many.

        Each row goes where :meth:`send` would put its record, and rows of one key keep their order.
        Some 64 MB of the table are packed and sent at a time. If it raises, what was sent before
        the part that failed is there.

        Parameters
        ----------
        table
            A table or record batch of pyarrow, or what gives one away, as polars' DataFrames do. Its
            columns are the record type's fields; one that has a default may be missing.
        rows_per_entry
            Rows of one partition in one entry at most; also bounded by ``entry_bytes_max``.
        compression
            Of each entry; one that does not get smaller is left as it is.
        on_full, timeout
            As for :meth:`send`; ``timeout`` is for each part.

        Raises
        ------
        RecordError
            If a column is missing, of another type, or holds what its field cannot.
        ConfigurationError
            If the stream has another codec.
        StreamworkerError
            As :meth:`send`.
        """
        from streamworker.runtime.tables import as_table, check_table_options

        check_table_options(self._spec, rows_per_entry, compression)
        rows = as_table(table)
        sender = _Sender(self._lanes, on_full, timeout, WINDOWS_AHEAD)
        packed = 0
        try:
            for window in self.packer.windows(rows, rows_per_entry):
                work = partial(self.packer.packets, window, rows_per_entry, compression, packed)
                in_thread = window.num_rows > PACK_IN_THREAD_ROWS
                packets = await asyncio.to_thread(work) if in_thread else work()
                packed += window.num_rows
                await sender.send([(p.partition, [(p.fields, None)], p.size, p.rows) for p in packets])
            await sender.finish()
        except BaseException as error:
            if isinstance(error, Exception) and not sender.failed:
                await sender.finish()
            sender.give_up()
            raise
        return sender.count

    # -- what Redis has lost -----------------------------------------------------------------

    @property
    def lost(self) -> Sequence[LostSends]:
        """Sends that were confirmed and that Redis has lost since, as far as it was noticed.

        It is noticed when the producer sends to the same partition again, or by :meth:`verify`.
        """
        return tuple(self._lanes.lost)

    async def verify(self) -> list[LostSends]:
        """Ask Redis whether it still has what it confirmed in the last fifty minutes.

        Returns
        -------
        list[LostSends]
            What is gone and was not reported before.

        Raises
        ------
        BackendError
            Without an answer.
        """
        return await self._lanes.verify()

    async def aclose(self) -> None:
        """Send what waits, then take no more. The backend stays open."""
        await self._lanes.aclose()

    # -- encoding ----------------------------------------------------------------------------

    @cached_property
    def quick(self) -> QuickWay:
        """What encodes and routes lists of records that are all as they should be."""
        return QuickWay(
            self._spec,
            self._deal,
            payload_bytes_max=self._settings.entry_bytes_max,
            list_bytes_max=CHUNK_BYTES,
        )

    @cached_property
    def packer(self) -> "TablePacker":
        """What makes entries of many rows."""
        from streamworker.runtime.tables import TablePacker

        return TablePacker(self._spec, self._deal, self._settings.entry_bytes_max)

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
        return self.partition_of(record), (payload, headers), size

    def partition_of(self, record: Any) -> int:
        """Return where a record goes."""
        key = canonical_key(self._key(record))
        partitions = self._spec.partitions
        return self._deal.next(partitions) if key is None else partition_for(key, partitions)


Piece = tuple[int, Sequence[Encoded], int, int]
"""Entries for one partition: their bytes, and how many records they hold."""


class _Sender:
    """One send of much: has a few chunks under way, and waits for the oldest before it takes more."""

    def __init__(self, lanes: Lanes, on_full: OnFull, timeout: float | None, ahead: int) -> None:
        self.count = 0
        """Records that Redis has."""
        self.failed = False
        self._lanes = lanes
        self._on_full: OnFull = on_full
        self._timeout = timeout
        self._ahead = ahead
        self._under_way: deque[list[tuple[int, int, Part]]] = deque()

    async def send(self, pieces: list[Piece]) -> None:
        """Send a chunk; waits for earlier ones."""
        self._under_way.append(
            [
                (partition, count, self._lanes.queue(partition, entries, size, self._on_full))
                for partition, entries, size, count in pieces
            ]
        )
        while len(self._under_way) > self._ahead:
            await self._confirm_oldest()

    async def finish(self) -> None:
        """Wait for all."""
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


class _ManySender(_Sender):
    """One ``send_many``: gathers records into chunks."""

    def __init__(self, producer: Producer, lanes: Lanes, on_full: OnFull, timeout: float | None) -> None:
        super().__init__(lanes, on_full, timeout, CHUNKS_AHEAD)
        self._producer = producer
        self._entries: defaultdict[int, list[Encoded]] = defaultdict(list)
        self._sizes: defaultdict[int, int] = defaultdict(int)
        self._gathered = self._size = 0

    def add(self, record: Any) -> bool:
        """Add a record to the chunk; True if the chunk is to be sent."""
        partition, entry, size = self._producer.prepared(record, None)
        self._entries[partition].append(entry)
        self._sizes[partition] += size
        self._gathered += 1
        self._size += size
        return self._gathered >= CHUNK_ENTRIES or self._size >= CHUNK_BYTES

    async def send_list(self, records: Sequence[Any]) -> None:
        """Send a list no longer than a chunk; the rest of it may be gathered for the next chunk."""
        for lead in () if self._under_way or self._gathered else LEADS:
            if len(records) >= 2 * lead:
                await self._send_part(records[:lead])
                records = records[lead:]
                await asyncio.sleep(0)  # In this turn of the event loop it is written to the socket.
        await self._send_part(records)

    async def _send_part(self, records: Sequence[Any]) -> None:
        routed = None if self._gathered else self._producer.quick.routed(records)
        if routed is not None:
            await self.send(
                [
                    (partition, payloads, sum(map(len, payloads)), len(payloads))
                    for partition, payloads in routed.items()
                ]
            )
            return
        for record in records:
            if self.add(record):
                await self.send_chunk()

    async def send_chunk(self) -> None:
        """Send what was gathered."""
        pieces: list[Piece] = [
            (partition, entries, self._sizes[partition], len(entries))
            for partition, entries in self._entries.items()
        ]
        self._entries.clear()
        self._sizes.clear()
        self._gathered = self._size = 0
        await self.send(pieces)

    async def finish(self) -> None:
        """Send the rest, and wait for all."""
        if self._gathered:
            await self.send_chunk()
        await super().finish()


class _RowSender(_ManySender):
    """As its base, for a stream of columns: the records of a chunk are one entry a partition."""

    def __init__(self, producer: Producer, lanes: Lanes, on_full: OnFull, timeout: float | None) -> None:
        super().__init__(producer, lanes, on_full, timeout)
        self._records: list[tuple[int, Any]] = []

    def add(self, record: Any) -> bool:
        """Add a record to the chunk; True if the chunk is to be sent."""
        try:
            partition = self._producer.partition_of(record)
        except (AttributeError, KeyError, TypeError):
            self._producer.packer.fields([record])  # which names what is no record of the stream
            raise
        self._records.append((partition, record))
        self._gathered = len(self._records)
        return self._gathered >= ROWS_CHUNK

    async def send_chunk(self) -> None:
        """Send what was gathered; if a record is at fault, what came before it."""
        records, self._records, self._gathered = self._records, [], 0
        try:
            pieces = self._pieces(records)
        except RecordError as error:
            good, fault = self._before_fault(records)
            await self.send(self._pieces(good))
            await _Sender.finish(self)
            raise fault or error from None
        await self.send(pieces)

    def _pieces(self, records: list[tuple[int, Any]]) -> list[Piece]:
        packets = self._producer.packer.of_records(records)
        return [(p.partition, [(p.fields, None)], p.size, p.rows) for p in packets]

    def _before_fault(
        self, records: list[tuple[int, Any]]
    ) -> tuple[list[tuple[int, Any]], RecordError | None]:
        for place, one in enumerate(records):
            try:
                self._pieces([one])
            except RecordError as error:
                return records[:place], error
        return records, None


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
