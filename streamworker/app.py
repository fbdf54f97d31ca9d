"""The public face: an app declares streams, processors and pipelines, and connects to nothing.

Importing a module with an ``App`` has no side effects. A worker (``streamworker run``), a Spark
driver (``streamworker spark``) or a send makes the connection that it needs when it needs it.
"""

import asyncio
import functools
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar

from streamworker.core.membership import Membership
from streamworker.core.protocols import PROTOCOLS
from streamworker.declare import check_whole, describe
from streamworker.errors import ConfigurationError
from streamworker.processors import Codec, PipelineSpec, ProcessorSpec, Start, StreamSpec
from streamworker.records import RecordType
from streamworker.redisio.client import CONNECTIONS, Backend
from streamworker.redisio.keys import PARTITIONS_MAX, check_name
from streamworker.runtime.durability import pipelines_of
from streamworker.runtime.lane import OnFull
from streamworker.runtime.producer import Producer, Sent
from streamworker.settings import Settings
from streamworker.spark.checks import check_pipeline

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

CODECS: tuple[str, ...] = ("json", "msgpack", "fields", "arrow")
STARTS: tuple[str, ...] = ("earliest", "latest")


class Stream(Generic[T]):
    """A logical stream of records, split into partitions; made by ``App.stream``.

    Records with one key go to one partition and keep their order. A record whose key is None
    goes to the partitions in turn.
    """

    def __init__(self, app: "App", spec: StreamSpec) -> None:
        self._app = app
        self.spec = spec

    @property
    def name(self) -> str:
        """Return the stream's name."""
        return self.spec.name

    @property
    def app(self) -> "App":
        """Return the app that the stream belongs to."""
        return self._app

    async def send(
        self,
        record: T,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        on_full: OnFull = "wait",
        timeout: float | None = None,
    ) -> Sent:
        """Append one record and return where it is once Redis has it.

        Sends that run at the same time share round trips.

        Parameters
        ----------
        record
            A record of the stream's type.
        headers
            Carried beside the record; a processor finds them in ``ctx.headers``.
        on_full
            What to do when the partition is at its limit because a group is behind: ``wait`` for
            room, or ``raise`` StreamFull. Nothing unread is ever dropped.
        timeout
            Seconds to wait at most; for ever if None.

        Raises
        ------
        RecordError
            If the record cannot be encoded or routed, or is too large.
        StreamFull
            If there is no room, or none within ``timeout``.
        ProducerError
            If Redis did not answer in time: the record may or may not be there.
        """
        return await self._app.producer(self).send(record, headers=headers, on_full=on_full, timeout=timeout)

    async def send_many(
        self,
        records: Iterable[T] | AsyncIterable[T],
        *,
        on_full: OnFull = "wait",
        timeout: float | None = None,
    ) -> int:
        """Append many records in few round trips, in order, and return how many.

        Takes any iterable, an endless one too: only a bounded chunk is in memory at a time. If it
        raises, the records before the failed chunk are there.
        """
        return await self._app.producer(self).send_many(records, on_full=on_full, timeout=timeout)

    async def send_table(
        self,
        table: object,
        *,
        rows_per_entry: int = 10_000,
        compression: Literal["none", "lz4", "zstd"] = "lz4",
        on_full: OnFull = "wait",
        timeout: float | None = None,
    ) -> int:
        """Append the rows of a table to a stream with ``codec="arrow"``, and return how many.

        Each row goes where ``send`` would put it, and rows of one key keep their order. If it
        raises, the rows before the failed part (some 64 MB) are there.

        Parameters
        ----------
        table
            A table or record batch of pyarrow, or what gives one away, as polars' DataFrames do.
        rows_per_entry
            Rows of one partition in one entry at most; bounded by ``entry_bytes_max``, too.
        """
        return await self._app.producer(self).send_table(
            table, rows_per_entry=rows_per_entry, compression=compression, on_full=on_full, timeout=timeout
        )


