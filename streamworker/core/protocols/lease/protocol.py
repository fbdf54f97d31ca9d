"""The lease-grab race: workers race for each partition, and a worker with less to do is faster.

Theory of operation
-------------------
The numbers are those of docs/protocols/lease.md, which follows the text of the algorithm's author.

1. Once per normal lease, each node challenges each partition that it does not own and that no node just won.
   If nothing was heard of a winner for the maximum lease, its win is cleared first: the node died between
   winning and starting.
2. A node that hears of a challenge waits: the more partitions it has, the longer.
3. Then it tries to enter itself into the grab hash. An owner that was not first shuts the partition down
   (3a), ends its allocation and signals this (3b).
4. A winner waits until the former owner has signalled this, or for the maximum shutdown time.
5. It starts, and enters itself into the allocation hash.
6. After the minimum grab time it removes its win from the grab hash.

The algorithm has no locks and no fencing: two nodes may process one partition for a while. In this
implementation a node starts a partition by acquiring its lock, and the lock's epoch refuses whatever a former
owner still commits. So a race may go wrong in any way, and the only cost is that a partition moves.
"""

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage, PartitionsAcquired, PartitionsReleased
from streamworker.core.ownership.locks import Stale
from streamworker.core.ownership.partitions import Ownership
from streamworker.core.protocols.lease import events as calls
from streamworker.core.protocols.lease.challenging import Challenger
from streamworker.core.protocols.lease.settings import Lease
from streamworker.core.protocols.lease.state import LeaseState, Outbox
from streamworker.core.protocols.lease.timing import LoadMeasure, count_of_partitions, race_delay_ms
from streamworker.core.protocols.setup import Phase, Setup


