"""Sends records: encodes them, routes them by key, combines them into few round trips.

No record is written twice. ``lanes`` handles sends without an answer, and full partitions.
"""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamworker.core.data.channel import LostSends
from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import RoundRobin, canonical_key
from streamworker.core.rules import checked
from streamworker.core.units import Duration, duration_ms
from streamworker.core.words import counted
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import RecordError, StreamworkerError
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.observing import Observer
from streamworker.runtime.send.lane import ROWS_PER_ENTRY_MAX, Encoded, OnFull, Part, Piece, bytes_of
from streamworker.runtime.send.lanes import Declaration, Lanes
from streamworker.runtime.send.named import NamedSends, Scheduled
from streamworker.runtime.send.quick import CHUNK_BYTES, QuickWay, slices
from streamworker.runtime.send.refusals import too_large
from streamworker.settings import Settings

if TYPE_CHECKING:  # pyarrow takes longer to import than the rest of a producer
    from streamworker.runtime.send.arrowtables import TablePacker

HEADERS_MAX = 500
"""Maximum headers of a record. A script can pass on a few thousand fields of an entry at most, and an
append is done as a whole."""
CHUNK_ENTRIES = 2_000
"""Records that ``send_many`` encodes before it yields to the event loop: 2 ms (measured)."""
LEADS = (200, 400)
"""Sizes of the first parts of a list, which are sent by themselves so that Redis works while the producer
encodes the rest. Redis takes longer for a record than the encoder, so each part may be larger. Records that
share entries go together: Redis takes little time for them."""
ROWS_CHUNK = 10_000
"""``CHUNK_ENTRIES`` for a stream of columns, where a chunk becomes one entry a partition: 10 to 20 ms."""
CHUNKS_AHEAD = 2
"""Chunks that ``send_many`` has in flight: it encodes the next one while Redis writes these."""
WINDOWS_AHEAD = 1
"""Parts of a table that are in flight while the next one is packed."""
PACK_IN_THREAD_ROWS = 10_000
"""Parts with more rows are packed in a thread: they take a millisecond, and pyarrow releases the GIL."""


Headers = Mapping[str, str | bytes]
Due = tuple[Literal["after", "at"], int]
"""When a record is due, as the script takes it."""


class Sent(NamedTuple):
    """Where a record is that was sent; ``Stream.send`` returns it.

    Examples
    --------
    >>> Sent(3, EntryId(1732186412345, 0)).entry_id.ms
    1732186412345
    """

    partition: int
    """The partition that its key led to."""
    entry_id: EntryId
    """The id of its entry in Redis."""
    duplicate: bool = False
    """Whether a record of the same id and key was sent before; the entry is that of the first one."""


