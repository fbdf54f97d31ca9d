"""The declarations of the decorators: streams, processors and pipelines as plain values.

This module connects to nothing. ``app.py`` makes these values, and ``runtime`` and ``spark`` read them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from streamworker.core.data.archives import GROUP, Archive
from streamworker.core.data.placement import Placement, canonical_key
from streamworker.core.data.retention import Retention
from streamworker.core.time.lifetimes import Lifetime, Lifetimes
from streamworker.core.time.schedules import Missed, PlannedTimes, When
from streamworker.declaring.middleware import Layer
from streamworker.declaring.options import ProcessorOptions
from streamworker.declaring.parameters import Parameters
from streamworker.errors import ConfigurationError
from streamworker.records import RecordCodec, RecordType
from streamworker.records.codecs import codec_name
from streamworker.records.statetables import TableForm

if TYPE_CHECKING:
    import pyarrow as pa

TIMERS_STREAM = "streamworker-timers"
"""The stream whose one partition is owned by the leader of an app's timers. It never holds a record."""
Codec = Literal["json", "msgpack", "fields", "arrow"] | RecordCodec
Takes = Literal["records", "record_batch", "table", "polars"]
"""What a processor function receives: records, or columns of pyarrow or polars."""


class FunctionMode(Enum):
    """How a processor function takes its records."""

    RECORD = "record"
    """One call for each record."""
    BATCH = "batch"
    """One call for each list of records, or for their columns."""
    STREAM = "stream"
    """One call for each partition; the function iterates over the records itself."""
    ARCHIVE = "archive"
    """No call: the records go to the stream's archive."""


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """A logical stream; ``App.stream`` says what its arguments mean."""

    app: str
    name: str
    record: RecordType
    key: Callable[[Any], object]
    """Returns a record's key; records with the key ``None`` are spread round robin."""
    declared_partitions: int
    """What the app says. Which partitions there are, and which has a key, ``placement`` tells."""
    codec: Codec
    records_max: int
    retention: Retention | None = None
    archive: Archive | None = None
    has_records: bool = True
    """Whether it can hold any; the stream of an app's timers cannot."""
    validate: bool = True
    single_entries: bool = False
    source: str = ""
    """Empty for none."""
    id_window_ms: int = 86_400_000
    key_fields: str | tuple[str, ...] | None = None
    """The fields that ``key`` reads, for the keys of tables; ``()`` for no key, None if they are not
    known."""
    placement: Placement = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", Placement(self.declared_partitions))

    @property
    def packing(self) -> Literal["", "json", "msgpack", "arrow", "binary"]:
        """How records that are sent together are encoded in one entry; empty if each has its own."""
        if self.codec == "fields" or self.single_entries:
            return ""
        return self.codec if isinstance(self.codec, str) else "binary"

    @property
    def codec_name(self) -> str:
        """The codec's name, which Redis stores."""
        return codec_name(self.codec)


@dataclass(frozen=True, kw_only=True, eq=False)
class TableSpec:
    """A table: state by key, which one processor writes."""

    name: str
    form: TableForm
    lifetime: Lifetime
    stream: StreamSpec
    processor: str
    leading: int
    """How many of the parts of a key are the stream's key; 0 if the whole key is."""

    def schema(self) -> "pa.Schema":
        """The table's columns for Spark; a part of the key has the type of the record's field of its name.

        The metadata says besides who writes it, and how many ``leading`` parts of a key are the stream's.
        """
        names, field = self.form.names, self.stream.key_fields
        name = field if isinstance(field, str) else field[0] if field and len(field) == 1 else "key"
        known = {**self.stream.record.hints, **self.form.part_types}
        hints = {name: known.get(name, str) for name in names} or {name: self.form.kind}
        found = self.form.schema(hints)
        about = {"processor": self.processor, "leading": str(self.leading)}
        return found.with_metadata({**(found.metadata or {}), **about})

    def routed(self, key: Any, field: bytes | None = None) -> bytes | None:
        """Return the stream's key in a key, given its field if that is known; None if it is absent."""
        if self.leading:
            return canonical_key(key[: self.leading] if self.leading > 1 else key[0])
        return self.form.field(key) if field is None else field

    def partition_of(self, key: Any, field: bytes | None = None) -> int | None:
        """Return the partition that a key has now; None if no part of it decides."""
        routed = self.routed(key, field)
        return None if routed is None else self.stream.placement.partition_of(routed)

    def is_in(self, partition: int, key: Any, field: bytes) -> bool:
        """Return whether a partition has a key, or had it before the stream grew."""
        routed, placement = self.routed(key, field), self.stream.placement
        if routed is None:
            return False
        return placement.partition_of(routed) == partition or (
            partition < placement.base and partition in placement.path_of(routed)
        )


Targets = StreamSpec | Mapping[type, StreamSpec] | None
"""Where rows go besides: one stream, or one for each type of row."""


def has_several_types(into: Targets) -> bool:
    """Return whether rows that go there are of several types, which no acked log holds."""
    return len(into) > 1 if isinstance(into, Mapping) else into is not None and len(into.record.members) > 1


def rows_of_several_types(whose: str) -> ConfigurationError:
    """Return the error for a processor whose rows of several types should go to its acked log."""
    return ConfigurationError(
        f"{whose} forwards to an acked log, which holds rows of one type, and into= names several.",
        remedy="Give the pipeline to a processor that reads one of these streams.",
    )