class Processor(Generic[P, R]):
    """A processor function under its decorator; still callable as the function it is."""

    def __init__(self, app: "App", name: str, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._app = app
        self._name = name
        self._function = function

    @property
    def name(self) -> str:
        """Return the processor's name, which is the name of its group."""
        return self._name

    @property
    def spec(self) -> ProcessorSpec:
        """Return how the processor is called; a pipeline that is bound later may change it."""
        return self._app.processors[self._name]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as a test of it would."""
        return self._function(*args, **kwargs)


class App:
    """Streams, processors and pipelines of one application.

    Parameters
    ----------
    name
        Part of every key in Redis: letters, digits, ``_ . -``.
    redis_url
        ``redis://``, ``rediss://`` or ``unix://``; else ``STREAMWORKER_REDIS_URL``.
    coordination
        The protocol by which workers share partitions.
    assignment
        Who should own what: ``range`` (one run of partitions a worker), ``sticky`` (as few moves
        as can be) or ``weighted`` (by measured load and capacity); see docs/assignments.md.
    **settings
        Any setting of ``Settings`` by name; see docs/settings.md.

    Raises
    ------
    ConfigurationError
        For a name or a setting that cannot be.

    Examples
    --------
    >>> import msgspec
    >>> app = App("shop")
    >>> class Order(msgspec.Struct):
    ...     customer: str
    ...     amount: float
    >>> orders = app.stream("orders", Order, key="customer", partitions=4)
    >>> @app.processor(orders)
    ... async def audit(order: Order) -> None: ...
    >>> audit.spec.mode.value
    'record'
    """

    def __init__(
        self,
        name: str,
        *,
        redis_url: str | None = None,
        coordination: str = "membership",
        assignment: str = "range",
        **settings: Any,
    ) -> None:
        self.name = check_name("app", name)
        self.settings = Settings.from_env(redis_url=redis_url, **settings)
        if coordination not in PROTOCOLS:
            raise ConfigurationError(
                f"There is no coordination {coordination!r}.",
                remedy=f"Use one of: {', '.join(sorted(PROTOCOLS))}.",
            )
        Membership.empty(1, assignment)
        if assignment == "weighted" and coordination != "membership":
            raise ConfigurationError(
                f'The assignment "weighted" does not work with coordination={coordination!r}.',
                remedy='Use coordination="membership": only its heartbeats carry load.',
            )
        self.coordination = coordination
        self.assignment = assignment
        self.streams: dict[str, Stream[Any]] = {}
        self.processors: dict[str, ProcessorSpec] = {}
        self.pipelines: dict[str, PipelineSpec] = {}
        self._backends: dict[asyncio.AbstractEventLoop, Backend] = {}
        self._producers: dict[tuple[asyncio.AbstractEventLoop, str], Producer] = {}

    # -- declaring -----------------------------------------------------------------------------

    def stream(
        self,
        name: str,
        record: type[T],
        *,
        key: str | tuple[str, ...] | Callable[[T], object] | None = None,
        partitions: int = 8,
        codec: Codec = "json",
        max_entries: int | None = None,
        start: Start = "earliest",
    ) -> Stream[T]:
        """Declare a stream.

        Parameters
        ----------
        name
            The stream's name.
        record
            msgspec.Struct, dataclass, TypedDict, NamedTuple, attrs class or pydantic model.
        key
            A field, several fields, or a function of the record. Records with one key keep their
            order. None spreads all records.
        partitions
            How many; the most workers that can share the stream. It cannot be changed later.
        codec
            ``json``, ``msgpack``, ``fields`` for entries whose fields are the record's, as programs
            write them that know nothing of streamworker, or ``arrow`` for entries of many rows in
            columns; see docs/columns.md.
        max_entries
            Entries a partition may hold before senders wait; ``partition_entries_max`` if None.
        start
            Where a processor that is new begins: ``earliest`` or ``latest``.
        """
        check_name("stream", name)
        if name in self.streams:
            raise ConfigurationError(
                f"App {self.name!r} has two streams named {name!r}.", remedy="Give one of them another name."
            )
        check_whole(name, "partitions", partitions, PARTITIONS_MAX)
        if max_entries is not None:
            check_whole(name, "max_entries", max_entries, None)
        for label, value, allowed in (("codec", codec, CODECS), ("start", start, STARTS)):
            if value not in allowed:
                raise ConfigurationError(
                    f"Stream {name!r} has {label}={value!r}.", remedy=f"Use one of: {', '.join(allowed)}."
                )
        kind = RecordType.of(record)
        if codec == "arrow":
            kind.arrow_schema()
        spec = StreamSpec(
            app=self.name,
            name=name,
            record=kind,
            key=kind.key_function(key),
            key_fields=kind.key_fields(key),
            partitions=partitions,
            codec=codec,
            entries_max=max_entries or self.settings.partition_entries_max,
            start=start,
        )
        self.streams[name] = stream = Stream[T](self, spec)
        return stream

    def processor(
        self,
        stream: Stream[Any],
        *,
        name: str | None = None,
        batch: int | None = None,
        within: float = 0.05,
        batch_bytes: int = 4 * 1024 * 1024,
        on_error: Literal["retry", "halt", "dead_letter", "skip"] = "halt",
        attempts: int = 3,
        backoff: float = 0.2,
        backoff_max: float = 30.0,
        timeout: float | None = None,
        forward: bool | None = None,
        output: type | None = None,
        concurrency: int = 1,
        ordered_by: Literal["key", "none"] = "key",
    ) -> Callable[[Callable[P, R]], Processor[P, R]]:
        """Bind a function to a stream; each record reaches it at least once, in order by key.

        Parameters
        ----------
        stream
            What it reads.
        name
            Name of the processor and its group; the function's name if None.
        batch
            Records in one call at most, for a function that takes a list.
        within
            Seconds that a batch waits for more once it has a record.
        batch_bytes
            Bytes of entries in one batch at most.
        on_error
            What happens once ``attempts`` are used up. ``halt`` (``retry`` means the same): this
            partition stops and says so, all else goes on. ``dead_letter``: the poison record goes
            to the dead letters, the rest goes on in order. ``skip``: it is logged and passed over.
        attempts
            Calls for one record or batch before ``on_error``.
        backoff, backoff_max
            Seconds before the second attempt, doubled for each further one, and their limit.
        timeout
            Seconds that one call may take; a longer one counts as failed. None: no limit, and
            ``max_processing_time_ms`` raises an alarm. A ``def`` function cannot be interrupted:
            its thread is left behind, and what it still does has no effect.
        forward
            Whether rows go to the acked log. None: if the function returns something.
        output
            Type of the rows, where the return annotation does not say it.
        concurrency
            Calls at a time in one partition, for a function that takes one record and waits for
            something else meanwhile. Such a function has no ``ctx.state``.
        ordered_by
            What stays in order where calls overlap: ``key``: records with one key never overlap and
            keep their order. ``none``: any records may overlap.
        """
        if not isinstance(stream, Stream):
            raise ConfigurationError(
                "@app.processor was used without a stream.", remedy="Write @app.processor(orders)."
            )

        def bind(function: Callable[P, R]) -> Processor[P, R]:
            spec = describe(
                function,
                stream.spec,
                name=name,
                batch=batch,
                within=within,
                batch_bytes=batch_bytes,
                on_error=on_error,
                attempts=attempts,
                backoff=backoff,
                backoff_max=backoff_max,
                timeout=timeout,
                forward=forward,
                output=output,
                concurrency=concurrency,
                ordered_by=ordered_by,
            )
            if spec.name in self.processors:
                raise ConfigurationError(
                    f"App {self.name!r} has two processors named {spec.name!r}.",
                    remedy="Give one of them another name: @app.processor(..., name=...).",
                )
            self.processors[spec.name] = spec
            if forward is False:
                self._silent.add(spec.name)
            return Processor(self, spec.name, function)

        return bind

    @functools.cached_property
    def _silent(self) -> set[str]:
        """Processors that were told not to forward; a pipeline does not change their mind."""
        return set()

    def pipeline(
        self,
        processor: Processor[..., Any],
        *,
        name: str | None = None,
        trigger: str = "10 seconds",
        path: str | None = None,
        format: str = "parquet",
        mode: Literal["append", "complete", "update"] = "append",
        checkpoint: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Bind a function that turns a DataFrame into a DataFrame; ``streamworker spark`` runs it.

        Parameters
        ----------
        processor
            Whose forwarded rows it reads. A processor that returns nothing forwards its records.
        name
            Name of the pipeline; the function's name if None.
        trigger
            ``"10 seconds"``, or ``"available now"`` for what is there.
        path, format, mode
            Where and how a returned DataFrame is written. A function that returns a stream writer
            needs none of them.
        checkpoint
            Spark's checkpoint directory; beside ``path`` if None.
        options
            Options of the source, by the names in docs/spark.md, and of the writer.
        """

        def bind(function: Callable[P, R]) -> Callable[P, R]:
            label = check_name("pipeline", name or function.__name__)
            if label in self.pipelines:
                raise ConfigurationError(
                    f"App {self.name!r} has two pipelines named {label!r}.",
                    remedy="Give one of them another name: @app.pipeline(..., name=...).",
                )
            source = processor.spec
            if not source.forward and source.name not in self._silent:
                source = replace(source, forward=True, output=source.stream.record)
                self.processors[source.name] = source
            spec = PipelineSpec(
                name=label,
                processor=source,
                function=function,
                trigger=trigger,
                path=path,
                format=format,
                mode=mode,
                checkpoint=checkpoint,
                options=dict(options or {}),
            )
            check_pipeline(spec)
            self.pipelines[label] = spec
            return function

        return bind

    # -- sending -------------------------------------------------------------------------------

    def producer(self, stream: Stream[Any]) -> Producer:
        """Return the producer of a stream for the event loop that runs now."""
        loop = asyncio.get_running_loop()
        producer = self._producers.get((loop, stream.name))
        if producer is None:
            backend = self._backends.get(loop)
            if backend is None:
                self._forget_ended_loops()
                backend = Backend.open(
                    self.settings.redis_url,
                    name=f"{self.name}:producer",
                    call_timeout_ms=self.settings.call_timeout_ms,
                    allow_plaintext=self.settings.allow_plaintext,
                    connections=max(CONNECTIONS, pipelines_of(self.settings) * len(self.streams)),
                )
                self._backends[loop] = backend
            producer = Producer(backend, stream.spec, self.settings)
            self._producers[loop, stream.name] = producer
        return producer

    async def aclose(self) -> None:
        """Close what sending has opened in this event loop. Sending again opens it again.

        Sends that are under way are waited for, for ``call_timeout_ms`` at most; then they fail.
        """
        loop = asyncio.get_running_loop()
        ours = [self._producers.pop(key) for key in list(self._producers) if key[0] is loop]
        backend = self._backends.pop(loop, None)
        if backend is None:
            return
        try:
            async with asyncio.timeout(self.settings.call_timeout_ms / 1000):
                for producer in ours:
                    await producer.aclose()
        except TimeoutError:
            pass  # Redis does not answer, or a partition is full: what waits is told so now.
        await backend.aclose()

    def _forget_ended_loops(self) -> None:
        """Drop what was opened in event loops that were closed since, and their sockets with it.

        A program may send from one ``asyncio.run`` after the other and never close the app.
        """
        for loop in [loop for loop in list(self._backends) if loop.is_closed()]:
            self._backends.pop(loop, None)
            for key in [key for key in list(self._producers) if key[0] is loop]:
                self._producers.pop(key, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