class LeaseCore:
    """The lease protocol for one worker in one group.

    ``load`` is the load measure that replaces the number of active partitions.
    """

    def __init__(self, setup: Setup, load: LoadMeasure = count_of_partitions) -> None:
        assert isinstance(setup.coordination, Lease)
        self._setup, self._timing = setup, setup.coordination
        self.owner = setup.new_owner()
        self._load = load
        self._ownership = Ownership(self.owner, setup.timing.grace_period_ms, setup.retry_ms)
        self._leases: dict[int, LeaseState] = {}
        self._see(setup.first, setup.partitions)
        self.owned: frozenset[int] = frozenset()
        """The partitions that this node won in a race, and whose locks it holds or is acquiring."""
        self._phase = Phase.NEW
        self._challenger = Challenger(self.owner, self._leases, setup, self._timing)
        self._busy: set[int] = set()
        """The partitions that are raced for, waited for or won: the others are checked only once per
        lease."""
        self._outbox = Outbox(self.owner, setup.retry_ms)
        self._left: frozenset[int] = frozenset()
        """The partitions that a leaving node had: it challenges them last, so that no node waits for their
        leases to end."""

    @property
    def active(self) -> frozenset[int]:
        """Return what counts for the wait: the partitions that are owned, won, or being grabbed."""
        return self.owned.union(p for p in self._busy if self._leases[p].wait_for or self._leases[p].racing)

    @property
    def held(self) -> list[int]:
        """Return the partitions whose lock this node holds and does not give back."""
        return self._ownership.held

    def handle(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        """Handle one event; return the effects to execute, in this order."""
        if self._phase is Phase.GONE:
            return []
        effects = self._dispatch(event, now_ms)
        if self._phase is Phase.ACTIVE:
            effects += self._due(now_ms) + self._challenger.advance(self.owned, now_ms)
        # No owner counts as live for the locks: the former one has ended, or its time is over.
        effects = self._translated(effects + self._ownership.advance(now_ms, ()), now_ms)
        effects += self._outbox.advance(now_ms)
        return effects + self._leave()

    def next_deadline_ms(self) -> int | None:
        """Return when to deliver ``DeadlinePassed`` if no other event comes before."""
        if self._phase in (Phase.NEW, Phase.GONE):
            return None
        times = [self._ownership.next_deadline_ms(), self._outbox.next_deadline_ms()]
        if self._phase is Phase.ACTIVE:
            waits_ms = self._waits_ms()
            for partition in self._busy:
                lease = self._leases[partition]
                times += [lease.wait_until_ms, lease.clear_ms, self._race_ms(partition, lease, waits_ms)]
            times.append(self._challenger.next_deadline_ms())
        return min((at for at in times if at is not None), default=None)

    def _dispatch(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        match event:
            case ev.Started() if self._phase is Phase.NEW:
                self._phase = Phase.ACTIVE
                self._challenger.start(now_ms)
            case ev.StopRequested():
                return self._stop(now_ms)
            case ev.ControlReceived(messages):
                return self._heard(messages, now_ms) + self._ownership.handle(event, now_ms)
            case calls.LeasesChallenged(asked, signalled):
                self._challenger.answered(asked, signalled, now_ms)
            case ev.Unanswered(calls.ChallengeLeases(_, challenges)):
                self._challenger.answered(challenges, None, now_ms)
            case calls.LeaseRaced():
                return self._raced(event, now_ms)
            case ev.Unanswered(calls.RaceForLease(_, partition)):
                lease = self._leases[partition]
                lease.racing, lease.retry_ms = False, now_ms + self._setup.retry_ms()
            case calls.LeasesUpdated():
                self._outbox.answered(now_ms, done=True)
            case ev.Unanswered(calls.UpdateLeases()):
                self._outbox.answered(now_ms, done=False)
            case ev.PartitionsSeen(first, total):
                return self._changed(self._see(first, total), now_ms)
            case ev.LocksAnswered():
                return self._locks_answered(event, now_ms)
            case ev.RunnerFenced(partition):
                return self._ownership.handle(event, now_ms) + self._give_up(partition, now_ms)
            case _:
                return self._ownership.handle(event, now_ms)
        return []

    # -- the partitions that there are -----------------------------------------------------------

    def _see(self, first: int, total: int) -> list[int]:
        """Work on the partitions from ``first`` on; return those for which that is new.

        No state is forgotten, since an answer about a dropped partition may be under way.
        """
        known = len(self._leases)
        self._leases |= {partition: LeaseState(0, None) for partition in range(known, total)}
        self._step_ms = self._timing.delay_step_ms(len(self._leases) - first)
        new = [p for p, lease in self._leases.items() if lease.is_dropped != (p < first) or p >= known]
        for partition in new:
            self._leases[partition].is_dropped = partition < first
        return new

    def _changed(self, partitions: list[int], now_ms: int) -> list[ev.Effect]:
        """Challenge the partitions that are new, and shut those down that are dropped."""
        if self._phase is not Phase.ACTIVE or not partitions:
            return []
        for partition in partitions:
            lease = self._leases[partition]
            if lease.is_dropped:
                lease.check_ms = None
                self._withdraw(partition, lease)
            else:
                self._challenger.begin(lease, now_ms)
        return self._assign(frozenset(p for p in self.owned if not self._leases[p].is_dropped), now_ms)

    # -- 2 and 3: wait, then race --------------------------------------------------------------

    def _heard(self, messages: tuple[ControlMessage, ...], now_ms: int) -> list[ev.Effect]:
        for message in messages:
            if isinstance(message, calls.LeaseChallenged):
                for partition in message.partitions:
                    lease = self._leases.get(partition)
                    if lease is not None and not lease.is_dropped and self._phase is Phase.ACTIVE:
                        self._challenger.heard(lease, now_ms)
                        if lease.raced_from_ms is None:
                            lease.raced_from_ms = lease.retry_ms = now_ms
                            self._busy.add(partition)
            elif isinstance(message, calls.LeaseEnded) and message.owner != self.owner:
                for partition in message.partitions:
                    lease = self._leases.get(partition)
                    if lease is not None:
                        lease.ended_by = message.owner
                        if lease.wait_for == message.owner:
                            lease.wait_until_ms = now_ms
        return []

    def _waits_ms(self) -> tuple[int, int]:
        """Return how long this node waits by its load: for a partition of others, and for one of its own."""
        load, step_ms = self._load(self.active), self._step_ms
        return race_delay_ms(load, step_ms, is_processing=False), race_delay_ms(
            load, step_ms, is_processing=True
        )

    def _race_ms(self, partition: int, lease: LeaseState, waits_ms: tuple[int, int]) -> int | None:
        """Return when this node's wait ends, by the load that it has then and not when the wait began."""
        if lease.raced_from_ms is None or lease.racing:
            return None
        return max(lease.raced_from_ms + waits_ms[partition in self.owned], lease.retry_ms)

    def _due(self, now_ms: int) -> list[ev.Effect]:
        """Do what is due for each busy partition."""
        effects: list[ev.Effect] = []
        waits_ms = self._waits_ms()
        for partition in sorted(self._busy):
            lease = self._leases[partition]
            if lease.clear_ms is not None and lease.clear_ms <= now_ms:
                self._take_out(partition, lease)
            if lease.wait_until_ms is not None and lease.wait_until_ms <= now_ms:
                effects += self._start(partition, lease, now_ms)
            race_ms = self._race_ms(partition, lease, waits_ms)
            if race_ms is not None and race_ms <= now_ms:
                lease.racing, lease.ended_by = True, ""
                waits_ms = self._waits_ms()
                effects.append(calls.RaceForLease(self.owner, partition))
            if not (lease.won or lease.racing or lease.wait_for) and lease.raced_from_ms is None:
                self._busy.discard(partition)
        return effects

    def _raced(self, event: calls.LeaseRaced, now_ms: int) -> list[ev.Effect]:
        partition, lease = event.partition, self._leases[event.partition]
        lease.racing, lease.raced_from_ms = False, None
        if event.winner != self.owner:
            lease.won, lease.clear_ms = 0, None
            return self._give_up(partition, now_ms)
        lease.won = event.generation
        if self._phase is not Phase.ACTIVE or lease.is_dropped:
            self._take_out(partition, lease)
            return []
        if partition in self.owned:
            lease.generation = event.generation
            self._started(partition, lease, now_ms)
            return self._assign(self.owned, now_ms)
        if event.allocated in ("", self.owner, lease.ended_by):
            return self._start(partition, lease, now_ms)
        lease.wait_for = event.allocated
        lease.wait_until_ms = now_ms + self._timing.max_shutdown_ms
        return []

    def _give_up(self, partition: int, now_ms: int) -> list[ev.Effect]:
        """Shut a partition down if this node processes it, because another node has it (3a)."""
        lease = self._leases[partition]
        lease.wait_for, lease.wait_until_ms = "", None
        lease.heard_ms = now_ms
        if partition not in self.owned:
            return []
        self._outbox.allocate.pop(partition, None)
        note = ev.Note("lease_lost", {"partition": partition})
        return [note, *self._assign(self.owned - {partition}, now_ms)]

    # -- 4, 5 and 6: start, and open it to challenges again --------------------------------------

    def _start(self, partition: int, lease: LeaseState, now_ms: int) -> list[ev.Effect]:
        effects: list[ev.Effect] = []
        if lease.wait_for not in ("", lease.ended_by):
            effects.append(ev.Note("lease_overtaken", {"partition": partition, "owner": lease.wait_for}))
        lease.wait_for, lease.wait_until_ms = "", None
        lease.generation = lease.won
        return effects + self._assign(self.owned | {partition}, now_ms)

    def _locks_answered(self, event: ev.LocksAnswered, now_ms: int) -> list[ev.Effect]:
        effects = self._ownership.handle(event, now_ms)
        for partition, reply in event.replies.items():
            if isinstance(reply, Stale) and partition in self.owned:
                # A later winner was faster. If this node's win is still in the hash, it must not block
                # others.
                self._take_out(partition, self._leases[partition])
                effects += self._give_up(partition, now_ms)
        return effects

    def _started(self, partition: int, lease: LeaseState, now_ms: int) -> None:
        self._outbox.allocate[partition] = lease.generation
        self._outbox.end.discard(partition)
        if lease.won:
            lease.clear_ms = now_ms + self._timing.min_grab_ms

    def _take_out(self, partition: int, lease: LeaseState) -> None:
        if lease.won:
            self._outbox.clear[partition] = lease.won
        lease.won, lease.clear_ms = 0, None

    def _withdraw(self, partition: int, lease: LeaseState) -> None:
        """Take part in no race for a partition."""
        lease.raced_from_ms = lease.wait_until_ms = None
        lease.wait_for = ""
        self._take_out(partition, lease)

    def _assign(self, mine: frozenset[int], now_ms: int) -> list[ev.Effect]:
        self.owned = mine
        desired = {p: self._leases[p].generation for p in mine}
        return self._ownership.assign(desired, max(desired.values(), default=0), now_ms)

    def _translated(self, effects: list[ev.Effect], now_ms: int) -> list[ev.Effect]:
        """Put messages of ``Ownership`` about releases into the hashes; note what was acquired."""
        said: list[ev.Effect] = []
        for effect in effects:
            match effect:
                case ev.PostControl(PartitionsReleased(partitions)):
                    self._outbox.end.update(partitions)
                    for partition in partitions:
                        self._outbox.allocate.pop(partition, None)
                case ev.PostControl(PartitionsAcquired(partitions)):
                    for partition in partitions:
                        self._started(partition, self._leases[partition], now_ms)
                    said.append(effect)
                case _:
                    said.append(effect)
        return said

    # -- leaving ----------------------------------------------------------------------------

    def _stop(self, now_ms: int) -> list[ev.Effect]:
        if self._phase is not Phase.ACTIVE:
            self._phase = Phase.GONE if self._phase is Phase.NEW else self._phase
            return []
        self._phase, self._left = Phase.LEAVING, self.owned
        for partition, lease in self._leases.items():
            self._withdraw(partition, lease)
        return self._assign(frozenset(), now_ms)

    def _leave(self) -> list[ev.Effect]:
        """Continue leaving, once no call is under way."""
        if self._phase is Phase.LEAVING:
            if not (self._ownership.is_idle and self._outbox.is_empty) or self._challenger.is_calling:
                return []
            if any(lease.racing for lease in self._leases.values()):
                return []
            if self._left:
                left, self._left = self._left, frozenset()
                return [self._challenger.challenge(left)]
            self._phase = Phase.GONE
        return [ev.Finished()] if self._phase is Phase.GONE else []