@dataclass(frozen=True, kw_only=True)
class ProcessorSpec:
    """A processor: a function, the stream it reads, and how it is called."""

    name: str
    stream: StreamSpec
    function: Callable[..., Any]
    options: ProcessorOptions
    """What its decorator was told. What follows is read from these and the function."""
    mode: FunctionMode
    is_async: bool
    takes_context: bool
    batch: int
    """Maximum records in one call (BATCH), or between two commits (RECORD, STREAM)."""
    takes: Takes = "records"
    forward: bool
    """Whether acked rows go to the acked log."""
    output: RecordType | None
    """Type of the forwarded rows; the stream's type if the records themselves are forwarded."""
    into: Targets = None
    """Where the rows go besides the acked log."""
    parameters: Parameters = field(default_factory=Parameters)
    """What the function is given."""
    layers: Sequence[Layer] = ()
    """The middleware around its calls; a worker sets it."""
    tables: tuple[TableSpec, ...] = ()
    """The tables that it writes."""
    timers: "Sequence[TimerSpec]" = ()
    """The functions that each partition calls by time, between its batches."""
    expiries: "Sequence[ExpirySpec]" = ()
    """The functions that each partition calls at the ends of values, between its batches."""

    @property
    def lifetimes(self) -> Lifetimes:
        """How the values of its tables end."""
        return {table.name: table.lifetime for table in self.tables}

    @property
    def is_archiver(self) -> bool:
        """Whether it is the group that archives its stream, and calls no function."""
        return self.name == GROUP

    @property
    def called(self) -> str:
        """Its name for commands: that of an archiver begins with its stream, as in ``orders.archive``."""
        return f"{self.stream.name}.{GROUP}" if self.is_archiver else self.name

    @property
    def targets(self) -> tuple[StreamSpec, ...]:
        """The streams that its rows go to, and those of the functions that are called between batches."""
        own = self.into.values() if isinstance(self.into, Mapping) else filter(None, (self.into,))
        others = [target for each in self.by_time for target in each.call.targets]
        late = filter(None, (self.window.late_into,)) if self.window else ()
        return tuple({spec.name: spec for spec in (*own, *others, *late)}.values())

    @property
    def window(self) -> "WindowSpec | None":
        """What its windows are, if it has any."""
        return next((each.window for each in self.expiries if each.window), None)

    @property
    def by_time(self) -> "Sequence[TimerSpec | ExpirySpec]":
        """The functions that each partition calls between its batches."""
        return (*self.timers, *self.expiries)

    def calling(self, change: "Callable[[TimerSpec | ExpirySpec], ProcessorSpec]") -> "ProcessorSpec":
        """Return it with other calls of the functions that are called between batches."""
        timers = tuple(replace(each, call=change(each)) for each in self.timers)
        expiries = tuple(replace(each, call=change(each)) for each in self.expiries)
        return replace(self, timers=timers, expiries=expiries)

    @property
    def may_send(self) -> bool:
        """Whether its function can send to other streams."""
        mine = self.into is not None or self.takes_context or bool(self.layers)
        return mine or any(each.call.may_send for each in self.by_time)

    @property
    def uses_columns(self) -> bool:
        """Whether the function takes columns, or its stream has columns."""
        return self.takes != "records" or self.stream.codec == "arrow"


@dataclass(frozen=True, kw_only=True)
class TimerSpec:
    """A function that is called by time."""

    name: str
    schedule: PlannedTimes
    missed: Missed
    when: When | None
    call: ProcessorSpec
    """How the function is called: with the planned time in place of a record, if it takes that."""


@dataclass(frozen=True, kw_only=True)
class ExpirySpec:
    """A function that is called at the ends of a table's values."""

    name: str
    table: TableSpec
    call: ProcessorSpec
    """How the function is called: with a key and its value, or a list of such pairs, in place of a record."""
    takes_many: bool
    window: "WindowSpec | None" = None
    """What it is of a processor of windows, whose ends are by event time."""


@dataclass(frozen=True, kw_only=True)
class WindowSpec:
    """When windows are closed, and what of a stored value."""

    late_ms: int
    """How long after their end."""
    by_clock: bool
    """Whether event time goes on with the server's clock once the partition has caught up."""
    ended: Callable[[bytes, bytes, int], tuple[list[Any], bytes | None]]
    """Returns the pairs of total and window in a field and its value that are over by an event time, and what
    is left of the value."""
    returns_totals: bool
    """Whether the totals are the rows; no function is called for them."""
    sends: bool
    """Whether anything is sent when a window closes."""
    late_into: StreamSpec | None = None
    lacks: Callable[[], ConfigurationError | None] = lambda: None
    """Returns what is missing in the declaration."""


@dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """A Spark pipeline over what processors forward; ``App.pipeline`` says what its arguments mean."""

    name: str
    processors: tuple[ProcessorSpec, ...]
    function: Callable[..., Any]
    trigger: str
    path: str | None
    format: str
    mode: Literal["append", "complete", "update"]
    checkpoint: str | None
    options: dict[str, str] = field(default_factory=dict)
    options_of: dict[str, dict[str, str]] = field(default_factory=dict)
    """Options of the source for one processor, by its name; they precede those for all."""
    table: str | None = None
    upsert: tuple[str, ...] = ()
    dsn_env: str | None = None
    write: Callable[..., object] | None = None
    into: Any = None
    """The stream that the rows go to (``declaring.stream.Stream``); None for a table."""

    @property
    def reads(self) -> list[str]:
        """Return the names of its processors."""
        return [processor.name for processor in self.processors]
