"""The mode that calls the function with lists of records; each batch is one commit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streamworker.core.data.batching import BatchLimits, Halving
from streamworker.core.data.entries import Entry
from streamworker.runtime.run.invoke import Decoded, Effects
from streamworker.runtime.run.modes.modes import Failed, Mode
from streamworker.runtime.run.work import Work, joined


@dataclass(slots=True)
class _Part:
    """Results of handling the records of a batch."""

    rows: list[pa.RecordBatch] = field(default_factory=list)
    poison: list[tuple[Entry, Failed]] = field(default_factory=list)
    """Records that failed for good."""


class BatchMode(Mode):
    """Calls the function with lists of records."""

    async def run(self) -> str:
        """Handle batches until draining; return why the partition halts, or an empty text."""
        limits = BatchLimits(self.spec.batch, self.spec.batch_bytes, self.spec.within_ms)
        while entries := await self.intake.next_entries(limits):
            halted = await self._handle(entries)
            if halted:
                return halted
        return ""

    async def _handle(self, entries: Sequence[Entry]) -> str:
        whole = entries
        entries, decoded = self._decode(entries)
        records, bad = decoded.records, decoded.bad
        halted = ""
        end = next((place for place in bad if self.halts(bad[place])), len(entries))
        if end < len(entries):
            halted = self.reason([entries[end]], Failed(bad[end], 0))
            whole = entries = entries[:end]
            records = records[:end]
            if not entries:
                return halted
        part = _Part(poison=[(entries[place], Failed(bad[place], 0)) for place in bad if place < end])
        if part.poison:
            good = [place for place in range(end) if place not in bad]
            stopped = await self._run([entries[p] for p in good], [records[p] for p in good], part)
        else:
            stopped = await self._run(entries, records, part)
        if stopped is not None:
            self.state.drop_group()
            return stopped
        work = Work(entries=whole, rows=joined(part.rows), holds_rows=self.invoker.ids_of is not None)
        work.packed = None if part.poison else self.invoker.packed(entries, records, part.rows)
        for entry, failed in sorted(part.poison, key=lambda each: each[0].id):
            work.dead += self.removed(entry, failed)
        work.state = self.state.seal()
        await self.commits.submit(work)
        return halted

    def _decode(self, entries: Sequence[Entry]) -> tuple[Sequence[Entry], Decoded]:
        """Decode entries; return them with their records."""
        return entries, self.invoker.decode(entries)

    def _count(self, entries: Sequence[Entry]) -> int:
        """Return how many records some entries hold."""
        return len(entries)

    def _slice(
        self, entries: Sequence[Entry], records: list[Any], start: int, end: int
    ) -> tuple[Sequence[Entry], list[Any]]:
        """Return the records from ``start`` to ``end``, as entries and what they hold."""
        return entries[start:end], records[start:end]

    async def _run(self, entries: Sequence[Entry], records: list[Any], part: _Part) -> str | None:
        """Handle the records of a batch; None if they are done.

        Otherwise return why the partition halts, or an empty text if the batch was given up.
        """
        if not entries:
            return None
        outcome = await self._call(entries, records, self.spec.attempts, part)
        if isinstance(outcome, Failed) and self.halts(outcome.error):
            return self.reason(entries, outcome)
        if isinstance(outcome, Failed) and self._count(entries) > 1:
            return await self._search(entries, records, part)
        if isinstance(outcome, Failed):
            part.poison.append((entries[0], outcome))
        return "" if outcome is None else None

    async def _search(self, entries: Sequence[Entry], records: list[Any], part: _Part) -> str | None:
        """Handle a failing batch by halves; the result is that of :meth:`_run`.

        A slice of several records gets one attempt. A single record gets as many attempts as a batch,
        because it is removed after the last.
        """
        search = Halving(self._count(entries))
        while (bounds := search.next()) is not None:
            start, end = bounds
            limit = 1 if end - start > 1 else self.spec.attempts
            its, values = self._slice(entries, records, start, end)
            outcome = await self._call(its, values, limit, part, quiet=True)
            if outcome is None:
                return ""
            if isinstance(outcome, Failed):
                if end - start == 1:
                    part.poison.append((its[0], outcome))
                search.failed()
            else:
                search.succeeded()
        return None

    async def _call(
        self,
        entries: Sequence[Entry],
        records: list[Any],
        limit: int,
        part: _Part,
        *,
        quiet: bool = False,
    ) -> Effects | Failed | None:
        rows: pa.RecordBatch | None = None

        async def call(attempt: int) -> Effects:
            nonlocal rows
            effects = await self.invoker.call_batch(entries, records, attempt)
            # Rows that cannot be converted to Arrow are an error of this call, not of the commit.
            rows = self.invoker.to_rows(effects.outputs)
            return effects

        outcome = await self.attempts(call, entries, limit, quiet=quiet)
        if isinstance(outcome, Effects):
            if outcome.changes:
                self.state.keep(outcome.changes)
            if rows is not None:
                part.rows.append(rows)
        return outcome
