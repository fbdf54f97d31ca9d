"""Calls a processor's function: on the event loop or in a thread, with its context and timeout.

A call either returns its :class:`Effects` (rows to forward and changes of the state) or raises what the
function raised, which may be anything. The effects of a call that raises, times out or is cancelled are
dropped. The caller passes what was raised to :func:`failure`, which returns the record's error; ``modes``
decides what to do about it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pyarrow as pa

from streamworker.context import Call, Carried, Context, IdsOf, OwnedPartition, Sending
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.core.policies import Policy
from streamworker.declaring.callables import NOT_RUN
from streamworker.declaring.middleware import Naming, around
from streamworker.declaring.specs import FunctionMode, ProcessorSpec, StreamSpec
from streamworker.errors import DecodeError, ProcessingError, RecordError, StreamworkerError
from streamworker.records.codecs import BatchDecoder, short
from streamworker.records.entries import REPLAYED_FOR, header_fields_of, id_at, origin_at, readable_fields
from streamworker.records.rows import first_id
from streamworker.records.types import copier, kept
from streamworker.redisio.data.ackedlog import AckedBatch
from streamworker.runtime.forward.routing import Routed, Routes
from streamworker.runtime.run.failures import as_error, returning_errors, untaken
from streamworker.runtime.run.state import Changes, PartitionState
from streamworker.runtime.run.threads import registered, settled


class Effects(NamedTuple):
    """Results of one successful call, to be committed."""

    outputs: Sequence[Any] = ()
    changes: Changes | None = None
    removed: Mapping[int, Policy] | None = None
    """What is done about records that the function named, by their index in the call."""


NOTHING = Effects()
"""The effects of a call that forwards and stores nothing."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The records of some entries, and the entries that have none."""

    records: list[Any]
    """One for each entry; None for an entry without a record."""
    bad: dict[int, Exception]
    """Errors by index in the list, ascending; :data:`NOT_OURS` for an entry that is passed over."""


NOT_OURS = StreamworkerError("The entry is replayed for another group.")
"""Marks an entry that is replayed for another group: it counts as done without a call or a log line."""


class SetAside(DecodeError):
    """An operator wants a record set aside: it becomes a dead letter without a call."""


