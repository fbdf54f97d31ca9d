"""The timers of one partition: when each is due, and its calls between two batches.

A call's results are committed under the owner's epoch, as those of a batch are, and the checkpoint stays. The
planned time up to which a timer is done stands in the partition's state, in the same commit. So a time is
never done twice, and a worker that dies leaves the next time to the next owner.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import anyio
import msgspec

from streamworker.core.data.entries import EntryId
from streamworker.core.ownership.risks import Runs
from streamworker.core.pauses import Pauses
from streamworker.core.policies import Skip
from streamworker.core.time.lifetimes import end_ms
from streamworker.core.time.schedules import Due, due
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
"""Bounds of the pause before a call that failed is made again."""
LOOK_AGAIN_MS = 60_000
"""A timer's task asks the server's time at least this often: the two clocks may drift apart."""
HELD_LOOK_MS = 1_000
"""While a call waits for entries its task looks this often whether another program has deleted them."""


class Tick(NamedTuple):
    """A call that is done, and its results."""

    timer: str
    """The field that says so; its value begins with the time that the call was made for."""
    before: bytes
    """What it held before."""
    knows_end: bool
    """Whether it is known up to when the partition, which takes nothing more, has planned times."""
    fields: Changes
    """What it holds now, and what other fields tell of the call."""
    changes: Changes
    sends: Routed


class Made(NamedTuple):
    """What a call has done."""

    changes: Changes
    sends: Routed


NOTHING = Made({}, {})


class TimedCall(ABC):
    """One function that is called by time in a partition."""

    waits: bool
    """Whether a call waits until what the partition held when its time had come is committed."""
    kind = "timer"
    """What it is called where it fails, or kills its process."""
    is_over = False
    """Whether records have closed windows that are not removed yet."""
    table = ""
    """The table at the ends of whose values it is called; empty for a timer."""

    def __init__(self, name: str, invoker: Invoker, stored: Mapping[str, bytes], rng: random.Random) -> None:
        self.name = name
        self.invoker = invoker
        self.done = stored.get(TICK + name, b"")
        self.attempts = 0
        self.pauses = Pauses(rng.random, first_ms=RETRY_FIRST_MS, max_ms=RETRY_MAX_MS)
        self.not_before_ms = 0
        self.is_held_back = False
        """Whether it is not called, since several workers in a row have died in it."""
        self.held: tuple[Due, EntryId] | None = None
        """What waits, and the entry that has to be committed first; it keeps its time meanwhile."""

    def due(self, now_ms: int, ends_ms: int | None, committed: EntryId) -> Due | None:
        """Return what is to be called now; ``ends_ms`` is as for :meth:`planned`."""
        if self.held is not None:
            return self.held[0] if self.held[1] <= committed else None
        found = self.planned(now_ms, ends_ms)
        return None if self.waits and found and found.runs else found

    @abstractmethod
    def planned(self, now_ms: int, ends_ms: int | None) -> Due | None:
        """Return whose time has come.

        ``ends_ms`` is up to when a partition that takes nothing more has planned times; None for others.
        """

    @abstractmethod
    def is_through(self, ends_ms: int) -> bool:
        """Return whether nothing is left to call in a partition that takes nothing more."""

    @abstractmethod
    def next_ms(self, now_ms: int) -> int:
        """Return when to look again."""

    @abstractmethod
    def at_text(self, found: Due) -> str:
        """Return for the log what a call is made for."""

    def looks(self, again: Callable[[], None]) -> None:  # noqa: B027 - a timer has no ends
        """A look at the first end begins; ``again`` looks once more, when an earlier one is committed."""

    def looked(self, at_ms: int, first_ms: int | None) -> None:  # noqa: B027
        """A look has found the first end, or none; ``at_ms`` is the server's time of the look."""

    def let_pass(self, at_ms: int) -> None:  # noqa: B027
        """Let event time come to a time, for a test."""

    def at_ms(self, found: Due) -> int:
        """Return the time that a call is made for."""
        return found.at_ms

    async def is_ready(self, found: Due) -> bool:  # noqa: ARG002
        """Read what a call needs; return False if there is nothing to call for. It may raise BackendError."""
        return True

    @abstractmethod
    async def make(self, found: Due) -> Made:
        """Call the function; it raises what that raises."""

    @abstractmethod
    def tick(self, found: Due, made: Made, now_ms: int, ran: Ran | None) -> tuple[bytes, Changes]:
        """Note a call as done; return what its field holds now, and what other fields hold."""


