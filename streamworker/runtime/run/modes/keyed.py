"""The mode that handles several records at a time: different keys overlap, one key never does.

``core/window`` decides which record may start and up to which index all records are done. This mode does
what the window decides: up to ``concurrency`` tasks each handle one record after the other, for as long as
the window has one for them. The mode commits records only up to the first that is not done. So the acked
log has the order of the source, and the checkpoint never passes a record that is not done.

If this owner loses the partition, the next owner repeats records that are done after one that is not: at
least once, and never more records than the window holds.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc

from streamworker.core.data.batching import BatchLimits
from streamworker.core.data.entries import Entry
from streamworker.core.data.placement import canonical_key
from streamworker.core.data.window import CallWindow
from streamworker.core.policies import Halt, Retry
from streamworker.declaring.specs import ProcessorSpec
from streamworker.redisio.data.commit import DeadEntry
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.run.commits import Work
from streamworker.runtime.run.failures import Left, as_error
from streamworker.runtime.run.modes.modes import SLICE_MS, Failed
from streamworker.runtime.run.modes.record import GroupingMode
from streamworker.runtime.run.state import NoState
from streamworker.runtime.signals import Signal

WINDOW_PER_CALL = 32
"""Records in the window for each concurrent call. It limits how far other records may run ahead of a slow
one, and how many are repeated after a crash. With fewer, a few busy keys would fill the window with records
that wait for each other."""
WINDOW_MIN = 1_000
"""Minimum window size. Without concurrency, this many records are in hand or being committed, and so
repeated after a crash."""
CLOSING_MS = 500
"""How long a drain still handles records that precede records already done. Each record handled saves the
next owner from repeating those done after it. The handover waits at most this long for them."""


def _window_size(width: int) -> int:
    return max(WINDOW_MIN, WINDOW_PER_CALL * width)


@dataclass(slots=True, eq=False)
class _InHand:
    entry: Entry
    record: Any
    error: Exception | None
    """Why the entry has no record or no key; the function is not called for it then."""
    attempt: int = 0
    failed: Failed | None = None
    """How its last call has failed."""
    outputs: Sequence[Any] = ()
    dead: Sequence[DeadEntry] = ()


class KeyedMode(GroupingMode):
    """Calls the function with one record each, several calls at a time."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        width = self.spec.options.concurrency
        if not self.spec.is_async:
            # More would only wait for a thread.
            width = min(width, self.invoker.threads)
        self._width = width
        self._tasks = 0
        """Tasks that handle a record now, or have yielded before their next one."""
        self._window = CallWindow(concurrency=width, size=_window_size(width))
        self._in_hand: dict[int, _InHand] = {}
        """Records by index in the window, which is their number in order."""
        self._halted: tuple[int, str] | None = None
        """The first index that failed for good, and the reason."""
        self._changed = Signal()
        """Fires when there is more room, when the window has settled, and when the partition drains."""
        self._calls: anyio.abc.TaskGroup | None = None
        self._slice_ends_ms = 0
        self._slice_asked = False
        self._waits = False
        """Whether a task waits to start calls."""

    async def handle_all(self) -> str:
        """Handle records until draining; return why the partition halts, or an empty text."""
        async with anyio.create_task_group() as self._calls:
            self._calls.start_soon(self._follow_gate)
            await self._feed()
            await self._settle()
            self._calls.cancel_scope.cancel()
        if self._halted is not None:
            return self._halted[1]
        return "" if self.refused is None else f"what it forwarded cannot be written: {self.refused}"

    @staticmethod
    def in_work_max(spec: ProcessorSpec) -> int:
        """Return how many entries an owner may have begun and not committed: those of the window, too."""
        return 2 * spec.batch + _window_size(spec.options.concurrency)

    @property
    def oldest(self) -> str:
        """Id of the entry whose call has run for longest; empty if no call runs."""
        index = self.activity.oldest
        return "" if index is None else str(self._in_hand[index].entry.id)

    # -- records in ------------------------------------------------------------------------------

    async def _feed(self) -> None:
        """Fill the window until the partition is drained or halts."""
        intake, window = self.intake, self._window
        while not (intake.draining or self._is_over()):
            if not window.room:
                await self._changed.wait()
                continue
            limits = BatchLimits(min(window.room, self.spec.batch), self.spec.options.batch_bytes, 0)
            if entries := await intake.next_entries(limits, self._is_over):
                self.took(entries)
                self._admit(entries)
                self._start()

    def _is_over(self) -> bool:
        return self._halted is not None or self.refused is not None

    def _admit(self, entries: Sequence[Entry]) -> None:
        decoded = self.invoker.decode(entries)
        by_key = self.spec.options.ordered_by == "key"
        key_of = self.spec.stream.key
        for index, (entry, record) in enumerate(zip(entries, decoded.records, strict=True)):
            error: Exception | None = decoded.bad.get(index)
            key = None
            if by_key and error is None:
                try:
                    key = canonical_key(key_of(record))
                except BaseException as raised:  # noqa: BLE001 - whatever a user's key function raises
                    error = as_error(raised)
            made = self.intake.tries.made((entry,))
            self._in_hand[self._window.add(key)] = _InHand(entry, record, error, made)

    # -- calls -----------------------------------------------------------------------------------

    def _start(self) -> None:
        assert self._calls is not None
        while self._tasks < self._width and (index := self._next()) is not None:
            self._tasks += 1
            self._calls.start_soon(self._handle_from, index, name=self.activity.name)

    def _next(self) -> int | None:
        """Return the index of the record to handle now, if there is one and calls may start."""
        if self.intake.draining and self.intake.gate.is_open:
            self._window.close()  # Only records that precede records already done may start.
        elif self.intake.draining:
            self._window.bar(0)  # While heartbeats do not get through, the commit would be refused.
        elif not self.intake.may_start:
            self._wait()
            return None
        return self._window.start()

    async def _handle_from(self, index: int | None) -> None:
        """Handle a record, and then others for as long as the window has any."""
        while index is not None:
            await self._handle(index)
            if monotonic_ms() >= self._slice_ends_ms:
                await self._turn()
            index = self._next()
        self._tasks -= 1
        if self._window.is_settled:
            self._changed.fire()

    async def _turn(self) -> None:
        """Yield to the event loop: all calls of the partition together have used their time slice.

        The next slice begins with the next turn of the event loop, and not with each call that returns from
        here. Otherwise a thousand calls that never wait would block the loop for two seconds.
        """
        if not self._slice_asked:
            self._slice_asked = True
            asyncio.get_running_loop().call_soon(self._new_slice)
        await asyncio.sleep(0)

    def _new_slice(self) -> None:
        self._slice_asked = False
        self._slice_ends_ms = monotonic_ms() + SLICE_MS

    async def _handle(self, index: int) -> None:
        """Make one attempt at a record."""
        hand = self._in_hand[index]
        if hand.error is not None:
            self._failed(index, hand, Failed(hand.error, 0))
            return
        hand.attempt += 1
        self.activity.begins(index)
        try:
            record = hand.record if hand.failed is None else self.invoker.again([hand.entry])[0]
            with Left(self.spec.function):
                effects = await self.invoker.call_record(hand.entry, record, hand.attempt)
            if effects.outputs:
                # Rows that cannot be converted to Arrow are an error of this call. At the commit it would
                # be too late: other records of the key would be done already.
                self.invoker.convert(effects.outputs)
        except BaseException as raised:  # noqa: BLE001 - whatever a user function raises
            failed = hand.failed = self.failed(raised, hand.attempt, hand.failed)
            hand.attempt = failed.attempts
            self._ends(index)
            self.note_failure([hand.entry], failed)
            self._failed(index, hand, failed)
            return
        self._ends(index)
        if hand.failed is not None:
            self.activity.recovers(index)
        hand.outputs = effects.outputs
        if effects.removed:
            hand.dead = self.set_aside([hand.entry], effects, hand.attempt)
        self._finish(index)

    def _ends(self, index: int) -> None:
        self.activity.ends(index)
        self.activity.rests()

    def _failed(self, index: int, hand: _InHand, failed: Failed) -> None:
        """Retry a record whose attempt failed, halt, or remove the record."""
        # A function that uses ctx.state fails for each record: halt, and do not skip them all.
        misused = isinstance(self.state, NoState) and self.state.was_used
        policy = Halt() if misused else self.policy(failed)
        if isinstance(policy, Retry):
            assert self._calls is not None
            self._window.defer(index)
            self._calls.start_soon(self._again, index, hand, failed, policy)
            return
        self.activity.recovers(index)
        if isinstance(policy, Halt):
            self._window.abandon(index)
            if self._halted is None or index < self._halted[0]:
                self._halted = (index, self.reason([hand.entry], failed))
            self._changed.fire()
            self.intake.buffer.wake()
        else:
            hand.dead = self.removed(hand.entry, failed)
            self._finish(index)

    async def _again(self, index: int, hand: _InHand, failed: Failed, retry: Retry) -> None:
        """Wait for a record's next attempt; only the records of its key wait with it."""
        also = "" if self._window.room else "; the window behind it is full, so that all records wait"
        if await self.wait([hand.entry], failed, retry, index, also):
            self._window.again(index)
            self._start()
        else:
            self._window.abandon(index)
            self._changed.fire()

    # -- results out -----------------------------------------------------------------------------

    def _finish(self, index: int) -> None:
        self._window.finish(index)
        self._gather()

    def _gather(self) -> None:
        """Add records that are done without a gap to the next commit, as many as fit into it."""
        count = self._window.take(self.spec.batch - self.done_count)
        if not count:
            return
        outputs: list[Any] = []
        dead: list[DeadEntry] = []
        for index in range(self.handled, self.handled + count):
            hand = self._in_hand.pop(index)
            outputs += hand.outputs
            dead += hand.dead
        self.add(count, outputs, dead=dead)
        self.poke()
        self._changed.fire()

    def _take(self) -> Work:
        try:
            work = super()._take()
        except BaseException:
            # Each row was converted by itself, and all together are refused. Nothing can be committed.
            self._window.bar(0)
            self._changed.fire()
            raise
        self._gather()
        return work

    # -- the end, and what holds calls up ----------------------------------------------------------

    async def _settle(self) -> None:
        """Finish the records in hand.

        If the partition halts, the mode handles all records before the one that failed. If it drains, the
        mode handles records that precede done ones for at most ``CLOSING_MS``, and ends backoffs early.
        """
        window = self._window
        while not (window.is_settled or self.intake.draining):
            await self._changed.wait()
        with anyio.move_on_after(CLOSING_MS / 1000):
            self._start()
            await self._until_settled()
        window.bar(0)
        await self._until_settled()

    async def _until_settled(self) -> None:
        while not self._window.is_settled:
            await self._changed.wait()

    def _wait(self) -> None:
        """Start calls once a suspect of this process has been called; the gate has a task of its own."""
        if self.intake.gate.is_open and not self._waits:
            self._waits = True
            assert self._calls is not None
            self._calls.start_soon(self._start_later)

    async def _start_later(self) -> None:
        await self.intake.wait_may_start()
        self._waits = False
        self._start()

    async def _follow_gate(self) -> None:
        while True:
            await self.intake.gate.opened.wait()
            self._start()
            self._changed.fire()  # The partition may drain.
