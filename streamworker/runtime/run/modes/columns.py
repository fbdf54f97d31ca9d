"""Calls of functions that take columns, and calls for streams whose entries hold many rows.

There are four cases, which only this module distinguishes:

    =====================  ==========================  ====================================
    the function takes     an entry is one record      an entry is some rows (``arrow``)
    =====================  ==========================  ====================================
    columns                records are turned into     the rows of the batch's entries,
                           columns, a batch at a time  without an object for each
    a list, or one record  (the ordinary way)          rows are turned into records
    =====================  ==========================  ====================================

A commit takes whole entries. A row that cannot be decoded, or with which the function fails, is searched by
halves, and its dead letter holds that row alone.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from streamworker.context import (
    Context,
    is_set_aside,
    show_only,
    tables_in_call,
    take_forwarded,
)
from streamworker.core.data.batching import BatchLimits, Halving, prefix_within
from streamworker.core.data.entries import Entry
from streamworker.core.policies import Policy
from streamworker.core.text import in_words
from streamworker.declaring.specs import FunctionMode, ProcessorSpec, Takes
from streamworker.errors import DecodeError, RecordError
from streamworker.records.rows import bounds, cut, ids_of_rows, rows_in
from streamworker.records.statetables import check_unchanged
from streamworker.redisio.data.ackedlog import AckedBatch, schema_fingerprint
from streamworker.redisio.data.columns import alone, as_it_came, unpacked
from streamworker.redisio.data.commit import DeadEntry
from streamworker.runtime.run.commits import joined
from streamworker.runtime.run.invoke import NOT_OURS, Decoded, Effects, Invoker
from streamworker.runtime.run.modes.batch import BatchMode
from streamworker.runtime.run.modes.modes import Failed
from streamworker.runtime.run.state import Changes
from streamworker.runtime.run.threads import in_one_step, settled
from streamworker.runtime.send.arrowtables import as_table

CALL_ENTRIES_MAX = 1_000
"""Maximum entries of one call. Opening an entry takes 20 to 30 us. For thousands of rows this does not
matter, but if each entry holds one row, a call with 1,000 entries blocks the event loop for 20 to 30 ms."""

BAD_ROWS_MAX = 20
"""An entry with so many rows that cannot be decoded becomes one dead letter: each takes ten decodings."""


class ColumnsInvoker(Invoker):
    """Calls a function that takes columns, or that reads a stream of columns."""

    def __init__(self, spec: ProcessorSpec, *given: Any) -> None:
        if spec.mode is FunctionMode.RECORD:
            spec = replace(spec, function=self._for_each(spec.function, is_async=spec.is_async))
        super().__init__(spec, *given)
        self._record = spec.stream.record
        self._is_arrow = spec.stream.codec == "arrow"
        self.ids_of = ids_of_rows if self._is_arrow else None
        self._give = _giver(spec.takes)
        self._output_name = b""
        if spec.forward and spec.output is not None:
            self._output_name = schema_fingerprint(spec.output.arrow_schema()).encode()

    # -- decoding: one item an entry -----------------------------------------------------------

    def decode(self, entries: Sequence[Entry]) -> Decoded:
        """Decode each entry into a record batch, a list of records, or a record."""
        if not self._is_arrow:
            return super().decode(entries)
        return self.one_by_one(entries, self._item)

    def _item(self, entry: Entry) -> Any:
        try:
            start, end = bounds(entry)
            batch = self._record.fit_arrow(unpacked(entry.fields)[start:end], extra="drop")
            return batch if self.spec.takes != "records" else self._record.from_arrow(batch)
        except RecordError:
            raise
        except BaseException as error:  # one bad entry must not stop a worker
            raise DecodeError(
                f"The entry holds no {self._record.name}: {in_words(error)}.", remedy="Look at its producer."
            ) from error

    # -- calling -----------------------------------------------------------------------------

    async def call_batch(self, entries: Sequence[Entry], records: list[Any], attempt: int) -> Effects:
        """Call the function with the contents of some entries."""
        if self.spec.mode is FunctionMode.RECORD:
            pairs = [
                (cut(entry, row, row + 1), record)
                for entry, item in zip(entries, records, strict=True)
                for row, record in enumerate(item)
            ]
            rows = [record for _, record in pairs]
            return await self._call(pairs, entries, rows, attempt)
        if self.spec.takes == "records":
            rows = [record for item in records for record in item]
            return await self._call(rows, entries, rows, attempt)
        batch = joined(records) if self._is_arrow else self._record.to_arrow(records)
        return await self._call(self._give(batch), entries, (batch,), attempt)

    def _for_each(self, function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
        """Return a function that calls ``function`` with each record of a list, in one call."""

        @functools.wraps(function)
        async def each(pairs: list[tuple[Entry, Any]], *context: Context) -> _Gathered:
            gathered = _Gathered()
            for entry, record in pairs:
                show_only(context, [(entry, record)])
                result = function(record, *context)
                result = self.taken(await result if is_async else settled(result))
                gathered += self._rows_of_one(result, context, entry, record)
                if (tables := tables_in_call.get()) is not None:
                    check_unchanged(tables.watched)
                    tables.watched.clear()
            show_only(context, pairs)
            return gathered

        @functools.wraps(function)
        def each_here(*given: Any) -> _Gathered:
            return in_one_step(each(*given))

        return each if is_async else each_here

    def _named(self, records: Sequence[Any]) -> Sequence[Any]:
        return records if self.spec.takes == "records" else range(records[0].num_rows)

    def _without(self, records: Sequence[Any], removed: Mapping[int, Policy]) -> Sequence[Any]:
        if self.spec.takes == "records":
            return super()._without(records, removed)
        (batch,) = records
        return (batch.filter(pa.array([row not in removed for row in range(batch.num_rows)])),)

    def _rows_of_one(
        self, result: Any, context: Sequence[Context], entry: Entry, record: Any
    ) -> Sequence[Any]:
        """Return the rows that a call with one record of several forwards."""
        kept = () if is_set_aside(context, record) else (record,)
        effects = super()._effects(result, take_forwarded(context), None, kept)
        return super().carried(effects, (entry,)).outputs

    def carried(
        self, effects: Effects, entries: Sequence[Entry], also: Mapping[bytes, bytes] | None = None
    ) -> Effects:
        """Let what a call sends carry its record's headers; rows of single records have them already."""
        return effects if self.spec.mode is FunctionMode.RECORD else super().carried(effects, entries, also)

    # -- what it returned ----------------------------------------------------------------------

    def taken(self, result: Any) -> Any:
        """Return what a function has returned as it is now; that of each record was taken before."""
        return result if isinstance(result, _Gathered) else super().taken(result)

    def _effects(
        self, result: Any, outputs: Sequence[Any], changes: Changes | None, records: Sequence[Any]
    ) -> Effects:
        if isinstance(result, _Gathered):
            return Effects(result, changes)
        return super()._effects(result, outputs, changes, records)

    def _forwarded(self, result: Any, outputs: Sequence[Any]) -> Sequence[Any]:
        if self.spec.takes == "records":
            return super()._forwarded(result, outputs)
        assert self.spec.output is not None
        returned = result if isinstance(result, list) else [] if result is None else [result]
        batches: list[pa.RecordBatch] = []
        for are_tables, group in itertools.groupby([*outputs, *returned], _is_table):
            if are_tables:
                batches += [batch for table in group for batch in self._of_table(table)]
            else:  # Consecutive rows become one batch.
                batches.append(self.spec.output.to_arrow(self.checked(list(group))))
        return batches

    def _of_table(self, table: Any) -> list[pa.RecordBatch]:
        assert self.spec.output is not None
        batches = (
            [table] if isinstance(table, pa.RecordBatch) else as_table(table).combine_chunks().to_batches()
        )
        try:
            return [self.spec.output.fit_arrow(batch) for batch in batches]
        except RecordError as error:
            hint = "" if self.spec.output != self._record else " Or say with output= what it forwards."
            raise RecordError(
                f"Processor {self.spec.name!r} forwarded columns that are no {self.spec.output.name}: "
                f"{error.message}",
                remedy=error.remedy + hint,
            ) from None

    def to_rows(self, outputs: Sequence[Any]) -> pa.RecordBatch | None:
        """Join the forwarded batches; None if there are none."""
        if self.spec.takes == "records":
            return super().to_rows(outputs)
        return joined(list(outputs))

    def packed(
        self, entries: Sequence[Entry], records: Sequence[Any], rows: Sequence[pa.RecordBatch]
    ) -> AckedBatch | None:
        """Return the rows as the entry encodes them, if they are exactly the rows of one entry."""
        if not (self._is_arrow and len(entries) == len(rows) == 1 and rows[0] is records[0]):
            return None
        is_same = entries[0].fields.get(b"name") == self._output_name
        return as_it_came(entries[0]) if is_same and bounds(entries[0])[0] == 0 else None


