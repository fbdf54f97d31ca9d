"""The function iterates over the records itself; asking for the next acks the one before."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from streamworker.context import Call, Context, Records
from streamworker.core.batching import BatchLimits, Halving
from streamworker.core.entries import Entry, EntryId
from streamworker.errors import DecodeError, RecordError
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.grouping import GroupingMode
from streamworker.runtime.invoke import foreign_cancel
from streamworker.runtime.modes import SLICE_MS, Failed
from streamworker.runtime.pauses import Pauses

if TYPE_CHECKING:
    from streamworker.runtime.runner import PartitionRunner


_Item = tuple[Entry, Any, DecodeError | None]
"""An entry that was taken from the buffer, its record, and why it has none."""


class _Search:
    """The search for the poison in a list of records that the function could not handle."""

    def __init__(self, items: list[_Item]) -> None:
        self._items = items
        self._halving = Halving(len(items))
        self._slice = (0, 0)
        self._rest_at = 0
        self._again = False

    def next(self) -> list[_Item]:
        """Return the slice to give to the function now; empty at the end."""
        if self._again:
            self._again = False
        else:
            self._slice = self._halving.next() or (0, 0)
            self._rest_at = self._slice[0]
        return self._items[slice(*self._slice)]

    def repeat(self) -> None:
        """Give the slice that was given last once more."""
        self._again = True

    def succeeded(self) -> None:
        """Say that the slice that was given last was acked."""
        self._halving.succeeded()
        self._rest_at = self._slice[1]

    def failed(self) -> None:
        """Say that it failed; a single record is taken out then."""
        start, end = self._slice
        self._halving.failed()
        self._rest_at = start if end - start > 1 else end

    @property
    def rest(self) -> list[_Item]:
        """What was neither acked nor taken out."""
        return self._items[self._rest_at :]


class StreamMode(GroupingMode):
    """Calls the function once for as long as it runs, with the records as a stream."""

    def __init__(self, runner: "PartitionRunner") -> None:
        super().__init__(runner)
        self._ahead: deque[_Item] = deque()
        self._hand: list[_Item] = []
        """Records that the function has and has not acked."""
        self._view = self.state.view()
        self._seen = Call((), self._view)
        self._search: _Search | None = None
        self._careful = False
        self._asked = False
        self._failures = 0
        self._failing: EntryId | None = None
        """First record in hand when the function failed last."""
        self._halted = ""
        self._scope = anyio.CancelScope()
        self._turn_due_ms = 0

    async def handle_all(self) -> str:
        """Call the function until draining; return why the partition halts, or nothing."""
        while await self.runner.wait_may_start() and not self._halted:
            error = await self._call()
            if error is not None and not await self._failed(error):
                break
        return self._halted

    async def _call(self) -> Exception | None:
        """Run the function until it returns, raises or is interrupted by us."""
        self._asked = False
        self._show([])
        self._close()
        arguments: list[Any] = [Records(self)]
        if self.spec.takes_context:
            arguments.append(Context(self.runner.place, self._seen))
        with anyio.CancelScope() as self._scope:
            try:
                await self.spec.function(*arguments)
                self._ack()
                if not self._asked and not self.runner.draining:
                    raise RuntimeError("the function returned without asking for a record")
            except asyncio.CancelledError:
                if error := foreign_cancel():
                    return error
                raise
            except Exception as error:  # noqa: BLE001 - whatever a user function raises
                return error
            finally:
                self.runner.busy_since_ms = None
                self._close()
        return None

    # -- the function's side: what Records asks -------------------------------------------------

    async def next(self, count: int, within_ms: int) -> list[Any]:
        """Ack what is in hand and give the next records; none at the end."""
        self._asked = True
        self._ack()
        runner = self.runner
        runner.busy_since_ms = None
        clock_ms = monotonic_ms()
        if clock_ms >= self._turn_due_ms:
            await self.turn()
            self._turn_due_ms = monotonic_ms() + SLICE_MS
        if self.refused is not None:
            await self._rewind(self.refused)
        items = await self._next_items(count, within_ms)
        if not items:
            self._close()
            return []
        self._hand = items
        if self.spec.takes_context:
            self._show([entry for entry, _, _ in items])
        # Not since it asked: it may have waited for hours, which is no fault of the function.
        runner.busy_since_ms = monotonic_ms()
        return [record for _, record, _ in items]

    async def _next_items(self, count: int, within_ms: int) -> list[_Item]:
        ahead = self._ahead
        while await self.runner.wait_may_start():
            if self._search is not None and (items := self._next_of_search(count)):
                return items
            if not ahead and not await self._fill(count, within_ms):
                if self.refused is not None:
                    await self._rewind(self.refused)
                return []
            first = ahead.popleft()
            if first[2] is not None:
                await self._undecodable(first[0], first[2])
                continue
            items = [first]
            while len(items) < count and ahead and ahead[0][2] is None:
                items.append(ahead.popleft())
            return items
        return []

    async def _fill(self, count: int, within_ms: int) -> bool:
        self.poke()
        records = self.spec.batch if within_ms == 0 else count
        within_ms = self.spec.within_ms if within_ms < 0 else within_ms
        limits = BatchLimits(records, self.spec.batch_bytes, within_ms)
        entries = await self.runner.next_entries(limits, self.is_refused)
        self._ahead.extend(self._items(entries))
        return bool(entries)

    def _items(self, entries: Sequence[Entry]) -> list[_Item]:
        decoded = self.invoker.decode(entries)
        errors = map(decoded.bad.get, range(len(entries)))
        return list(zip(entries, decoded.records, errors, strict=True))

    def _ack(self) -> None:
        """Count what is in hand as done.

        Raises
        ------
        RecordError
            If it forwarded rows of another type; raised in the function, which has failed then.
        """
        if not self._hand:
            return
        outputs: Sequence[Any] = self._seen.outputs
        if not outputs and self.invoker.forwards_input:
            outputs = [record for _, record, _ in self._hand]
        if outputs:
            outputs = self._checked(outputs)
        self.add([entry for entry, _, _ in self._hand], outputs, self._view.changes)
        self.poke()
        self._hand = []
        self._failing, self._failures = None, 0
        if self._search is not None:
            self._search.succeeded()

    def _checked(self, outputs: Sequence[Any]) -> Sequence[Any]:
        if not self.spec.forward:
            self.invoker.unwanted()
            return ()
        self.invoker.checked(outputs)
        if self._careful:
            self.invoker.to_rows(outputs)
        return outputs

    def _show(self, entries: list[Entry]) -> None:
        """Let the context show these entries, with nothing forwarded or stored yet."""
        again = bool(entries) and self._failing == entries[0].id
        self._view = self.state.view()
        self._seen.renew(entries, self._view, self._failures + 1 if again else 1)

    def _close(self) -> None:
        """What the function forwards or stores from now on has no record that it belongs to."""
        self._seen.is_over = True
        self._view.close()

    async def _rewind(self, error: RecordError) -> None:
        """Go back to the last commit, since a row of what was acked after it has no Arrow form.

        Which record forwarded it cannot be told. All since that commit are handled again, and
        each is looked at when it is acked.
        """
        self.log.warning("rows_refused", error=str(error))
        again = self._items(self.undo())
        if self._search is not None:
            again += self._search.rest
        self._ahead.extendleft(reversed(again))
        self._search, self._careful = None, True
        await self._interrupt()

    async def _interrupt(self) -> None:
        """End the function where it waits for the next record."""
        self._scope.cancel()
        await anyio.sleep_forever()

    # -- errors --------------------------------------------------------------------------------

    async def _undecodable(self, entry: Entry, error: DecodeError) -> None:
        failed = Failed(error, 0)
        if self.halts:
            self._halted = self.reason([entry], failed)
            await self._interrupt()
        self.add([entry], dead=self.removed(entry, failed))

    async def _failed(self, error: Exception) -> bool:
        """Decide what becomes of the records in hand; False to end."""
        hand, self._hand = self._hand, []
        entries = [entry for entry, _, _ in hand]
        first = entries[0].id if hand else None
        self._failures = self._failures + 1 if self._failing == first and self._failures else 1
        self._failing = first
        limit = 1 if self._search is not None and len(hand) > 1 else self.spec.attempts
        failed = Failed(error, self._failures)
        self.note_failure(entries, failed, limit)
        if self._halted or self.runner.draining:
            return False
        if self._failures < limit:
            if self._search is None:
                self._ahead.extendleft(reversed(hand))
            else:
                self._search.repeat()
            return await self._paused()
        self._failures = 0
        if self.halts or not hand:
            self._halted = self.reason(entries, failed)
            return False
        if len(hand) > 1:
            if self._search is None:
                self._search = _Search(hand)
            else:
                self._search.failed()
            return True
        self.add(entries, dead=self.removed(entries[0], failed))
        if self._search is not None:
            self._search.failed()
        return True

    async def _paused(self) -> bool:
        pauses = Pauses(
            self.runner.rng,
            first_ms=self.spec.backoff_ms * 2 ** (self._failures - 1),
            max_ms=self.spec.backoff_max_ms,
        )
        return await self.runner.pause(pauses.next_ms())

    def _next_of_search(self, count: int) -> list[_Item]:
        assert self._search is not None
        items = self._search.next()
        if 0 < len(items) <= count:
            return items
        if items:
            # The function asks for fewer than before: what is left comes in the ordinary way.
            self._ahead.extendleft(reversed(self._search.rest))
        self._search = None
        return []
