"""The modes that handle records one by one and commit several of them together.

``GroupingMode`` is their base. Records that are done while a commit is in flight go into the next commit, at
most ``batch`` of them. A second task starts the commits, so that a record is committed even while the next
one takes a minute. ``RecordMode`` calls the function with one record after the other; the others are in
``keyed`` and ``stream``.

The commits of all partitions begin together, at most once in ``GATHER_MS``. One begins at once if something
waits for it: a drain, a timer, a whole batch, the next record that is named, or room for reads; and if its
messages go to other streams, where they are handled.
"""

import asyncio
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import anyio

from streamworker.core.data.batching import BatchLimits
from streamworker.core.data.entries import Entry
from streamworker.core.text import in_words
from streamworker.errors import RecordError
from streamworker.records.entries import joined_entries, may_have_headers
from streamworker.redisio.data.commit import DeadEntry
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.run.commits import Work, ids_of
from streamworker.runtime.run.failures import Left, as_error
from streamworker.runtime.run.invoke import NOTHING, Effects
from streamworker.runtime.run.modes.modes import SLICE_MS, Failed, Mode
from streamworker.runtime.run.state import Changes
from streamworker.runtime.run.threads import in_one_step
from streamworker.runtime.signals import Signal

LOOKS_MAX = 16
"""Maximum calls from one look at the clock to the next. The first look follows the first call, and each
other one as many calls as there were so far: a slice of equal calls is one call, or less than two slices."""
THREAD_SLICE_MS = 5
"""``SLICE_MS`` for a worker thread. Switching to the thread and back costs about 0.1 ms."""


