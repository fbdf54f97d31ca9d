"""``Stream``: what ``App.stream`` makes and programs send to, and the part of an app that sends."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cached_property, wraps
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar

from streamworker.core.units import Duration, duration_ms, time_ms
from streamworker.declaring.specs import StreamSpec, Targets
from streamworker.errors import ConfigurationError
from streamworker.redisio.wire.client import CONNECTIONS, Backend
from streamworker.runtime.connecting import connected
from streamworker.runtime.durability import pipelines_of
from streamworker.runtime.observing import Observer
from streamworker.runtime.send.background import BACKGROUND
from streamworker.runtime.send.lane import OnFull
from streamworker.runtime.send.named import Scheduled
from streamworker.runtime.send.producer import CHUNK_ENTRIES, Due, ManySender, Producer, Sent
from streamworker.runtime.tracing.asking import producer_kind
from streamworker.settings import Settings

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class StreamApp(ABC):
    """The part of an app that sends and reads: its producers and connections in each event loop."""

    def __init__(self, name: str, settings: Settings, streams: Mapping[str, "Stream[Any]"]) -> None:
        self.name = name
        self.settings = settings
        self.observer: Observer | None = None
        """Is told of the work of its senders and workers; see ``observe``."""
        self._streams = streams
        """Those that may need connections."""
        self._opened: dict[asyncio.AbstractEventLoop, tuple[Backend, dict[str, Producer]]] = {}
        """The connections of each event loop, and its producers by stream."""

    @abstractmethod
    def load(self) -> None:
        """Import the modules that declare more of the app."""

    def producer(self, stream: "Stream[Any]") -> Producer:
        """Return the producer of a stream for the running event loop."""
        backend, producers = self._of_loop()
        if (producer := producers.get(stream.name)) is None:
            kind = producer_kind(self.settings)
            producer = producers[stream.name] = kind(
                backend, stream.spec, self.settings, observer=self.observer
            )
        return producer

    def backend(self) -> Backend:
        """Return the connections of the running event loop, for reads."""
        return self._of_loop()[0]

    def _of_loop(self) -> tuple[Backend, dict[str, Producer]]:
        loop = asyncio.get_running_loop()
        if (opened := self._opened.get(loop)) is None:
            # A program may call ``asyncio.run`` several times to send, and never close the app.
            for ended in [each for each in list(self._opened) if each.is_closed()]:
                self._opened.pop(ended, None)
            connections = max(CONNECTIONS, pipelines_of(self.settings) * len(self._streams))
            backend = connected(self.settings, f"{self.name}:producer", connections)
            opened = self._opened[loop] = backend, {}
        return opened

    async def aclose(self) -> None:
        """Close the producers and connections of this event loop; a later send opens new ones.

        Waits up to ``call_timeout_ms`` for sends in progress; then they fail with ``ProducerError``.
        ``async with app:`` does so at the end of the block.
        """
        opened = self._opened.pop(asyncio.get_running_loop(), None)
        if opened is None:
            return
        backend, producers = opened
        try:
            async with asyncio.timeout(self.settings.call_timeout_ms / 1000):
                for producer in producers.values():
                    await producer.aclose()
        except TimeoutError:
            pass  # Redis does not answer, or a partition is full: closing fails the sends that still wait.
        await backend.aclose()

    def close(self) -> None:
        """Close the producers and connections that ``Stream.sync`` opened; a later send opens new ones.

        The end of the process does so, too.
        """
        BACKGROUND.close(self.aclose)

    @asynccontextmanager
    async def lifespan(self, _asgi: object = None, /) -> AsyncIterator[None]:
        """Close the app when an ASGI framework ends: ``FastAPI(lifespan=app.lifespan)``.

        The first send connects, so that a web service starts although Redis is away.

        Examples
        --------
        >>> from contextlib import asynccontextmanager
        >>> @asynccontextmanager
        ... async def lifespan(api):  # beside what else opens and closes with the service
        ...     async with app.lifespan(api):
        ...         yield
        """
        async with self:
            yield

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Stream(Generic[T]):
    """A logical stream of records, split into partitions; ``App.stream`` makes it.

    Records with the same key go to the same partition and keep their order. Records whose key is
    None are spread over the partitions in turn. Connections are opened by the first send, in each event loop.
    """

    def __init__(self, app: StreamApp, spec: StreamSpec) -> None:
        self.app = app
        """The app that the stream belongs to."""
        self.spec = spec
        self.name: str = spec.name
        """The stream's name."""

    @cached_property
    def sync(self) -> "SyncStream[T]":
        """The stream for programs without an event loop: Flask, Django, scripts, notebooks.

        Examples
        --------
        >>> def nightly(rows):
        ...     orders.sync.send(rows[0])
        ...     orders.sync.send_many(rows[1:])
        """
        return SyncStream(self)

    async def send(
        self,
        record: T,
        *,
        id: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        on_full: OnFull = "wait",
        timeout: Duration | None = None,
    ) -> Sent:
        """Append one record, and return its partition and entry id once Redis has it.

        Sends that run concurrently share round trips. Records that one task sends one after the other keep
        their order, and so do records of one key in one ``gather``.

        Parameters
        ----------
        record
            A record of the stream's type.
        id
            A name of the record, such as the ``Idempotency-Key`` of a request: of the records of one key
            only the first with this id is sent within the stream's ``id_window``. For a second one
            ``Sent.duplicate`` is true, and its entry is that of the first. Such sends do not wait for one
            another: await one before the next to keep their order.
        headers
            Stored with the record; a processor reads one by ``ctx.header(name)``.
        on_full
            What to do when the partition is at its limit because a group lags: ``wait`` for room,
            or ``raise`` StreamFull. Unread entries are never dropped.
        timeout
            A duration, for which it waits at most; None waits without limit. If a full partition is just
            tried again, it waits up to a second more for the answer.

        Raises
        ------
        RecordError
            If the record cannot be encoded or routed, or is too large.
        StreamFull
            If the partition has no room, or gets none within ``timeout``. Nothing was written.
        ProducerError
            If Redis does not answer in time, or refuses after a try without an answer: the record may or
            may not have been written. With an ``id`` a repeat writes it once.
        BackendRefused, AuthenticationFailed
            If Redis refuses, or does not accept the user or password. Nothing was written.
        ConfigurationError
            If an argument is wrong, or the stream was declared with other partitions or another codec.

        Examples
        --------
        >>> import asyncio
        >>> import msgspec
        >>> from streamworker import App
        >>> from streamworker.testing import MemoryServer
        >>> class Order(msgspec.Struct):
        ...     customer: str
        >>> async def order_twice(url: str) -> None:
        ...     async with App("shop", redis_url=url) as app:
        ...         orders = app.stream("orders", Order, key="customer")
        ...         for _ in range(2):
        ...             sent = await orders.send(Order("ann"), id="17", timeout="2 seconds")
        ...             print(sent.partition, sent.duplicate)
        >>> with MemoryServer() as server:
        ...     asyncio.run(order_twice(server.url))
        3 False
        3 True
        """
        producer = self.app.producer(self)
        if timeout is not None or id is not None:
            return await producer.send(record, id=id, headers=headers, on_full=on_full, timeout=timeout)
        # One coroutine less: of thousands of concurrent sends each object counts.
        part = producer.begin(record, headers, on_full)
        entry_id = await part.done
        return Sent(part.partition, entry_id)

    async def schedule(
        self,
        record: T,
        *,
        id: str,
        after: Duration | None = None,
        at: datetime | None = None,
        replace: bool = False,
        headers: Mapping[str, str | bytes] | None = None,
        timeout: Duration | None = None,
    ) -> Scheduled:
        """Send one record later, once, though every process restarts meanwhile.

        Redis keeps the record. A worker that owns its partition for any processor sends it when it is due by
        the server's clock; with no worker it waits. Records of one key are sent in the order of their times.

        Parameters
        ----------
        record
            A record of the stream's type.
        id
            A name of the record: a second one of the same id and key is not scheduled while the first
            waits, and for the stream's ``id_window`` after it was sent. ``Scheduled.duplicate`` is true then.
        after, at
            A duration from now, or a time with a zone; one of them.
        replace
            Whether this one is scheduled although an earlier one of its id and key waits, whose place it
            takes, or was sent.
        headers, timeout
            As :meth:`send`.

        Raises
        ------
        ConfigurationError
            If neither or both times are given, or ``at`` is no time with a zone; and as :meth:`send`.
        StreamFull
            If the partition has as many scheduled records as it may hold records. Nothing was written.
        RecordError, ProducerError, BackendRefused, AuthenticationFailed
            As :meth:`send`. After a ``ProducerError`` call it again with the same id: the record is there
            once.

        Examples
        --------
        >>> async def ask_later(order):
        ...     await questions.schedule(Question(order.id), id=f"ask-{order.id}", after="24 hours")
        """
        due = _due(after, at)
        return await self.app.producer(self).schedule(record, id, due, replace, headers, timeout)

    async def cancel(self, id: str, *, key: object = ..., timeout: Duration | None = None) -> bool:
        """Cancel a record that was scheduled, and return whether it will never be sent.

        False means that it was sent, was cancelled before, or is unknown. The call may be repeated: after one
        without an answer, the next says the same.

        Parameters
        ----------
        id
            The id with which it was scheduled.
        key
            The key of the record, by which its partition is found; None for a record without a key. It may be
            left out if no record of the stream has one.
        timeout
            A duration, for which it waits at most; None waits without limit.

        Raises
        ------
        RecordError
            If the id or the key is none.
        ProducerError, BackendRefused, AuthenticationFailed, ConfigurationError
            As :meth:`send`. ConfigurationError also if the key is left out and records have one.

        Examples
        --------
        >>> async def do_not_ask(order):
        ...     return await questions.cancel(f"ask-{order.id}", key=order.customer)
        """
        if key is ... and self.spec.key_fields != ():
            raise ConfigurationError(
                f"Records of stream {self.name!r} have a key, which cancel needs to find the record.",
                remedy="Write key= with the record's key, or key=None if that is None.",
            )
        return await self.app.producer(self).cancel(id, None if key is ... else key, timeout)

    async def send_many(
        self,
        records: Iterable[T] | AsyncIterable[T],
        *,
        on_full: OnFull = "wait",
        timeout: Duration | None = None,
    ) -> int:
        """Append many records in few round trips, in order, and return their number.

        The iterable may be endless: only a bounded number of records is in memory at a time.

        Parameters
        ----------
        records
            Records of the stream's type: a list, or what yields them.
        on_full, timeout
            As :meth:`send`, for each chunk of records (2,000 at most).

        Raises
        ------
        RecordError
            If a record is wrong, and the records before it have been written; or if it is given one record.
        StreamFull, ProducerError, BackendRefused, AuthenticationFailed, ConfigurationError
            As :meth:`send`. The records before the failed chunk have been written.

        Examples
        --------
        >>> async def load(rows):
        ...     return await orders.send_many(Order(row["customer"]) for row in rows)
        """
        return await self.app.producer(self).send_many(records, on_full=on_full, timeout=timeout)

    async def send_table(
        self,
        table: object,
        *,
        rows_per_entry: int = 10_000,
        compression: Literal["none", "lz4", "zstd"] = "lz4",
        on_full: OnFull = "wait",
        timeout: Duration | None = None,
    ) -> int:
        """Append the rows of a table to a stream with ``codec="arrow"``, and return their number.

        Each row goes to the partition that ``send`` would choose, and rows with the same key keep
        their order. The table is sent in parts of about 64 MB.

        Parameters
        ----------
        table
            A pyarrow table or record batch, or an object that exports one, such as a polars DataFrame. Its
            columns are the record type's fields; a field with a default may be missing.
        rows_per_entry
            Maximum rows of one partition in one entry; ``entry_bytes_max`` limits an entry, too.
        compression
            How each entry is compressed; an entry that does not get smaller is left uncompressed.
        on_full, timeout
            As :meth:`send`, for each part.

        Raises
        ------
        RecordError
            If a column is missing, has another type, or holds a value that its field cannot.
        ConfigurationError
            If the stream has another codec.
        StreamFull, ProducerError, BackendRefused, AuthenticationFailed
            As :meth:`send`. The rows before the failed part have been written.

        Examples
        --------
        >>> async def load(table):  # such as polars.read_parquet("orders.parquet")
        ...     return await orders.send_table(table)
        """
        return await self.app.producer(self).send_table(
            table, rows_per_entry=rows_per_entry, compression=compression, on_full=on_full, timeout=timeout
        )


