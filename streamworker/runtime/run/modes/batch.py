"""The mode that calls the function with lists of records; each batch is one commit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streamworker.core.data.batching import BatchLimits, Halving
from streamworker.core.data.entries import Entry
from streamworker.runtime.run.invoke import Effects, failure
from streamworker.runtime.run.modes.modes import Failed, GivenUp, Mode
from streamworker.runtime.run.work import Work, joined


@dataclass(slots=True)
class _Part:
    """Results of handling the records of a batch."""

    rows: list[pa.RecordBatch] = field(default_factory=list)
    poison: dict[int, Failed] = field(default_factory=dict)
    """Records that failed for good, by index in the batch."""


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
        decoded = self.invoker.decode(entries)
        records, bad = decoded.records, decoded.bad
        halted = ""
        place = next((place for place in bad if self.halts(bad[place])), len(entries))
        if place < len(entries):
            halted = self.reason([entries[place]], Failed(bad[place], 0))
            entries, records = entries[:place], records[:place]
            bad = {passed: bad[passed] for passed in bad if passed < place}
            if not entries:
                return halted
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
        await self.commits.submit(work)
        return halted

    async def _run(self, entries: Sequence[Entry], records: list[Any]) -> "_Part | str":
        """Handle the records of one batch; a text result says why the partition halts, empty if given up."""
        part = _Part()
        if not entries:
            return part
        outcome = await self._call(entries, records, self.spec.attempts, part)
        if isinstance(outcome, GivenUp):
            return ""
        if isinstance(outcome, Failed):
            if self.halts(outcome.error):
                return self.reason(entries, outcome)
            if len(entries) == 1:
                part.poison[0] = outcome
            elif not await self._search(entries, records, part):
                return ""
        return part

    async def _search(self, entries: Sequence[Entry], records: list[Any], part: _Part) -> bool:
        """Handle a failing batch by halves; return False if it was given up.

        A slice of several records gets one attempt. A single record gets as many attempts as a batch,
        because it is removed after the last.
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
            # Rows that cannot be converted to Arrow are an error of this call, not of the commit.
            rows = self.invoker.to_rows(effects.outputs)
            return effects

        outcome: Effects | Failed | GivenUp
        self.in_call = entries
        self.activity.begins()
        try:
            # Mostly the first attempt succeeds, and a batch may be one record.
            outcome = await call(1)
        except BaseException as raised:  # noqa: BLE001 - whatever a user function raises
            outcome = Failed(failure(raised), 1)
        self.activity.ends()
        if isinstance(outcome, Failed):
            outcome = await self.attempts(call, entries, limit, failed=outcome, quiet=quiet)
        if isinstance(outcome, Effects):
            if outcome.changes:
                self.state.keep(outcome.changes)
            if rows is not None:
                part.rows.append(rows)
        return outcome