class _Gathered(list[Any]):
    """The forwarded rows of the calls with all records of some entries."""


@dataclass(frozen=True, slots=True)
class RowLimits(BatchLimits):
    """Batch limits where entries hold many rows: ``records`` counts entries."""

    are_rows_enough: Callable[[], bool]
    """Returns whether the waiting entries have enough rows for a batch."""

    def is_ready(self, waiting: int, waiting_bytes: int, age_ms: int, *, no_more: bool = False) -> bool:
        """Return whether the waiting entries should be handled now."""
        ready = BatchLimits.is_ready(self, waiting, waiting_bytes, age_ms, no_more=no_more)
        return ready or (waiting > 0 and self.are_rows_enough())


class RowsMode(BatchMode):
    """Calls the function with the rows of one entry or of several; the batch size counts rows."""

    @staticmethod
    def in_work_max(spec: ProcessorSpec) -> int:
        """Return how many entries an owner may have begun and not committed."""
        return 2 * min(spec.batch, CALL_ENTRIES_MAX)

    async def run(self) -> str:
        """Handle batches until draining; return why the partition halts, or an empty text."""
        spec, buffer = self.spec, self.intake.buffer

        def are_rows_enough() -> bool:
            counts = map(rows_in, buffer.each_waiting())
            return any(rows >= spec.batch for rows in itertools.accumulate(counts))

        most = min(spec.batch, CALL_ENTRIES_MAX)
        limits = RowLimits(most, spec.options.batch_bytes, spec.options.within_ms, are_rows_enough)
        while entries := await self.take(limits):
            rows, end = list(map(rows_in, entries)), 0
            while end < len(entries):
                # A batch is limited by rows here, as it is by bytes elsewhere, and holds one entry at least.
                start, end = end, end + prefix_within(rows[end:], most, spec.batch)
                # After a call that was given up, nothing may be committed, and the partition drains.
                if not await self.intake.wait_may_start():
                    return ""
                if halted := await self._handle(entries[start:end]):
                    return halted
        return ""

    def _decode(self, entries: Sequence[Entry]) -> tuple[Sequence[Entry], Decoded]:
        decoded = self.invoker.decode(entries)
        wide = {
            index
            for index, error in decoded.bad.items()
            # Any other error is of the whole entry: it is another group's, or killed its owners.
            if rows_in(entries[index]) > 1 and isinstance(error, RecordError)
            if not self.halts(Failed(error, 0))
        }
        if not wide:
            return entries, decoded
        parts = [
            part
            for index, entry in enumerate(entries)
            for part in (self._around_bad_rows(entry) if index in wide else (entry,))
        ]
        return parts, self.invoker.decode(parts)

    def _around_bad_rows(self, entry: Entry) -> list[Entry]:
        """Cut an entry around the rows that cannot be decoded; return it whole if they are too many."""
        parts: list[Entry] = []
        rows = rows_in(entry)
        search = Halving(rows)
        while (found := search.next()) is not None:
            part = cut(entry, *found)
            if not self.invoker.decode([part]).bad:
                parts.append(part)
                search.succeeded()
                continue
            search.failed()
            if rows_in(part) == 1:
                parts.append(part)
            if len(search.poison) in (BAD_ROWS_MAX, rows):
                return [entry]
        return parts

    def _count(self, entries: Sequence[Entry]) -> int:
        return sum(map(rows_in, entries))

    def _slice(
        self, entries: Sequence[Entry], records: list[Any], start: int, end: int
    ) -> tuple[Sequence[Entry], list[Any]]:
        parts: list[Entry] = []
        items: list[Any] = []
        at = 0
        for entry, item in zip(entries, records, strict=True):
            low, high = max(start - at, 0), min(end - at, len(item))
            if low < high:
                parts.append(cut(entry, low, high))
                items.append(item[low:high])
            at += len(item)
        return parts, items

    def removed(self, entry: Entry, failed: Failed) -> list[DeadEntry]:
        """Remove a row or an entry: its dead letter holds its rows alone."""
        its = entry if failed.error is NOT_OURS else replace(entry, fields=alone(entry))
        return super().removed(its, failed)


def _is_table(value: object) -> bool:
    return isinstance(value, pa.RecordBatch | pa.Table) or hasattr(value, "__arrow_c_stream__")


def _giver(takes: Takes) -> Callable[[pa.RecordBatch], Any]:
    """Return the function from a batch to the columns that the user's function takes."""
    if takes == "table":
        return lambda batch: pa.Table.from_batches([batch])
    if takes == "polars":
        import polars as pl  # a function that takes its frames has it installed

        return lambda batch: pl.from_arrow(pa.Table.from_batches([batch]))
    return lambda batch: batch
