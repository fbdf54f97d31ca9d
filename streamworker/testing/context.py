"""A context and tables for calls by hand, without a worker and a server."""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from contextvars import Token
from typing import Any, Self, TypeVar

import structlog

from streamworker.context import Call, Context, OwnedPartition, Sending, TablesInCall, tables_in_call
from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.policies import Policy
from streamworker.declaring.processors import Processor
from streamworker.declaring.stream import Stream
from streamworker.declaring.table import Table
from streamworker.errors import ConfigurationError
from streamworker.records.packs import HEADER_PREFIX
from streamworker.records.statetables import Watched, check_unchanged
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.run.state import PartitionState, StateView
from streamworker.testing.home import home_of
from streamworker.testing.stored import Waits, scheduled_in

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class _Tables:
    """Tables in memory, which take the keys of all partitions."""

    partition = None

    def __init__(self, specs: Collection[object]) -> None:
        self.specs = specs
        self.values: dict[str, dict[bytes, bytes]] = {}
        self.watched: list[Watched] = []

    async def read(self, table: str, fields: Sequence[bytes]) -> list[bytes | None]:
        return [self.values.get(table, {}).get(field) for field in fields]

    def write(self, table: str, changes: Mapping[bytes, bytes | None]) -> None:
        values = self.values.setdefault(table, {})
        for field, body in changes.items():
            if body is None:
                values.pop(field, None)
            else:
                values[field] = body


class FakeContext(Context):
    """The context of a call that a test makes by hand; :func:`fake_context` makes it.

    In its ``with`` block the processor's tables are in memory. What the function forwards stands in
    ``forwarded``, what it sends in :meth:`sent`, what it skips or sets aside as a dead letter in
    ``set_aside``, and what it stores in ``state``. The app sends to a server in memory meanwhile, so that the
    function may schedule and cancel; :meth:`scheduled` tells what waits.

    Examples
    --------
    >>> import asyncio
    >>> import msgspec
    >>> from streamworker import App
    >>> class Order(msgspec.Struct):
    ...     customer: str
    >>> app = App("shop")
    >>> seen = app.table("seen", int)
    >>> @app.processor(app.stream("orders", Order, key="customer"), tables=[seen])
    ... async def count(order: Order, ctx: Context) -> None:
    ...     seen.set(order.customer, (await seen.get(order.customer) or 0) + 1)
    >>> with fake_context(count) as ctx:
    ...     ctx.put(seen, {"ann": 2})
    ...     asyncio.run(count(Order("ann"), ctx))
    ...     ctx.table(seen)
    {'ann': 3}
    """

    __slots__ = ("_app", "_home", "_stored", "_token", "set_aside")

    def __init__(
        self, processor: Processor[..., Any], partition: int, key: str | None, headers: Mapping[str, str]
    ) -> None:
        spec = processor.spec
        if partition not in spec.stream.placement.all:
            raise ConfigurationError(
                f"Stream {spec.stream.name!r} has no partition {partition}.",
                remedy=f"Its partitions are 0 to {spec.stream.placement.total - 1}.",
            )
        fields = {HEADER_PREFIX + name.encode(): value.encode() for name, value in headers.items()}
        entry = Entry(EntryId(time.time_ns() // 1_000_000, 0), fields, 0)
        owned = OwnedPartition(
            app=spec.stream.app,
            processor=spec.name,
            partition=partition,
            epoch=1,
            owner="fake",
            log=structlog.get_logger("streamworker.fake"),
            now=monotonic_s,
            key_of=lambda _: key,
        )
        super().__init__(owned, Call([entry], StateView(PartitionState({})), records=[None]))
        self._app = processor._app  # noqa: SLF001
        self._home = ExitStack()
        self._stored = _Tables(spec.tables)
        self._token: Token[TablesInCall | None] | None = None
        self.set_aside: list[tuple[Any, Policy]] = []
        """What the function gave to ``ctx.skip`` and ``ctx.dead_letter``, each with its policy."""

    @property
    def forwarded(self) -> list[Any]:
        """The rows that the function gave to ``ctx.forward``."""
        return [each for each in self._call.outputs if not isinstance(each, Sending)]

    def sent(self, stream: Stream[T]) -> list[T]:
        """Return the records that the function gave to ``ctx.send`` for a stream.

        Parameters
        ----------
        stream
            The stream.
        """
        sendings = (each for each in self._call.outputs if isinstance(each, Sending))
        return [each.record for each in sendings if each.stream is stream.spec]

    async def scheduled(self, stream: Stream[T]) -> list[Waits[T]]:
        """Return the records of a stream that wait to be sent, with their ids and times, soonest first.

        Parameters
        ----------
        stream
            A stream of the app.
        """
        return await scheduled_in(self._app.backend(), stream)

    def _set_aside(self, record: object, policy: Policy) -> None:
        """Note it: a call by hand does not say which records it is for."""
        self.set_aside.append((record, policy))

    def put(self, table: Table[K, V], values: Mapping[K, V]) -> None:
        """Set values of a table before the call.

        Parameters
        ----------
        table
            A table that the processor writes.
        values
            Values by their keys.
        """
        form = table.spec.form
        self._stored.write(
            table.name, {form.field(key): form.body(key, value) for key, value in values.items()}
        )

    def table(self, table: Table[K, V]) -> Mapping[K, V]:
        """Return what a table holds.

        Parameters
        ----------
        table
            A table that the processor writes.
        """
        form, values = table.spec.form, self._stored.values.get(table.name, {})
        return {form.key_of(field, body): form.value_of(field, body) for field, body in values.items()}

    def __enter__(self) -> Self:
        self._home.enter_context(home_of(self._app, None, None))
        self._token = tables_in_call.set(self._stored)
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        self._home.close()
        if self._token is not None:
            tables_in_call.reset(self._token)
        if raised is None:
            check_unchanged(self._stored.watched)


def fake_context(
    processor: Processor[..., Any],
    *,
    partition: int = 0,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> FakeContext:
    """Return a context for calling a processor by hand, without a worker and a server.

    Parameters
    ----------
    processor
        The processor that is called; its tables are in memory inside the ``with`` block.
    partition
        What ``ctx.partition`` says. Keys of tables may be those of any partition, and any record may be
        skipped or set aside.
    key, headers
        What ``ctx.key`` and ``ctx.headers`` say of the call's one record.

    Examples
    --------
    >>> async def test_totals() -> None:
    ...     with fake_context(sum_up, partition=3) as ctx:
    ...         ctx.put(totals, {"ann": 2})
    ...         await sum_up([Order("ann")], ctx)
    ...         assert ctx.table(totals)["ann"] == 3
    """
    return FakeContext(processor, partition, key, headers or {})