class Results:
    """Makes the effects of a processor's calls from what they return and put out."""

    def __init__(self, spec: ProcessorSpec, routes: Routes) -> None:
        self.spec = spec
        self._routes = routes
        row = spec.output or (spec.into.record if isinstance(spec.into, StreamSpec) else None)
        self._row_type: Any = object if row is None else row.built_type
        of_program = spec.output is None and not isinstance(getattr(spec.into, "codec", ""), str)
        self._takes_row = None if row is None or of_program else row.takes
        """Whether a row is one; a codec of the program may know subclasses."""
        self._takes_rows = spec.forward or spec.into is not None
        self.forwards_input = forwards_input(spec)
        """Whether a call that returns None forwards its records."""
        self._returns_rows_as_list = list not in getattr(self._row_type, "__mro__", ())
        self._copies = spec.mode is not FunctionMode.BATCH or not spec.is_async or bool(spec.layers)
        """Whether other code may run between a return and the conversion of its rows."""
        self._usual = self._row_type if self._takes_rows and self._row_type is not object else None
        """The type of rows, if it is one class."""
        self._copied = copier(self._usual) if isinstance(self._usual, type) else None
        """Copies a row of that class; None if there is no such class, or if its values never change."""
        self.sends = self._routes.into is not None or spec.takes_context or bool(spec.layers)
        """Whether a call may send records to other streams."""
        self._carries = False
        """Whether a record that was sent has carried headers."""

    def effects_of(self, result: Any, record: Any) -> Effects:
        """Return the effects of a call with a record and nothing else."""
        if result is None:
            if not self.forwards_input:
                return NOTHING
            result = record
        if type(result) is self._usual:
            return Effects((result if self._copied is None else self._copied(result),))
        return self._effects(self.taken(result), (), None, ())

    def taken(self, result: Any) -> Any:
        """Return what a function has returned as it is now."""
        return kept(result) if self._copies and result is not None else result

    def _effects_of_call(
        self, result: Any, call: Call, changes: Changes | None, records: Sequence[Any]
    ) -> Effects:
        if not call.removed:
            return self._effects(result, call.outputs, changes, records)
        left = self._without(records, call.removed)
        return self._effects(result, call.outputs, changes, left)._replace(removed=call.removed)

    def _named(self, records: Sequence[Any]) -> Sequence[Any]:
        """Return what the function names its records by, for ``ctx.skip``."""
        return records

    def _without(self, records: Sequence[Any], removed: Mapping[int, Policy]) -> Sequence[Any]:
        return [record for index, record in enumerate(records) if index not in removed]

    def _effects(
        self, result: Any, outputs: Sequence[Any], changes: Changes | None, records: Sequence[Any]
    ) -> Effects:
        rows: Sequence[Any] = ()
        if result is None and self.forwards_input:
            rows = self.taken(list(records))
        if result is None and not outputs:
            return Effects(rows, changes) if rows or changes else NOTHING
        sendings = [each for each in outputs if type(each) is Sending]
        own = [each for each in outputs if type(each) is not Sending] if sendings else outputs
        if result is not None or own:
            if self._takes_rows:
                rows = self._forwarded(result, own)
            elif self.spec.options.forward is not False or isinstance(result, NOT_RUN):
                raise untaken(self.spec.function, own[0] if result is None else result)
        return Effects([*rows, *sendings] if sendings else rows, changes)

    def put_out(
        self,
        outputs: Sequence[Any],
        records: Sequence[Any],
        entries: Sequence[Entry],
        carried: Mapping[bytes, bytes],
    ) -> Sequence[Any]:
        """Return what a function with ``Records`` has put out for some records."""
        return self.carried(self._effects(None, outputs, None, records), entries, carried).outputs

    def carried(
        self, effects: Effects, entries: Sequence[Entry], also: Mapping[bytes, bytes] | None = None
    ) -> Effects:
        """Let what a call sends to other streams carry the headers of the record that it had.

        Of a call with several records nothing tells which of them a row was made of. ``also`` are headers of
        the call itself.
        """
        if not effects.outputs or not (also or len(entries) == 1) or not self.sends:
            return effects
        headers = {**(header_fields_of(entries[0]) if len(entries) == 1 else {}), **(also or {})}
        if not headers:
            return effects
        goes_on = self._routes.into is not None
        outputs: list[Any] = []
        for each in effects.outputs:
            if type(each) is Sending:
                outputs.append(each._replace(carried=headers))
            else:
                outputs.append(Carried(each, headers) if goes_on else each)
        self._carries = self._carries or goes_on
        return effects._replace(outputs=outputs)

    def _forwarded(self, result: Any, outputs: Sequence[Any]) -> Sequence[Any]:
        """Return the rows of a call: first those of ``ctx.forward``, then those that it returned."""
        if result is None:
            returned: list[Any] = []
        elif isinstance(result, list) and self._returns_rows_as_list:
            returned = result
        elif self.spec.mode is FunctionMode.BATCH:
            raise ProcessingError(
                f"Processor {self.spec.name!r} returned a {type(result).__name__} for a batch.",
                remedy=f"Return a list of {self._row_name()}, or None.",
            )
        else:
            returned = [result]
        return self.checked([*outputs, *returned] if outputs else returned)

    def convert(self, outputs: Sequence[Any]) -> tuple[pa.RecordBatch | None, Routed]:
        """Convert what calls have put out: rows to Arrow, and what goes to other streams by its routes.

        A value that fits in neither form is a RecordError; code of the rows' class may raise anything.
        """
        sendings: list[Sending] = []
        if (self.spec.takes_context or self.spec.layers) and any(type(each) is Sending for each in outputs):
            sendings = [each for each in outputs if type(each) is Sending]
            outputs = [each for each in outputs if type(each) is not Sending]
        headers: list[Mapping[bytes, bytes] | None] = []
        if self._carries and any(type(each) is Carried for each in outputs):
            headers = [each.headers if type(each) is Carried else None for each in outputs]
            outputs = [each.row if type(each) is Carried else each for each in outputs]
        rows = self.to_rows(outputs)
        sends: Routed = {}
        if sendings or (outputs and self._routes.into is not None):
            sends = self._routes.routed(outputs, sendings, headers)
        return rows, sends

    def to_rows(self, outputs: Sequence[Any]) -> pa.RecordBatch | None:
        """Convert rows to Arrow; None if there are none. It raises what ``convert`` does."""
        if not outputs or self.spec.output is None:
            return None
        return self.spec.output.to_arrow(outputs)

    def packed(
        self,
        entries: Sequence[Entry],  # noqa: ARG002 - see ColumnsInvoker
        records: Sequence[Any],  # noqa: ARG002
        rows: Sequence[pa.RecordBatch],  # noqa: ARG002
    ) -> AckedBatch | None:
        """Return the rows already encoded for a commit, if the entry held them in that form."""
        return None

    def checked(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows; raise ProcessingError for the first that is not of the output type."""
        row_type, takes = self._row_type, self._takes_row
        for row in rows:
            if type(row) is not row_type and not (takes(row) if takes else isinstance(row, row_type)):
                cut = ", a subclass, whose further fields would be lost" if isinstance(row, row_type) else ""
                raise ProcessingError(
                    f"Processor {self.spec.name!r} forwarded {short(row)}{cut}.",
                    remedy=f"Its output type is {self._row_name()}.",
                )
        return rows

    def _row_name(self) -> str:
        return "rows" if self.spec.output is None else self.spec.output.name


class Invoker(Results):
    """Calls the function of one processor for one partition."""

    def __init__(
        self,
        spec: ProcessorSpec,
        owned: OwnedPartition,
        state: PartitionState,
        threads: int,
        routes: Routes,
        aside: dict[EntryId, Exception],
    ) -> None:
        super().__init__(spec, routes)
        self.owned = owned
        self.state = state
        self._limiter = shared_limiter(threads)
        self.threads = threads
        """How many ``def`` functions run at a time, over all partitions of this worker."""
        self.calls_in_threads = 0
        """Calls that have a thread, or wait for one."""
        self.aside = aside
        """The records that no call may have, and why."""
        self.ids_of: IdsOf | None = None
        """Returns the ids of an entry's rows; None if each entry is one record."""
        self.naming: Callable[[], Naming | None] | None = None
        """Returns what names the middleware that runs, while a record is called alone."""
        self.has_view = spec.takes_context or bool(spec.layers or spec.tables)
        """Whether a call has a context, or changes tables."""
        is_plain = spec.options.timeout_ms is None and not self.has_view
        self.plain = spec.function if is_plain else None
        """The function, if a call needs nothing but it, and an ``await`` if it is async; else None."""
        self.needs_loop = spec.is_async or spec.options.timeout_ms is not None or bool(spec.layers)
        """Whether each call begins on the event loop; else one thread may make several."""

    # -- decoding ----------------------------------------------------------------------------

    @cached_property
    def _decode_batch(self) -> BatchDecoder:
        stream = self.spec.stream
        assert stream.codec != "arrow"  # ColumnsInvoker decodes these
        return stream.record.batch_decoder(stream.codec)

    def decode(self, entries: Sequence[Entry]) -> Decoded:
        """Decode entries, all in one pass unless one of them is bad."""
        stream = self.spec.stream
        assert stream.codec != "arrow"  # ColumnsInvoker decodes these
        # An entry of many records is decoded up to its end, though the batch may end within it.
        ends = (id_at(entries, 0), origin_at(entries, -1)[0]) if self.aside and entries else (ZERO, ZERO)
        first, last = ends
        if not any(first <= record <= last for record in self.aside):
            with suppress(BaseException):  # Code of the record's class may run here, and raise anything.
                return Decoded(self._decode_batch(entries), {})
        decode = stream.record.decoder(stream.codec)
        return self.one_by_one(entries, lambda entry: decode(readable_fields(entry)))

    def one_by_one(self, entries: Sequence[Entry], decode: Callable[[Entry], Any]) -> Decoded:
        """Decode each entry by itself, except those that are replayed for another group."""
        mine = self.spec.name.encode()
        records: list[Any] = [None] * len(entries)
        bad: dict[int, Exception] = {}
        for index, entry in enumerate(entries):
            if entry.fields.get(REPLAYED_FOR, mine) != mine:
                bad[index] = NOT_OURS
            elif self.aside and (why := self._set_aside(entry)):
                bad[index] = why
            else:
                try:
                    records[index] = decode(entry)
                except RecordError as error:
                    bad[index] = error
        return Decoded(records, bad)

    def again(self, entries: Sequence[Entry]) -> list[Any]:
        """Return the records as they were sent, for another attempt: a failed call may have changed them."""
        decoded = self.decode(entries)
        for error in decoded.bad.values():
            raise error
        return decoded.records

    def _set_aside(self, entry: Entry) -> Exception | None:
        """Return why no call may have a record of the entry; None if one may have all."""
        first, last = first_id(entry), entry.id
        return next((why for record, why in self.aside.items() if first <= record <= last), None)

    # -- calling -----------------------------------------------------------------------------

    async def call_batch(self, entries: Sequence[Entry], records: list[Any], attempt: int) -> Effects:
        """Call the function with a list of records."""
        # The function gets its own list: it may sort or clear it.
        if self.plain is None or not self.spec.is_async:
            return await self._call(list(records), entries, records, attempt)
        return self.carried(self._effects(await self.plain(list(records)), (), None, records), entries)

    async def call_record(self, entry: Entry, record: Any, attempt: int) -> Effects:
        """Call the function with one record."""
        if self.plain is None or not self.spec.is_async:
            return await self._call(record, (entry,), (record,), attempt)
        effects = self.effects_of(await self.plain(record), record)
        return self.carried(effects, (entry,)) if self.sends else effects

    async def call_timed(self, argument: Any, attempt: int) -> Effects:
        """Call a function that is called by time, for a planned time or for values that have ended."""
        return await self._call(argument, (), (), attempt)

    async def _call(
        self, argument: Any, entries: Sequence[Entry], records: Sequence[Any], attempt: int
    ) -> Effects:
        timeout_ms = self.spec.options.timeout_ms
        if not self.spec.is_async and not self.spec.layers:
            effects: Effects = await self.in_thread(
                entries, self.call_here, argument, entries, records, attempt, timeout_ms=timeout_ms
            )
            return effects
        if timeout_ms is None or not self.spec.is_async:
            return await self._await(argument, entries, records, attempt)
        with _in_time(timeout_ms):
            return await self._await(argument, entries, records, attempt)

    def settled(self, result: Any) -> Any:
        """Return the result of a ``def`` function, as ``settled`` does; a row is never awaited."""
        return result if type(result) is self._usual else settled(result)

    async def in_thread(
        self,
        entries: Sequence[Entry],
        function: Callable[..., Any],
        *args: Any,
        timeout_ms: int | None = None,
    ) -> Any:
        """Run a function for some entries in a worker thread; a cancel abandons the thread.

        The timeout begins when the call has a thread: the wait for a thread does not count.
        """

        def call() -> Any:
            with registered(self.spec.function, self.owned, entries):
                return returning_errors(function, args)

        run = partial(anyio.to_thread.run_sync, call, abandon_on_cancel=True)
        self.calls_in_threads += 1
        try:
            if timeout_ms is None:
                return await run(limiter=self._limiter)
            async with self._limiter:
                with _in_time(timeout_ms):
                    return await run(limiter=anyio.CapacityLimiter(1))
        finally:
            self.calls_in_threads -= 1

    async def _await(
        self, argument: Any, entries: Sequence[Entry], records: Sequence[Any], attempt: int
    ) -> Effects:
        spec, function = self.spec, self.spec.function
        if not self.has_view:
            effects = self._effects(self.taken(await function(argument)), (), None, records)
            return self.carried(effects, entries)
        view = self.state.view()
        call = Call(entries, view, attempt, self.ids_of, records)
        call.named = self._named(records)
        context, naming = Context(self.owned, call), self.naming and self.naming()
        arguments = (argument, context) if spec.takes_context else (argument,)
        if not spec.is_async:
            function = partial(self.in_thread, entries, function, timeout_ms=spec.options.timeout_ms)
        try:
            if spec.layers:

                async def one_attempt() -> Any:
                    try:
                        return self.taken(await function(*arguments))
                    except StopAsyncIteration as raised:
                        raise as_error(raised) from raised

                result = await around(spec.layers, context, one_attempt, naming)
            else:
                result = self.taken(await function(*arguments))
        finally:
            call.is_over = True
            view.close()
            if naming and spec.layers:
                await naming("")
        effects = self._effects_of_call(result, call, view.settled(), records)
        return self.carried(effects, entries, call.carried)

    def call_here(
        self, argument: Any, entries: Sequence[Entry], records: Sequence[Any], attempt: int
    ) -> Effects:
        """Call a ``def`` function in this thread."""
        function = self.spec.function
        if not self.spec.takes_context:
            effects = self._effects(self.taken(self.settled(function(argument))), (), None, records)
            return self.carried(effects, entries)
        view = self.state.view()
        call = Call(entries, view, attempt, self.ids_of, records)
        call.named = self._named(records)
        try:
            result = self.taken(settled(function(argument, Context(self.owned, call))))
        finally:
            call.is_over = True
            view.close()
        effects = self._effects_of_call(result, call, view.settled(), records)
        return self.carried(effects, entries, call.carried)


@contextmanager
def _in_time(timeout_ms: int) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer."""
    try:
        with anyio.fail_after(timeout_ms / 1000) as scope:
            yield
    except TimeoutError:
        if not scope.cancelled_caught:
            raise
        raise TimeoutError(f"the call took longer than {timeout_ms / 1000:g} s") from None


_limiters: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("handler_threads")


def shared_limiter(threads: int) -> anyio.CapacityLimiter:
    """Return the limiter of threads for ``def`` functions, which all processors of a worker share."""
    if (limiter := _limiters.get(None)) is None:
        limiter = anyio.CapacityLimiter(threads)
        _limiters.set(limiter)
    return limiter


def forwards_input(spec: ProcessorSpec) -> bool:
    """Return whether a processor forwards its records where it returns None.

    It does if it forwards rows, their type is the stream's record type, and the function's annotation does
    not say that it returns rows. A function that is annotated ``-> Order | None`` filters: its None
    forwards nothing.
    """
    if not spec.forward or spec.into is not None or spec.output not in (None, spec.stream.record):
        return False
    return spec.parameters.hints.get("return") in (None, type(None))