class PlannedCall(TimedCall):
    """A timer: a function with planned times."""

    def __init__(
        self, spec: TimerSpec, invoker: Invoker, stored: Mapping[str, bytes], rng: random.Random
    ) -> None:
        super().__init__(spec.name, invoker, stored, rng)
        self.spec = spec
        self.waits = spec.when is not None
        self.last_ms = int(self.done.partition(b"/")[0] or -1)
        """The planned time up to which it is done; -1 before its first deploy."""
        self.asked = {
            field: int(stored[field]) for field in stored if field.partition("/")[0] == RUN + spec.name
        }
        """The fields by which somebody asked for a call now, and the times to call it for."""

    def planned(self, now_ms: int, ends_ms: int | None) -> Due | None:
        """Return the planned time that has come, or was missed."""
        if self.last_ms < 0:  # Nothing was missed before it was first deployed.
            return Due(now_ms, False) if ends_ms is None else None
        if now_ms < self.not_before_ms:
            return None
        if self.asked:
            return Due(self.last_ms, True)  # What is planned comes at its own time, besides.
        upto_ms = now_ms if ends_ms is None else min(now_ms, ends_ms)
        return due(self.spec.schedule, self.spec.missed, self.last_ms, upto_ms)

    def is_through(self, ends_ms: int) -> bool:
        """Return whether all its planned times are done."""
        return self.last_ms < 0 or self.spec.schedule.after(self.last_ms) > ends_ms

    def next_ms(self, now_ms: int) -> int:
        """Return its next planned time, or when it may be called again."""
        if self.not_before_ms > now_ms:
            return self.not_before_ms
        return self.spec.schedule.after(max(self.last_ms, now_ms))

    def at_ms(self, found: Due) -> int:
        """Return the planned time, or the one that somebody asked to call it for."""
        return max(self.asked.values()) if self.asked and found.runs else found.at_ms

    def at_text(self, found: Due) -> str:
        """Return the time in the timer's zone."""
        return str(self.spec.schedule.moment(self.at_ms(found)))

    async def make(self, found: Due) -> Made:
        """Call the function with the time."""
        effects = await self.invoker.call_timed(self.spec.schedule.moment(self.at_ms(found)), self.attempts)
        return Made(effects.changes or {}, self.invoker.convert(effects.outputs)[1])

    def tick(self, found: Due, made: Made, now_ms: int, ran: Ran | None) -> tuple[bytes, Changes]:  # noqa: ARG002
        """Note that its planned times are done up to this one."""
        done, fields = b"%d" % found.at_ms, Changes()
        if self.asked and found.runs:
            # A call that was asked for moves no planned time, and must differ from the one before.
            done += b"/%d" % max(now_ms, int(self.done.partition(b"/")[2] or 0) + 1)
            fields |= dict.fromkeys(self.asked)
        if ran is not None:
            fields[RAN + self.name] = msgspec.json.encode(ran)
        self.last_ms = found.at_ms
        self.asked = {} if found.runs else self.asked
        return done, fields


