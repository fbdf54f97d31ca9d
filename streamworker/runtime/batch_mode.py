"""A list of records a call; each batch is one commit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streamworker.core.batching import BatchLimits, Halving
from streamworker.core.entries import Entry
from streamworker.runtime.invoke import Effects
from streamworker.runtime.modes import Failed, GivenUp, Mode
from streamworker.runtime.work import Work, joined


@dataclass(slots=True)
class _Part:
    """What became of the records of a batch."""

    rows: list[pa.RecordBatch] = field(default_factory=list)
    poison: dict[int, Failed] = field(default_factory=dict)
    """By place among the records."""


class BatchMode(Mode):
    """Calls the function with lists of records."""

    async def run(self) -> str:
        """Handle batches until draining; return why the partition halts, or nothing."""
        limits = BatchLimits(self.spec.batch, self.spec.batch_bytes, self.spec.within_ms)
        while entries := await self.runner.next_entries(limits):
            halted = await self._handle(entries)
            if halted:
                return halted
        return ""

    async def _handle(self, entries: Sequence[Entry]) -> str:
        decoded = self.invoker.decode(entries)
        records, bad = decoded.records, decoded.bad
        halted = ""
        if bad and self.halts:
            place = min(bad)
            halted = self.reason([entries[place]], Failed(bad[place], 0))
            entries, records, bad = entries[:place], records[:place], {}
        good = [place for place in range(len(entries)) if place not in bad] if bad else None
        part = await self._run(
            entries if good is None else [entries[place] for place in good],
            records if good is None else [records[place] for place in good],
        )
        if not isinstance(part, _Part):
            self.state.drop_group()
            return part
        poison = {place: Failed(error, 0) for place, error in bad.items()}
        poison.update(
            {place if good is None else good[place]: failed for place, failed in part.poison.items()}
        )
        work = Work(entries=entries, rows=joined(part.rows))
        work.packed = None if poison else self.invoker.packed(entries, records, part.rows)
        for place in sorted(poison):
            work.dead += self.removed(entries[place], poison[place])
        work.state = self.state.seal()
        await self.runner.submit(work)
        return halted

    async def _run(self, entries: Sequence[Entry], records: list[Any]) -> "_Part | str":
        """Handle the records of one batch; a text is why the partition halts (empty: given up)."""
        part = _Part()
        if not entries:
            return part
        outcome = await self._call(entries, records, self.spec.attempts, part)
        if isinstance(outcome, GivenUp):
            return ""
        if isinstance(outcome, Failed):
            if self.halts:
                return self.reason(entries, outcome)
            if len(entries) == 1:
                part.poison[0] = outcome
            elif not await self._search(entries, records, part):
                return ""
        return part

    async def _search(self, entries: Sequence[Entry], records: list[Any], part: _Part) -> bool:
        """Handle a failing batch by halves; False if it was given up.

        A slice of several records is tried once, a single record as often as a batch: it is
        about to be taken out, and should have had every chance.
        """
        search = Halving(len(entries))
        while (bounds := search.next()) is not None:
            start, end = bounds
            limit = 1 if end - start > 1 else self.spec.attempts
            outcome = await self._call(entries[start:end], records[start:end], limit, part, quiet=True)
            if isinstance(outcome, GivenUp):
                return False
            if isinstance(outcome, Failed):
                if end - start == 1:
                    part.poison[start] = outcome
                search.failed()
            else:
                search.succeeded()
        return True

    async def _call(
        self,
        entries: Sequence[Entry],
        records: list[Any],
        limit: int,
        part: _Part,
        *,
        quiet: bool = False,
    ) -> Effects | Failed | GivenUp:
        rows: pa.RecordBatch | None = None

        async def call(attempt: int) -> Effects:
            nonlocal rows
            effects = await self.invoker.call_batch(entries, records, attempt)
            # Rows that have no Arrow form are an error of this call, not of the commit.
            rows = self.invoker.to_rows(effects.outputs)
            return effects

        outcome: Effects | Failed | GivenUp
        self.runner.begins()
        try:
            # Mostly this is all, and a batch may be one record.
            outcome = await call(1)
        except Exception as error:  # noqa: BLE001 - whatever a user function raises
            self.runner.ends()
            outcome = Failed(error, 1)
            if not quiet:
                self.note_failure(entries, outcome, limit)
            if limit > 1:
                outcome = await self.attempts(call, entries, limit, first=2, quiet=quiet)
        else:
            self.runner.ends()
        if isinstance(outcome, Effects):
            if outcome.changes:
                self.state.keep(outcome.changes)
            if rows is not None:
                part.rows.append(rows)
        return outcome
