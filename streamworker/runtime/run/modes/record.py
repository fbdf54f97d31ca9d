"""The mode that calls the function with one record; a commit takes all records done since the last."""

from collections.abc import Sequence
from typing import Any

from streamworker.core.data.batching import BatchLimits
from streamworker.core.data.entries import Entry
from streamworker.records.entries import may_have_headers
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.run.commits import ids_of
from streamworker.runtime.run.failures import Left, as_error
from streamworker.runtime.run.invoke import NOTHING, Effects
from streamworker.runtime.run.modes.grouping import GroupingMode
from streamworker.runtime.run.modes.modes import SLICE_MS, Failed
from streamworker.runtime.run.threads import in_one_step

LOOKS_MAX = 16
"""Maximum calls from one look at the clock to the next. The first look follows the first call, and each
other one as many calls as there were so far: a slice of equal calls is one call, or less than two slices."""
THREAD_SLICE_MS = 5
"""``SLICE_MS`` for a worker thread. Switching to the thread and back costs about 0.1 ms."""


class RecordMode(GroupingMode):
    """Calls the function with one record after the other."""

    _in_slice: tuple[Sequence[Entry], int] = (), 0
    """The entries of the last slice, and how many were done before the first of them."""

    async def handle_all(self) -> str:
        """Handle records until draining; return why the partition halts, or an empty text."""
        limits = BatchLimits(self.spec.batch, self.spec.options.batch_bytes, 0)
        halted = ""
        while not halted:
            entries = await self.take(limits, self.is_refused)
            if not entries and not self.is_refused():
                break
            if entries:
                self.took(entries)
                halted = await self._handle(entries, careful=False)
            if self.is_refused():
                # Rows are converted to Arrow once per commit. This is ten times faster than one by one, but
                # cannot tell which call made the bad row. All calls since the last commit are made again,
                # and the rows of each are converted by themselves.
                halted = await self._handle(self.undo(), careful=True)
        return halted

    async def _handle(self, entries: Sequence[Entry], *, careful: bool) -> str:
        """Handle records in order; return why the partition halts, or an empty text.

        It stops early, with an empty text, when the partition drains and when rows were refused.
        """
        decoded = self.invoker.decode(entries)
        records, bad = decoded.records, decoded.bad
        index = 0
        while index < len(entries) and self.refused is None:
            if not await self.intake.wait_may_start():
                return ""
            if self.intake.has_timers_due:
                await self.run_timers()
                continue
            failed: Failed | None = None
            if index in bad:
                failed = Failed(bad[index], 0)
            else:
                end = min((p for p in bad if p > index), default=len(entries))
                if not (careful or self.intake.tries.before):
                    index, error = await self._slice(entries, records, index, end)
                    if error is None:
                        await self.turn()
                        continue
                    failed = self.failed(error, 1)
                outcome = await self._again(entries[index], failed)
                if outcome is None:
                    return ""
                failed = outcome if isinstance(outcome, Failed) else None
                if isinstance(outcome, Effects):
                    self.add_done([entries[index]], outcome)
            if failed is not None:
                if self.halts(failed):
                    return self.reason([entries[index]], failed)
                self.add(1, dead=self.removed(entries[index], failed))
            index += 1
            await self.turn()
        return ""

    async def _again(self, entry: Entry, failed: Failed | None) -> Effects | Failed | None:
        """Make the other attempts for a record whose first call failed, or all if ``failed`` is None."""

        async def call(attempt: int) -> Effects:
            effects = await self.invoker.call_record(entry, self.invoker.again([entry])[0], attempt)
            self.invoker.convert(effects.outputs)
            return effects

        return await self.attempts(call, [entry], failed=failed)

    @property
    def oldest(self) -> str:
        """Id of the entry whose call runs; empty if none does."""
        if self.in_call or self.activity.busy_since_ms is None:
            return super().oldest
        entries, begins_at = self._in_slice
        return ids_of(entries[self.handled - begins_at :][:1])

    # -- slices: first attempts, one after the other --------------------------------------------

    async def _slice(
        self, entries: Sequence[Entry], records: list[Any], start: int, end: int
    ) -> tuple[int, BaseException | None]:
        """Handle records for one time slice; return the next index, and what its call raised."""
        if self.invoker.needs_loop:
            return await self._calls(entries, records, start, end)
        here: tuple[int, BaseException | None] = await self.invoker.in_thread(
            entries[start:end], self._calls_here, entries, records, start, end
        )
        return here

    def _calls_here(self, *given: Any) -> tuple[int, BaseException | None]:
        """Make the calls of a slice in a worker thread, while the partition's task waits."""
        return in_one_step(self._calls(*given))

    async def _calls(
        self, entries: Sequence[Entry], records: list[Any], start: int, end: int
    ) -> tuple[int, BaseException | None]:
        invoker, intake, gate = self.invoker, self.intake, self.intake.gate
        in_thread = not invoker.needs_loop
        until_ms = monotonic_ms() + (THREAD_SLICE_MS if in_thread else SLICE_MS)
        begins_at = self.handled - start
        self.in_call, self._in_slice = (), (entries, begins_at)
        carries = invoker.sends and may_have_headers(entries)
        plain, drops_none = None if carries else invoker.plain, not invoker.forwards_input
        left = None if in_thread else Left(self.spec.function)
        state: Any = left and left.state
        before = left and left.before
        index, look = start, start + 1
        self.activity.begins()
        try:
            while index < end:
                for record in records[index:look]:
                    try:
                        # This runs a million times a second, so it takes few steps, and calls only the
                        # function. It creates no Entry unless the call takes a context.
                        if plain is None and in_thread:
                            effects = invoker.call_here(record, (entries[index],), (record,), 1)
                        elif plain is None:
                            effects = await invoker.call_record(entries[index], record, 1)
                        else:
                            result = plain(record)
                            if not in_thread:
                                result = await result
                            elif result is not None:
                                result = invoker.settled(result)
                            if result is None and drops_none:
                                effects = NOTHING
                            else:
                                effects = invoker.effects_of(result, record)
                        if left is not None and state.cancel_scope is not before:
                            raise left.judged()
                    except BaseException as raised:  # noqa: BLE001 - whatever a user function raises
                        return index, as_error(raised) if left is None else left.judged(raised)
                    index += 1
                    if effects is NOTHING:
                        self.handled = begins_at + index
                    elif effects.removed:
                        self.add_done(entries[index - 1 : index], effects)
                    else:
                        self.add(1, effects.outputs, effects.changes)
                    if intake.draining or not gate.is_open:
                        return index, None
                    if self._idle:
                        self.poke(from_thread=in_thread)
                if monotonic_ms() >= until_ms:
                    return index, None
                look = min(end, index + min(index - start, LOOKS_MAX))
        finally:
            self.activity.ends()
        return end, None
