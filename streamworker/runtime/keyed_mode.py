"""Several records at a time: different keys overlap, one key never does.

Which record may start, and up to where all are done, is decided by ``core/window``. Here its
answers are carried out: up to ``concurrency`` tasks handle one record after the other for as long
as the window has one for them, and what is done without a gap gathers for the next commit. So the
acked log is in the order of the source, and the checkpoint never passes a record that is not done.

What is done behind a record that is not is lost with this owner, and done again by the next: at
least once, and never more than the window holds.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from streamworker.core.batching import BatchLimits
from streamworker.core.entries import Entry
from streamworker.core.partitioner import canonical_key
from streamworker.core.window import Window
from streamworker.errors import RecordError
from streamworker.redisio.commit import DeadLetter
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.grouping import GroupingMode
from streamworker.runtime.modes import SLICE_MS, Failed
from streamworker.runtime.pauses import Pauses
from streamworker.runtime.signals import Signal
from streamworker.runtime.state import NoState
from streamworker.runtime.work import Work

if TYPE_CHECKING:
    from streamworker.runtime.runner import PartitionRunner

WINDOW_PER_CALL = 32
"""Records in the window for each call at a time: how far others may run ahead of a slow record, and
what is repeated after a crash. With fewer, few busy keys would fill the window with records that
wait for each other."""
WINDOW_MIN = 1_000
"""As much as is in hand or being committed without concurrency, and so repeated after a crash."""
CLOSING_MS = 500
"""How long a drain goes on with records that lie before some that are done. Each of them saves the
next owner a repetition of all that are done behind it; this is what the handover waits for them."""


class _InHand:
    """One record of the window."""

    __slots__ = ("attempt", "dead", "entry", "error", "outputs", "pauses", "record")

    def __init__(self, entry: Entry, record: Any, error: Exception | None) -> None:
        self.entry = entry
        self.record = record
        self.error = error
        """Why it has no record or no key; then it is not handled."""
        self.attempt = 0
        self.outputs: Sequence[Any] = ()
        self.dead: Sequence[DeadLetter] = ()
        self.pauses: Pauses | None = None


class KeyedMode(GroupingMode):
    """Calls the function with one record each, several calls at a time."""

    def __init__(self, runner: "PartitionRunner") -> None:
        super().__init__(runner)
        width = self.spec.concurrency
        if not self.spec.is_async:
            # More would only wait for a thread.
            width = min(width, self.invoker.threads)
        self._width = width
        self._tasks = 0
        """Those that handle records now, or give way before their next one."""
        self._window = Window(concurrency=width, size=max(WINDOW_MIN, WINDOW_PER_CALL * width))
        self._in_hand: dict[int, _InHand] = {}
        """By place in the window."""
        self._gathered = 0
        """Place of the first record that was not taken from the window."""
        self._begun: dict[int, int] = {}
        """When the calls that run began, by the monotonic clock, the oldest first."""
        self._halted: tuple[int, str] | None = None
        """The first place that failed for good, and what is to be said of it."""
        self._changed = Signal()
        """There is more room, the window has settled, or the partition is to be drained."""
        self._calls: anyio.abc.TaskGroup | None = None
        self._gate_watched = False
        self._slice_ends_ms = 0
        self._slice_asked = False

    async def handle_all(self) -> str:
        """Handle records until draining; return why the partition halts, or nothing."""
        async with anyio.create_task_group() as self._calls:
            self._calls.start_soon(self._tell_of_drain)
            await self._feed()
            await self._settle()
            self._calls.cancel_scope.cancel()
        if self._halted is not None:
            return self._halted[1]
        return "" if self.refused is None else f"what it forwarded cannot be written: {self.refused}"

    @property
    def is_busy(self) -> bool:
        """Whether calls run."""
        return bool(self._begun)

    @property
    def oldest(self) -> str:
        """Id of the entry whose call has been running for longest."""
        place = next(iter(self._begun), None)
        return "" if place is None else str(self._in_hand[place].entry.id)

    # -- records in ------------------------------------------------------------------------------

    async def _feed(self) -> None:
        """Fill the window until the partition is drained or halts."""
        runner, window = self.runner, self._window
        while not (runner.draining or self._is_over()):
            if not window.room:
                await self._changed.wait()
                continue
            limits = BatchLimits(min(window.room, self.spec.batch), self.spec.batch_bytes, 0)
            if entries := await runner.next_entries(limits, self._is_over):
                self._admit(entries)
                self._start()

    def _is_over(self) -> bool:
        return self._halted is not None or self.refused is not None

    def _admit(self, entries: Sequence[Entry]) -> None:
        decoded = self.invoker.decode(entries)
        by_key = self.spec.ordered_by == "key"
        key_of = self.spec.stream.key
        for place, (entry, record) in enumerate(zip(entries, decoded.records, strict=True)):
            error: Exception | None = decoded.bad.get(place)
            key = None
            if by_key and error is None:
                try:
                    key = canonical_key(key_of(record))
                except Exception as raised:  # noqa: BLE001 - whatever a user's key function raises
                    error = raised
            self._in_hand[self._window.add(key)] = _InHand(entry, record, error)

    # -- calls -----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start as many calls as there may be."""
        assert self._calls is not None
        while self._tasks < self._width and (place := self._next()) is not None:
            self._tasks += 1
            self._calls.start_soon(self._handle_from, place)

    def _next(self) -> int | None:
        """Return the place of the record to handle now, if there is one and calls may start."""
        if self.runner.draining:
            self._close()
        elif not self.runner.may_start:
            self._watch_gate()
            return None
        return self._window.start()

    def _close(self) -> None:
        """Start nothing more, but for what lies before records that are done.

        And not even that while heartbeats do not get through: its commit would be refused.
        """
        if self.runner.gate_is_open:
            self._window.close()
        else:
            self._window.bar(0)

    async def _handle_from(self, place: int | None) -> None:
        """Handle a record, and others after it for as long as there are any."""
        while place is not None:
            await self._handle(place)
            if monotonic_ms() >= self._slice_ends_ms:
                await self._turn()
            place = self._next()
        self._tasks -= 1
        if self._window.is_settled:
            self._changed.fire()

    async def _turn(self) -> None:
        """Let others run: all calls of the partition together have had their share.

        The next share begins with the next turn of the event loop, not with each call that comes
        back from here: or a thousand calls that never wait would hold the loop for two seconds.
        """
        if not self._slice_asked:
            self._slice_asked = True
            asyncio.get_running_loop().call_soon(self._new_slice)
        await asyncio.sleep(0)

    def _new_slice(self) -> None:
        self._slice_asked = False
        self._slice_ends_ms = monotonic_ms() + SLICE_MS

    async def _handle(self, place: int) -> None:
        """Make one attempt at a record."""
        hand = self._in_hand[place]
        if hand.error is not None:
            self._failed(place, hand, Failed(hand.error, 0))
            return
        hand.attempt += 1
        self._begins(place)
        try:
            effects = await self.invoker.call_record(hand.entry, hand.record, hand.attempt)
            if effects.outputs:
                # Rows without an Arrow form are an error of this call. At the commit, others of its
                # key would be done already.
                self.invoker.to_rows(effects.outputs)
        except Exception as error:  # noqa: BLE001 - whatever a user function raises
            self._ends(place)
            failed = Failed(error, hand.attempt)
            self.note_failure([hand.entry], failed, self.spec.attempts)
            self._failed(place, hand, failed)
            return
        self._ends(place)
        hand.outputs = effects.outputs
        self._finish(place)

    def _begins(self, place: int) -> None:
        self._begun[place] = clock_ms = monotonic_ms()
        if self.runner.busy_since_ms is None:
            self.runner.busy_since_ms = clock_ms
            self.runner.works()

    def _ends(self, place: int) -> None:
        del self._begun[place]
        self.runner.busy_since_ms = since_ms = next(iter(self._begun.values()), None)
        if since_ms is None:
            self.runner.rests()

    def _failed(self, place: int, hand: _InHand, failed: Failed) -> None:
        """Decide what becomes of a record whose attempt failed."""
        # A function that cannot work here must not have all records skipped, one after the other.
        misused = isinstance(self.state, NoState) and self.state.was_used
        if 0 < failed.attempts < self.spec.attempts and not misused:
            assert self._calls is not None
            if hand.pauses is None:
                hand.pauses = Pauses(
                    self.runner.rng, first_ms=self.spec.backoff_ms, max_ms=self.spec.backoff_max_ms
                )
            self._window.defer(place)
            self._calls.start_soon(self._again, place, hand.pauses.next_ms())
        elif self.halts or misused:
            self._window.abandon(place)
            if self._halted is None or place < self._halted[0]:
                self._halted = (place, self.reason([hand.entry], failed))
            self._wake_feed()
        else:
            hand.dead = self.removed(hand.entry, failed)
            self._finish(place)

    async def _again(self, place: int, pause_ms: int) -> None:
        """Let a record wait for its next attempt; its key waits with it, and nobody else."""
        if await self.runner.pause(pause_ms):
            self._window.again(place)
            self._start()
        else:
            self._window.abandon(place)
            self._changed.fire()

    # -- results out -----------------------------------------------------------------------------

    def _finish(self, place: int) -> None:
        self._window.finish(place)
        self._gather()

    def _gather(self) -> None:
        """Hand what is done without a gap to the next commit, as much as fits into one."""
        count = self._window.take(self.spec.batch - self.done_count)
        if not count:
            return
        entries: list[Entry] = []
        outputs: list[Any] = []
        dead: list[DeadLetter] = []
        for place in range(self._gathered, self._gathered + count):
            hand = self._in_hand.pop(place)
            entries.append(hand.entry)
            outputs += hand.outputs
            dead += hand.dead
        self._gathered += count
        self.add(entries, outputs, dead=dead)
        self.poke()
        self._changed.fire()

    def _take(self) -> Work:
        try:
            work = super()._take()
        except RecordError:
            # Each row was looked at alone, and together they are refused. Nothing can be committed.
            self._window.bar(0)
            self._changed.fire()
            raise
        self._gather()
        return work

    # -- the end, and what holds calls up ----------------------------------------------------------

    async def _settle(self) -> None:
        """Finish what is in hand.

        Where the partition halts, all before the record that failed is done. Where it is drained,
        a little time is given to what lies before records that are done; pauses are given up.
        """
        window, runner = self._window, self.runner
        while not (window.is_settled or runner.draining):
            await self._changed.wait()
        with anyio.move_on_after(CLOSING_MS / 1000):
            self._start()
            await self._until_settled()
        window.bar(0)
        await self._until_settled()

    async def _until_settled(self) -> None:
        while not self._window.is_settled:
            await self._changed.wait()

    async def _tell_of_drain(self) -> None:
        await self.runner.wait_draining()
        self._changed.fire()

    def _wake_feed(self) -> None:
        self._changed.fire()
        self.runner.buffer.wake()

    def _watch_gate(self) -> None:
        if not self._gate_watched:
            assert self._calls is not None
            self._gate_watched = True
            self._calls.start_soon(self._when_open)

    async def _when_open(self) -> None:
        await self.runner.wait_may_start()
        self._gate_watched = False
        self._start()
