"""What a processor function is given beside its records: ``Context``; and ``Records``.

Nothing here does I/O. What a function forwards or stores through its context takes effect with
the commit of its records, all or nothing, and is forgotten if the function fails.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from streamworker.core.entries import Entry, EntryId
from streamworker.errors import ConfigurationError, RecordError

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

T = TypeVar("T")
RowsOf = Callable[[Mapping[bytes, bytes]], int]
"""From the fields of an entry to its rows, where entries hold several."""

HEADER_PREFIX = b"h."
"""Fields of an entry that carry headers begin with this."""


class Place:
    """Where calls run: the same for all calls of one partition while it is ours."""

    __slots__ = ("app", "epoch", "log", "partition", "processor")

    def __init__(self, *, app: str, processor: str, partition: int, epoch: int, log: "BoundLogger") -> None:
        self.app = app
        self.processor = processor
        self.partition = partition
        self.epoch = epoch
        self.log = log


class Call:
    """One call of a function, as the runtime sees it: what its context reads and fills."""

    def __init__(
        self,
        entries: Sequence[Entry],
        state: MutableMapping[str, Any],
        attempt: int = 1,
        rows_of: RowsOf | None = None,
    ) -> None:
        self._rows_of = rows_of
        self.renew(entries, state, attempt)

    def renew(self, entries: Sequence[Entry], state: MutableMapping[str, Any], attempt: int) -> None:
        """Go on with other records, where one call of a function sees many (``Records``)."""
        self.state = state
        self.attempt = attempt
        self.outputs: list[Any] = []
        self.is_over = False
        self.show(entries)

    def show(self, entries: Sequence[Entry]) -> None:
        """Go on with other entries, and all else as it is."""
        self.entries = entries
        self.__dict__.pop("entry_ids", None)
        self.__dict__.pop("headers", None)

    @cached_property
    def entry_ids(self) -> list[EntryId]:
        """The id of each record's entry."""
        return [entry.id for entry in self._by_record()]

    @cached_property
    def headers(self) -> list[dict[str, str]]:
        """The headers of each record's entry."""
        return [headers_of(entry.fields) for entry in self._by_record()]

    def _by_record(self) -> Iterator[Entry]:
        for entry in self.entries:
            yield from repeat(entry, 1 if self._rows_of is None else self._rows_of(entry.fields))


