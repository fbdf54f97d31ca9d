"""The lease-grab race: workers race for each partition, and who has less to do is faster.

Theory of operation
-------------------
The numbers are those of docs/protocols/lease.md, which follows the text of the algorithm's author.

1. Once a normal lease, each node challenges each partition that it does not own and that nobody
   just won. A win that was not heard of for the maximum lease is cleared away first: its node died
   between winning and starting.
2. Whoever hears of a challenge waits: the longer, the more partitions it has.
3. Then it tries to put itself into the grab hash. An owner that was not first shuts the partition
   down (3a), ends its allocation and says so (3b).
4. A winner waits until the former owner has said so, or for the maximum shutdown time.
5. It starts, and puts itself into the allocation hash.
6. After the minimum grab time it takes its win out of the grab hash.

The algorithm knows no lock and no fencing: two nodes may process one partition for a while. Ours
starts a partition by taking its lock, and the lock's epoch refuses whatever a former owner still
commits. So a race may go wrong in any way, and costs only that a partition moves.
"""

from collections.abc import Callable
from enum import Enum

from streamworker.core.control import LeaseChallenged, LeaseEnded, PartitionsAcquired, PartitionsReleased
from streamworker.core.events import (
    AcquireLocks,
    ControlReceived,
    Effect,
    Event,
    Finished,
    LocksAnswered,
    Note,
    PostControl,
    RunnerFenced,
    Started,
    StopRequested,
)
from streamworker.core.lease_events import (
    Challenge,
    ChallengeLeases,
    LeaseRaced,
    LeasesChallenged,
    LeasesUpdated,
    RaceForLease,
)
from streamworker.core.lease_state import Lease, Outbox
from streamworker.core.lease_timing import LeaseTiming, LoadMeasure, count_of_partitions, race_delay_ms
from streamworker.core.locks import Stale
from streamworker.core.ownership import Ownership


class _Phase(Enum):
    NEW = "new"
    ACTIVE = "active"
    LEAVING = "leaving"
    SIGNALLING = "signalling"
    """All is released; what we had is being challenged, so that nobody waits for a lease to end."""
    GONE = "gone"


