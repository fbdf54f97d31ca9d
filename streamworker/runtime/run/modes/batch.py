"""The mode that calls the function with lists of records; each batch is one commit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streamworker.core.data.batching import BatchLimits, Halving
from streamworker.core.data.entries import Entry
from streamworker.runtime.forward.routing import Routed
from streamworker.runtime.run.commits import Work, joined
from streamworker.runtime.run.invoke import Decoded, Effects
from streamworker.runtime.run.modes.modes import Failed, Mode


@dataclass(slots=True)
class _Part:
    """Results of handling the records of a batch."""

    rows: list[pa.RecordBatch] = field(default_factory=list)
    sends: Routed = field(default_factory=dict)
    poison: list[tuple[Entry, Failed]] = field(default_factory=list)
    """Records that failed for good, or that the function set aside."""
    halts: tuple[Entry, Failed] | None = None
    """The record at which the partition halts; nothing after it was handled."""
    is_first: bool = True
    """Whether no call had these records yet."""


class BatchMode(Mode):
    """Calls the function with lists of records."""

    async def run(self) -> str:
        """Handle batches until draining; return why the partition halts, or an empty text."""
        limits = BatchLimits(self.spec.batch, self.spec.options.batch_bytes, self.spec.options.within_ms)
        while entries := await self.take(limits):
            if halted := await self._handle(entries):
                return halted
        return ""

    async def _handle(self, entries: Sequence[Entry]) -> str:
        whole = entries
        entries, decoded = self._decode(entries)
        records, bad = decoded.records, decoded.bad
        halted = ""
        end = next((index for index in bad if self.halts(Failed(bad[index], 0))), len(entries))
        if end < len(entries):
            halted = self.reason([entries[end]], Failed(bad[end], 0))
            whole = entries = entries[:end]
            records = records[:end]
            if not entries:
                return halted
        part = _Part(poison=[(entries[index], Failed(bad[index], 0)) for index in bad if index < end])
        if part.poison:
            good = [index for index in range(end) if index not in bad]
            done = await self._run([entries[p] for p in good], [records[p] for p in good], part)
        else:
            done = await self._run(entries, records, part)
        if part.halts is not None:
            at, failed = part.halts
            halted = self.reason([at], failed)
            # A commit takes whole entries. Rows of an entry before the one that halts it have no commit.
            done = self._count(entries) == len(entries) and entries[0].id < at.id
            whole = [entry for entry in whole if entry.id < at.id]
            part.poison = [(entry, failed) for entry, failed in part.poison if entry.id < at.id]
        if not done:
            self.state.drop_group()
            return halted
        work = Work(entries=whole, rows=joined(part.rows), holds_rows=self.invoker.ids_of is not None)
        work.sends = part.sends
        work.packed = None if part.poison else self.invoker.packed(entries, records, part.rows)
        for entry, failed in sorted(part.poison, key=lambda each: each[0].id):
            work.dead += self.removed(entry, failed)
        work.state = self.state.seal()
        await self.commits.submit(work)
        return halted

    def _decode(self, entries: Sequence[Entry]) -> tuple[Sequence[Entry], Decoded]:
        return entries, self.invoker.decode(entries)

    def _count(self, entries: Sequence[Entry]) -> int:
        return len(entries)

    def _slice(
        self, entries: Sequence[Entry], records: list[Any], start: int, end: int
    ) -> tuple[Sequence[Entry], list[Any]]:
        """Return the records from ``start`` to ``end``, as entries and what they hold."""
        return entries[start:end], records[start:end]

    async def _run(self, entries: Sequence[Entry], records: list[Any], part: _Part) -> bool:
        """Handle the records of a batch; return whether they are done, up to the one that halts."""
        if not entries:
            return True
        outcome = await self._call(entries, records, part)
        if not isinstance(outcome, Failed):
            return outcome is not None
        if self._count(entries) > 1:
            return await self._search(entries, records, part, outcome.attempts)
        self._found(entries[0], outcome, part)
        return True

    async def _search(self, entries: Sequence[Entry], records: list[Any], part: _Part, before: int) -> bool:
        """Handle a failing batch by halves, after so many attempts at the whole; the result is as of `_run`.

        A slice of several records gets one attempt, unless its error has more than the whole had. A single
        record gets all its attempts: until now another one may have failed before its turn came.
        """
        search = Halving(self._count(entries))
        while part.halts is None and (bounds := search.next()) is not None:
            its, values = self._slice(entries, records, *bounds)
            is_one = bounds[1] - bounds[0] == 1
            outcome = await self._call(its, values, part, 0 if is_one else before)
            if outcome is None:
                return False
            if isinstance(outcome, Failed):
                if is_one:
                    self._found(its[0], outcome, part)
                search.failed()
            else:
                search.succeeded()
        return True

    def _found(self, entry: Entry, failed: Failed, part: _Part) -> None:
        if self.halts(failed):
            part.halts = entry, failed
        else:
            part.poison.append((entry, failed))

    async def _call(
        self, entries: Sequence[Entry], records: list[Any], part: _Part, before: int = 0
    ) -> Effects | Failed | None:
        rows: pa.RecordBatch | None = None
        sends: Routed = {}
        made = 0

        async def call(attempt: int) -> Effects:
            nonlocal rows, sends, made
            made = attempt
            given = records if part.is_first else self.invoker.again(entries)
            part.is_first = False
            effects = await self.invoker.call_batch(entries, given, attempt)
            # Rows that cannot be converted to Arrow are an error of this call, not of the commit.
            rows, sends = self.invoker.convert(effects.outputs)
            return effects

        outcome = await self.attempts(call, entries, before=before)
        if isinstance(outcome, Effects):
            if outcome.changes:
                self.state.keep(outcome.changes)
            if rows is not None:
                part.rows.append(rows)
            for where, rows_of_one in sends.items():
                part.sends.setdefault(where, []).extend(rows_of_one)
            for index, policy in (outcome.removed or {}).items():
                its, _ = self._slice(entries, records, index, index + 1)
                part.poison.append((its[0], Failed(policy, made)))
        return outcome