class Producer:
    """Sends records of one stream from one event loop; its backend stays open when it is closed."""

    def __init__(
        self,
        backend: Backend,
        spec: StreamSpec,
        settings: Settings,
        *,
        rng: random.Random | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._encode = (
            (lambda record: self.packer.fields([record]))
            if spec.codec == "arrow"
            else spec.record.encoder(spec.codec, validate=spec.validate)
        )
        self._key = spec.key
        self.leads = () if spec.packing else LEADS
        rng = rng or random.Random()
        self._deal = RoundRobin(rng.randrange(spec.placement.live))
        if observer is not None:
            observer.producer_made(spec)
        declaration = Declaration(backend, spec, settings, observer)
        self._lanes = Lanes(declaration, rng)
        self._named = NamedSends(declaration, rng)

    # -- sending -----------------------------------------------------------------------------

    async def send(
        self,
        record: Any,
        *,
        id: str | None = None,
        headers: Headers | None = None,
        on_full: OnFull = "wait",
        timeout: Duration | None = None,
    ) -> Sent:
        """Append one record; return when Redis has it. See ``Stream.send``."""
        if id is not None:
            entry, _ = self._encoded(record, header_fields(headers))
            return Sent(*await self._named.send(self._key_of(record), id, entry, on_full, _seconds(timeout)))
        part = self.begin(record, headers, on_full)
        entry_id = await self._lanes.confirmed(part, _seconds(timeout))
        return Sent(part.partition, entry_id)

    def begin(self, record: Any, headers: Headers | None, on_full: OnFull) -> Part:
        """Begin to send one record; its part is done when Redis has it."""
        partition, entry, size = self.prepared(record, header_fields(headers))
        return self._lanes.queue((partition, (entry,), size, 1), on_full)

    async def schedule(
        self, record: Any, id: str, due: Due, replace: bool, headers: Headers | None, timeout: Duration | None
    ) -> Scheduled:
        """Keep one record until it is due. See ``Stream.schedule``."""
        entry, _ = self._encoded(record, header_fields(headers))
        key = self._key_of(record)
        return await self._named.schedule(key, id, entry, due, _seconds(timeout), replace=replace)

    async def cancel(self, id: str, key: object, timeout: Duration | None) -> bool:
        """Drop a record that waits. See ``Stream.cancel``."""
        return await self._named.cancel(canonical_key(key), id, _seconds(timeout))

    async def send_many(
        self,
        records: Iterable[Any] | AsyncIterable[Any],
        *,
        on_full: OnFull = "wait",
        timeout: Duration | None = None,
    ) -> int:
        """Append many records in few round trips, in order; return how many. See ``Stream.send_many``."""
        sender = self.many(on_full, timeout)
        try:
            if isinstance(records, AsyncIterable):
                async for record in records:
                    if sender.add(record):
                        await sender.send_chunk()
            elif isinstance(records, list | tuple):
                for chunk in slices(records, CHUNK_ENTRIES):
                    await sender.send_list(chunk)
            else:
                for record in records:
                    if sender.add(record):
                        await sender.send_chunk()
            await sender.finish()
        except BaseException as error:
            await sender.end(error)
            if isinstance(error, TypeError) and not isinstance(records, Iterable | AsyncIterable):
                raise RecordError("send_many takes several records.", remedy="Use send for one.") from None
            raise
        return sender.count

    def many(self, on_full: OnFull, timeout: Duration | None) -> "ManySender":
        """Return what sends many records: give it lists in order, then ``finish`` or ``end`` it."""
        kind = _RowSender if self._spec.codec == "arrow" else ManySender
        return kind(self, self._lanes, on_full, _seconds(timeout))

    @checked("send_table", rows_per_entry=(1, ROWS_PER_ENTRY_MAX))
    async def send_table(
        self,
        table: object,
        *,
        rows_per_entry: int = 10_000,
        compression: Literal["none", "lz4", "zstd"] = "lz4",
        on_full: OnFull = "wait",
        timeout: Duration | None = None,
    ) -> int:
        """Append the rows of a table, many in each entry; return how many. See ``Stream.send_table``."""
        from streamworker.runtime.send.arrowtables import as_table, check_takes_tables

        check_takes_tables(self._spec)
        rows = as_table(table)
        sender = _Sender(self._lanes, on_full, _seconds(timeout), WINDOWS_AHEAD)
        packed = 0
        try:
            for window in self.packer.windows(rows, rows_per_entry):
                work = partial(self.packer.packets, window, rows_per_entry, compression, packed)
                in_thread = window.num_rows > PACK_IN_THREAD_ROWS
                packets = await asyncio.to_thread(work) if in_thread else work()
                packed += window.num_rows
                await sender.send(packets)
            await sender.finish()
        except BaseException as error:
            await sender.end(error)
            raise
        return sender.count

    # -- what Redis has lost -----------------------------------------------------------------

    @property
    def lost(self) -> Sequence[LostSends]:
        """Confirmed sends that Redis has lost since, as far as the producer has noticed.

        The producer notices a loss when it sends to the same partition again, and in :meth:`verify`.
        """
        return tuple(self._lanes.losses)

    async def verify(self) -> list[LostSends]:
        """Ask Redis whether it still has the sends that it confirmed in the last fifty minutes.

        Returns the lost sends that were not reported before. Raises BackendError if Redis does not answer.
        """
        return await self._lanes.verify()

    async def aclose(self) -> None:
        """Send all queued records and accept no more. The backend stays open."""
        await self._lanes.aclose()
        await self._named.aclose()

    # -- encoding ----------------------------------------------------------------------------

    @cached_property
    def quick(self) -> QuickWay:
        """The fast path that encodes and routes lists of valid records."""
        return QuickWay(self._spec, self._deal, self._settings.entry_bytes_max)

    @cached_property
    def packer(self) -> "TablePacker":
        """The packer that makes entries of many rows."""
        from streamworker.runtime.send.arrowtables import TablePacker

        return TablePacker(self._spec, self._deal, self._settings.entry_bytes_max)

    def prepared(self, record: Any, headers: Mapping[bytes, bytes] | None) -> tuple[int, Encoded, int]:
        """Encode and route a record; return its partition, its entry and the entry's bytes."""
        entry, size = self._encoded(record, headers)
        return self.partition_of(record), entry, size

    def _encoded(self, record: Any, headers: Mapping[bytes, bytes] | None) -> tuple[Encoded, int]:
        payload = self._encode(record)
        size = len(payload) if isinstance(payload, bytes) else bytes_of(payload)
        if headers:
            size += bytes_of(headers)
        if size > self._settings.entry_bytes_max:
            raise too_large("record", self._spec, size, self._settings.entry_bytes_max)
        return (payload if headers is None and isinstance(payload, bytes) else (payload, headers)), size

    def _key_of(self, record: Any) -> bytes | None:
        return canonical_key(self._key(record))

    def partition_of(self, record: Any) -> int:
        """Return the partition of a record."""
        key = self._key_of(record)
        placement = self._spec.placement
        return self._deal.next(placement.active) if key is None else placement.partition_of(key)


class _Sender:
    """One large send: it has a few chunks in flight, and waits for the oldest before it takes more."""

    def __init__(self, lanes: Lanes, on_full: OnFull, timeout: float | None, ahead: int) -> None:
        self.count = 0
        """How many records Redis has confirmed."""
        self._failed = False
        self._lanes = lanes
        self._on_full: OnFull = on_full
        self._timeout = timeout
        self._ahead = ahead
        self._under_way: deque[list[Part]] = deque()
        """The parts of each chunk."""

    async def send(self, pieces: list[Piece]) -> None:
        """Send a chunk; wait while too many earlier ones are in flight."""
        self._under_way.append([self._lanes.queue(piece, self._on_full) for piece in pieces])
        while len(self._under_way) > self._ahead:
            await self._confirm_oldest()

    async def finish(self) -> None:
        while self._under_way:
            await self._confirm_oldest()

    async def _confirm_oldest(self) -> None:
        try:
            for part in self._under_way[0]:
                await self._lanes.confirmed(part, self._timeout)
                self.count += part.records
        except BaseException:
            self._failed = True
            raise
        self._under_way.popleft()

    async def end(self, error: BaseException) -> None:
        """Send the records before an error of a record or of the iterable, and cancel all others."""
        try:
            if isinstance(error, Exception) and not self._failed:
                await self.finish()
        finally:
            for chunk in self._under_way:
                for part in chunk:
                    part.done.cancel()
            self._under_way.clear()
            if isinstance(error, StreamworkerError):
                error.add_note(f"Redis has confirmed {counted(self.count, 'record')} of this call.")


class ManySender(_Sender):
    """One ``send_many``: collects records into chunks."""

    def __init__(self, producer: Producer, lanes: Lanes, on_full: OnFull, timeout: float | None) -> None:
        super().__init__(lanes, on_full, timeout, CHUNKS_AHEAD)
        self._producer = producer
        self.headers: Mapping[bytes, bytes] | None = None
        """Of each record; an entry of columns has none."""
        self._entries: defaultdict[int, list[Encoded]] = defaultdict(list)
        self._sizes: defaultdict[int, int] = defaultdict(int)
        self._gathered = self._size = 0

    def add(self, record: Any) -> bool:
        """Add a record to the chunk; True if the chunk is to be sent."""
        partition, entry, size = self._producer.prepared(record, self.headers)
        self._entries[partition].append(entry)
        self._sizes[partition] += size
        self._gathered += 1
        self._size += size
        return self._gathered >= CHUNK_ENTRIES or self._size >= CHUNK_BYTES

    async def send_list(self, records: Sequence[Any]) -> None:
        """Send a list no longer than a chunk; its last records may stay for the next chunk."""
        for lead in () if self._under_way or self._gathered else self._producer.leads:
            if len(records) >= 2 * lead:
                await self._send_part(records[:lead])
                records = records[lead:]
                await asyncio.sleep(0)  # The event loop writes it to the socket in this turn.
        await self._send_part(records)

    async def _send_part(self, records: Sequence[Any]) -> None:
        routed = None if self._gathered or self.headers else self._producer.quick.routed(records)
        if routed is not None:
            await self.send(
                [(partition, payloads, size, len(payloads)) for partition, payloads, size in routed]
            )
            return
        for record in records:
            if self.add(record):
                await self.send_chunk()

    async def send_chunk(self) -> None:
        """Send the collected records."""
        pieces: list[Piece] = [
            (partition, entries, self._sizes[partition], len(entries))
            for partition, entries in self._entries.items()
        ]
        self._entries.clear()
        self._sizes.clear()
        self._gathered = self._size = 0
        await self.send(pieces)

    async def finish(self) -> None:
        """Send the rest, and wait until all chunks are confirmed."""
        if self._gathered:
            await self.send_chunk()
        await super().finish()


class _RowSender(ManySender):
    """A ``send_many`` to a stream of columns: the records of a chunk become one entry a partition."""

    def __init__(self, producer: Producer, lanes: Lanes, on_full: OnFull, timeout: float | None) -> None:
        super().__init__(producer, lanes, on_full, timeout)
        self._records: list[tuple[int, Any]] = []

    def add(self, record: Any) -> bool:
        try:
            partition = self._producer.partition_of(record)
        except (AttributeError, KeyError, TypeError):
            self._producer.packer.fields([record])  # this raises an error that names the wrong record
            raise
        self._records.append((partition, record))
        self._gathered = len(self._records)
        return self._gathered >= ROWS_CHUNK

    async def send_chunk(self) -> None:
        """Send the collected records; if one cannot be packed, send those before it and raise."""
        records, self._records, self._gathered = self._records, [], 0
        try:
            pieces = self._producer.packer.of_records(records)
        except RecordError as error:
            good, fault = self._before_fault(records)
            await self.send(self._producer.packer.of_records(good))
            await _Sender.finish(self)
            raise fault or error from None
        await self.send(pieces)

    def _before_fault(
        self, records: list[tuple[int, Any]]
    ) -> tuple[list[tuple[int, Any]], RecordError | None]:
        for index, one in enumerate(records):
            try:
                self._producer.packer.of_records([one])
            except RecordError as error:
                return records[:index], error
        return records, None


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else duration_ms(timeout, "timeout") / 1000


def header_fields(headers: Mapping[Any, Any] | None) -> dict[bytes, bytes] | None:
    """Return a record's headers as bytes; None if there are none."""
    if not headers:
        return None
    if not isinstance(headers, Mapping):
        raise RecordError(f"headers={headers!r} is no dict.", remedy='Write headers={"from": "web"}.')
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