class Context:
    """What a processor function may know and do beside its records.

    Take it as the second parameter. A context belongs to one call: for a function that takes one
    record there is one a record, and for a function that takes ``Records`` one for as long as it
    runs, whose ``entry_ids`` and ``headers`` are those of the records in hand.

    Examples
    --------
    >>> async def count(order: dict, ctx: Context) -> None:
    ...     ctx.state["seen"] = ctx.state.get("seen", 0) + 1
    ...     ctx.log.info("seen", entry=str(ctx.entry_id))
    """

    __slots__ = ("_call", "_place")

    def __init__(self, place: Place, call: Call) -> None:
        self._place = place
        self._call = call

    @property
    def app(self) -> str:
        """The app's name."""
        return self._place.app

    @property
    def processor(self) -> str:
        """The processor's name."""
        return self._place.processor

    @property
    def partition(self) -> int:
        """The partition that the records come from."""
        return self._place.partition

    @property
    def epoch(self) -> int:
        """The number of this ownership of the partition; it only grows from owner to owner.

        Pass it to another system as a fencing token.
        """
        return self._place.epoch

    @property
    def log(self) -> "BoundLogger":
        """A logger that names app, processor and partition."""
        return self._place.log

    @property
    def attempt(self) -> int:
        """1 for the first call with these records."""
        return self._call.attempt

    @property
    def state(self) -> MutableMapping[str, Any]:
        """Keyed state of this partition: a mapping from text to plain values.

        Assignments are committed with the records, or forgotten if the call fails. A value that
        is changed in place is not stored: assign it.
        """
        return self._call.state

    @property
    def entry_ids(self) -> list[EntryId]:
        """The entry id of each record, in order."""
        return self._call.entry_ids

    @property
    def headers(self) -> list[dict[str, str]]:
        """The headers of each record, in order."""
        return self._call.headers

    @property
    def entry_id(self) -> EntryId:
        """The entry id, where the call has one entry.

        Raises
        ------
        ConfigurationError
            If it has several; ``entry_ids`` has theirs.
        """
        return self._only().id

    def header(self, name: str, default: str | None = None) -> str | None:
        """Return a header, where the call has one entry.

        Raises
        ------
        ConfigurationError
            If it has several; ``headers`` has theirs.
        """
        value = self._only().fields.get(HEADER_PREFIX + name.encode())
        return default if value is None else value.decode("utf-8", "replace")

    def forward(self, row: Any) -> None:
        """Add a row to what this call forwards, after those it has added before.

        It reaches the acked log with the commit of the call's records, before what the function
        returns. The row is of the processor's output type.

        Raises
        ------
        RecordError
            If the call is over: it returned, timed out or was cancelled, or its records ended.
        """
        if self._call.is_over:
            raise RecordError(
                f"Processor {self.processor!r} forwarded a row after its call was over.",
                remedy="Forward before the function returns, while it has a record in hand.",
            )
        self._call.outputs.append(row)

    def _only(self) -> Entry:
        entries = self._call.entries
        if len(entries) != 1:
            raise ConfigurationError(
                f"This call of processor {self.processor!r} has {len(entries)} records.",
                remedy="Use ctx.entry_ids and ctx.headers, which have one item a record.",
            )
        return entries[0]


def show_only(context: Context, entry: Entry) -> None:
    """Let a context show one entry, of which the function has one row in hand."""
    call = context._call  # noqa: SLF001 - not for users' functions to see
    call.show((entry,))


def take_forwarded(context: Context) -> list[Any]:
    """Take what was forwarded since the last time: between the rows of an entry."""
    call = context._call  # noqa: SLF001
    forwarded, call.outputs = call.outputs, []
    return forwarded


def headers_of(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the headers among the fields of an entry."""
    return {
        name[2:].decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in fields.items()
        if name.startswith(HEADER_PREFIX)
    }


class Feed(Protocol):
    """Where ``Records`` come from: a partition's runner."""

    async def next(self, count: int, within_ms: int) -> list[Any]:
        """Ack what was given last, and give the next records; none at the end."""
        ...


class Records(Generic[T]):
    """The records of a partition as a stream, for a processor that iterates over them.

    A record is acked when the loop asks for the next one, or when the function returns. If the
    function raises, it is called again from the first record that is not acked. The stream
    ends when the partition is handed over: the loop ends, and the function should return.

    Examples
    --------
    >>> async def totals(records: Records[dict]) -> None:
    ...     async for order in records:
    ...         print(order)

    In lists of at most 100, each waiting at most a second for its last record:

    >>> async def prices(records: Records[dict]) -> None:
    ...     async for batch in records.take(100, within=1):
    ...         print(len(batch))
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        records = await self._feed.next(1, 0)
        if not records:
            raise StopAsyncIteration
        record: T = records[0]
        return record

    async def take(self, count: int, *, within: float | None = None) -> AsyncIterator[list[T]]:
        """Iterate over lists of records; all records of a list are acked together.

        Parameters
        ----------
        count
            Records in one list at most.
        within
            Seconds that a list waits for more, once it has a record. None: as long as the
            processor's own ``within``.

        Raises
        ------
        ConfigurationError
            If ``count`` is not positive.
        """
        if count < 1:
            raise ConfigurationError(f"records.take({count}) takes nothing.", remedy="Take 1 or more.")
        within_ms = -1 if within is None else round(within * 1000)
        while records := await self._feed.next(count, within_ms):
            yield records