class LeaseCore:
    """The lease protocol for one worker in one group.

    Parameters
    ----------
    owner
        The node's name in hashes and locks, with a nonce of its own for each start.
    partitions
        Number of partitions of the stream.
    timing
        The five time spans.
    grace_period_ms, retry_ms
        How long a lost partition may drain; pause before a call is repeated.
    jitter
        Returns a number from 0 up to its argument.
    load
        What is put in place of the number of active partitions.
    """

    def __init__(
        self,
        owner: str,
        *,
        partitions: int,
        timing: LeaseTiming,
        grace_period_ms: int,
        retry_ms: int,
        jitter: Callable[[int], int],
        load: LoadMeasure = count_of_partitions,
    ) -> None:
        self.owner = owner
        self._timing = timing
        self._step_ms = timing.delay_step_ms(partitions)
        self._retry_ms = retry_ms
        self._jitter = jitter
        self._load = load
        self._ownership = Ownership(owner, grace_period_ms=grace_period_ms, retry_ms=retry_ms, jitter=jitter)
        self._leases = {partition: Lease(0, None) for partition in range(partitions)}
        self._mine: frozenset[int] = frozenset()
        self._phase = _Phase.NEW
        self._challenging = False
        self._check_ms: int | None = None
        """No partition is to be looked at before this."""
        self._busy: set[int] = set()
        """Partitions that are raced for, waited for or won: the others need a look only once a lease."""
        self._outbox = Outbox(owner, retry_ms=retry_ms, jitter=jitter)
        self._left: frozenset[int] = frozenset()

    @property
    def owned(self) -> frozenset[int]:
        """Return the partitions that we own by a race, and have or are taking the locks of."""
        return self._mine

    @property
    def active(self) -> frozenset[int]:
        """Return what counts for the wait: what we own, have won, or are just trying to win."""
        return self._mine.union(p for p in self._busy if self._leases[p].wait_for or self._leases[p].racing)

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; return what is to be done, in this order."""
        if self._phase is _Phase.GONE:
            return []
        effects = self._dispatch(event, now_ms)
        if self._phase is _Phase.ACTIVE:
            effects += self._due(now_ms) + self._challenge(now_ms)
        effects = self._translated(effects + self._ownership.advance(now_ms), now_ms)
        effects += self._outbox.advance(now_ms)
        return effects + self._leave()

    def next_deadline_ms(self) -> int | None:
        """Return when to bring ``DeadlinePassed`` if nothing else happens before."""
        if self._phase in (_Phase.NEW, _Phase.GONE):
            return None
        times = [self._ownership.next_deadline_ms(), self._outbox.next_deadline_ms()]
        if self._phase is _Phase.ACTIVE:
            active = self._load(self.active)
            for partition in self._busy:
                lease = self._leases[partition]
                times += [lease.wait_until_ms, lease.clear_ms, self._race_ms(partition, lease, active)]
            if not self._challenging:
                times.append(self._check_ms)
        return min((at for at in times if at is not None), default=None)

    def _dispatch(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Started() if self._phase is _Phase.NEW:
                self._phase = _Phase.ACTIVE
                for lease in self._leases.values():
                    lease.heard_ms = now_ms
                    self._look_at(lease, now_ms)
            case StopRequested():
                return self._stop(now_ms)
            case ControlReceived(messages):
                return self._heard(messages, now_ms)
            case LeasesChallenged(asked, signalled):
                self._challenged(asked, signalled, now_ms)
            case LeaseRaced():
                return self._raced(event, now_ms)
            case LeasesUpdated(done):
                self._outbox.answered(now_ms, done=done)
            case LocksAnswered():
                return self._locks_answered(event, now_ms)
            case RunnerFenced(partition):
                return self._ownership.handle(event, now_ms) + self._give_up(partition, now_ms)
            case _:
                return self._ownership.handle(event, now_ms)
        return []

    # -- 1: challenge --------------------------------------------------------------------------

    def _challenge(self, now_ms: int) -> list[Effect]:
        """Challenge what is due. What we own is only looked at again later."""
        if self._challenging or self._check_ms is None or self._check_ms > now_ms:
            return []
        due: dict[int, Challenge] = {}
        for partition, lease in self._leases.items():
            if lease.check_ms is None or lease.check_ms > now_ms:
                continue
            if partition in self._mine or lease.won or lease.racing or lease.raced_from_ms is not None:
                self._check_later(lease, now_ms)
            else:
                due[partition], lease.check_ms = lease.mode, None
        checks = (lease.check_ms for lease in self._leases.values() if lease.check_ms is not None)
        self._check_ms = min(checks, default=None)
        if not due:
            return []
        self._challenging = True
        return [ChallengeLeases(self.owner, due)]

    def _challenged(self, asked: tuple[int, ...], signalled: frozenset[int] | None, now_ms: int) -> None:
        self._challenging = False
        if self._phase is _Phase.SIGNALLING:
            self._phase = _Phase.GONE
            return
        for partition in asked:
            lease = self._leases[partition]
            if signalled is None:
                self._look_at(lease, now_ms + self._retry_ms + self._jitter(self._retry_ms))
            elif lease.mode is Challenge.FREE:
                # Each partition has a lease of its own: races for different ones should not
                # overlap, since each is decided by what the others led to.
                lease.mode = Challenge.DUE
                self._look_at(lease, now_ms + self._retry_ms + self._jitter(self._timing.normal_lease_ms))
            elif partition not in signalled:
                # Somebody won it, and has not started or has only just. Who finds it so, and still
                # does when the maximum lease is over, calls it overdue; never who finds it so for
                # the first time, and may only have slept and not heard.
                self._check_later(lease, now_ms)
                overdue_ms = max(lease.heard_ms + self._timing.max_lease_ms, now_ms + self._retry_ms)
                if overdue_ms <= (lease.check_ms or 0):
                    lease.mode = Challenge.OVERDUE
                    self._look_at(lease, overdue_ms + self._jitter(self._retry_ms))
            else:
                self._check_later(lease, now_ms)

    def _check_later(self, lease: Lease, now_ms: int) -> None:
        lease.mode = Challenge.DUE
        normal_ms = self._timing.normal_lease_ms
        self._look_at(lease, now_ms + normal_ms + self._jitter(normal_ms // 8))

    def _look_at(self, lease: Lease, at_ms: int) -> None:
        lease.check_ms = at_ms
        self._check_ms = at_ms if self._check_ms is None else min(self._check_ms, at_ms)

    # -- 2 and 3: wait, then race --------------------------------------------------------------

    def _heard(self, messages: tuple[object, ...], now_ms: int) -> list[Effect]:
        for message in messages:
            if isinstance(message, LeaseChallenged):
                for partition in message.partitions:
                    lease = self._leases.get(partition)
                    if lease is not None and self._phase is _Phase.ACTIVE:
                        lease.heard_ms = now_ms
                        self._check_later(lease, now_ms)
                        if lease.raced_from_ms is None:
                            lease.raced_from_ms = lease.retry_ms = now_ms
                            self._busy.add(partition)
            elif isinstance(message, LeaseEnded) and message.owner != self.owner:
                for partition in message.partitions:
                    lease = self._leases.get(partition)
                    if lease is not None:
                        lease.ended_by = message.owner
                        if lease.wait_for == message.owner:
                            lease.wait_until_ms = now_ms
        return []

    def _race_ms(self, partition: int, lease: Lease, load: int) -> int | None:
        """Return when our wait ends. It is by what we have when it ends, not when it began."""
        if lease.raced_from_ms is None or lease.racing:
            return None
        wait_ms = race_delay_ms(load, self._step_ms, is_processing=partition in self._mine)
        return max(lease.raced_from_ms + wait_ms, lease.retry_ms)

    def _due(self, now_ms: int) -> list[Effect]:
        """Do what is due for each partition."""
        effects: list[Effect] = []
        load = self._load(self.active)
        for partition in sorted(self._busy):
            lease = self._leases[partition]
            if lease.clear_ms is not None and lease.clear_ms <= now_ms:
                self._take_out(partition, lease)
            if lease.wait_until_ms is not None and lease.wait_until_ms <= now_ms:
                effects += self._start(partition, lease, now_ms)
            race_ms = self._race_ms(partition, lease, load)
            if race_ms is not None and race_ms <= now_ms:
                lease.racing, lease.ended_by = True, ""
                load = self._load(self.active)
                effects.append(RaceForLease(self.owner, partition))
            if not (lease.won or lease.racing or lease.wait_for) and lease.raced_from_ms is None:
                self._busy.discard(partition)
        return effects

    def _raced(self, event: LeaseRaced, now_ms: int) -> list[Effect]:
        partition, lease = event.partition, self._leases[event.partition]
        lease.racing = False
        if event.winner is None:
            lease.retry_ms = now_ms + self._retry_ms + self._jitter(self._retry_ms // 4)
            return []
        lease.raced_from_ms = None
        if event.winner != self.owner:
            lease.won, lease.clear_ms = 0, None
            return self._give_up(partition, now_ms)
        lease.won = event.generation
        if self._phase is not _Phase.ACTIVE:
            self._take_out(partition, lease)
            return []
        if partition in self._mine:
            lease.generation = event.generation
            self._started(partition, lease, now_ms)
            return self._assign(self._mine, now_ms)
        if event.allocated in ("", self.owner, lease.ended_by):
            return self._start(partition, lease, now_ms)
        lease.wait_for = event.allocated
        lease.wait_until_ms = now_ms + self._timing.max_shutdown_ms
        return []

    def _give_up(self, partition: int, now_ms: int) -> list[Effect]:
        """Somebody else has it: shut it down if we process it (3a)."""
        lease = self._leases[partition]
        lease.wait_for, lease.wait_until_ms = "", None
        lease.heard_ms = now_ms
        if partition not in self._mine:
            return []
        self._outbox.allocate.pop(partition, None)
        note = Note("lease_lost", {"partition": partition})
        return [note, *self._assign(self._mine - {partition}, now_ms)]

    # -- 4, 5 and 6: start, and open it to challenges again --------------------------------------

    def _start(self, partition: int, lease: Lease, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if lease.wait_for not in ("", lease.ended_by):
            effects.append(Note("lease_overtaken", {"partition": partition, "owner": lease.wait_for}))
        lease.wait_for, lease.wait_until_ms = "", None
        lease.generation = lease.won
        return effects + self._assign(self._mine | {partition}, now_ms)

    def _locks_answered(self, event: LocksAnswered, now_ms: int) -> list[Effect]:
        effects = self._ownership.handle(event, now_ms)
        for partition, reply in event.replies.items():
            if isinstance(reply, Stale) and partition in self._mine:
                # A later winner was faster. Our win, if it is still there, must not stand in the way.
                self._take_out(partition, self._leases[partition])
                effects += self._give_up(partition, now_ms)
        return effects

    def _started(self, partition: int, lease: Lease, now_ms: int) -> None:
        self._outbox.allocate[partition] = lease.generation
        self._outbox.end.discard(partition)
        if lease.won:
            lease.clear_ms = now_ms + self._timing.min_grab_ms

    def _take_out(self, partition: int, lease: Lease) -> None:
        if lease.won:
            self._outbox.clear[partition] = lease.won
        lease.won, lease.clear_ms = 0, None

    def _assign(self, mine: frozenset[int], now_ms: int) -> list[Effect]:
        self._mine = mine
        newest = max((self._leases[p].generation for p in mine), default=0)
        return self._ownership.assign(mine, newest, (), now_ms)

    def _translated(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        """Say in terms of leases what the ownership of locks says in terms of a membership."""
        said: list[Effect] = []
        for effect in effects:
            match effect:
                case AcquireLocks(partitions):
                    # Each at the generation of its own win, and of nobody who could still hold it:
                    # whoever did has ended, or had its time.
                    said += [
                        AcquireLocks((p,), self.owner, self._leases[p].generation, ()) for p in partitions
                    ]
                case PostControl(PartitionsReleased(partitions)):
                    self._outbox.end.update(partitions)
                    for partition in partitions:
                        self._outbox.allocate.pop(partition, None)
                case PostControl(PartitionsAcquired(partitions)):
                    for partition in partitions:
                        self._started(partition, self._leases[partition], now_ms)
                    said.append(effect)
                case _:
                    said.append(effect)
        return said

    # -- leaving ----------------------------------------------------------------------------

    def _stop(self, now_ms: int) -> list[Effect]:
        if self._phase is not _Phase.ACTIVE:
            self._phase = _Phase.GONE if self._phase is _Phase.NEW else self._phase
            return []
        self._phase, self._left = _Phase.LEAVING, self._mine
        for partition, lease in self._leases.items():
            lease.raced_from_ms = lease.wait_until_ms = None
            lease.wait_for = ""
            self._take_out(partition, lease)
        return self._assign(frozenset(), now_ms)

    def _leave(self) -> list[Effect]:
        """Go on with leaving, once nothing is under way."""
        if self._phase is _Phase.GONE:
            return [Finished()]
        if self._phase is not _Phase.LEAVING or not self._ownership.is_idle or self._challenging:
            return []
        if not self._outbox.is_empty or any(lease.racing for lease in self._leases.values()):
            return []
        if not self._left:
            self._phase = _Phase.GONE
            return [Finished()]
        self._phase, self._challenging = _Phase.SIGNALLING, True
        return [ChallengeLeases(self.owner, dict.fromkeys(sorted(self._left), Challenge.DUE))]
