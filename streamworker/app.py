"""The public API: an app declares streams, processors and pipelines, and connects to nothing.

Importing a module with an ``App`` has no side effects. A worker (``streamworker run``), a Spark
driver (``streamworker spark``) or a send connects to Redis when it first needs a connection.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from streamworker.core.data.retention import Retention, RetentionLike
from streamworker.core.policies import Errors
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.registry import PROTOCOLS
from streamworker.core.protocols.settings import Coordination
from streamworker.core.rules import checked
from streamworker.core.units import Duration, duration_ms
from streamworker.declaring.callables import P, R
from streamworker.declaring.functions import check_codec, check_source, describe
from streamworker.declaring.pipelines import Pipelines
from streamworker.declaring.processor import Into, Processor
from streamworker.declaring.resources import Injecting
from streamworker.declaring.specs import Codec, Start, StreamSpec
from streamworker.declaring.stream import ByType, Stream, specs_of
from streamworker.declaring.table import Table, TableApp, written
from streamworker.declaring.timers import TIMERS_STREAM, O, TimerApp
from streamworker.errors import ConfigurationError
from streamworker.records import RecordType
from streamworker.redisio.keys import PARTITIONS_MAX, check_name
from streamworker.settings import Settings

if TYPE_CHECKING:
    from streamworker.runtime.worker import Worker

T = TypeVar("T")


class Options(TypedDict, total=False):
    """The arguments of ``App.processor`` besides the stream and ``into``."""

    name: str | None
    batch: int | None
    within: Duration
    batch_bytes: int
    errors: Errors | None
    timeout: Duration | None
    forward: bool | None
    output: type | None
    concurrency: int
    ordered_by: Literal["key", "none"]
    start: Start
    tables: Sequence[Table[Any, Any]]
    log_retention: RetentionLike | None


class App(TableApp, Injecting, Pipelines, TimerApp):
    """The streams, processors and pipelines of one application.

    Parameters
    ----------
    name
        Part of every key in Redis: letters, digits, ``_ . -``.
    redis_url
        ``redis://``, ``rediss://`` or ``unix://``; ``STREAMWORKER_REDIS_URL`` if None.
    coordination
        The protocol by which workers share partitions, by its name or with its own settings; see
        docs/protocols.md. ``STREAMWORKER_COORDINATION`` if None, and without it ``membership``.
    assignment
        How partitions are assigned: ``range`` (each worker gets one contiguous range), ``sticky`` (as
        few moves as possible) or ``weighted`` (by measured load and capacity); see docs/assignments.md.
    include
        Modules that declare more of the app, such as ``["shop.mail"]``. They import the app, so they are
        imported after it: when a command or a worker loads it.
    include_spark
        Modules that declare pipelines, such as ``["shop.lake"]``. Only what needs pipelines imports them, so
        that workers need no pyspark: ``streamworker spark``, ``graph``, ``schema check`` and ``dev``.
    **settings
        Any setting of ``Settings`` by name; see docs/settings.md.

    Raises
    ------
    ConfigurationError
        If a name or a setting is invalid.

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

    @checked("App")
    def __init__(
        self,
        name: str,
        *,
        redis_url: str | None = None,
        coordination: str | Coordination | None = None,
        assignment: str = "range",
        include: Sequence[str] = (),
        include_spark: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        TableApp.__init__(
            self,
            check_name("app", name),
            Settings.from_env(redis_url=redis_url, coordination=coordination, **settings),
        )
        Injecting.__init__(self, include)
        Pipelines.__init__(self, include_spark)
        TimerApp.__init__(self)
        Membership.empty(1, assignment)
        chosen = self.settings.coordination.name
        if assignment == "weighted" and not PROTOCOLS[chosen].has_document:
            raise ConfigurationError(
                f'The assignment "weighted" does not work with coordination={chosen!r}.',
                remedy='Use coordination="membership": only its heartbeats carry load.',
            )
        self.assignment = assignment

    @checked("Stream", partitions=(1, PARTITIONS_MAX))
    def stream(
        self,
        name: str,
        record: type[T] | UnionType,
        *,
        key: str | tuple[str, ...] | Callable[[T], object] | None = None,
        partitions: int = 8,
        codec: Codec = "json",
        max_records: int | None = None,
        retention: RetentionLike | None = None,
        single_entries: bool = False,
        id_window: Duration = "24 hours",
        source: str | None = None,
        validate: bool = True,
    ) -> Stream[T]:
        """Declare a stream.

        Parameters
        ----------
        name
            The stream's name.
        record
            A msgspec.Struct, dataclass, TypedDict, NamedTuple, attrs class or pydantic model; or a union
            of Structs with tags, such as ``Order | Refund``. See docs/types.md.
        key
            A field, several fields, or a function of the record. Records with the same key keep
            their order. None spreads the records over all partitions.
        partitions
            Their number: the most workers that can share the stream. It cannot be changed later.
        codec
            ``json``, ``msgpack``, ``fields``, ``arrow``, or a codec of your own; see ``RecordCodec``. With
            ``fields`` an entry's fields are the record's fields, as programs without streamworker write
            them. With ``arrow`` an entry holds many rows in columns; see docs/columns.md.
        max_records
            Records that a partition may hold that a group has not read, before senders wait;
            ``partition_records_max`` if None. With ``arrow`` each entry counts as one.
        retention
            How long entries stay after all groups have read them: ``"7 days"``, ``"10 GB"``, ``"1_000_000
            records"``, or a list of these, of which the first that is reached counts. None: no longer.
        validate
            Whether ``send`` checks that a record's fields have the declared types, which Python does not. A
            wrong one is a RecordError then, instead of an entry that its consumers cannot decode.
        single_entries
            Whether each record is an entry of its own, as redis-cli and other programs read it. Otherwise
            records that are sent together share entries, which saves most of the memory and the time.
        id_window
            How long the id of a record is known that was sent with one; see ``Stream.send``.
        source
            The key of a Redis stream that other programs fill. Workers take each of its entries into this
            stream once, in order by key; see docs/sending.md.
        """
        check_name("stream", name)
        if name in self.streams or name == TIMERS_STREAM:
            raise ConfigurationError(
                f"App {self.name!r} has two streams named {name!r}.", remedy="Give one of them another name."
            )
        check_codec(name, codec)
        kind = RecordType.of(record)
        if codec == "arrow":
            kind.arrow_schema()
        elif codec == "fields":
            kind.check_single('codec="fields"')
        spec = StreamSpec(
            app=self.name,
            name=name,
            record=kind,
            key=kind.key_function(key),
            key_fields=kind.key_fields(key),
            partitions=partitions,
            codec=codec,
            records_max=max_records or self.settings.partition_records_max,
            retention=None if retention is None else Retention.of(retention, "retention"),
            single_entries=single_entries,
            id_window_ms=duration_ms(id_window, "id_window", least_ms=1_000),
            source=check_source(name, source, codec),
            validate=validate,
        )
        self.streams[name] = stream = Stream[T](self, spec)
        return stream

    @overload
    def processor(self, stream: Stream[Any], *, into: Stream[O], **options: Unpack[Options]) -> Into[O]: ...
    @overload
    def processor(
        self, stream: Stream[Any], *, into: ByType | None = None, **options: Unpack[Options]
    ) -> Callable[[Callable[P, R]], Processor[P, R]]: ...
    def processor(
        self,
        stream: Stream[Any],
        *,
        into: Stream[Any] | ByType | None = None,
        name: str | None = None,
        batch: int | None = None,
        within: Duration = 0.05,
        batch_bytes: int = 4 * 1024 * 1024,
        errors: Errors | None = None,
        timeout: Duration | None = None,
        forward: bool | None = None,
        output: type | None = None,
        log_retention: RetentionLike | None = None,
        concurrency: int = 1,
        ordered_by: Literal["key", "none"] = "key",
        start: Start = "earliest",
        tables: Sequence[Table[Any, Any]] = (),
    ) -> Callable[[Callable[P, R]], Processor[P, R]]:
        """Bind a function to a stream; it gets each record at least once, in order by key.

        Parameters
        ----------
        stream
            The stream that the processor reads.
        into
            Where what the function returns goes, each row once: a stream of this app, or one for each type
            of row. The target's key decides the partition. None and an empty list send nothing, and a list
            sends each of its rows in order. See docs/chains.md.
        name
            Name of the processor and its group; the function's name if None.
        batch
            Maximum records in one call, for a function that takes a list.
        within
            How long a batch waits for more records once it has one.
        batch_bytes
            Maximum bytes of entries in one batch.
        errors
            What is done about a record whose handling fails: one policy (``Retry()``, ``DeadLetter()``,
            ``Skip()``, ``Halt()``), or a mapping from exception types to policies, of which the nearest
            class wins. None is ``Retry()``: for ever, with backoff up to a minute, in order. An entry that
            cannot be decoded goes to the dead letters, unless the mapping names ``DecodeError``; one that
            kills its process halts its partition, unless it names ``ProcessDied``. See
            docs/errors.md.
        timeout
            How long one call may take; a longer call counts as failed. None sets no limit: a call
            that hangs is only reported, after ``max_processing_time_ms``. A ``def`` function cannot be
            interrupted: its thread keeps running, and its results are discarded.
        forward
            Whether rows go to the acked log. None forwards if the function returns something.
        output
            Type of the rows, if the return annotation does not give it.
        log_retention
            The same for the acked log, and its readers. A log without any reader keeps a day if None.
        concurrency
            Maximum concurrent calls in one partition, for a function that takes one record and waits
            for I/O. Such a function has no ``ctx.state``.
        ordered_by
            Which order is kept where calls overlap. ``key``: records with the same key never overlap
            and keep their order. ``none``: any records may overlap.
        start
            Where the group begins when it is new: with the oldest record that the stream still has
            (``earliest``), or with the next (``latest``).
        tables
            The tables that the function writes; no other processor may write them.
        """
        if not isinstance(stream, Stream):
            raise ConfigurationError(
                "@app.processor was used without a stream.", remedy="Write @app.processor(orders)."
            )

        def bind(function: Callable[P, R]) -> Processor[P, R]:
            spec = describe(
                function,
                stream.spec,
                into=specs_of(into),
                name=name,
                batch=batch,
                within=within,
                batch_bytes=batch_bytes,
                errors=errors,
                timeout=timeout,
                forward=forward,
                output=output,
                log_retention=log_retention,
                concurrency=concurrency,
                ordered_by=ordered_by,
                start=start,
                resources=self.resources,
            )
            if spec.name in self.processors:
                raise ConfigurationError(
                    f"App {self.name!r} has two processors named {spec.name!r}.",
                    remedy="Give one of them another name: @app.processor(..., name=...).",
                )
            self.processors[spec.name] = replace(spec, tables=written(tables, spec))
            return Processor(self, spec.name, function)

        return bind

    @checked("Worker")
    def worker(
        self, *, name: str | None = None, processors: Sequence[str] | None = None
    ) -> "AbstractAsyncContextManager[Worker]":
        """Run a worker inside your own program, for as long as an ``async with`` block.

        At the end of the block the worker drains and leaves, also if the block raises an exception. Signals
        are left to your program. If the worker fails, the block is cancelled and the error is raised.

        Parameters
        ----------
        name
            The worker's name; made up if None.
        processors
            Names of the processors to run; all if None.
        """
        # It needs pyarrow, which who only sends should not load.
        from streamworker.runtime.worker import Worker, running

        return running(Worker(self, name=name, processors=processors))
