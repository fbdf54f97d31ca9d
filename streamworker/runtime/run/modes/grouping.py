"""The base of the modes that handle records one by one and commit several of them together.

Records that are done while a commit is in flight go into the next commit, at most ``batch`` of them. A
second task starts the commits, so that a record is committed even while the next one takes a minute.

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

from streamworker.core.data.entries import Entry
from streamworker.core.text import in_words
from streamworker.errors import RecordError
from streamworker.records.entries import joined_entries
from streamworker.redisio.data.commit import DeadEntry
from streamworker.runtime.run.commits import Work
from streamworker.runtime.run.invoke import Effects
from streamworker.runtime.run.modes.modes import Mode
from streamworker.runtime.run.state import Changes
from streamworker.runtime.signals import Signal


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
