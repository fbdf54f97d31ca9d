"""The partitions of one member: acquires what is assigned to it and releases what is revoked.

``Ownership`` combines the lifecycle table of every partition with the calls and timers around it. One
instance serves one membership: a member that was removed starts again with a new name and a new instance.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from streamworker.core import events as ev
from streamworker.core.control import (
    ControlMessage,
    PartitionsAcquired,
    PartitionsReleased,
    RequestMade,
    StreamGrown,
)
from streamworker.core.ownership.lifecycle import HANDLING, State, Trigger, step
from streamworker.core.ownership.locks import Acquired, AcquireReply, Held, Refused, Stale

DOUBLINGS_MAX = 5
"""A question that Redis refuses is asked again after a pause that doubles so often: a right that is missing
is given by a person, and not within a second."""


@dataclass(slots=True)
class _Partition:
    state: State = State.IDLE
    epoch: int = 0
    asked_in: int = 0
    """The generation of its assignment when this member last asked for the lock."""
    calling: bool = False
    """A call about its lock is under way. Invariant: at most one call per partition."""
    retry_at_ms: int | None = None
    """When to ask for the lock, or to release it, again."""
    cancel_at_ms: int | None = None
    """DRAINING: when its grace period ends."""
    told: bool = False
    """Another member released the lock while this member's question was under way."""
    requested: int = 0
    """The version of the operators' requests that this member obeys."""
    refusals: int = 0
    """How often in a row Redis has refused the question for the lock."""
    is_overtaken: bool = False
    """An operator made a request while this member's question was under way."""