class GroupingMode(Mode):
    """A mode in which a commit takes all records that were done since the last one."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.refused: RecordError | None = None
        """The error if rows of ``_work`` cannot be converted to Arrow; no commit starts until ``undo``."""
        self._work = Work()
        self._entries: deque[Sequence[Entry]] = deque()
        """Entries in order, from the first that is in no commit."""
        self.handled = 0
        """How many entries are done, in the order in which they were taken. Only the number is kept:
        collecting them one by one took longer than calling a function."""
        self._in_commits = 0
        """How many of them are in commits."""
        self._lock = threading.Lock()
        """Guards all of these and the state: a handler in a thread adds while a commit takes."""
        self._idle = False
        self._waits_for_others = False
        """Whether the committer will tell that the moment is over."""
        self._is_due = False
        """Whether the next commit begins without gathering."""
        self._done = Signal()
        self._taken = Signal()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        """The task that handles records."""

    @abstractmethod
    async def handle_all(self) -> str:
        """Handle records until draining; return why the partition halts, or an empty text."""

    async def run(self) -> str:
        """Handle records, and commit them in a second task."""
        self._task = asyncio.current_task()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._commits)
            halted = await self.handle_all()
            await self.taken()
            if self.refused is not None:
                # These records are not committed, so not acked: the next owner handles them again.
                self.log.warning("rows_refused", error=str(self.refused))
            tasks.cancel_scope.cancel()
        return halted

    # -- the side that handles records -----------------------------------------------------------

    def took(self, entries: Sequence[Entry]) -> None:
        """Note entries that come after those that were taken before."""
        self._entries.append(entries)

    def add(
        self,
        count: int,
        outputs: Sequence[Any] = (),
        changes: Changes | None = None,
        dead: Sequence[DeadEntry] = (),
    ) -> None:
        """Count the next entries as done, with their effects. Safe from a worker thread."""
        with self._lock:
            self.handled += count
            self._work.outputs += outputs
            self._work.dead += dead
            if changes:
                self.state.keep(changes)

    def add_done(self, entries: Sequence[Entry], effects: Effects, attempt: int = 1) -> None:
        """Count the next entries as done, which are those of a successful call. Safe from a worker thread."""
        dead = self.set_aside(entries, effects, attempt) if effects.removed else ()
        self.add(len(entries), effects.outputs, effects.changes, dead)

    @property
    def done_count(self) -> int:
        """Entries that are done and in no commit yet."""
        return self.handled - self._in_commits

    def poke(self, *, from_thread: bool = False) -> None:
        """Let a commit of what is done begin soon."""
        if self._idle or (self._waits_for_others and self.done_count >= self.spec.batch):
            self._idle = False
            if from_thread:
                self._loop.call_soon_threadsafe(self._wake)
            else:
                self._wake()

    def _wake(self) -> None:
        """Wake the committing task, which runs in the next turn of the event loop, unless it may gather."""
        if self._is_due or not self._may_gather():
            self._done.fire()
        else:
            self._wait_for_others()

    def _may_gather(self) -> bool:
        """Whether nothing waits for the next commit."""
        intake = self.intake
        if self.commits.outbox is not None or intake.draining or intake.takes_alone:
            return False
        return intake.buffer.has_room and self.done_count < self.spec.batch

    def _wait_for_others(self) -> None:
        if not self._waits_for_others:
            self._waits_for_others = True
            self.commits.committer.gather(self._others_came)

    def _others_came(self) -> None:
        self._waits_for_others = False
        self._is_due = self._is_due or bool(self.done_count)
        self._done.fire()

    def _hurry(self) -> None:
        """Let a commit begin now: it has gathered, or something waits for it."""
        self._is_due = True
        self._done.fire()

    async def turn(self) -> None:
        """Yield to the event loop; wait while a whole batch is done and not in a commit."""
        self.poke()
        if self._task is not None and self._task.cancelling():
            self._hurry()  # The function has cancelled this task: its records are not to be handled again.
        await asyncio.sleep(0)
        while self.done_count >= self.spec.batch and self.refused is None:
            self._hurry()
            await self._taken.wait()

    async def taken(self) -> None:
        """Wait until all done entries are in a commit, or were refused."""
        while self.done_count and self.refused is None:
            self._hurry()
            await self._taken.wait()

    async def run_timers(self) -> None:
        """Call the timers that are due, once all done entries are in a commit."""
        await self.taken()
        if self.refused is None:
            await super().run_timers()

    def is_refused(self) -> bool:
        """Whether the done entries cannot be committed and must be handled again."""
        return self.refused is not None

    def undo(self) -> Sequence[Entry]:
        """Drop the results since the last commit; return all entries since then, to be handled again."""
        with self._lock:
            self.handled = self._in_commits
            self._work = Work()
            self.state.drop_group()
        self.refused = None
        return joined_entries(self._entries)

    # -- the side that commits -------------------------------------------------------------------

    async def _commits(self) -> None:
        while True:
            await self.commits.flush()
            # Set this before reading the count, so that a thread that adds after it wakes this task.
            self._idle = True
            if not self.done_count or self.refused is not None:
                await self._done.wait()
                continue
            self._idle = False
            if not self._is_due and self._may_gather():
                self._wait_for_others()
                await self._done.wait()
                continue
            self._is_due = False
            try:
                work = self._take()
            except BaseException as error:  # noqa: BLE001 - code of the rows' class runs there
                self.refused = error if isinstance(error, RecordError) else RecordError(in_words(error))
                self.intake.buffer.wake()
            else:
                await self.commits.submit(work)
            self._taken.fire()

    def _take(self) -> Work:
        with self._lock:
            work = self._work
            work.rows, work.sends = self.invoker.convert(work.outputs)
            work.entries = self._take_entries()
            work.state = self.state.seal()
            self._work = Work()
        return work

    def _take_entries(self) -> Sequence[Entry]:
        count, parts = self.done_count, list[Sequence[Entry]]()
        self._in_commits += count
        while count:
            part = self._entries.popleft()
            if len(part) > count:
                self._entries.appendleft(part[count:])
                part = part[:count]
            parts.append(part)
            count -= len(part)
        return joined_entries(parts)


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
