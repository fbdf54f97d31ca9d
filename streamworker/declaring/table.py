"""``Table``: state by key, which one processor writes and everybody reads."""

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar

from streamworker.context import TablesInCall, tables_in_call
from streamworker.core.time.lifetimes import Lifetime, Timed
from streamworker.core.units import time_ms
from streamworker.declaring.specs import ProcessorSpec, TableSpec
from streamworker.declaring.stream import StreamApp
from streamworker.errors import ConfigurationError, RecordError
from streamworker.records.statetables import TableForm, Watched
from streamworker.records.types import read_hint
from streamworker.redisio.data.statetables import TableReads
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.connecting import connected

K = TypeVar("K")
V = TypeVar("V")

SCAN_TIMEOUT_MS = 60_000
"""Deadline for reading one partition of a table. A million values take seconds on a busy machine."""


class Table(Generic[K, V]):
    """State by key: ``App.table`` makes it, and one processor writes it.

    In a call of that processor, reads see what the call has written, and writes take effect with the commit
    of the call's records, or not at all. Elsewhere, in a web application, a test or another processor, reads
    see what is committed, and writes are refused.

    Examples
    --------
    >>> import msgspec
    >>> from streamworker import App
    >>> class Order(msgspec.Struct):
    ...     customer: str
    >>> app = App("shop")
    >>> orders = app.stream("orders", Order, key="customer")
    >>> seen = app.table("seen", int, ttl="30 days")
    >>> @app.processor(orders, tables=[seen])
    ... async def count(order: Order) -> None:
    ...     seen.set(order.customer, (await seen.get(order.customer) or 0) + 1)
    """

    def __init__(self, app: StreamApp, name: str, form: TableForm, ttl_ms: int) -> None:
        self.app = app
        """The app that the table belongs to."""
        self.name: str = name
        """The table's name."""
        self._form = form
        self._ttl_ms = ttl_ms
        self._spec: TableSpec | None = None

    # -- in a call and outside -----------------------------------------------------------------

    async def get(self, key: K) -> V | None:
        """Return a copy of the value of a key; None if there is none, or it has expired.

        Parameters
        ----------
        key
            A key of the table's type.

        Raises
        ------
        RecordError
            If the key is not of the table's type, or in a call belongs to another partition.
        ProcessingError
            If what is stored is no value of the table's type.
        BackendError
            Outside of a call, if Redis does not answer or refuses.
        """
        return (await self.get_many((key,))).get(key)

    async def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return copies of the values of some keys, in one round trip; missing ones are left out.

        A changed copy changes nothing until it is set. In a call, one that is changed and not set fails it.

        Parameters
        ----------
        keys
            Keys of the table's type.

        Raises
        ------
        RecordError, ProcessingError, BackendError
            As :meth:`get`.
        """
        call = self._call()
        if call is not None:
            fields = self._fields(call, keys)
            bodies = dict(zip(fields, await call.read(self.name, list(fields)), strict=True))
        else:
            fields = {self._form.field(key): key for key in keys}
            bodies = await self._reads(self.app.backend()).get(fields)
        form, value_of = self._form, self._form.value_of
        there = [(field, body) for field in fields if (body := bodies.get(field)) is not None]
        present = {field: fields[field] for field, _ in there}
        values = [value_of(field, body) for field, body in there]
        if call is not None and not form.is_fixed:
            call.watched.append(Watched(form, present, values, list(map(form.encode, values)), False))
        return dict(zip(present.values(), values, strict=True))

    async def scan(self, *, partition: int | None = None) -> AsyncIterator[tuple[K, V]]:
        """Iterate over all committed keys and values, each key once, one partition after the other.

        Each partition is read at one moment, with one command; the partitions are read at different moments.
        That is so while the stream grows, too.

        Parameters
        ----------
        partition
            Only the keys that this one has, or had before the stream grew; None reads all.

        Raises
        ------
        ConfigurationError
            If there is no such partition.
        ProcessingError
            If a stored value is none of the table's type.
        BackendError
            If Redis does not answer within a minute, or refuses.

        Examples
        --------
        >>> async def all_totals(totals: Table[str, int]) -> dict[str, int]:
        ...     return {customer: total async for customer, total in totals.scan()}
        """
        settings, name = self.app.settings, f"{self.app.name}:scan"
        await self._reads(self.app.backend()).follow()
        for each in self._partitions(partition):
            # With a connection and a deadline of its own: a reply may have many megabytes.
            async with connected(settings, name, 1, call_timeout_ms=SCAN_TIMEOUT_MS) as backend:
                found = await self._reads(backend).scan(each)
            for field, body in found.items():
                yield self._form.key_of(field, body), self._form.value_of(field, body)

    async def count(self, *, partition: int | None = None) -> int:
        """Return the number of committed keys that have not expired, in all partitions or in one.

        Parameters
        ----------
        partition
            Only this one; None counts all.

        Raises
        ------
        ConfigurationError, BackendError
            As :meth:`scan`.
        """
        self._partitions(partition)  # It is refused before Redis is asked.
        reads = self._reads(self.app.backend())
        await reads.follow()
        return await reads.count(self._partitions(partition))

    # -- in a call -----------------------------------------------------------------------------

    def set(self, key: K, value: V, *, until: datetime | None = None) -> None:
        """Set the value of a key, with the commit of this call's records; its ``ttl`` begins anew.

        If the call fails or the worker dies, nothing is set.

        Parameters
        ----------
        key
            The key of a record of this call, or one that begins with it.
        value
            A value of the table's type.
        until
            When the value ends, in place of the table's ``ttl``; a later ``set`` replaces this.

        Raises
        ------
        RecordError
            If the key or the value is of another type, or the key belongs to another partition.
        ConfigurationError
            Outside of a call of the table's processor, or if ``until`` has no zone.
        """
        self.set_many({key: value}, until=until)

    def set_many(self, values: Mapping[K, V], *, until: datetime | None = None) -> None:
        """Set the values of some keys; see :meth:`set`.

        Parameters
        ----------
        values
            The values by their keys.
        until
            When all of them end.

        Raises
        ------
        RecordError, ConfigurationError
            As :meth:`set`.
        """
        call = self._call() or self._refuse()
        form, fields = self._form, self._fields(call, values)
        bodies = {field: form.body(key, values[key]) for field, key in fields.items()}
        call.write(self.name, bodies if until is None else _timed(bodies, time_ms(until, "until")))
        if not form.is_fixed:
            before = [body[len(form.names) :] for body in bodies.values()]
            given = [values[key] for key in fields.values()]
            call.watched.append(Watched(form, fields, given, before, True))

    def delete(self, key: K) -> None:
        """Remove a key, with the commit of this call's records; see :meth:`set`.

        Parameters
        ----------
        key
            The key; that it has no value is no error.

        Raises
        ------
        RecordError, ConfigurationError
            As :meth:`set`.
        """
        call = self._call() or self._refuse()
        fields = self._fields(call, (key,))
        call.write(self.name, dict.fromkeys(fields))
        call.watched.append(Watched(self._form, fields, [], [], True))

    def _call(self) -> TablesInCall | None:
        """Return the running call of this table's processor; None outside of one."""
        call = tables_in_call.get()
        return call if call is not None and self.spec in call.specs else None

    def _refuse(self) -> NoReturn:
        raise ConfigurationError(
            f"Table {self.name!r} was changed outside of a call of its processor {self.spec.processor!r}.",
            remedy="Only that processor writes it, in the commit of its records: send it a record.",
        )

    def _fields(self, call: TablesInCall, keys: Iterable[K]) -> dict[bytes, K]:
        """Return keys by their fields; raise RecordError for one that this call may not use."""
        field_of, spec, here = self._form.field, self.spec, call.partition
        fields: dict[bytes, K] = {}
        for key in keys:
            field = field_of(key)
            if here is not None and not spec.is_in(here, key, field):
                partition = spec.partition_of(key, field)
                where = "no partition" if partition is None else f"partition {partition}"
                raise RecordError(
                    f"The key {key!r} of table {self.name!r} belongs to {where}, and this call has records "
                    f"of partition {here}.",
                    remedy="A call may use the keys of its own records: the stream's key, or keys that begin "
                    "with it.",
                )
            fields[field] = key
        return fields

    @property
    def spec(self) -> TableSpec:
        """The table's specification; ConfigurationError if no processor writes it."""
        if self._spec is None:
            # A web application imports the app alone, and its tests start a worker, which imports all of it:
            # what the tests read must be there in life, too.
            self.app.load()
        if self._spec is None:
            raise ConfigurationError(
                f"No processor writes table {self.name!r}.",
                remedy=f"Name it at one: @app.processor(..., tables=[{self.name}]), in a module that is "
                "imported, or that App(include=...) names.",
            )
        return self._spec

    def _reads(self, backend: Backend) -> TableReads:
        spec = self.spec
        keys = GroupKeys(self.app.name, spec.stream.name, spec.processor)
        return TableReads(backend, keys, self.name, spec.lifetime, spec.leading, spec.stream.placement)

    def _partitions(self, partition: int | None) -> list[int]:
        there, active = self.spec.stream.placement.all, self.spec.stream.placement.active
        if partition is None:
            return list(active)
        if partition not in there:
            raise ConfigurationError(
                f"Table {self.name!r} has no partition {partition}.",
                remedy=f"Its partitions are 0 to {len(there) - 1}.",
            )
        return [partition]

    def written_by(self, processor: ProcessorSpec) -> TableSpec:
        """Make a processor the table's writer, and return the table's specification."""

        def wrong(what: str, remedy: str) -> ConfigurationError:
            return ConfigurationError(f"Processor {processor.name!r} {what}", remedy=remedy)

        stream = processor.stream
        if self.app.name != stream.app:
            raise wrong(f"names table {self.name!r} of another app.", "Declare it with this app.")
        if self._spec is not None:
            raise wrong(
                f"writes table {self.name!r}, and so does {self._spec.processor!r}.",
                "A table has one writer; others read it.",
            )
        if stream.key_fields == ():
            raise wrong(
                f"has tables, and stream {stream.name!r} has no key.",
                "Give the stream a key: a table's keys belong to the partitions of their records.",
            )
        if processor.options.concurrency > 1:
            raise wrong(
                f"has tables and concurrency={processor.options.concurrency}.",
                "Drop concurrency: calls that overlap could lose each other's changes.",
            )
        if not processor.is_async:
            raise wrong("has tables, and is no async function.", "Write it as `async def`: it awaits reads.")
        self._spec = TableSpec(
            name=self.name,
            form=self._form,
            lifetime=Lifetime(self._ttl_ms),
            stream=stream,
            processor=processor.name,
            leading=_leading(self.name, self._form, processor),
        )
        return self._spec


