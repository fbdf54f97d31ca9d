"""One record a call; commits take what was done since the last one."""

import asyncio
from collections.abc import Sequence
from typing import Any

from streamworker.core.batching import BatchLimits
from streamworker.core.entries import Entry
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.grouping import GroupingMode
from streamworker.runtime.invoke import Effects, foreign_cancel
from streamworker.runtime.modes import SLICE_MS, Failed, GivenUp

THREAD_SLICE_MS = 5
"""As ``SLICE_MS``, in a worker thread, where the way there and back costs about 0.1 ms."""


class RecordMode(GroupingMode):
    """Calls the function with one record after the other."""

    async def handle_all(self) -> str:
        """Handle records until draining; return why the partition halts, or nothing."""
        limits = BatchLimits(self.spec.batch, self.spec.batch_bytes, 0)
        halted = ""
        while not halted:
            entries = await self.runner.next_entries(limits, self.is_refused)
            if not entries and not self.is_refused():
                break
            if entries:
                halted = await self._handle(entries, careful=False)
            if self.is_refused():
                halted = await self._redo(entries)
        return halted

    async def _redo(self, entries: Sequence[Entry]) -> str:
        """Do again what is not committed, to find the record whose rows have no Arrow form.

        Rows are turned into Arrow's form a commit at a time, which is ten times faster than one
        by one, and says too late which call was wrong. Its effects, and those of later calls, are
        dropped, and the calls made again with each looked at by itself.
        """
        undone = self.undo()
        rest = [entry for entry in entries if not undone or entry.id > undone[-1].id]
        return await self._handle([*undone, *rest], careful=True)

    async def _handle(self, entries: Sequence[Entry], *, careful: bool) -> str:
        """Handle records in order; return why the partition halts, or nothing.

        Stops early, without a reason, when the partition is to be drained, and when rows were
        refused.
        """
        decoded = self.invoker.decode(entries)
        records, bad = decoded.records, decoded.bad
        place = 0
        while place < len(entries) and self.refused is None:
            if not await self.runner.wait_may_start():
                return ""
            failed: Failed | None = None
            if place in bad:
                failed = Failed(bad[place], 0)
            else:
                end = min((p for p in bad if p > place), default=len(entries))
                if not careful:
                    place, error = await self._slice(entries, records, place, end)
                    if error is None:
                        await self.turn()
                        continue
                    failed = Failed(error, 1)
                outcome = await self._again(entries[place], records[place], failed)
                if isinstance(outcome, GivenUp):
                    return ""
                failed = outcome if isinstance(outcome, Failed) else None
                if isinstance(outcome, Effects):
                    self.add([entries[place]], outcome.outputs, outcome.changes)
            if failed is not None:
                if self.halts:
                    return self.reason([entries[place]], failed)
                self.add([entries[place]], dead=self.removed(entries[place], failed))
            place += 1
            await self.turn()
        return ""

    async def _again(self, entry: Entry, record: Any, failed: Failed | None) -> Effects | Failed | GivenUp:
        """Make the further attempts for a record whose first call failed; or all, with care."""

        async def call(attempt: int) -> Effects:
            effects = await self.invoker.call_record(entry, record, attempt)
            self.invoker.to_rows(effects.outputs)
            return effects

        if failed is None:
            return await self.attempts(call, [entry], self.spec.attempts)
        self.note_failure([entry], failed, self.spec.attempts)
        if self.spec.attempts == 1:
            return failed
        return await self.attempts(call, [entry], self.spec.attempts, first=2)

    # -- slices: first attempts, one after the other --------------------------------------------

    async def _slice(
        self, entries: Sequence[Entry], records: list[Any], start: int, end: int
    ) -> tuple[int, Exception | None]:
        """Handle records for a moment; return the next place, and what its call raised."""
        if not self.spec.is_async and self.spec.timeout_ms is None:
            loop = asyncio.get_running_loop()
            place, error = await self.invoker.in_thread(self._slice_here, loop, entries, records, start, end)
            return place, error
        invoker, runner, clock_ms = self.invoker, self.runner, monotonic_ms()
        until_ms = clock_ms + SLICE_MS
        self.begin_row(entries, start)
        plain = invoker.plain
        for place in range(start, end):
            runner.busy_since_ms = clock_ms
            record = records[place]
            try:
                # This is done some hundred thousand times a second, so it takes few steps: an entry
                # is not even made unless the call has a context.
                if plain is not None:
                    effects = invoker.effects_of(await plain(record), record)
                else:
                    effects = await invoker.call_record(entries[place], record, 1)
            except asyncio.CancelledError:
                if (foreign := foreign_cancel()) is None:
                    raise
                runner.busy_since_ms = None
                return place, foreign
            except Exception as error:  # noqa: BLE001 - whatever a user function raises
                runner.busy_since_ms = None
                return place, error
            clock_ms = monotonic_ms()
            runner.busy_since_ms = None
            self.add_next(effects)
            if clock_ms >= until_ms or not runner.may_start:
                return place + 1, None
            self.poke()
        return end, None

    def _slice_here(
        self,
        loop: asyncio.AbstractEventLoop,
        entries: Sequence[Entry],
        records: list[Any],
        start: int,
        end: int,
    ) -> tuple[int, Exception | None]:
        """As :meth:`_slice`, in a worker thread; the event loop waits for it meanwhile."""
        runner, clock_ms = self.runner, monotonic_ms()
        until_ms = clock_ms + THREAD_SLICE_MS
        self.begin_row(entries, start)
        takes_context = self.spec.takes_context
        for place in range(start, end):
            runner.busy_since_ms = clock_ms
            try:
                entry = (entries[place],) if takes_context else ()
                effects = self.invoker.call_here(records[place], entry, (records[place],), 1)
            except Exception as error:  # noqa: BLE001 - whatever a user function raises
                runner.busy_since_ms = None
                return place, error
            clock_ms = monotonic_ms()
            runner.busy_since_ms = None
            self.add_next(effects)
            if clock_ms >= until_ms or not runner.may_start:
                return place + 1, None
            self.poke_from_thread(loop)
        return end, None
