"""What one partition takes, and when it stops: its entries, the gate, pauses and the drain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import anyio

from streamworker.core.data.batching import BatchLimits
from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.ownership.tries import Tries
from streamworker.declaring.middleware import Naming
from streamworker.records.entries import origin_at
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.risks import START_LOOK_S, TURN_LOOK_S, HeldBack, OthersTurn, turns
from streamworker.runtime.run.activity import Activity
from streamworker.runtime.run.commits import Commits
from streamworker.runtime.run.timed.timers import Timers
from streamworker.runtime.signals import Gate, Signal


@dataclass(eq=False)
class Intake:
    """The entries of one partition for its mode, from the buffer that the fetcher fills."""

    buffer: PartitionBuffer
    gate: Gate
    """Closed while the worker's heartbeats do not get through: no call may start."""
    activity: Activity
    commits: Commits
    timers: Timers
    tries: Tries
    aside: dict[EntryId, Exception]

    def __post_init__(self) -> None:
        self._taken: EntryId | None = None
        """The entry that was taken alone, until it is committed."""
        self._named: Mapping[EntryId, int] = {}
        """What the lock holds to name it."""
        self._layer = ""
        """The middleware that is named in its place."""
        self._turns = turns()
        self._turns.join(self)
        self.timers.taken_by = self
        self.draining = False
        """Whether the partition drains or has ended."""
        self._drain = Signal()
        self.pauses = 0
        """Pauses between attempts that are under way."""

    # -- when to stop ----------------------------------------------------------------------------

    def drain(self) -> None:
        """Let no other call start; the running one is finished and committed, and the runner ends."""
        self.draining = True
        self._drain.fire()
        self.gate.opened.fire()
        self.buffer.wake()

    def end(self) -> None:
        """Take nothing more. An abandoned thread sees this and handles no further record."""
        self.draining = True
        self.buffer.close()
        self._taken = None
        self._turns.leave(self, monotonic_ms())

    async def wait_draining(self, timeout_s: float) -> None:
        """Wait until the partition must drain, or for so long."""
        if not self.draining:
            await self._drain.wait(timeout_s)

    @property
    def may_start(self) -> bool:
        """Whether a call may start: heartbeats get through, and no suspect of this process is called."""
        if not self._turns.asked or self._taken is not None:
            return self.gate.is_open  # What is named already is at risk, so a suspect waits for its end.
        return self.gate.is_open and self._turns.may_start(self, monotonic_ms())

    async def wait_may_start(self) -> bool:
        """Wait until a call may start; return False if the partition drains."""
        while not self.draining and not self.may_start:
            self.activity.rests()
            if self.gate.is_open:
                await self._drain.wait(TURN_LOOK_S)
            else:
                await self.gate.opened.wait()
            self.activity.works()
        return not self.draining

    @property
    def is_at_risk(self) -> bool:
        """Whether a call runs, or a record is named that is not committed."""
        return self._taken is not None or self.activity.busy_since_ms is not None

    @property
    def takes_alone(self) -> bool:
        """Whether records are taken one by one."""
        return self.tries.alone > 0

    async def pause(self, pause_ms: int) -> bool:
        """Pause before another attempt; return False if the partition drains meanwhile."""
        if not self.draining:
            self.activity.rests()
            self.pauses += 1
            try:
                await self._drain.wait(pause_ms / 1000)
            finally:
                self.pauses -= 1
            self.activity.works()
        return await self.wait_may_start()

    # -- what to take ----------------------------------------------------------------------------

    async def next_entries(
        self, limits: BatchLimits, interrupted: Callable[[], bool] = lambda: False
    ) -> Sequence[Entry]:
        """Wait for the next batch and take it; return none when draining, ``interrupted`` or a timer is due.

        The code that makes ``interrupted`` true also wakes the buffer.
        """
        buffer, activity = self.buffer, self.activity
        while await self.wait_may_start() and not (interrupted() or self.has_timers_due):
            if self._taken is not None:
                if self.commits.committed.checkpoint < self._taken:
                    await self.commits.landed.wait(TURN_LOOK_S)
                    continue
                self.end_turn()
                if not self.tries.alone:
                    await self.commits.store_tries(self.tries.begun, alone=False)
                continue
            if buffer.closed:
                # No more entries arrive: the partition is lost, or is no longer fetched.
                activity.rests()
                await self._drain.wait()
                continue
            its = replace(limits, records=1) if self.tries.alone else limits
            if not buffer.is_ready(its):
                activity.rests()
                await buffer.wait_ready(its)
                continue
            is_suspect = self.tries.alone and self.tries.is_suspect
            if is_suspect and not self._turns.ask(self, monotonic_ms()):
                await self._drain.wait(TURN_LOOK_S)
                continue
            activity.works()
            taken = buffer.take(its.records, its.bytes)
            if not self.tries.alone:
                return taken
            entry, (last, _) = taken[0], origin_at(taken, 0)
            await self._name(entry, ends=entry.id >= last)
            # Not as a part of its entry, which would be decoded as a whole: its other records may kill, too.
            return [entry]
        activity.works()
        return []

    @property
    def has_timers_due(self) -> bool:
        """Whether a timer is to be called now: none is while a record is named."""
        return self.timers.are_due and self._taken is None

    async def _name(self, entry: Entry, *, ends: bool) -> None:
        # A verdict that is not committed before the next record is called dies with it, and so for ever. The
        # same holds for each removal without a call.
        self._taken = entry.id
        found = self.tries.suspect(entry, ends=ends)
        if isinstance(found, Exception):
            self.aside.setdefault(entry.id, found)  # An operator's request comes first.
        else:
            self._named = found
            await self.commits.store_tries(found, alone=True)

    def naming(self) -> Naming | None:
        """Return what names the middleware around a call, if the record of the call is named."""
        return self._name_layer if self._taken is not None else None

    async def _name_layer(self, layer: str) -> None:
        """Name middleware that runs next in place of the record; or the record again, by an empty text.

        Neither is named while the other is, so a death accuses one. A layer in which three workers have died
        in a row is not run: the partition halts, since each of its records would be accused in turn.
        """
        risks = self.timers.risks
        if self._layer:
            await risks.end("middleware", self._layer)
        self._layer = ""
        await self.commits.store_tries(self._named, alone=not layer)
        if layer:
            while not self._layer:
                try:
                    await risks.begin("middleware", layer, is_alone=True)
                except HeldBack:
                    self._named = {}  # The record is not called, so a worker that dies has not died in it.
                    raise
                except OthersTurn:
                    await anyio.sleep(START_LOOK_S)
                else:
                    self._layer = layer

    def end_turn(self) -> None:
        """Let others be called: what was named is committed, or is called no more."""
        self._taken, self._named = None, {}
        self._turns.end(self, monotonic_ms())

    async def retry(self, entry: Entry, attempt: int) -> None:
        """Store that a call begins that is not the first with a record."""
        begun = self.tries.begin(entry.id, attempt, self.commits.committed.checkpoint)
        if entry.id == self._taken:
            self._named = begun
        await self.commits.store_tries(begun, alone=entry.id == self._taken)