def become(table: Table[Any, Any], spec: TableSpec) -> None:
    """Let a table have another specification."""
    table._spec = spec  # noqa: SLF001 - which is kept here


def _timed(bodies: Mapping[bytes, bytes], until_ms: int) -> dict[bytes, bytes]:
    # A stored time has no sign; what ends before 1970 has ended in 1970, too.
    return {field: Timed.at(body, max(until_ms, 0)) for field, body in bodies.items()}


def written(tables: object, processor: ProcessorSpec) -> tuple[TableSpec, ...]:
    """Make a processor the writer of the tables that it names."""
    if not isinstance(tables, list | tuple) or not all(isinstance(each, Table) for each in tables):
        raise ConfigurationError(
            f"Processor {processor.name!r} has tables={tables!r}.",
            remedy="Write tables=[totals], with what app.table() has returned.",
        )
    return tuple(table.written_by(processor) for table in tables)


def _leading(table: str, form: TableForm, processor: ProcessorSpec) -> int:
    """Return how many of the parts of a key are the stream's key; 0 if the whole key is."""
    stream, parts, kind = processor.stream, form.names, form.kind
    names = (stream.key_fields,) if isinstance(stream.key_fields, str) else stream.key_fields
    needed = len(names) if names is not None else 1
    if parts:
        fits = len(parts) >= needed and (names is None or parts[:needed] == names)
        leading = needed if len(parts) > needed or needed == 1 else 0
    else:
        types = [read_hint(stream.record.hints[name]).base for name in names or ()]
        fits = needed == 1 and not any(isinstance(its, type) and its is not kind for its in types)
        leading = 0
    if not fits:
        said = repr(parts) if parts else kind.__name__
        wanted = "what its function returns" if names is None else ", ".join(names)
        raise ConfigurationError(
            f"Table {table!r} has key={said}, and stream {stream.name!r} has the key {wanted}.",
            remedy="Use the type of the stream's key, or the names of a key that begins with it.",
        )
    return leading
