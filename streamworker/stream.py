"""``Stream``: what ``App.stream`` makes, and programs send to."""

from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Literal, Protocol, TypeVar

from streamworker.processors import StreamSpec
from streamworker.runtime.send.lane import OnFull
from streamworker.runtime.send.producer import Producer, Sent
from streamworker.settings import Settings

T = TypeVar("T")


class StreamApp(AbstractAsyncContextManager["StreamApp"], Protocol):
    """What a stream needs of its app."""

    name: str
    settings: Settings

    def producer(self, stream: "Stream[Any]") -> Producer:
        """Return the producer of a stream for the running event loop."""
        ...


class Stream(Generic[T]):
    """A logical stream of records, split into partitions; ``App.stream`` makes it.

    Records with the same key go to the same partition and keep their order. Records whose key is
    None are spread over the partitions in turn.
    """

    def __init__(self, app: StreamApp, spec: StreamSpec) -> None:
        self.app = app
        """The app that the stream belongs to."""
        self.spec = spec
        self.name = spec.name

    async def send(
        self,
        record: T,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        on_full: OnFull = "wait",
        timeout: float | None = None,
    ) -> Sent:
        """Append one record, and return its partition and entry id once Redis has it.

        Sends that run concurrently share round trips. Records that one task sends one after the other keep
        their order, and so do records of one key in one ``gather``.

        Parameters
        ----------
        record
            A record of the stream's type.
        headers
            Stored with the record; a processor reads them from ``ctx.headers``.
        on_full
            What to do when the partition is at its limit because a group lags: ``wait`` for room,
            or ``raise`` StreamFull. Unread entries are never dropped.
        timeout
            Maximum seconds to wait; None waits without limit.

        Raises
        ------
        RecordError
            If the record cannot be encoded or routed, or is too large.
        StreamFull
            If the partition has no room, or gets none within ``timeout``. Nothing was written.
        ProducerError
            If Redis does not answer in time, or refuses after a try without an answer: the record may or
            may not have been written.
        BackendRefused
            If Redis refuses. Nothing was written.
        ConfigurationError
            If the stream was declared with other partitions or another codec.
        """
        return await self.app.producer(self).send(record, headers=headers, on_full=on_full, timeout=timeout)

    async def send_many(
        self,
        records: Iterable[T] | AsyncIterable[T],
        *,
        on_full: OnFull = "wait",
        timeout: float | None = None,
    ) -> int:
        """Append many records in few round trips, in order, and return their number.

        The iterable may be endless: only a bounded number of records is in memory at a time. If a record is
        wrong, the records before it have been written. If Redis refuses or does not answer, the records
        before the failed chunk (at most 2,000) have been written. ``timeout`` applies to each chunk, and
        errors are those of ``send``.
        """
        return await self.app.producer(self).send_many(records, on_full=on_full, timeout=timeout)

    async def send_table(
        self,
        table: object,
        *,
        rows_per_entry: int = 10_000,
        compression: Literal["none", "lz4", "zstd"] = "lz4",
        on_full: OnFull = "wait",
        timeout: float | None = None,
    ) -> int:
        """Append the rows of a table to a stream with ``codec="arrow"``, and return their number.

        Each row goes to the partition that ``send`` would choose, and rows with the same key keep
        their order. If it raises, the rows before the failed part (about 64 MB) have been written.
        ``timeout`` applies to each part.

        Parameters
        ----------
        table
            A pyarrow table or record batch, or an object that exports one, such as a polars DataFrame. Its
            columns are the record type's fields; a field with a default may be missing.
        rows_per_entry
            Maximum rows of one partition in one entry; ``entry_bytes_max`` limits an entry, too.
        compression
            How each entry is compressed; an entry that does not get smaller is left uncompressed.

        Raises
        ------
        RecordError
            If a column is missing, has another type, or holds a value that its field cannot.
        ConfigurationError
            If the stream has another codec.
        StreamworkerError
            As ``send``.
        """
        return await self.app.producer(self).send_table(
            table, rows_per_entry=rows_per_entry, compression=compression, on_full=on_full, timeout=timeout
        )
