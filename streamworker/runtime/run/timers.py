"""The timers of one partition: when each is due, and its calls between two batches.

A call's results are committed under the owner's epoch, as those of a batch are, and the checkpoint stays. The
planned time up to which a timer is done stands in the partition's state, in the same commit. So a time is
never done twice, and a worker that dies leaves the next time to the next owner.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import anyio
import msgspec

from streamworker.core.data.entries import EntryId
from streamworker.core.data.schedules import Due, due
from streamworker.core.ownership.risks import Runs
from streamworker.core.pauses import Pauses
from streamworker.core.policies import Skip
from streamworker.declaring.specs import TimerSpec
from streamworker.errors import BackendError
from streamworker.redisio.data.state import RAN, RUN, Ran
from streamworker.redisio.group.archiving import read_archived
from streamworker.redisio.group.control import newest_id
from streamworker.redisio.keys import TICK
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import ms_of
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.forward.routing import Routed
from streamworker.runtime.risks import HeldBack, Risks
from streamworker.runtime.run.commits import Commits
from streamworker.runtime.run.failures import Left, describe_error, failure, traceback_of
from streamworker.runtime.run.invoke import Invoker
from streamworker.runtime.run.state import Changes
from streamworker.runtime.signals import Signal
from streamworker.runtime.telling import warn

RETRY_FIRST_MS, RETRY_MAX_MS = 200, 60_000
"""Bounds of the pause before a timer that failed is called again."""
LOOK_AGAIN_MS = 60_000
"""A timer's task asks the server's time at least this often: the two clocks may drift apart."""


class Tick(NamedTuple):
    """A planned time of a timer that is done, and the results of its call."""

    timer: str
    """The field that says so; its value begins with the planned time."""
    before: bytes
    """What it held before."""
    knows_end: bool
    """Whether it is known up to when the partition, which takes nothing more, has planned times."""
    fields: Changes
    """What it holds now, and what other fields tell of the call."""
    changes: Changes
    sends: Routed


class _Timer:
    def __init__(
        self, spec: TimerSpec, invoker: Invoker, stored: Mapping[str, bytes], rng: random.Random
    ) -> None:
        self.spec = spec
        self.invoker = invoker
        self.done = stored.get(TICK + spec.name, b"")
        self.last_ms = int(self.done.partition(b"/")[0] or -1)
        """The planned time up to which it is done; -1 before its first deploy."""
        self.attempts = 0
        self.pauses = Pauses(rng.random, first_ms=RETRY_FIRST_MS, max_ms=RETRY_MAX_MS)
        self.not_before_ms = 0
        self.is_held_back = False
        """Whether it is not called, since several workers in a row have died in it."""
        self.held: tuple[Due, EntryId] | None = None
        """What waits, and the entry that has to be committed first; it keeps its planned time meanwhile."""
        self.asked = {
            field: int(stored[field]) for field in stored if field.partition("/")[0] == RUN + spec.name
        }
        """The fields by which somebody asked for a call now, and the times to call it for."""

    def due(self, now_ms: int, ends_ms: int | None, committed: EntryId) -> Due | None:
        if self.held is not None:
            return self.held[0] if self.held[1] <= committed else None
        found = self.planned(now_ms, ends_ms)
        return None if self.spec.when and found and found.runs else found

    def planned(self, now_ms: int, ends_ms: int | None) -> Due | None:
        if self.last_ms < 0:  # Nothing was missed before it was first deployed.
            return Due(now_ms, False) if ends_ms is None else None
        if now_ms < self.not_before_ms:
            return None
        if self.asked:
            return Due(self.last_ms, True)  # What is planned comes at its own time, besides.
        upto_ms = now_ms if ends_ms is None else min(now_ms, ends_ms)
        return due(self.spec.schedule, self.spec.missed, self.last_ms, upto_ms)

    def is_through(self, ends_ms: int) -> bool:
        return self.last_ms < 0 or self.spec.schedule.after(self.last_ms) > ends_ms

    def next_ms(self, now_ms: int) -> int:
        """Return when to look again."""
        if self.not_before_ms > now_ms:
            return self.not_before_ms
        return self.spec.schedule.after(max(self.last_ms, now_ms))


@dataclass(eq=False)
class Timers:
    """The timers of one partition, for its mode."""

    calls: Sequence[tuple[TimerSpec, Invoker]]
    stored: Mapping[str, bytes]
    commits: Commits
    rng: random.Random
    ends_ms: Callable[[], int | None]
    """Returns up to when the partition has planned times, if it takes nothing more and that is known."""

    def __post_init__(self) -> None:
        self.log, committer, start = self.commits.log, self.commits.committer, self.commits.start
        self.risks = Risks(committer.backend, committer.keys, start.partition, start.owner)
        self.taken_by: Runs | None = None
        """The partition, which asks for a turn for a timer in which a worker has died."""
        self._timers = [_Timer(spec, invoker, self.stored, self.rng) for spec, invoker in self.calls]
        self._round = iter(self._timers)
        self._ahead_ms = 0
        """How far the server's clock is ahead of this machine's monotonic clock."""
        self._changed = Signal()
        self.are_due = False
        """Whether a timer is to be called."""

    async def watch(self) -> None:
        """Set ``are_due``, and wake the mode, when a timer is due; runs as long as the partition."""
        pauses = Pauses(self.rng.random)
        while self._timers:
            try:
                # No call counts in a sealed partition until the time is known up to which they do.
                if await self._look() and self.ends_ms() is None:
                    await anyio.sleep(pauses.next_ms() / 1000)
                    continue
                await self._hold()
            except BackendError as error:
                warn(self.log, "timers_wait", error)
                await anyio.sleep(pauses.next_ms() / 1000)
                continue
            if pauses.failures:
                pauses.reset()
            now_ms = self._now_ms()
            ends_ms = self.ends_ms()
            if any(timer.due(now_ms, ends_ms, self._committed) for timer in self._timers):
                self.are_due = True
                self.commits.buffer.wake()
                await self._changed.wait()
                continue
            next_ms = min(timer.next_ms(now_ms) for timer in self._timers)
            wait_s = min(next_ms - now_ms, LOOK_AGAIN_MS) / 1000
            if not (held := [timer.held[1] for timer in self._timers if timer.held]):
                await self._changed.wait(wait_s)
                continue
            with anyio.move_on_after(wait_s):
                while self._committed < min(held):
                    await self.commits.landed.wait()

    async def _hold(self) -> None:
        """Note what the partition holds for timers that are due and wait for it.

        A look that finds an older end lowers it: another program has deleted the newest entries.
        """
        for timer in self._timers:
            before, end = timer.held or (timer.planned(self._now_ms(), self.ends_ms()), None)
            if timer.spec.when and before and before.runs:
                committer, partition = self.commits.committer, self.commits.start.partition
                newest = await newest_id(committer.backend, committer.keys.events(partition))
                if self.commits.spec.stream.archive is not None:  # It may hold what is trimmed.
                    its = await read_archived(committer.backend, committer.keys, [partition])
                    newest = max(newest, its[partition])
                timer.held = before, newest if end is None else min(end, newest)

    @property
    def _committed(self) -> EntryId:
        return self.commits.committed.checkpoint

    async def _look(self) -> bool:
        """Read the server's time, and return whether the partition takes nothing more."""
        committer, partition = self.commits.committer, self.commits.start.partition
        asked = [("HMGET", committer.keys.counts(partition), "sealed"), ("TIME",)]
        (sealed,), time = all_answered(await committer.backend.pipeline(asked))
        self._ahead_ms = ms_of(time) - monotonic_ms()
        return sealed is not None

    @property
    def are_through(self) -> bool:
        """Whether all planned times are done that a partition has that takes nothing more."""
        ends_ms = self.ends_ms()
        return not self._timers or (
            ends_ms is not None and all(timer.is_through(ends_ms) for timer in self._timers)
        )

    def _show(self, trouble: str) -> None:
        self.commits.activity.hinder("timer", trouble)

    def _now_ms(self) -> int:
        return monotonic_ms() + self._ahead_ms

    async def next(self) -> Tick | None:
        """Make the calls that are due, until one has something to commit; None at the end of a round.

        In a round each timer has one turn, and records have theirs between two rounds: a timer that is always
        late holds up nobody else.
        """
        for timer in self._round:
            now_ms = self._now_ms()
            found = timer.due(now_ms, self.ends_ms(), self._committed)
            if found is not None and (tick := await self._tick(timer, found, now_ms)) is not None:
                return tick
        self._round = iter(self._timers)
        self.are_due = False
        self._changed.fire()
        return None

    async def _tick(self, timer: _Timer, found: Due, now_ms: int) -> Tick | None:
        name, schedule, timer.held = timer.spec.name, timer.spec.schedule, None
        done = b"%d" % found.at_ms
        fields: Changes = {TICK + name: done}
        at_ms = found.at_ms
        if timer.asked and found.runs:
            at_ms = max(timer.asked.values())
            # A call that was asked for moves no planned time, and must differ from the one before.
            done += b"/%d" % max(now_ms, int(timer.done.partition(b"/")[2] or 0) + 1)
            fields = {TICK + name: done, **dict.fromkeys(timer.asked)}
        changes: Changes = {}
        sends: Routed = {}
        observer = self.commits.observer
        if found.runs:
            at = schedule.moment(at_ms)
            timer.attempts += 1
            if observer is not None and timer.attempts > 1:
                observer.retried(self.commits.spec)
            try:
                async with self.risks.taken("timer", name, self.taken_by):
                    try:
                        with Left(timer.invoker.spec.function):
                            effects = await timer.invoker.call_timer(at, timer.attempts)
                        changes, (_, sends) = effects.changes or {}, timer.invoker.convert(effects.outputs)
                    except BaseException as raised:  # noqa: BLE001 - whatever a user function raises
                        if not isinstance(error := failure(raised), Skip):
                            self._failed(timer, error)
                            return None
                        self.log.info("timer_skipped", timer=name, at=str(at), reason=str(error))
            except (BackendError, HeldBack) as refused:  # It was not called.
                self._held_back(timer, refused)
                return None
            if observer is not None:
                observer.timer_ran(self.commits.spec, name, now_ms - at_ms)
            ran = Ran(at_ms, now_ms, self._now_ms() - now_ms, self.commits.start.owner)
            fields[RAN + name] = msgspec.json.encode(ran)
        elif timer.last_ms >= 0:
            self.log.warning("timer_missed", timer=name, at=str(schedule.moment(found.at_ms)))
        if timer.attempts > 1 or timer.is_held_back:
            self._show("")
        timer.last_ms, timer.attempts, timer.not_before_ms = found.at_ms, 0, 0
        timer.is_held_back = False
        timer.asked = {} if found.runs else timer.asked
        if timer.pauses.failures:
            timer.pauses.reset()
        before, timer.done = timer.done, done
        return Tick(TICK + name, before, self.ends_ms() is not None, fields, changes, sends)

    def _held_back(self, timer: _Timer, error: BackendError | HeldBack) -> None:
        """Note that a timer was not called: too many workers died in it, or it could not be named."""
        timer.attempts -= 1
        timer.not_before_ms = self._now_ms() + (
            RETRY_FIRST_MS if isinstance(error, BackendError) else RETRY_MAX_MS
        )
        if isinstance(error, BackendError):
            warn(self.log, "timers_wait", error)
        elif not timer.is_held_back:
            timer.is_held_back = True
            self.log.error(
                "timer_held_back", timer=timer.spec.name, reason=error.message, remedy=error.remedy
            )
            self._show(str(error))

    def _failed(self, timer: _Timer, error: Exception) -> None:
        pause_ms = timer.pauses.next_ms()
        timer.not_before_ms = self._now_ms() + pause_ms
        if (observer := self.commits.observer) is not None:
            observer.failed(self.commits.spec, error)
        name, attempt, said = timer.spec.name, timer.attempts, describe_error(error)
        more: dict[str, Any] = {"exception": traceback_of(error)} if attempt == 1 else {}
        self.log.warning(
            "timer_failed", timer=name, attempt=attempt, retry_in_ms=pause_ms, error=said, **more
        )
        self._show(f"timer {name} fails, attempt {attempt}: {said}")
