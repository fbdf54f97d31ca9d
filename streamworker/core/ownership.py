"""From what is assigned to what is owned: the partitions of one member.

Composes the lifecycle table of every partition with the calls and timers around it. The
assignment comes in by ``assign``; locks are asked for and given back by effects; answers
come in by the other methods. One instance serves one membership: a member that was removed
starts again with a new name and a new instance.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streamworker.core.control import PartitionsAcquired, PartitionsReleased
from streamworker.core.events import (
    AcquireLocks,
    CancelRunner,
    DrainRunner,
    DropRunner,
    Effect,
    Event,
    LocksAnswered,
    LocksReleased,
    MarkLock,
    Note,
    PostControl,
    ReleaseLocks,
    RunnerFenced,
    RunnerHalted,
    RunnerStopped,
    StartRunner,
)
from streamworker.core.lifecycle import HANDLING, State, Trigger, step
from streamworker.core.locks import Acquired, Held, Stale


@dataclass(slots=True)
class _Partition:
    state: State = State.IDLE
    epoch: int = 0
    asked_in: int = 0
    """The generation in which it was assigned to us when its lock was asked for last."""
    calling: bool = False
    """A call about its lock is under way. Invariant: at most one a partition."""
    retry_at_ms: int | None = None
    """When its lock is asked for, or given back, again."""
    cancel_at_ms: int | None = None
    """DRAINING: when its grace period ends."""
    told: bool = False
    """Its lock was released by somebody while our question was under way."""


class Ownership:
    """The partitions of one member.

    Parameters
    ----------
    owner
        The member's id, which stands in the locks.
    grace_period_ms
        How long a revoked partition may drain before its runner is cancelled.
    retry_ms
        Pause before a lock is asked for again.
    jitter
        Returns a number from 0 up to its argument.
    """

    def __init__(
        self, owner: str, *, grace_period_ms: int, retry_ms: int, jitter: Callable[[int], int]
    ) -> None:
        self.owner = owner
        self._is_view_stale = False
        self.newest = 0
        """The latest generation that a lock knew when it refused us for ours."""
        self._grace_period_ms = grace_period_ms
        self._retry_ms = retry_ms
        self._jitter = jitter
        self._partitions: dict[int, _Partition] = {}
        self._desired: frozenset[int] = frozenset()
        self._generation = 0
        self._live: tuple[str, ...] = ()
        self._next_ms: int | None = None
        """What ``next_deadline_ms`` returns, unless something has been touched since."""
        self._is_touched = False

    @property
    def is_idle(self) -> bool:
        """Whether no partition is owned and nothing is under way."""
        return not self._partitions

    def state(self, partition: int) -> State:
        """Return where a partition is in its life."""
        entry = self._partitions.get(partition)
        return State.IDLE if entry is None else entry.state

    def looks_stale(self) -> bool:
        """Whether a lock has known a later generation than we since this was last asked."""
        is_stale, self._is_view_stale = self._is_view_stale, False
        return is_stale

    # -- what should be ------------------------------------------------------------------------

    def assign(
        self, desired: frozenset[int], generation: int, live: tuple[str, ...], now_ms: int
    ) -> list[Effect]:
        """Take over a new assignment; partitions that stay are not touched."""
        self._desired, self._generation, self._live = desired, generation, live
        self._is_touched = True
        effects: list[Effect] = []
        for partition in sorted(set(self._partitions) - desired):
            effects += self._revoke(partition, now_ms)
        for partition in sorted(desired):
            self._want(partition, now_ms)
        return effects

    def _want(self, partition: int, now_ms: int) -> None:
        entry = self._partitions.setdefault(partition, _Partition())
        if entry.state in (State.IDLE, State.WITHDRAWING):
            entry.state = step(entry.state, Trigger.ASSIGNED)
            if not entry.calling:
                entry.retry_at_ms = now_ms

    def _revoke(self, partition: int, now_ms: int) -> list[Effect]:
        entry = self._partitions[partition]
        if entry.state in (State.WITHDRAWING, State.DRAINING, State.RELEASING):
            return []
        entry.state = step(entry.state, Trigger.REVOKED)
        if entry.state is State.DRAINING:
            entry.cancel_at_ms = now_ms + self._grace_period_ms
            return [
                DrainRunner(partition, entry.epoch),
                MarkLock(partition, self.owner, entry.epoch, "draining", ""),
            ]
        if entry.state is State.IDLE:
            del self._partitions[partition]
        return []

    # -- what is -------------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take what happened to locks and runners; other events are passed over."""
        match event:
            case LocksAnswered():
                return self._answered(event, now_ms)
            case LocksReleased():
                return self._released(event, now_ms)
            case RunnerStopped(partition, epoch):
                self._stopped(partition, epoch, now_ms)
            case RunnerFenced(partition, epoch):
                return self._fenced(partition, epoch, now_ms)
            case RunnerHalted(partition, epoch, reason):
                return self._halted(partition, epoch, reason)
        return []

    def _answered(self, event: LocksAnswered, now_ms: int) -> list[Effect]:
        """Take the answers about locks that were asked for.

        An answer to a former self is passed over: its locks are free, since it is no member.
        """
        effects: list[Effect] = []
        granted: list[int] = []
        if event.owner != self.owner:
            return []
        self._is_touched = True
        for partition in event.asked:
            entry = self._partitions[partition]
            entry.calling = False
            reply = event.replies.get(partition)
            match reply:
                case Acquired():
                    entry.state = step(entry.state, Trigger.GRANTED)
                    entry.epoch = reply.epoch
                    if entry.state is State.RUNNING:
                        granted.append(partition)
                        effects.append(StartRunner(partition, self.owner, reply))
                    else:
                        entry.retry_at_ms = now_ms
                case Held() | Stale():
                    entry.state = step(entry.state, Trigger.REFUSED)
                    self._retry_later(entry, now_ms)
                    if entry.told:
                        entry.retry_at_ms = now_ms
                    if isinstance(reply, Stale):
                        self._is_view_stale = True
                        self.newest = max(self.newest, reply.generation)
                case None:
                    entry.state = step(entry.state, Trigger.FAILED)
                    self._retry_later(entry, now_ms)
            entry.told = False
            self._settle(partition, now_ms)
        if granted:
            effects.append(PostControl(PartitionsAcquired(tuple(granted), self.owner, self._generation)))
        return effects

    def _released(self, event: LocksReleased, now_ms: int) -> list[Effect]:
        """Take the answers about locks that were given back, and tell who may wait for them."""
        done: list[int] = []
        if event.owner != self.owner:
            return []
        self._is_touched = True
        for partition in event.asked:
            entry = self._partitions[partition]
            entry.calling = False
            if partition in event.released:
                entry.state = step(entry.state, Trigger.RELEASED)
                done.append(partition)
            else:
                entry.state = step(entry.state, Trigger.FAILED)
                self._retry_later(entry, now_ms)
            self._settle(partition, now_ms)
        if not done:
            return []
        return [PostControl(PartitionsReleased(tuple(done), self.owner, self._generation))]

    def told(self, partitions: Iterable[int], now_ms: int) -> None:
        """Ask at once for locks that somebody just released."""
        for partition in partitions:
            entry = self._partitions.get(partition)
            if entry is None:
                continue
            self._is_touched = True
            if entry.state in (State.WAITING, State.ACQUIRING) and not entry.calling:
                entry.retry_at_ms = now_ms
            entry.told = entry.calling

    def _stopped(self, partition: int, epoch: int, now_ms: int) -> None:
        """A runner drained or was cancelled."""
        entry = self._current(partition, epoch)
        if entry is not None:
            entry.state = step(entry.state, Trigger.STOPPED)
            entry.cancel_at_ms = None
            entry.retry_at_ms = now_ms

    def _fenced(self, partition: int, epoch: int, now_ms: int) -> list[Effect]:
        """A runner's commit was refused: somebody else has the lock."""
        entry = self._current(partition, epoch)
        if entry is None:
            return []
        entry.state = step(entry.state, Trigger.FENCED)
        entry.cancel_at_ms = None
        self._is_view_stale = True
        self._retry_later(entry, now_ms)
        self._settle(partition, now_ms)
        return [Note("partition_fenced", {"partition": partition, "epoch": epoch})]

    def _halted(self, partition: int, epoch: int, reason: str) -> list[Effect]:
        """A runner gave up on a record; the partition stays ours and stands still."""
        entry = self._current(partition, epoch)
        if entry is None:
            return []
        entry.state = step(entry.state, Trigger.HALTED)
        return [MarkLock(partition, self.owner, epoch, "halted", reason)]

    def drop(self) -> list[Effect]:
        """Give everything up without a word: this membership is lost."""
        effects: list[Effect] = [
            DropRunner(partition, entry.epoch)
            for partition, entry in sorted(self._partitions.items())
            if entry.state in HANDLING
        ]
        self._partitions.clear()
        self._is_touched = True
        return effects

    # -- time ----------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> list[Effect]:
        """Do what is due by now."""
        due_ms = self.next_deadline_ms()
        if due_ms is None or due_ms > now_ms:
            return []
        self._is_touched = True
        effects: list[Effect] = []
        ask: dict[int, list[int]] = {}
        give_back: dict[int, int] = {}
        for partition, entry in sorted(self._partitions.items()):
            if entry.cancel_at_ms is not None and entry.cancel_at_ms <= now_ms:
                entry.cancel_at_ms = None
                effects.append(CancelRunner(partition, entry.epoch))
            if entry.calling or entry.retry_at_ms is None or entry.retry_at_ms > now_ms:
                continue
            entry.calling, entry.retry_at_ms = True, None
            if entry.state is State.RELEASING:
                give_back[partition] = entry.epoch
            else:
                if entry.state is State.WAITING:
                    entry.state = step(entry.state, Trigger.ASKED)
                # Where it is withdrawn, only the answer that was lost is asked for. In a generation
                # that gives it to somebody else we have no wish, which would make that one wait anew.
                if entry.state is State.ACQUIRING:
                    entry.asked_in = self._generation
                ask.setdefault(entry.asked_in, []).append(partition)
        if give_back:
            effects.append(ReleaseLocks(self.owner, give_back))
        for generation, partitions in sorted(ask.items()):
            effects.append(AcquireLocks(tuple(partitions), self.owner, generation, self._live))
        return effects

    def next_deadline_ms(self) -> int | None:
        """Return when ``advance`` has something to do next."""
        if self._is_touched:
            self._is_touched = False
            times = [
                at
                for entry in self._partitions.values()
                for at in (entry.retry_at_ms, entry.cancel_at_ms)
                if at is not None
            ]
            self._next_ms = min(times, default=None)
        return self._next_ms

    def _retry_later(self, entry: _Partition, now_ms: int) -> None:
        entry.retry_at_ms = now_ms + self._retry_ms + self._jitter(self._retry_ms // 4)

    def _settle(self, partition: int, now_ms: int) -> None:
        """Forget a partition that came to rest, unless it is assigned to us again."""
        if self._partitions[partition].state is not State.IDLE:
            return
        del self._partitions[partition]
        if partition in self._desired:
            self._want(partition, now_ms)

    def _current(self, partition: int, epoch: int) -> _Partition | None:
        """Return the partition if the event is about the acquisition that we hold."""
        entry = self._partitions.get(partition)
        self._is_touched = True
        return entry if entry is not None and entry.epoch == epoch and entry.state in HANDLING else None
