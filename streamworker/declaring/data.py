"""``app.stream`` and ``app.table``: what an app declares that holds data."""

from collections.abc import Callable
from types import UnionType
from typing import Any, TypeVar, overload

from streamworker.core.data.archives import COLUMNS, GROUP, Archive, ArchiveLike
from streamworker.core.data.retention import Retention, RetentionLike
from streamworker.core.rules import checked
from streamworker.core.units import Duration, duration_ms
from streamworker.declaring.options import ProcessorOptions
from streamworker.declaring.registry import DeclaringApp
from streamworker.declaring.specs import Codec, FunctionMode, ProcessorSpec, StreamSpec
from streamworker.declaring.stream import Stream
from streamworker.declaring.table import Table
from streamworker.errors import ConfigurationError
from streamworker.records import RecordCodec, RecordType
from streamworker.records.declarable import is_resolved
from streamworker.records.statetables import TableForm
from streamworker.redisio.keys import PARTITIONS_MAX, check_name

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

CODECS: tuple[str, ...] = ("json", "msgpack", "fields", "arrow")


@checked("Stream", partitions=(1, PARTITIONS_MAX))
def stream(
    app: DeclaringApp,
    name: str,
    record: type[T] | UnionType,
    *,
    key: str | tuple[str, ...] | Callable[[T], object] | None = None,
    partitions: int = 8,
    codec: Codec = "json",
    max_records: int | None = None,
    retention: RetentionLike | None = None,
    archive: ArchiveLike | None = None,
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
        of Structs with tags, such as ``Order | Refund`` (docs: types).
    key
        A field, several fields, or a function of the record. Records with the same key keep
        their order. None spreads the records over all partitions.
    partitions
        Their number: the most workers that can share the stream. A command gives a stream more of
        them later; then this is the first number or the newest one (docs: partitions).
    codec
        ``json``, ``msgpack``, ``fields``, ``arrow``, or a codec of your own; see ``RecordCodec``. With
        ``fields`` an entry's fields are the record's fields, as programs without streamworker write
        them. With ``arrow`` an entry holds many rows in columns (docs: columns).
    max_records
        Records that a partition may hold that a group has not read, before senders wait;
        ``partition_records_max`` if None. With ``arrow`` each entry counts as one.
    retention
        How long entries stay after all groups have read them: ``"7 days"``, ``"10 GB"``, ``"1_000_000
        records"``, or a list of these, of which the first that is reached counts. None: no longer.
    archive
        Where all records go besides, for ever: a URL such as ``s3://lake/orders``, or an ``Archive``. Redis
        keeps then what is not archived yet and what retention says; a group that lags behind that reads
        the archive (docs: archive). It needs the extra ``archive``.
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
        stream once, in order by key (docs: sending).

    Raises
    ------
    ConfigurationError
        If an argument is wrong, the type has no such field or form, or the app has a stream of this name.

    Examples
    --------
    >>> import msgspec
    >>> from streamworker import App
    >>> class Order(msgspec.Struct):
    ...     customer: str
    ...     amount: float
    >>> app = App("shop")
    >>> orders = app.stream("orders", Order, key="customer", partitions=16, retention=["7 days", "20 GB"])
    """
    check_name("stream", name)
    app.registry.check_new("streams", name)
    _check_codec(name, codec)
    kind = RecordType.of(record)
    if codec == "arrow":
        kind.arrow_schema()
    elif codec == "fields":
        kind.check_single('codec="fields"')
    if isinstance(codec, str) and is_resolved(kind):
        kind.decoder("json" if codec == "arrow" else codec)  # It refuses what it does not know.
    spec = StreamSpec(
        app=app.name,
        name=name,
        record=kind,
        key=kind.key_function(key),
        key_fields=kind.key_fields(key),
        declared_partitions=partitions,
        codec=codec,
        records_max=max_records or app.settings.partition_records_max,
        retention=None if retention is None else Retention.of(retention, "retention"),
        single_entries=single_entries,
        id_window_ms=duration_ms(id_window, "id_window", least_ms=1_000),
        archive=None if archive is None else _archive(name, kind, Archive.of(archive)),
        source=_source(name, source, codec),
        validate=validate,
    )
    app.registry.streams[name] = made = Stream[T](app, spec)
    if spec.archive is not None:
        app.registry.archivers[name] = _archiver_of(spec)
    return made


@overload
def table(app: DeclaringApp, name: str, value: type[V], *, ttl: Duration | None = None) -> Table[str, V]: ...
@overload
def table(
    app: DeclaringApp, name: str, value: type[V], *, key: tuple[str, ...], ttl: Duration | None = None
) -> Table[tuple[Any, ...], V]: ...
@overload
def table(
    app: DeclaringApp, name: str, value: type[V], *, key: type[K], ttl: Duration | None = None
) -> Table[K, V]: ...
@checked("Table")
def table(
    app: DeclaringApp,
    name: str,
    value: Any,
    *,
    key: type | tuple[str, ...] = str,
    ttl: Duration | None = None,
) -> Table[Any, Any]:
    """Declare a table: state by key, which one processor writes.

    That processor names it in ``tables=``. Keys are the key of the processor's stream, or begin with it.

    Parameters
    ----------
    name
        The table's name.
    value
        Type of the values: a record type, or a plain type such as ``int``.
    key
        Type of the keys; or the names of their parts, of which the first are the stream's key.
    ttl
        How long a value lives after it was last written, by the server's clock; None for ever.

    Raises
    ------
    ConfigurationError
        If a type cannot be stored, or the app has a table of this name.

    Examples
    --------
    >>> from streamworker import App
    >>> app = App("shop")
    >>> by_hour = app.table("by_hour", int, key=("customer", "hour"), ttl="400 days")
    """
    check_name("table", name)
    app.registry.check_new("tables", name)
    ttl_ms = 0 if ttl is None else duration_ms(ttl, "ttl", least_ms=1)
    app.registry.tables[name] = made = Table[Any, Any](app, name, TableForm(name, key, value), ttl_ms)
    return made


def _archive(name: str, kind: RecordType, archive: Archive) -> Archive:
    # Readers of the directories find the partition by their names.
    taken = [field.wire_name for field in kind.declared if field.wire_name in (*COLUMNS, "partition")]
    if archive.columns and taken:
        raise ConfigurationError(
            f"Stream {name!r} cannot be archived in columns: its record has a field {taken[0]!r}.",
            remedy="Rename the field, or write archive=Archive(url, columns=False).",
        )
    return archive


def _archiver_of(stream: StreamSpec) -> ProcessorSpec:
    """Return the group that archives a stream: workers join it as any other, and it calls no function."""

    async def nothing() -> None: ...

    return ProcessorSpec(
        name=GROUP,
        stream=stream,
        function=nothing,
        options=ProcessorOptions(name=GROUP, forward=False),
        mode=FunctionMode.ARCHIVE,
        is_async=True,
        takes_context=False,
        batch=1,
        forward=False,
        output=None,
    )


def _source(name: str, source: object, codec: object) -> str:
    """Return the key of the stream that is taken in, or an empty text."""
    if source is None:
        return ""
    if not isinstance(source, str) or not source or source.startswith("sw:"):
        raise ConfigurationError(
            f"Stream {name!r} has source={source!r}.",
            remedy="Give the key of a Redis stream that other programs fill, and not that of an app.",
        )
    if codec == "arrow":
        raise ConfigurationError(
            f"Stream {name!r} has a source, and the codec arrow.",
            remedy='Use codec="fields", or the codec in which the entries\' field v is written.',
        )
    return source


def _check_codec(stream: str, codec: object) -> None:
    """Raise ConfigurationError if a value is no codec, or one whose name cannot be stored."""
    if isinstance(codec, str) and codec in CODECS:
        return
    own = codec if isinstance(codec, RecordCodec) and not isinstance(codec, type) else None
    name = own.name if own else ""
    if name in CODECS or own is None:
        taken = f"a codec named {name!r}, which is one of streamworker's" if name else f"codec={codec!r}"
        raise ConfigurationError(
            f"Stream {stream!r} has {taken}.",
            remedy=f"Use one of {', '.join(CODECS)}, or an object with a name of its own, encode and decode.",
        )
    check_name("codec", name)
