"""The mode whose function iterates over the records; asking for the next record acks the previous one."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from streamworker.context import Call, Context
from streamworker.core.data.batching import BatchLimits, Halving
from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.policies import Halt, Retry
from streamworker.errors import RecordError
from streamworker.feed import Records
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.run.commits import ids_of
from streamworker.runtime.run.failures import Left, untaken, was_cancelled
from streamworker.runtime.run.invoke import Effects
from streamworker.runtime.run.modes.modes import SLICE_MS, Failed
from streamworker.runtime.run.modes.record import GroupingMode

if TYPE_CHECKING:
    from streamworker.runtime.tracing.spans import BegunCall

_Item = tuple[Entry, Any, Exception | None]
"""An entry that was taken from the buffer, its record, and the error if it could not be decoded."""


class StreamMode(GroupingMode):
    """Calls the function once with the records as a stream, and again if it ends."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._ahead: deque[_Item] = deque()
        """Records that the function gets next."""
        self._hand: list[_Item] = []
        """Records that the function has received and not acked."""
        self._view = self.state.view()
        self._seen = Call((), self._view)
        self._search: Halving | None = None
        """The search for the failing records in a list that the function could not handle: those ahead."""
        self._slice: tuple[int, int] | None = None
        """The slice that the function has, or is to get again until its result is noted."""
        self._tried = 0
        """How many attempts at the whole list have failed."""
        self._careful = False
        self._asked = False
        self._failures = 0
        self._failing: EntryId | None = None
        """First unacked record when the function failed last."""
        self._last: Failed | None = None
        """How the function has failed last, if no record is acked since then."""
        self._is_one = False
        """Whether the function asked for one record."""
        self._halted = ""
        self._scope = anyio.CancelScope()
        self._turn_due_ms = 0
        self._begun: BegunCall | None = None
        """The span of the records in hand, if they have one."""

    async def handle_all(self) -> str:
        """Call the function until draining; return why the partition halts, or an empty text."""
        while await self.intake.wait_may_start() and not self._halted:
            failed = await self._call()
            if failed is not None and not await self._failed(failed):
                break
        return self._halted

    async def _call(self) -> Failed | None:
        """Run the function until it returns, raises or this mode interrupts it."""
        self._asked = False
        self._show([])
        self._close()
        arguments: list[Any] = [Records(self.next)]
        if self.spec.takes_context:
            arguments.append(Context(self.invoker.owned, self._seen))
        with anyio.CancelScope() as self._scope:
            try:
                with Left(self.spec.function):
                    result = await self.spec.function(*arguments)
                if result is not None:
                    raise untaken(self.spec.function, result)
                self._ack()
                if not self._asked and not self.intake.draining:
                    raise RuntimeError("the function returned without asking for a record")
            except BaseException as raised:
                self._end_span(raised)
                if self._asked and not self._hand and was_cancelled(raised):
                    raise  # It waits for a record, so this comes between two calls.
                before = self._last if self._failing == self._first else None
                is_one = self._is_one and bool(self._hand)
                return self.failed(raised, self._attempts + 1, before, is_one=is_one)
            finally:
                self.activity.ends()
                self._close()
        return None

    @property
    def oldest(self) -> str:
        """Ids of the records in hand; empty if the function has none."""
        return ids_of([entry for entry, _, _ in self._hand])

    # -- the function's side: what Records asks -------------------------------------------------

    async def next(self, count: int, within_ms: int) -> list[Any]:
        """Ack the records in hand and return the next ones; none at the end."""
        self._asked = True
        self._ack()
        self.activity.ends()
        if monotonic_ms() >= self._turn_due_ms:
            await self.turn()
            self._turn_due_ms = monotonic_ms() + SLICE_MS
        if self.refused is not None:
            await self._rewind(self.refused)
        items = await self._next_items(count, within_ms)
        if not items:
            self._close()
            return []
        self._hand, self._is_one = items, count == 1
        if made := self.intake.tries.made([entry for entry, _, _ in items]):
            self._failing, self._failures = items[0][0].id, made
        if self.invoker.has_view:
            self._show(items)
        if self.spans is not None:
            self._begun = self.spans.begin(self._seen)
        # The time starts here and not when the function asked: the wait for a record may take hours.
        self.activity.begins()
        return [record for _, record, _ in items]

    async def _next_items(self, count: int, within_ms: int) -> list[_Item]:
        ahead = self._ahead
        while await self.intake.wait_may_start():
            if not ahead and not await self._fill(count, within_ms):
                if self.refused is not None:
                    await self._rewind(self.refused)
                return []
            first = ahead.popleft()
            if first[2] is not None:
                await self._undecodable(first[0], first[2])
                continue
            items, count = [first], self._most(count)
            while len(items) < count and ahead and ahead[0][2] is None:
                items.append(ahead.popleft())
            return items
        return []

    async def _fill(self, count: int, within_ms: int) -> bool:
        self.poke()
        records = self.spec.batch if within_ms == 0 else count
        within_ms = self.spec.options.within_ms if within_ms < 0 else within_ms
        limits = BatchLimits(records, self.spec.options.batch_bytes, within_ms)
        entries = await self.intake.next_entries(limits, self.is_refused)
        if entries:
            self.took(entries)
            self._ahead.extend(self._items(entries))
        return bool(entries)

    def _items(self, entries: Sequence[Entry]) -> list[_Item]:
        decoded = self.invoker.decode(entries)
        errors = map(decoded.bad.get, range(len(entries)))
        return list(zip(entries, decoded.records, errors, strict=True))

    def _ack(self) -> None:
        """Count the records in hand as done; a RecordError from here makes the function fail."""
        if not self._hand:
            return
        outputs: Sequence[Any] = self._seen.outputs
        removed = self._seen.removed
        if outputs or self.invoker.forwards_input:
            kept = [record for index, (_, record, _) in enumerate(self._hand) if index not in removed]
            entries = [entry for entry, _, _ in self._hand]
            outputs = self.invoker.put_out(outputs, kept, entries, self._seen.carried)
            if self._careful:
                self.invoker.convert(outputs)
        self._end_span()
        effects = Effects(outputs, self._view.settled(), removed)
        self.add_done([entry for entry, _, _ in self._hand], effects, self._attempts + 1)
        self.poke()
        self._hand = []
        if self._last is not None:
            self.activity.recovers()
        self._failing, self._failures, self._last = None, 0, None
        if self._search is not None:
            self._search.succeeded()
            self._slice = None

    def _end_span(self, error: BaseException | None = None) -> None:
        if self._begun is not None:
            begun, self._begun = self._begun, None
            begun.end(error)

    def _show(self, items: list[_Item]) -> None:
        """Reset the context to these records, with nothing forwarded or stored yet."""
        self._view = self.state.view()
        entries, records = [entry for entry, _, _ in items], [record for _, record, _ in items]
        self._seen.renew(entries, self._view, self._attempts + 1, records)

    @property
    def _first(self) -> EntryId | None:
        return self._hand[0][0].id if self._hand else None

    @property
    def _attempts(self) -> int:
        """Attempts at the records in hand that have failed."""
        again = bool(self._hand) and self._failing == self._first
        whole = self._tried if self._search is not None and len(self._hand) > 1 else 0
        return whole + (self._failures if again else 0)

    def _close(self) -> None:
        """Close the context: rows and state from now on belong to no record."""
        self._seen.is_over = True
        self._view.close()

    async def _rewind(self, error: RecordError) -> None:
        """Go back to the last commit, because a row forwarded after it cannot be converted to Arrow.

        The mode cannot tell which record forwarded it. The function handles all records since that commit
        again, and the mode converts the rows of each record when it is acked.
        """
        self.log.warning("rows_refused", error=str(error))
        self._ahead = deque(self._items(self.undo()))
        self._search, self._careful = None, True
        await self._interrupt()

    async def _interrupt(self) -> None:
        """Cancel the function while it waits for the next record."""
        self._scope.cancel()
        await anyio.sleep_forever()

    # -- errors --------------------------------------------------------------------------------

    async def _undecodable(self, entry: Entry, error: Exception) -> None:
        failed = Failed(error, 0)
        if self.halts(failed):
            self._halted = self.reason([entry], failed)
            await self._interrupt()
        self.add(1, dead=self.removed(entry, failed))

    async def _failed(self, failed: Failed) -> bool:
        """Apply the policy of an error to the records in hand; return False to end."""
        first, hand, self._hand = self._first, self._hand, []
        entries = [entry for entry, _, _ in hand]
        again = self._items(entries)
        self._failures = (self._failures if self._failing == first else 0) + (not failed.is_free)
        self._failing = first
        if not (hand or failed.is_free):
            failed = Failed(failed.error, self._failures)
        self._last = failed
        self.note_failure(entries, failed)
        if self._halted or self.intake.draining:
            return False
        policy = self.policy(failed)
        if isinstance(policy, Retry):
            self._ahead.extendleft(reversed(again))
            return await self.wait(entries, failed, policy)
        self.activity.recovers()
        self._failures = 0
        if not hand or (len(hand) == 1 and isinstance(policy, Halt)):
            self._halted = self.reason(entries, failed)
            return False
        if len(hand) == 1:
            self.add(1, dead=self.removed(entries[0], failed))
        else:
            self._ahead.extendleft(reversed(again))
        if self._search is not None:
            self._search.failed()
        elif len(hand) > 1:
            self._search, self._tried = Halving(len(hand)), failed.attempts
        self._slice = None
        return True

    def _most(self, count: int) -> int:
        """Return how many of the records ahead the function gets, if it asks for so many."""
        if self._search is None:
            return count
        self._slice = self._slice or self._search.next()
        if self._slice is None or (size := self._slice[1] - self._slice[0]) > count:
            # All are found, or the function asks for fewer records than before.
            self._search = None
            return count
        return size
