"""Many small steps, few commits: shared by the modes that handle one record after another.

What is done gathers while a commit is under way, and the next commit takes it all: at most
``batch`` records, and without waiting for company. A task beside the one that handles records
starts these commits, so that a record is committed even while the next one takes a minute.
"""

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from streamworker.core.entries import Entry
from streamworker.errors import RecordError
from streamworker.records.entries import joined_entries
from streamworker.redisio.commit import DeadLetter
from streamworker.runtime.invoke import NOTHING, Effects
from streamworker.runtime.modes import Mode
from streamworker.runtime.signals import Signal
from streamworker.runtime.state import Changes
from streamworker.runtime.work import Work

if TYPE_CHECKING:
    from streamworker.runtime.runner import PartitionRunner


class GroupingMode(Mode):
    """A mode whose commits hold whatever was done since the last one."""

    def __init__(self, runner: "PartitionRunner") -> None:
        super().__init__(runner)
        self.refused: RecordError | None = None
        """Rows of ``work`` that have no Arrow form; nothing is committed until it is redone."""
        self._work = Work()
        self._parts: list[Sequence[Entry]] = []
        """The entries of ``_work``, as they came, but for those of ``_row``."""
        self._parts_count = 0
        self._row: Sequence[Entry] = ()
        """Entries that are done one after the other. Of each only its place is noted: to gather
        them one by one took longer than to call a function."""
        self._row_start = self._row_end = 0
        """What is done of ``_row`` and not in a part yet."""
        self._lock = threading.Lock()
        """Around all of these and the state: a handler in a thread adds while a commit takes."""
        self._idle = False
        self._done = Signal()
        self._taken = Signal()

    @abstractmethod
    async def handle_all(self) -> str:
        """Handle records until draining; return why the partition halts, or nothing."""

    async def run(self) -> str:
        """Handle records, and commit them beside it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._commits)
            halted = await self.handle_all()
            await self.taken()
            if self.refused is not None:
                # Not committed, so not acked: whoever owns the partition next does it again.
                self.log.warning("rows_refused", error=str(self.refused))
            tasks.cancel_scope.cancel()
        return halted

    # -- the side that handles records -----------------------------------------------------------

    def add(
        self,
        entries: Sequence[Entry],
        outputs: Sequence[Any] = (),
        changes: Changes | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> None:
        """Count entries as done, with what they left. May be called in a thread."""
        with self._lock:
            self._end_row()
            self._parts.append(entries)
            self._parts_count += len(entries)
            self._work.outputs += outputs
            self._work.dead += dead
            if changes:
                self.state.keep(changes)

    def begin_row(self, entries: Sequence[Entry], start: int) -> None:
        """Say that entries will be done one after the other, from a place on; see :meth:`add_next`."""
        with self._lock:
            self._end_row()
            self._row, self._row_start, self._row_end = entries, start, start

    def add_next(self, effects: Effects) -> None:
        """Count the next entry of the row as done. May be called in a thread."""
        if effects is NOTHING:
            self._row_end += 1
            return
        with self._lock:
            self._row_end += 1
            self._work.outputs += effects.outputs
            if effects.changes:
                self.state.keep(effects.changes)

    @property
    def done_count(self) -> int:
        """Entries that are done and in no commit yet."""
        return self._parts_count + self._row_end - self._row_start

    def poke(self) -> None:
        """Have what is done committed as soon as the event loop has a turn."""
        if self._idle:
            self._idle = False
            self._done.fire()

    def poke_from_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        """As :meth:`poke`, in a worker thread."""
        if self._idle:
            self._idle = False
            loop.call_soon_threadsafe(self._done.fire)

    async def turn(self) -> None:
        """Let others run; wait if enough is done and not committed."""
        self.poke()
        await asyncio.sleep(0)
        while self.done_count >= self.spec.batch and self.refused is None:
            await self._taken.wait()

    async def taken(self) -> None:
        """Wait until all that is done was handed to a commit, or refused."""
        while self.done_count and self.refused is None:
            self.poke()
            await self._taken.wait()

    def is_refused(self) -> bool:
        """Whether what is done cannot be committed, and has to be done again."""
        return self.refused is not None

    def undo(self) -> Sequence[Entry]:
        """Forget what was done since the last commit; return its entries, to be handled again."""
        with self._lock:
            undone = self._take_entries()
            self._work = Work()
            self.state.drop_group()
        self.refused = None
        return undone

    # -- the side that commits -------------------------------------------------------------------

    async def _commits(self) -> None:
        while True:
            await self.runner.flush()
            # Said before the look, so that a thread which adds after the look knows to wake us.
            self._idle = True
            if not self.done_count or self.refused is not None:
                await self._done.wait()
                continue
            self._idle = False
            try:
                work = self._take()
            except RecordError as error:
                self.refused = error
                self.runner.buffer.wake()
            else:
                await self.runner.submit(work)
            self._taken.fire()

    def _take(self) -> Work:
        with self._lock:
            work = self._work
            work.rows = self.invoker.to_rows(work.outputs)
            work.entries = self._take_entries()
            work.state = self.state.seal()
            self._work = Work()
        return work

    def _take_entries(self) -> Sequence[Entry]:
        self._end_row()
        parts, self._parts, self._parts_count = self._parts, [], 0
        return joined_entries(parts)

    def _end_row(self) -> None:
        start, end = self._row_start, self._row_end
        if start < end:
            self._parts.append(self._row[start:end])
            self._parts_count += end - start
            self._row_start = end
