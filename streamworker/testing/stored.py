"""What Redis holds for the processors of a worker under test."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.declaring.processors import Processor
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.declaring.stream import Stream
from streamworker.declaring.table import Table
from streamworker.errors import ConfigurationError
from streamworker.records.entries import REPLAYED_FOR, readable_fields
from streamworker.redisio.data.ackedlog import decode_entry, without_metadata
from streamworker.redisio.data.dead import StoredLetter, list_dead
from streamworker.redisio.data.later import waiting
from streamworker.redisio.data.schemas import stored_schemas
from streamworker.redisio.data.streams import range_entries
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

READ_ENTRIES = 1_000
DEAD_LETTERS_MAX = 10_000

ProcessorName = str | Processor[..., Any]


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Waits(NamedTuple, Generic[T]):
    """A record that ``Stream.schedule`` keeps until it is due.

    Examples
    --------
    >>> Waits("see you", "ask-17", datetime(2026, 12, 24, tzinfo=UTC)).due.day
    24
    """

    record: T
    """The record."""
    id: str
    """The id that it was given, by which ``Stream.cancel`` names it."""
    due: datetime
    """When it is due, in UTC."""


def _decoder(spec: StreamSpec) -> Callable[[Mapping[bytes, bytes]], Any]:
    """Return what decodes the fields of an entry of a stream of records."""
    if spec.codec == "arrow":
        raise ConfigurationError(
            f"Entries of stream {spec.name!r} are columns, not records.",
            remedy="Look at worker.rows(processor).",
        )
    return spec.record.decoder(spec.codec)


async def scheduled_in(backend: Backend, stream: Stream[T]) -> list[Waits[T]]:
    """Return what waits in the partitions of a stream, in the order in which it is due."""
    spec = stream.spec
    keys, decode = StreamKeys(spec.app, spec.name), _decoder(spec)
    found = [each for p in spec.placement.all for each in await waiting(backend, keys, p)]
    return [
        Waits(decode(each.fields), each.id, EPOCH + timedelta(milliseconds=each.due_ms))
        for each in sorted(found, key=lambda each: each.due_ms)
    ]


class Stored:
    """Records, rows, dead letters and tables, as they are now."""

    def __init__(self, specs: Sequence[ProcessorSpec], backend: Backend) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._backend = backend

    async def sent(self, stream: Stream[T]) -> list[T]:
        """Return the records of a stream, in the order in which the server got them.

        Workers trim records that every group has passed. With ``retention`` the stream keeps them, and the
        result holds all of its time.

        Parameters
        ----------
        stream
            A stream of the app.

        Raises
        ------
        DecodeError
            If an entry holds no record of the stream's type.
        ConfigurationError
            For a stream of columns.
        """
        spec = stream.spec
        keys, decode = StreamKeys(spec.app, spec.name), _decoder(spec)
        found: list[tuple[EntryId, int, T]] = []
        for partition in spec.placement.all:
            found += [
                (entry.id, partition, decode(readable_fields(entry)))
                for entry in await self._entries(keys.events(partition))
                if REPLAYED_FOR not in entry.fields
            ]
        return [record for _, _, record in sorted(found, key=lambda each: each[:2])]

    async def scheduled(self, stream: Stream[T]) -> list[Waits[T]]:
        """Return the records of a stream that wait to be sent, with their ids and times, soonest first.

        Parameters
        ----------
        stream
            A stream of the app.

        Raises
        ------
        DecodeError
            If what waits is no record of the stream's type.
        ConfigurationError
            For a stream of columns.
        """
        return await scheduled_in(self._backend, stream)

    async def rows(self, processor: ProcessorName) -> list[dict[str, Any]]:
        """Return the rows that a processor has forwarded, in order within each partition.

        Workers may have trimmed rows that every reader has read.

        Parameters
        ----------
        processor
            The processor, or its name.

        Raises
        ------
        ConfigurationError
            If the processor keeps no log of its rows.
        """
        keys, partitions = self._group_of(processor)
        if not self._specs[keys.group].forward:
            raise ConfigurationError(
                f"Processor {keys.group!r} keeps no log of its rows.",
                remedy="Look at what it sent to a stream, by worker.sent(stream).",
            )
        schemas = await stored_schemas(self._backend, keys)
        rows: list[dict[str, Any]] = []
        for partition in partitions:
            for entry in await self._entries(keys.acked(partition)):
                found = decode_entry(entry.id, entry.fields, schemas)
                rows += without_metadata(found).to_pylist()
        return rows

    async def dead_letters(self, processor: ProcessorName) -> list[StoredLetter]:
        """Return the records that a processor gave up on, by partition, oldest first.

        Parameters
        ----------
        processor
            The processor, or its name.
        """
        keys, partitions = self._group_of(processor)
        return await list_dead(self._backend, keys, partitions, count=DEAD_LETTERS_MAX)

    async def put(self, table: Table[K, V], values: Mapping[K, V]) -> None:
        """Set values of a table, as if its processor had committed them.

        Do so before the processor handles records of these keys: it may have kept what it read.

        Parameters
        ----------
        table
            A table of the app.
        values
            Values by their keys.

        Raises
        ------
        ConfigurationError
            If a key belongs to no partition.
        """
        spec = table.spec
        keys = StreamKeys(spec.stream.app, spec.stream.name)
        now_ms = await self._backend.time_ms()
        for key, value in values.items():
            partition = spec.partition_of(key)
            if partition is None:
                raise ConfigurationError(
                    f"The key {key!r} of table {table.name!r} belongs to no partition.",
                    remedy="Use a key that begins with the stream's.",
                )
            fields, index = keys.tables(partition, {table.name: spec.lifetime})
            field, body = spec.form.field(key), spec.form.body(key, value)
            ends_ms = now_ms + spec.lifetime.ttl_ms if spec.lifetime.ttl_ms else None
            told = "" if ends_ms is None or spec.lifetime.is_called else str(ends_ms)
            await self._backend.execute("HSET", fields, field, told.encode() + b" " + body)
            if ends_ms is not None:
                await self._backend.execute("ZADD", index, ends_ms, field)

    async def _entries(self, key: str) -> list[Entry]:
        found: list[Entry] = []
        start = ZERO
        while entries := await range_entries(self._backend, key, start, None, READ_ENTRIES):
            found += entries
            start = entries[-1].id.successor()
        return found

    def _group_of(self, processor: ProcessorName) -> tuple[GroupKeys, range]:
        """Return the keys of a processor's group, and the partitions of its stream."""
        name = processor if isinstance(processor, str) else processor.name
        if name not in self._specs:
            raise ConfigurationError(
                f"This worker does not run a processor {name!r}.",
                remedy=f"It runs: {', '.join(self._specs)}.",
            )
        stream = self._specs[name].stream
        return GroupKeys(stream.app, stream.name, name), stream.placement.all