def _blocking(
    method: Callable[Concatenate[Stream[T], P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["SyncStream[T]", P], R]:
    """Return the method of ``SyncStream`` that waits for one of ``Stream``."""

    @wraps(method)
    def call(sync: "SyncStream[T]", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return sync._run(method(sync._stream, *args, **kwargs))  # noqa: SLF001

    return call


class SyncStream(Generic[T]):
    """The sends of a stream for code that is not async; ``Stream.sync`` is one.

    Each method takes what the method of ``Stream`` takes, and returns when that would: what it sent is in
    Redis. Any thread may call it, also one whose event loop runs, such as a notebook's. One thread of
    the process sends for all; a forked process starts its own. In an ``async def`` await ``Stream.send``
    in place of it: this would block the event loop.
    """

    def __init__(self, stream: Stream[T]) -> None:
        self._stream = stream

    send = _blocking(Stream[T].send)
    """Append one record; see ``Stream.send``."""
    schedule = _blocking(Stream[T].schedule)
    """Send one record later; see ``Stream.schedule``."""
    cancel = _blocking(Stream[T].cancel)
    """Cancel a record that was scheduled; see ``Stream.cancel``."""
    send_table = _blocking(Stream[T].send_table)
    """Append the rows of a table; see ``Stream.send_table``."""

    def send_many(
        self, records: Iterable[T], *, on_full: OnFull = "wait", timeout: Duration | None = None
    ) -> int:
        """Append many records in few round trips, in order; see ``Stream.send_many``.

        The calling thread iterates over the records, so that they may come from its database session.
        """
        if isinstance(records, list | tuple):  # Each chunk of another iterable costs two changes of thread.
            return self._run(self._stream.send_many(records, on_full=on_full, timeout=timeout))

        async def opened() -> ManySender:
            return self._stream.app.producer(self._stream).many(on_full, timeout)

        sender = self._run(opened())
        try:
            for chunk in _chunks(records):
                self._run(sender.send_list(chunk))
            self._run(sender.finish())
        except BaseException as error:
            self._run(sender.end(error))
            raise
        return sender.count

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return BACKGROUND.run(work, self._stream.app.aclose)


def _chunks(records: Iterable[T]) -> Iterator[list[T]]:
    """Return the records in lists; an error of the iterable comes after the records before it."""
    chunk: list[T] = []
    try:
        for record in records:
            chunk.append(record)
            if len(chunk) == CHUNK_ENTRIES:
                yield chunk
                chunk = []
    except Exception:
        yield chunk
        raise
    yield chunk


ByType = Mapping[type, Stream[Any]]
"""A stream for each type of row."""
IntoStreams = Stream[Any] | ByType | None
"""What ``into=`` names."""


def specs_of(into: IntoStreams) -> Targets:
    """Return the streams that ``into=`` names; raise ConfigurationError for anything else."""
    if into is None:
        return None
    if isinstance(into, Stream):
        return into.spec
    by_type: object = into
    if isinstance(by_type, Mapping) and all(isinstance(each, Stream) for each in by_type.values()):
        return {kind: stream.spec for kind, stream in by_type.items()}
    raise ConfigurationError(
        f"into={into!r} names no stream.",
        remedy="Write into=priced, or into={Priced: priced, Alert: alerts}.",
    )


def _due(after: Duration | None, at: datetime | None) -> Due:
    if (after is None) == (at is None):
        raise ConfigurationError(
            "A record is scheduled without a time, or with two.",
            remedy='Give one of them: after="10 minutes", or at=datetime(..., tzinfo=UTC).',
        )
    if after is not None:
        return "after", duration_ms(after, "after")
    assert at is not None
    return "at", max(0, time_ms(at, "at"))
