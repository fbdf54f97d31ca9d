"""Calls a processor's function: on the event loop or in a thread, with its context and timeout.

One call either returns its :class:`Effects` (rows to forward and changes of the state) or raises
what the function raised. Effects of a call that raised, timed out or was cancelled are dropped
with it. What is done about an error is decided in ``modes``.
"""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pyarrow as pa

from streamworker.context import Call, Context, Place, RowsOf
from streamworker.core.entries import Entry
from streamworker.errors import DecodeError, RecordError
from streamworker.processors import Mode, ProcessorSpec
from streamworker.redisio.ackedlog import AckedBatch
from streamworker.runtime.state import Changes, PartitionState

ERROR_TEXT_MAX = 1_000
"""Characters of an error that go into a dead letter or a lock's reason."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What one successful call left to be committed."""

    outputs: Sequence[Any] = ()
    changes: Changes | None = None


NOTHING = Effects()
"""What a call leaves that forwards and stores nothing."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The records of some entries, and the entries that are none."""

    records: list[Any]
    """One an entry; None where there is none."""
    bad: dict[int, DecodeError]
    """By place in the list, ascending."""


class Invoker:
    """The calls of one processor in one partition."""

    def __init__(self, spec: ProcessorSpec, place: Place, state: PartitionState, threads: int) -> None:
        self.spec = spec
        self._place = place
        self._state = state
        self._limiter = _shared_limiter(threads)
        self.threads = threads
        """Calls of ``def`` functions at a time, over all partitions of this worker."""
        self.rows_of: RowsOf | None = None
        """How many rows an entry has, where it is not one."""
        self._row_type: type | None = None
        if spec.output is not None and isinstance(spec.output.python_type, type):
            self._row_type = getattr(spec.output.python_type, "__origin__", spec.output.python_type)
        self.forwards_input = forwards_input(spec)
        """Whether the records themselves are forwarded where nothing else is."""
        self._returns_rows_as_list = not issubclass(self._row_type or object, list)
        self._warned = False
        is_plain = spec.is_async and spec.timeout_ms is None and not spec.takes_context
        self.plain = spec.function if is_plain else None
        """The function, where nothing is to be done around a call of it but to await it."""

    # -- decoding ----------------------------------------------------------------------------

    def decode(self, entries: Sequence[Entry]) -> Decoded:
        """Decode entries; the quick way unless one of them is bad."""
        stream = self.spec.stream
        assert stream.codec != "arrow"  # an invoker of its own decodes these
        try:
            return Decoded(stream.record.decode_many(entries, stream.codec), {})
        except DecodeError:
            pass
        decode_one = stream.record.decoder(stream.codec)
        records: list[Any] = []
        bad: dict[int, DecodeError] = {}
        for place, entry in enumerate(entries):
            try:
                records.append(decode_one(entry.fields))
            except DecodeError as error:
                records.append(None)
                bad[place] = error
        return Decoded(records, bad)

    # -- calling -----------------------------------------------------------------------------

    async def call_batch(self, entries: Sequence[Entry], records: list[Any], attempt: int) -> Effects:
        """Call the function with a list of records."""
        # The function gets a list of its own: it may sort or clear it.
        if self.plain is None:
            return await self._call(list(records), entries, records, attempt)
        try:
            return self._effects(await self.plain(list(records)), (), None, records)
        except asyncio.CancelledError:
            if error := foreign_cancel():
                raise error from None
            raise

    async def call_record(self, entry: Entry, record: Any, attempt: int) -> Effects:
        """Call the function with one record."""
        if self.plain is None:
            return await self._call(record, (entry,), (record,), attempt)
        try:
            return self.effects_of(await self.plain(record), record)
        except asyncio.CancelledError:
            if error := foreign_cancel():
                raise error from None
            raise

    def effects_of(self, result: Any, record: Any) -> Effects:
        """Return what a call of ``plain`` with a record left."""
        if result is None and not self.forwards_input:
            return NOTHING
        return self._effects(result, (), None, (record,))

    async def _call(
        self, argument: Any, entries: Sequence[Entry], records: Sequence[Any], attempt: int
    ) -> Effects:
        timeout_ms = self.spec.timeout_ms
        if not self.spec.is_async:
            effects: Effects = await self.in_thread(
                self.call_here, argument, entries, records, attempt, timeout_ms=timeout_ms
            )
            return effects
        if timeout_ms is None:
            return await self._await(argument, entries, records, attempt)
        with _in_time(timeout_ms):
            return await self._await(argument, entries, records, attempt)

    async def in_thread(self, function: Callable[..., Any], *args: Any, timeout_ms: int | None = None) -> Any:
        """Run a function in a worker thread; a cancel leaves it behind.

        The timeout begins when there is a thread: how long other partitions keep theirs is no fault of
        this call.
        """
        run = partial(anyio.to_thread.run_sync, returning_errors, function, args, abandon_on_cancel=True)
        if timeout_ms is None:
            return await run(limiter=self._limiter)
        async with self._limiter:
            with _in_time(timeout_ms):
                return await run(limiter=anyio.CapacityLimiter(1))

    async def _await(
        self, argument: Any, entries: Sequence[Entry], records: Sequence[Any], attempt: int
    ) -> Effects:
        function = self.spec.function
        try:
            if not self.spec.takes_context:
                return self._effects(await function(argument), (), None, records)
            view = self._state.view()
            call = Call(entries, view, attempt, self.rows_of)
            try:
                result = await function(argument, Context(self._place, call))
            finally:
                call.is_over = True
                view.close()
        except asyncio.CancelledError:
            if error := foreign_cancel():
                raise error from None
            raise
        return self._effects(result, call.outputs, view.changes, records)

    def call_here(
        self, argument: Any, entries: Sequence[Entry], records: Sequence[Any], attempt: int
    ) -> Effects:
        """Call a ``def`` function in this thread."""
        function = self.spec.function
        if not self.spec.takes_context:
            return self._effects(function(argument), (), None, records)
        view = self._state.view()
        call = Call(entries, view, attempt, self.rows_of)
        try:
            result = function(argument, Context(self._place, call))
        finally:
            call.is_over = True
            view.close()
        return self._effects(result, call.outputs, view.changes, records)

    # -- what it returned ----------------------------------------------------------------------

    def _effects(
        self, result: Any, outputs: Sequence[Any], changes: Changes | None, records: Sequence[Any]
    ) -> Effects:
        if result is None and not outputs:
            rows: Sequence[Any] = records if self.forwards_input else ()
            return Effects(rows, changes) if rows or changes else NOTHING
        if not self.spec.forward:
            self.unwanted()
            return Effects((), changes)
        return Effects(self._forwarded(result, outputs), changes)

    def _forwarded(self, result: Any, outputs: Sequence[Any]) -> Sequence[Any]:
        """Return the rows of a call: what it passed on by ``ctx.forward``, then what it returned."""
        if result is None:
            returned: list[Any] = []
        elif isinstance(result, list) and self._returns_rows_as_list:
            returned = result
        elif self.spec.mode is Mode.BATCH:
            raise RecordError(
                f"Processor {self.spec.name!r} returned a {type(result).__name__} for a batch.",
                remedy=f"Return a list of {self._row_name()}, or None.",
            )
        else:
            returned = [result]
        return self.checked([*outputs, *returned] if outputs else returned)

    def unwanted(self) -> None:
        """Say, the first time, that rows of a processor that forwards nothing are dropped."""
        if not self._warned:
            self._warned = True
            self._place.log.warning(
                "rows_not_forwarded",
                reason="the processor has no output type: annotate what it returns, or set forward=True",
            )

    def to_rows(self, outputs: Sequence[Any]) -> pa.RecordBatch | None:
        """Turn rows into Arrow's form; None if there are none.

        Raises
        ------
        RecordError
            For a value that does not fit its column.
        """
        if not outputs or self.spec.output is None:
            return None
        return self.spec.output.to_arrow(outputs)

    def packed(
        self,
        entries: Sequence[Entry],  # noqa: ARG002 - see ColumnsInvoker
        records: Sequence[Any],  # noqa: ARG002
        rows: Sequence[pa.RecordBatch],  # noqa: ARG002
    ) -> AckedBatch | None:
        """Return the rows in the form of a commit, where they came in it."""
        return None

    def checked(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows, having checked that each is of the output type.

        Raises
        ------
        RecordError
            Naming the first that is not.
        """
        row_type = self._row_type
        if row_type is not None:
            for row in rows:
                if type(row) is not row_type and not self._is_row(row, row_type):
                    raise RecordError(
                        f"Processor {self.spec.name!r} forwarded a {type(row).__name__}: {_short(row)}.",
                        remedy=f"Its output type is {self._row_name()}.",
                    )
        return rows

    @staticmethod
    def _is_row(row: Any, row_type: type) -> bool:
        try:
            return isinstance(row, row_type)
        except TypeError:  # a TypedDict: its records are dicts
            return isinstance(row, dict)

    def _row_name(self) -> str:
        return "rows" if self.spec.output is None else self.spec.output.name


def foreign_cancel() -> RuntimeError | None:
    """Return the error that a CancelledError stands for if nobody has cancelled this task.

    Something that the function awaited was cancelled, and it let the CancelledError through.
    Taken for a cancel of ours it would end the partition in silence.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling():
        return None
    return RuntimeError("the function ended with CancelledError, and nobody had cancelled it")


@contextmanager
def _in_time(timeout_ms: int) -> Iterator[None]:
    """Raise TimeoutError if what is done takes longer."""
    try:
        with anyio.fail_after(timeout_ms / 1000) as scope:
            yield
    except TimeoutError:
        if not scope.cancelled_caught:
            raise
        raise TimeoutError(f"the call took longer than {timeout_ms / 1000:g} s") from None


_limiters: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("handler_threads")


def _shared_limiter(threads: int) -> anyio.CapacityLimiter:
    """Return the threads for ``def`` functions, which all processors of a worker share."""
    try:
        return _limiters.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(threads)
        _limiters.set(limiter)
        return limiter


def forwards_input(spec: ProcessorSpec) -> bool:
    """Tell whether a processor forwards its records themselves where it returns None.

    So it is where rows are to be forwarded, their type is the stream's own, and the function
    does not say that it returns any. A function that is annotated ``-> Order | None`` filters:
    its None forwards nothing.
    """
    if not spec.forward or spec.output not in (None, spec.stream.record):
        return False
    returns = inspect.signature(spec.function).return_annotation
    return returns in (inspect.Signature.empty, None, type(None), "None")


def describe_error(error: BaseException) -> str:
    """Return an error in one line with the place where it was raised: for reasons and dead letters."""
    text = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "streamworker" not in frame.filename.replace("\\", "/").split("/")]
    last = (ours or list(frames))[-1:]
    where = "".join(
        f" ({frame.filename.replace(chr(92), '/').split('/')[-1]}:{frame.lineno})" for frame in last
    )
    label = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return label[:ERROR_TEXT_MAX] + where


def returning_errors(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call in a thread: StopIteration cannot travel through a future, so it gets another name."""
    try:
        return function(*args)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