class Ownership:
    """The partitions of one member, under the name ``owner`` that is written into the locks.

    A revoked partition may drain for ``grace_period_ms`` before its runner is cancelled. ``retry_ms`` returns
    the pause before the member asks for a lock again.
    """

    def __init__(self, owner: str, grace_period_ms: int, retry_ms: Callable[[], int]) -> None:
        self.owner = owner
        self._is_view_stale = False
        self.newest = 0
        """The latest generation that a lock reported when it refused this member's older one."""
        self._grace_period_ms = grace_period_ms
        self._retry_ms = retry_ms
        self._partitions: dict[int, _Partition] = {}
        self._desired: Mapping[int, int] = {}
        self._generation = 0
        self._next_ms: int | None = None
        """The cached result of ``next_deadline_ms``, valid until a partition changes."""
        self._is_touched = False

    @property
    def is_idle(self) -> bool:
        """Whether this member owns no partition and no call is under way."""
        return not self._partitions

    def state(self, partition: int) -> State:
        """Return the state of a partition."""
        entry = self._partitions.get(partition)
        return State.IDLE if entry is None else entry.state

    def looks_stale(self) -> bool:
        """Whether a lock reported a later generation than this member's since the last call."""
        is_stale, self._is_view_stale = self._is_view_stale, False
        return is_stale

    # -- the assignment ------------------------------------------------------------------------

    def assign(self, desired: Mapping[int, int], generation: int, now_ms: int) -> list[ev.Effect]:
        """Take a new assignment; partitions that stay assigned are not touched.

        Each lock is asked for with the generation that ``desired`` has for its partition. ``generation`` is
        the newest, for messages to the group.
        """
        self._desired, self._generation = desired, generation
        self._is_touched = True
        effects: list[ev.Effect] = []
        for partition in sorted(self._partitions.keys() - desired.keys()):
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

    def _revoke(self, partition: int, now_ms: int) -> list[ev.Effect]:
        entry = self._partitions[partition]
        if entry.state in (State.WITHDRAWING, State.DRAINING, State.RELEASING):
            return []
        entry.state = step(entry.state, Trigger.REVOKED)
        if entry.state is State.DRAINING:
            entry.cancel_at_ms = now_ms + self._grace_period_ms
            return [
                ev.DrainRunner(partition, entry.epoch),
                ev.MarkLock(partition, self.owner, entry.epoch, "draining", ""),
            ]
        if entry.state is State.RELEASING:
            entry.retry_at_ms = now_ms
        if entry.state is State.IDLE:
            del self._partitions[partition]
        return []

    # -- locks and runners ---------------------------------------------------------------------

    def handle(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        """Handle an event about locks, requests or runners; ignore other events."""
        match event:
            case ev.LocksAnswered(owner, asked, replies):
                return self._answered(owner, asked, replies, now_ms)
            case ev.Unanswered(ev.AcquireLocks(asked, owner)):
                return self._answered(owner, asked, {}, now_ms)
            case ev.LocksReleased(owner, asked, released):
                return self._released(owner, asked, released, now_ms)
            case ev.Unanswered(ev.ReleaseLocks(owner, epochs)):
                return self._released(owner, epochs, (), now_ms)
            case ev.RunnerStopped() | ev.RunnerFenced() | ev.RunnerHalted():
                return self._runner_told(event, now_ms)
            case ev.ControlReceived(messages):
                for message in messages:
                    if isinstance(message, PartitionsReleased):
                        self._told(message.partitions, now_ms)
                looks = [ev.LookAtPartitions() for each in messages if isinstance(each, StreamGrown)]
                return [*looks[:1], *self._requested(_news(messages, self._partitions), now_ms)]
            case ev.RequestsSeen(versions):
                # After a failover that lost a request, the version in the lock is lower.
                known = self._partitions
                others = [
                    p for p, version in versions.items() if p in known and version != known[p].requested
                ]
                return self._requested(others, now_ms)
        return []

    def _answered(
        self, owner: str, asked: Iterable[int], replies: Mapping[int, AcquireReply], now_ms: int
    ) -> list[ev.Effect]:
        if owner != self.owner:
            return []  # It asked for a former membership, whose locks are free: it is no longer a member.
        effects: list[ev.Effect] = []
        granted: list[int] = []
        self._is_touched = True
        for partition in asked:
            entry = self._partitions[partition]
            entry.calling = False
            reply = replies.get(partition)
            entry.refusals = entry.refusals + 1 if isinstance(reply, Refused) else 0
            match reply:
                case Acquired():
                    entry.state = step(entry.state, Trigger.PAUSED if reply.is_paused else Trigger.GRANTED)
                    entry.epoch, entry.requested = reply.epoch, reply.requested
                    if entry.state is State.RELEASING:
                        entry.retry_at_ms = now_ms
                    else:
                        granted.append(partition)
                    if entry.state is State.RUNNING:
                        effects.append(ev.StartRunner(partition, self.owner, reply))
                    if entry.is_overtaken:
                        effects += self._requested([partition], now_ms)
                case Held() | Stale() | Refused():
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
            effects.append(ev.PostControl(PartitionsAcquired(tuple(granted), self.owner, self._generation)))
        return effects

    def _released(
        self, owner: str, asked: Iterable[int], released: Collection[int], now_ms: int
    ) -> list[ev.Effect]:
        """Handle the answers to ``ReleaseLocks``, and tell the members that may wait for the locks."""
        if owner != self.owner:
            return []
        done: list[int] = []
        self._is_touched = True
        for partition in asked:
            entry = self._partitions[partition]
            entry.calling = False
            if partition in released:
                entry.state = step(entry.state, Trigger.RELEASED)
                done.append(partition)
            else:
                entry.state = step(entry.state, Trigger.FAILED)
                self._retry_later(entry, now_ms)
            self._settle(partition, now_ms)
        if not done:
            return []
        return [ev.PostControl(PartitionsReleased(tuple(done), self.owner, self._generation))]

    def _told(self, partitions: Iterable[int], now_ms: int) -> None:
        """Ask at once for locks that another member just released."""
        for partition in partitions:
            entry = self._partitions.get(partition)
            if entry is None:
                continue
            self._is_touched = True
            if entry.state in (State.WAITING, State.ACQUIRING) and not entry.calling:
                entry.retry_at_ms = now_ms
            entry.told = entry.calling

    # -- operators' requests -----------------------------------------------------------------------

    def _requested(self, partitions: Iterable[int], now_ms: int) -> list[ev.Effect]:
        """Finish what is in hand and ask for the locks again: each answer says what the operator wants."""
        effects: list[ev.Effect] = []
        self._is_touched = True
        for partition in partitions:
            entry = self._partitions[partition]
            entry.is_overtaken = entry.calling
            if entry.calling or entry.state not in (State.RUNNING, State.HALTED, State.PAUSED):
                continue
            entry.state = step(entry.state, Trigger.REQUESTED)
            if entry.state is State.STOPPING:
                effects.append(ev.DrainRunner(partition, entry.epoch))
            else:
                entry.retry_at_ms = now_ms
        return effects

    @property
    def held(self) -> list[int]:
        """The partitions whose lock this member holds and does not give back."""
        held = (State.RUNNING, State.HALTED, State.PAUSED)
        return [partition for partition, entry in self._partitions.items() if entry.state in held]

    def _runner_told(
        self, event: ev.RunnerStopped | ev.RunnerFenced | ev.RunnerHalted, now_ms: int
    ) -> list[ev.Effect]:
        """Handle what a runner tells, unless it is about an acquisition that this member no longer holds."""
        partition, epoch = event.partition, event.epoch
        entry = self._partitions.get(partition)
        if entry is None or entry.epoch != epoch or entry.state not in HANDLING:
            return []
        self._is_touched = True
        if isinstance(event, ev.RunnerHalted):
            entry.state = step(entry.state, Trigger.HALTED)
            if entry.state is State.STOPPING:
                return []
            return [ev.MarkLock(partition, self.owner, epoch, "halted", event.reason)]
        entry.cancel_at_ms = None
        if isinstance(event, ev.RunnerStopped):
            entry.state = step(entry.state, Trigger.STOPPED)
            entry.retry_at_ms = now_ms
            return []
        entry.state = step(entry.state, Trigger.FENCED)
        self._is_view_stale = True
        self._retry_later(entry, now_ms)
        self._settle(partition, now_ms)
        return [ev.Note("partition_fenced", {"partition": partition, "epoch": epoch})]

    def drop(self) -> list[ev.Effect]:
        """Drop all runners without releasing any lock: this membership is lost."""
        effects: list[ev.Effect] = [
            ev.DropRunner(partition, entry.epoch)
            for partition, entry in sorted(self._partitions.items())
            if entry.state in HANDLING
        ]
        self._partitions.clear()
        self._is_touched = True
        return effects

    # -- time ----------------------------------------------------------------------------------

    def advance(self, now_ms: int, live: Sequence[str]) -> list[ev.Effect]:
        """Return the calls and cancellations that are due; locks of owners who are not ``live`` are free."""
        due_ms = self.next_deadline_ms()
        if due_ms is None or due_ms > now_ms:
            return []
        self._is_touched = True
        effects: list[ev.Effect] = []
        ask: dict[int, list[int]] = {}
        give_back: dict[int, int] = {}
        for partition, entry in sorted(self._partitions.items()):
            if entry.cancel_at_ms is not None and entry.cancel_at_ms <= now_ms:
                entry.cancel_at_ms = None
                effects.append(ev.CancelRunner(partition, entry.epoch))
            if entry.calling or entry.retry_at_ms is None or entry.retry_at_ms > now_ms:
                continue
            entry.calling, entry.retry_at_ms, entry.is_overtaken = True, None, False
            if entry.state is State.RELEASING:
                give_back[partition] = entry.epoch
            else:
                if entry.state is State.WAITING:
                    entry.state = step(entry.state, Trigger.ASKED)
                # A withdrawing partition asks only to learn the answer that was lost, in the generation
                # of that question. A question in a generation that assigns the partition to another
                # member would renew the lock, and the other member would wait anew.
                if entry.state is State.ACQUIRING:
                    entry.asked_in = self._desired[partition]
                ask.setdefault(entry.asked_in, []).append(partition)
        if give_back:
            effects.append(ev.ReleaseLocks(self.owner, give_back))
        for generation, partitions in sorted(ask.items()):
            effects.append(ev.AcquireLocks(tuple(partitions), self.owner, generation, tuple(live)))
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
        entry.retry_at_ms = now_ms + self._retry_ms() * 2 ** min(entry.refusals, DOUBLINGS_MAX)

    def _settle(self, partition: int, now_ms: int) -> None:
        """Forget a partition that became idle, unless it is assigned to this member again."""
        if self._partitions[partition].state is not State.IDLE:
            return
        del self._partitions[partition]
        if partition in self._desired:
            self._want(partition, now_ms)


def _news(messages: Iterable[ControlMessage], known: Mapping[int, _Partition]) -> list[int]:
    """Return the partitions that have a request which the last answer about the lock did not contain."""
    requests = [message for message in messages if isinstance(message, RequestMade)]
    said = [pair for each in requests for pair in zip(each.partitions, each.versions, strict=False)]
    return [p for p, version in said if p in known and version > known[p].requested]
