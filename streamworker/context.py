"""``Context``, which a processor function gets with its records.

Nothing here does I/O. Rows that a function forwards and state that it sets through its context take
effect with the commit of its records, all or nothing. They are discarded if the function fails.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.data.placement import canonical_key
from streamworker.core.policies import DeadLetter, Policy, Skip
from streamworker.core.units import moment
from streamworker.errors import ConfigurationError, RecordError
from streamworker.records.entries import Entries, headers_of
from streamworker.records.packs import HEADER_PREFIX
from streamworker.records.types import kept

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
IdsOf = Callable[[Entry], Iterable[EntryId]]
"""Returns the id of each row of an entry, where entries hold several rows."""


class TablesInCall(Protocol):
    """The tables that the running call may read and write: those of its partition.

    Keys and values are encoded; see ``records.statetables``.
    """

    @property
    def partition(self) -> int | None:
        """The partition whose keys they take; None takes all, in a call by hand."""
        ...

    specs: Collection[object]
    """The specifications of the tables that the call's processor names."""
    watched: list[Any]
    """What the call was given and has set; see ``records.statetables.Watched``."""

    async def read(self, table: str, fields: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the values of some keys as this call sees them; None where there is none."""
        ...

    def write(self, table: str, changes: Mapping[bytes, bytes | None]) -> None:
        """Set values, and delete those that are None, if the call succeeds."""
        ...


tables_in_call: ContextVar[TablesInCall | None] = ContextVar("tables_in_call", default=None)
"""The tables of the call that runs in this task; only calls of processors with tables set it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnedPartition:
    """What all calls of a partition have in common while this worker owns it."""

    app: str
    processor: str
    partition: int
    epoch: int
    owner: str
    log: "BoundLogger"
    now: Callable[[], float]
    """The monotonic clock, in seconds."""
    key_of: Callable[[Any], object] | None
    """Returns a record's key; None where functions get columns."""


class Sending(NamedTuple):
    """A record that a call sends to another stream."""

    stream: Any
    """Its ``StreamSpec``."""
    record: Any
    headers: Mapping[str, str | bytes] | None
    carried: Mapping[bytes, bytes] | None = None
    """The headers of the record that the call had; those of its own take precedence."""


class Carried(NamedTuple):
    """A row, and the headers of the record that it was made of."""

    row: Any
    headers: Mapping[bytes, bytes]


class SendsTo(Protocol[T_contra]):
    """A stream, as far as a context knows it."""

    spec: Any

    async def send(self, record: T_contra) -> object:
        """Append one record."""
        ...


class Call:
    """One call of a function, as the runtime sees it; its context reads and fills it."""

    def __init__(
        self,
        entries: Sequence[Entry],
        state: MutableMapping[str, Any],
        attempt: int = 1,
        ids_of: IdsOf | None = None,
        records: Sequence[Any] = (),
    ) -> None:
        self._ids_of = ids_of
        self.renew(entries, state, attempt, records)

    def renew(
        self,
        entries: Sequence[Entry],
        state: MutableMapping[str, Any],
        attempt: int,
        records: Sequence[Any] = (),
    ) -> None:
        """Continue the call with other records, for a function that takes ``Records``."""
        self.named = records
        """Where ``ctx.skip`` looks for a record; a range of numbers where they are rows of columns."""
        self.removed: dict[int, Policy] = {}
        """What is done about the records that the function has named, by their index."""
        self.state = state
        self.attempt = attempt
        self.carried: Mapping[bytes, bytes] = {}
        """Headers of what the call sends, beside those of its record."""
        self.trace_ids: Callable[[], dict[str, str]] = dict
        self.outputs: list[Any] = []
        self.is_over = False
        self.show(entries, records)

    def show(self, entries: Sequence[Entry], records: Sequence[Any]) -> None:
        """Continue with other entries, and keep everything else."""
        self.entries = entries
        self.records = records
        self.__dict__.pop("entry_ids", None)
        self.__dict__.pop("headers", None)

    def index_of(self, record: object) -> int | None:
        """Return the index of a record of the call; a row of columns is named by its index."""
        if isinstance(self.named, range):
            return record if type(record) is int and record in self.named else None
        return next((index for index, each in enumerate(self.named) if each is record), None)

    @cached_property
    def entry_ids(self) -> list[EntryId]:
        """The entry id of each record."""
        if self._ids_of is None:
            return [entry.id for entry in self.entries]
        return list(chain.from_iterable(map(self._ids_of, self.entries)))

    @property
    def arrivals_ms(self) -> list[int]:
        """When each record arrived, in ms by the server's clock."""
        if self._ids_of is None and isinstance(self.entries, Entries):
            return self.entries.arrivals_ms()
        return [each.ms for each in self.entry_ids]

    @property
    def count(self) -> int:
        """How many records the call has."""
        return len(self.entries if self._ids_of is None else self.entry_ids)

    @cached_property
    def headers(self) -> list[dict[str, str]]:
        """The headers of each record's entry."""
        return [
            headers_of(entry)
            for entry in self.entries
            for _ in ((entry,) if self._ids_of is None else self._ids_of(entry))
        ]


class Context:
    """The metadata, state, log and outputs that a processor function can use beside its records.

    Any parameter that is annotated as ``Context`` gets it. A context belongs to one call. A function that
    takes one record gets a new context for each record. A function that takes ``Records`` gets one
    context for as long as it runs, whose ``entry_ids`` and ``headers`` are those of the current records.

    Examples
    --------
    >>> import msgspec
    >>> class Order(msgspec.Struct):
    ...     customer: str
    >>> async def count(order: Order, ctx: Context) -> None:
    ...     ctx.state["seen"] = ctx.state.get("seen", 0) + 1
    ...     ctx.log.info("seen", entry=str(ctx.entry_id))
    """

    __slots__ = ("_began", "_call", "_owned")

    def __init__(self, owned: OwnedPartition, call: Call) -> None:
        self._owned = owned
        self._call = call
        self._began = owned.now()

    @property
    def app(self) -> str:
        """The app's name."""
        return self._owned.app

    @property
    def processor(self) -> str:
        """The processor's name."""
        return self._owned.processor

    @property
    def partition(self) -> int:
        """The partition of the records."""
        return self._owned.partition

    @property
    def epoch(self) -> int:
        """The number of this ownership of the partition, which grows with each new owner.

        Together with ``owner`` it is a fencing token for another system.
        """
        return self._owned.epoch

    @property
    def owner(self) -> str:
        """The name of this worker in the partition's lock; no other worker ever has it."""
        return self._owned.owner

    @property
    def log(self) -> "BoundLogger":
        """A logger that names app, processor and partition, and the call's span if it has one."""
        ids = self._call.trace_ids()
        return self._owned.log.bind(**ids) if ids else self._owned.log

    @property
    def attempt(self) -> int:
        """The number of this attempt; 1 for the first call with these records."""
        return self._call.attempt

    @property
    def count(self) -> int:
        """How many records the call has."""
        return self._call.count

    @property
    def elapsed(self) -> float:
        """Seconds since this attempt began."""
        return self._owned.now() - self._began

    @property
    def key(self) -> str | None:
        """The key of the record as text, if the call has one record; None for a record without a key.

        Several fields are joined by one rule (docs: protocol, "Which partition").

        Raises
        ------
        ConfigurationError
            If the call has several records, or columns.
        """
        if self.count != 1 or self._owned.key_of is None:
            raise self._wrong("ctx.key", "Take the key from each record.")
        key = canonical_key(self._owned.key_of(self._call.records[0]))
        return None if key is None else key.decode("utf-8", "replace")

    @property
    def timestamp(self) -> datetime:
        """When Redis got the record, in UTC; of several records, the last.

        It is the time in the entry's id. If another program gave it one that is beyond the year 9999, it is
        the end of that year.

        Raises
        ------
        ConfigurationError
            If the call has no record, as in a function that takes ``Records`` before its first.
        """
        if not self._call.entries:
            raise self._wrong("ctx.timestamp", "Ask for a record first.")
        return moment(self._call.entries[-1].id.ms)

    @property
    def state(self) -> MutableMapping[str, Any]:
        """The keyed state of this partition: a mapping from text to plain values.

        Assignments, and lists and dicts that were changed in place, are committed with the records, or
        discarded if the call fails.
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
        """The entry id, if the call has one entry.

        Raises
        ------
        ConfigurationError
            If the call has several entries; use ``entry_ids``.
        """
        return self._only().id

    def header(self, name: str, default: str | None = None) -> str | None:
        """Return a header, if the call has one entry.

        Parameters
        ----------
        name
            The header's name, as it was sent.
        default
            What is returned if the record has no such header.

        Raises
        ------
        ConfigurationError
            If the call has several entries; use ``headers``.
        """
        value = self._only().fields.get(HEADER_PREFIX + name.encode())
        return default if value is None else value.decode("utf-8", "replace")

    def forward(self, row: Any) -> None:
        """Forward a row, after the rows that this call has forwarded before.

        The commit of the call's records writes the row to the acked log, before the rows that the
        function returns. If the call fails or the worker dies, the row is discarded.

        Parameters
        ----------
        row
            A value of the processor's output type.

        Raises
        ------
        RecordError
            If the call is over: it returned, timed out or was cancelled, or its records ended.
        """
        self._check_open("forwarded a row")
        self._call.outputs.append(kept(row))

    def send(
        self, stream: SendsTo[T], record: T, *, headers: Mapping[str, str | bytes] | None = None
    ) -> None:
        """Send a record to a stream of the same app once, with the commit of the call's records.

        Records for one partition of that stream arrive in the order in which they were sent. If the call has
        one record, the new one carries its headers, beside and after those in ``headers``. If the call fails
        or the worker dies, nothing is sent.

        Parameters
        ----------
        stream
            A stream of this app.
        record
            A record of that stream's type.
        headers
            Stored with the record.

        Raises
        ------
        RecordError
            If the call is over, or the stream is another app's.
        """
        self._check_open("sent a record")
        if stream.spec.app != self.app:
            raise RecordError(
                f"Processor {self.processor!r} sent a record to {stream.spec.name!r} of another app.",
                remedy="Use `await stream.send(...)`, which may send it again if the call is repeated.",
            )
        self._call.outputs.append(Sending(stream.spec, kept(record), headers))

    def skip(self, record: object, reason: str = "") -> None:
        """Pass over one record of the call: it is logged, and committed with the others.

        Parameters
        ----------
        record
            The record as the function received it; in columns, the number of its row, from 0.
        reason
            Why, for the log.

        Raises
        ------
        RecordError
            If it is no record of the call, or the call is over.

        Examples
        --------
        >>> import msgspec
        >>> class Payment(msgspec.Struct):
        ...     amount: int
        >>> async def book(batch: list[Payment], ctx: Context) -> None:
        ...     for payment in batch:
        ...         if payment.amount == 0:
        ...             ctx.skip(payment, "nothing to book")
        """
        self._set_aside(record, Skip(reason))

    def dead_letter(self, record: object, reason: str = "") -> None:
        """Send one record of the call to the dead letters, with the commit of the others.

        Parameters
        ----------
        record
            The record as the function received it; in columns, the number of its row, from 0.
        reason
            Why, for the letter.

        Raises
        ------
        RecordError
            As :meth:`skip`.
        """
        self._set_aside(record, DeadLetter(reason))

    def _set_aside(self, record: object, policy: Policy) -> None:
        self._check_open("named a record")
        index = self._call.index_of(record)
        if index is None:
            raise RecordError(
                f"Processor {self.processor!r} named a record that is not of its call.",
                remedy="Give ctx the record itself as the function received it, or the number of a row.",
            )
        self._call.removed[index] = policy

    def _check_open(self, what: str) -> None:
        if self._call.is_over:
            raise RecordError(
                f"Processor {self.processor!r} {what} after its call was over.",
                remedy="Do it before the function returns, while it has a record in hand.",
            )

    def _only(self) -> Entry:
        entries = self._call.entries
        if len(entries) != 1:
            raise self._wrong("one entry", "Use ctx.entry_ids and ctx.headers, which have one item a record.")
        return entries[0]

    def _wrong(self, what: str, remedy: str) -> ConfigurationError:
        has = f"has {self.count} records, and no {what}."
        return ConfigurationError(f"This call of processor {self.processor!r} {has}", remedy=remedy)


def show_only(contexts: Sequence[Context], pairs: Sequence[tuple[Entry, Any]]) -> None:
    """Let the context of a call, if it has one, show these entries, each with its record."""
    for context in contexts:
        context._call.show(*zip(*pairs, strict=True))  # noqa: SLF001 - not for users' functions to see


def take_forwarded(contexts: Sequence[Context]) -> list[Any]:
    """Take the rows forwarded since the last take; called between the rows of an entry."""
    forwarded: list[Any] = []
    for context in contexts:
        forwarded, context._call.outputs = context._call.outputs, []  # noqa: SLF001
    return forwarded


def is_set_aside(contexts: Sequence[Context], record: object) -> bool:
    """Return whether the function has named a record by ``ctx.skip`` or ``ctx.dead_letter``."""
    return any(context._call.index_of(record) in context._call.removed for context in contexts)  # noqa: SLF001