@dataclass(eq=False)
class Timers:
    """The timers of one partition, and the functions that are called at the ends of values, for its mode."""

    calls: Sequence[TimedCall]
    commits: Commits
    rng: random.Random
    ends_ms: Callable[[], int | None]
    """Returns up to when the partition has planned times, if it takes nothing more and that is known."""

    def __post_init__(self) -> None:
        self.log, committer, start = self.commits.log, self.commits.committer, self.commits.start
        self.risks = Risks(committer.backend, committer.keys, start.partition, start.owner)
        self.taken_by: Runs | None = None
        """The partition, which asks for a turn for a timer in which a worker has died."""
        self._expiries = [each for each in self.calls if each.table]
        for each in self._expiries:
            each.looks(self.look)
        self._round = iter(self.calls)
        self._is_in_round = False
        self._ahead_ms = 0
        """How far the server's clock is ahead of this machine's monotonic clock."""
        self._changed = Signal()
        self.ticks = 0
        """How many calls are done."""
        self.are_due = False
        """Whether something is to be called."""

    def look(self) -> None:
        """Look now whether something is due."""
        self._changed.fire()

    async def watch(self) -> None:
        """Set ``are_due``, and wake the mode, when something is due; runs as long as the partition."""
        pauses = Pauses(self.rng.random)
        while self.calls:
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
            if any(timer.due(now_ms, ends_ms, self._committed) for timer in self.calls):
                self.are_due = True
                self.commits.buffer.wake()
                await self._changed.wait()
                continue
            wait_s = min(_pause_ms(each, now_ms, ends_ms) for each in self.calls) / 1000
            if not any(timer.held for timer in self.calls):
                await self._changed.wait(wait_s)
                continue
            with anyio.move_on_after(wait_s):
                while not any(timer.due(now_ms, ends_ms, self._committed) for timer in self.calls):
                    await self.commits.landed.wait()

    async def _hold(self) -> None:
        """Note what the partition holds for timers that are due and wait for it.

        A look that finds an older end lowers it: another program has deleted the newest entries.
        """
        for timer in self.calls:
            before, end = timer.held or (timer.planned(self._now_ms(), self.ends_ms()), None)
            if timer.waits and before and before.runs:
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
        """Read the server's time and the first ends; return whether the partition takes nothing more."""
        committer, partition = self.commits.committer, self.commits.start.partition
        counts = committer.keys.counts(partition)
        # The partition is not sealed before the time that is read. On a Cluster the first command leads TIME.
        asked: list[tuple[str | int, ...]] = [("EXISTS", counts), ("TIME",), ("HMGET", counts, "sealed")]
        for expiry in self._expiries:
            expiry.looks(self.look)
            asked.append(("ZRANGE", committer.keys.due(partition, expiry.table), 0, 0, "WITHSCORES"))
        _, time, (sealed,), *found = all_answered(await committer.backend.pipeline(asked))
        at_ms = ms_of(time)
        self._ahead_ms = at_ms - monotonic_ms()
        for expiry, first in zip(self._expiries, found, strict=True):
            expiry.looked(at_ms, end_ms(first[1]) if first else None)
        return sealed is not None

    @property
    def are_through(self) -> bool:
        """Whether nothing is left to call in a partition that takes nothing more."""
        ends_ms = self.ends_ms()
        return not self.calls or (
            ends_ms is not None
            and not self._is_in_round
            and all(timer.is_through(ends_ms) for timer in self.calls)
        )

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do that records have made due."""
        return not self._is_in_round and not any(each.is_over for each in self.calls)

    def _show(self, trouble: str) -> None:
        self.commits.activity.hinder("timer", trouble)

    def _now_ms(self) -> int:
        return monotonic_ms() + self._ahead_ms

    async def next(self) -> Tick | None:
        """Make the calls that are due, until one has something to commit; None at the end of a round.

        In a round each timer has one turn, and records have theirs between two rounds: a timer that is always
        late holds up nobody else.
        """
        self._is_in_round = True
        for timer in self._round:
            now_ms = self._now_ms()
            found = timer.due(now_ms, self.ends_ms(), self._committed)
            if found is not None and (tick := await self._tick(timer, found, now_ms)) is not None:
                return tick
        self._round = iter(self.calls)
        self.are_due = self._is_in_round = False
        self._changed.fire()
        return None

    async def _tick(self, timer: TimedCall, found: Due, now_ms: int) -> Tick | None:
        timer.held = None
        made, ran = NOTHING, None
        if found.runs:
            at_ms, called = timer.at_ms(found), await self._called(timer, found, now_ms)
            if called is None:
                return None
            made = called
            ran = Ran(at_ms, now_ms, self._now_ms() - now_ms, self.commits.start.owner)
        elif isinstance(timer, PlannedCall) and timer.last_ms >= 0:
            self.log.warning("timer_missed", timer=timer.name, at=timer.at_text(found))
        before = timer.done
        timer.done, fields = timer.tick(found, made, now_ms, ran)
        self.ticks += 1
        field = TICK + timer.name
        fields[field] = timer.done
        return Tick(field, before, self.ends_ms() is not None, fields, made.changes, made.sends)

    async def _called(self, timer: TimedCall, found: Due, now_ms: int) -> Made | None:
        """Call a function; return what it has done, or None if that is nothing."""
        observer, made = self.commits.observer, NOTHING
        timer.attempts += 1
        if observer is not None and timer.attempts > 1:
            observer.retried(self.commits.spec)
        at_ms = timer.at_ms(found)
        try:
            if not await timer.is_ready(found):
                timer.attempts -= 1
                return None
            async with self.risks.taken(timer.kind, timer.name, self.taken_by):
                try:
                    with Left(timer.invoker.spec.function):
                        made = await timer.make(found)
                except BaseException as raised:  # noqa: BLE001 - whatever a user function raises
                    if not isinstance(error := failure(raised), Skip):
                        self._failed(timer, error)
                        return None
                    at = timer.at_text(found)
                    self.log.info("timer_skipped", timer=timer.name, at=at, reason=str(error))
        except (BackendError, HeldBack) as refused:  # It was not called.
            self._held_back(timer, refused)
            return None
        if observer is not None:
            observer.timer_ran(self.commits.spec, timer.name, now_ms - at_ms)
        if timer.attempts > 1 or timer.is_held_back:
            self._show("")
        timer.attempts, timer.not_before_ms, timer.is_held_back = 0, 0, False
        if timer.pauses.failures:
            timer.pauses.reset()
        return made

    def _held_back(self, timer: TimedCall, error: BackendError | HeldBack) -> None:
        """Note that a function was not called: too many workers died in it, or it could not be named."""
        timer.attempts -= 1
        timer.not_before_ms = self._now_ms() + (
            RETRY_FIRST_MS if isinstance(error, BackendError) else RETRY_MAX_MS
        )
        if isinstance(error, BackendError):
            warn(self.log, "timers_wait", error)
        elif not timer.is_held_back:
            timer.is_held_back = True
            self.log.error("timer_held_back", timer=timer.name, reason=error.message, remedy=error.remedy)
            self._show(str(error))

    def _failed(self, timer: TimedCall, error: Exception) -> None:
        pause_ms = timer.pauses.next_ms()
        timer.not_before_ms = self._now_ms() + pause_ms
        if (observer := self.commits.observer) is not None:
            observer.failed(self.commits.spec, error)
        name, attempt, said = timer.name, timer.attempts, describe_error(error)
        more: dict[str, Any] = {"exception": traceback_of(error)} if attempt == 1 else {}
        self.log.warning(
            "timer_failed", timer=name, attempt=attempt, retry_in_ms=pause_ms, error=said, **more
        )
        self._show(f"{timer.kind} {name} fails, attempt {attempt}: {said}")


def _pause_ms(timer: TimedCall, now_ms: int, ends_ms: int | None) -> int:
    """Return after how long to look again whether a call that is not due now is."""
    if timer.held is not None:
        return HELD_LOOK_MS
    if ends_ms is not None and timer.is_through(ends_ms):
        return LOOK_AGAIN_MS
    return min(timer.next_ms(now_ms) - now_ms, LOOK_AGAIN_MS)
