"""The public API: an app declares streams, processors and pipelines, and connects to nothing.

Importing a module with an ``App`` has no side effects. A worker (``streamworker run``), a Spark
driver (``streamworker spark``) or a send connects to Redis when it first needs a connection.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, ParamSpec, TypeVar

from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.registry import PROTOCOLS
from streamworker.core.protocols.settings import Coordination
from streamworker.declare import check_codec, check_whole, describe
from streamworker.declared import Processor
from streamworker.errors import ConfigurationError
from streamworker.processors import Codec, PipelineSpec, ProcessorSpec, Start, StreamSpec
from streamworker.records import RecordType
from streamworker.redisio.keys import PARTITIONS_MAX, check_name
from streamworker.settings import Settings
from streamworker.spark.driver.checks import check_pipeline
from streamworker.stream import Stream, StreamApp

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

STARTS: tuple[str, ...] = ("earliest", "latest")


class App(StreamApp):
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

    def __init__(
        self,
        name: str,
        *,
        redis_url: str | None = None,
        coordination: str | Coordination | None = None,
        assignment: str = "range",
        **settings: Any,
    ) -> None:
        super().__init__(
            check_name("app", name),
            Settings.from_env(redis_url=redis_url, coordination=coordination, **settings),
        )
        Membership.empty(1, assignment)
        chosen = self.settings.coordination.name
        if assignment == "weighted" and not PROTOCOLS[chosen].has_document:
            raise ConfigurationError(
                f'The assignment "weighted" does not work with coordination={chosen!r}.',
                remedy='Use coordination="membership": only its heartbeats carry load.',
            )
        self.assignment = assignment
        self.processors: dict[str, ProcessorSpec] = {}
        self.pipelines: dict[str, PipelineSpec] = {}
        self._silent: set[str] = set()  # declared with forward=False, which a pipeline does not change

    # -- declaring -----------------------------------------------------------------------------

    def stream(
        self,
        name: str,
        record: type[T],
        *,
        key: str | tuple[str, ...] | Callable[[T], object] | None = None,
        partitions: int = 8,
        codec: Codec = "json",
        max_records: int | None = None,
        start: Start = "earliest",
        single_entries: bool = False,
    ) -> Stream[T]:
        """Declare a stream.

        Parameters
        ----------
        name
            The stream's name.
        record
            A msgspec.Struct, dataclass, TypedDict, NamedTuple, attrs class or pydantic model.
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
            Records that a partition may hold before senders wait; ``partition_records_max`` if None.
            With ``arrow`` each entry counts as one.
        start
            Where a new processor begins: ``earliest`` or ``latest``.
        single_entries
            Whether each record is an entry of its own, as redis-cli and other programs read it. Otherwise
            records that are sent together share entries, which saves most of the memory and the time.
        """
        check_name("stream", name)
        if name in self.streams:
            raise ConfigurationError(
                f"App {self.name!r} has two streams named {name!r}.", remedy="Give one of them another name."
            )
        check_whole(name, "partitions", partitions, PARTITIONS_MAX)
        if max_records is not None:
            check_whole(name, "max_records", max_records, None)
        check_codec(name, codec)
        if start not in STARTS:
            raise ConfigurationError(
                f"Stream {name!r} has start={start!r}.", remedy=f"Use one of: {', '.join(STARTS)}."
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
            records_max=max_records or self.settings.partition_records_max,
            start=start,
            single_entries=single_entries,
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
        """Bind a function to a stream; it gets each record at least once, in order by key.

        Parameters
        ----------
        stream
            The stream that the processor reads.
        name
            Name of the processor and its group; the function's name if None.
        batch
            Maximum records in one call, for a function that takes a list.
        within
            Seconds that a batch waits for more records once it has one.
        batch_bytes
            Maximum bytes of entries in one batch.
        on_error
            What happens when all ``attempts`` have failed. ``halt`` (``retry`` means the same): this
            partition stops and reports it; the others continue. ``dead_letter``: the failing record goes
            to the dead letters, the others continue in order. ``skip``: it is logged and passed over.
        attempts
            Calls for one record or batch before ``on_error`` applies.
        backoff, backoff_max
            Seconds before the second attempt, doubled for each further one; and the upper limit.
        timeout
            Seconds that one call may take; a longer call counts as failed. None sets no limit: a call
            that hangs is only reported, after ``max_processing_time_ms``. A ``def`` function cannot be
            interrupted: its thread keeps running, and its results are discarded.
        forward
            Whether rows go to the acked log. None forwards if the function returns something.
        output
            Type of the rows, if the return annotation does not give it.
        concurrency
            Maximum concurrent calls in one partition, for a function that takes one record and waits
            for I/O. Such a function has no ``ctx.state``.
        ordered_by
            Which order is kept where calls overlap. ``key``: records with the same key never overlap
            and keep their order. ``none``: any records may overlap.
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
            return Processor(self.processors, spec.name, function)

        return bind

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
            Whose forwarded rows are read. A processor that returns nothing forwards its records.
        name
            Name of the pipeline; the function's name if None.
        trigger
            ``"10 seconds"``, or ``"available now"`` to process the existing rows and stop.
        path, format, mode
            Where and how the returned DataFrame is written. A function that returns a stream writer
            needs none of them.
        checkpoint
            Spark's checkpoint directory; beside ``path`` if None.
        options
            Options of the source, named as in docs/spark.md, and of the writer.
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
