"""Calls a processor's function: on the event loop or in a thread, with its context and timeout.

A call either returns its :class:`Effects` (rows to forward and changes of the state) or raises what the
function raised, which may be anything. The effects of a call that raises, times out or is cancelled are
dropped. The caller passes what was raised to :func:`failure`, which returns the record's error; ``modes``
decides what to do about it.
"""

import asyncio
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from streamworker.context import Call, Context, IdsOf, OwnedPartition
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.core.text import in_words, printable
from streamworker.declaring.middleware import around
from streamworker.declaring.specs import ProcessorSpec
from streamworker.errors import DecodeError, RecordError, StreamworkerError
from streamworker.records.entries import REPLAYED_FOR, id_at, readable_fields
from streamworker.records.rows import first_id
from streamworker.runtime.forward.routing import Routes
from streamworker.runtime.run.results import Effects, Results
from streamworker.runtime.run.state import PartitionState
from streamworker.runtime.run.threads import registered

TRACE_MAX = 16_000
"""Characters of a traceback in a log line: 40 frames have half as many. Of a longer one the middle is left
out, which is the text of an error."""


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
        self.has_view = spec.takes_context or bool(spec.layers or spec.tables)
        """Whether a call has a context, or changes tables."""
        is_plain = spec.is_async and spec.options.timeout_ms is None and not self.has_view
        self.plain = spec.function if is_plain else None
        """The function, if a call needs nothing but an ``await``; else None."""
        self.needs_loop = spec.is_async or spec.options.timeout_ms is not None or bool(spec.layers)
        """Whether each call begins on the event loop; else one thread may make several."""

    # -- decoding ----------------------------------------------------------------------------

    def decode(self, entries: Sequence[Entry]) -> Decoded:
        """Decode entries, all in one pass unless one of them is bad."""
        stream = self.spec.stream
        assert stream.codec != "arrow"  # ColumnsInvoker decodes these
        first, last = (id_at(entries, 0), id_at(entries, -1)) if self.aside and entries else (ZERO, ZERO)
        if not any(first <= record <= last for record in self.aside):
            with suppress(BaseException):  # Code of the record's class may run here, and raise anything.
                return Decoded(stream.record.decode_many(entries, stream.codec), {})
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

    def _set_aside(self, entry: Entry) -> Exception | None:
        """Return why no call may have a record of the entry; None if one may have all."""
        first, last = first_id(entry), entry.id
        return next((why for record, why in self.aside.items() if first <= record <= last), None)

    # -- calling -----------------------------------------------------------------------------

    async def call_batch(self, entries: Sequence[Entry], records: list[Any], attempt: int) -> Effects:
        """Call the function with a list of records."""
        # The function gets its own list: it may sort or clear it.
        if self.plain is None:
            return await self._call(list(records), entries, records, attempt)
        return self.carried(self._effects(await self.plain(list(records)), (), None, records), entries)

    async def call_record(self, entry: Entry, record: Any, attempt: int) -> Effects:
        """Call the function with one record."""
        if self.plain is None:
            return await self._call(record, (entry,), (record,), attempt)
        effects = self.effects_of(await self.plain(record), record)
        return self.carried(effects, (entry,)) if self.sends else effects

    async def call_timer(self, at: datetime, attempt: int) -> Effects:
        """Call the function of a timer, for a planned time."""
        return await self._call(at, (), (), attempt)

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
        context = Context(self.owned, call)
        arguments = (argument, context) if spec.takes_context else (argument,)
        if not spec.is_async:
            function = partial(self.in_thread, entries, function, timeout_ms=spec.options.timeout_ms)
        try:
            if spec.layers:

                async def one_attempt() -> Any:
                    return self.taken(await function(*arguments))

                result = await around(spec.layers, context, one_attempt)
            else:
                result = self.taken(await function(*arguments))
        finally:
            call.is_over = True
            view.close()
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


def failure(raised: BaseException) -> Exception:
    """Return the error with which a record failed, whatever its code raised.

    A cancel by streamworker comes from a cancel scope; it is raised again and is no error. Any other
    CancelledError comes from the function, or the function cancelled its own task. Treating it as
    streamworker's cancel would end the partition without an error. The task's cancel count is reset,
    because otherwise a later cancel by streamworker would look like a foreign one.
    """
    if isinstance(raised, asyncio.CancelledError):
        if anyio.current_effective_deadline() == -math.inf:
            raise raised
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
    return as_error(raised)


def as_error(raised: BaseException) -> Exception:
    """Return an error that is safe to raise anywhere: SystemExit would end the worker.

    A future cannot carry StopIteration. In code that nobody can cancel, in a thread or without an
    ``await``, this function suffices instead of :func:`failure`.
    """
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    return RuntimeError(f"the function raised {in_words(raised)}").with_traceback(raised.__traceback__)


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


def describe_error(error: BaseException) -> str:
    """Return an error in one line, with the file and line that raised it, for reasons and dead letters."""
    frames = [
        (frame.f_code.co_filename.replace("\\", "/").split("/"), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    theirs = [(path, line) for path, line in frames if "streamworker" not in path]
    where = "".join(f" ({path[-1]}:{line})" for path, line in (theirs or frames)[-1:])
    return in_words(error) + printable(where)


def traceback_of(error: BaseException) -> str:
    """Return an error with the innermost 40 frames of its traceback: a recursion has a thousand."""
    try:
        text = "".join(traceback.format_exception(error, limit=-40))
        if len(text) > TRACE_MAX:
            text = f"{text[: TRACE_MAX // 2]}\n[...]\n{text[-TRACE_MAX // 2 :]}"
        return text.encode("utf-8", "backslashreplace").decode()
    except BaseException:  # noqa: BLE001 - its class is somebody's, as for ``in_words``
        return describe_error(error)


def settled(result: Any) -> Any:
    """Return the result of a ``def`` function; wait in its thread for an awaitable, which the loop runs."""
    if not hasattr(type(result), "__await__"):
        return result

    async def wait() -> Any:
        return await result

    return anyio.from_thread.run(wait)


def returning_errors(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a function in a thread, as ``settled`` says; convert errors that a future cannot carry."""
    try:
        return settled(function(*args))
    except BaseException as raised:
        if (error := as_error(raised)) is raised:
            raise
        raise error from raised
