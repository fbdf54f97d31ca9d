"""One worker's part in one group: events in, effects out.

``WorkerCore`` joins the group, keeps its membership, takes over and hands over partitions, notices dead
peers, and leaves. It implements the protocol of docs/protocol.md and knows nothing of Redis, tasks or clocks:
the runtime drives it on real ones, and the simulator on virtual ones.

Two conversations run in parallel, each in a module of its own. ``conversation`` exchanges the **document**,
which lists the members and says who should own what. ``ownership`` acquires and releases the **locks**, so
that they match what the document assigns. This module decides which changes of the document this worker
wants, and what follows from each version of it.
"""

from msgspec import structs

from streamworker.core import events as ev
from streamworker.core.control import GroupChanged
from streamworker.core.ownership.partitions import Ownership
from streamworker.core.ownership.pulse import Pulse
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.balance import Balancer
from streamworker.core.protocols.membership.conversation import Conversation
from streamworker.core.protocols.membership.document import Change, Member, Membership
from streamworker.core.protocols.membership.founding import Founding
from streamworker.core.protocols.membership.joining import Applicant, Door, JoinWanted
from streamworker.core.protocols.membership.peers import PeerWatch
from streamworker.core.protocols.setup import Phase, Setup


class WorkerCore:
    """The membership protocol for one worker in one group."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._identity, self._timing, self._strategy = setup.identity, setup.timing, setup.assignment
        self.phase = Phase.NEW
        self._former: tuple[str, ...] = ()
        self._talk = Conversation(setup)
        self._door = Door(setup.timing.heartbeat_interval_ms // 2, setup.jitter)
        self._founding = Founding(setup.timing.founding_pause_ms)
        self._asked: tuple[int, ...] | None = None
        self._dead: frozenset[str] = frozenset()
        self._balancer = Balancer(setup.balance)
        self._seen = range(setup.first, setup.partitions)
        """The partitions that the group works on, as this worker has seen."""
        self._compared: range | None = None
        """The partitions in the document that this worker knew when it saw that."""
        self._is_looking = False
        """Whether this worker has asked to look, since the document has others."""
        self._renew_identity()

    @property
    def member(self) -> str:
        """Return this worker's member id; it gets a new one each time the group removes it."""
        return self._ownership.owner

    @property
    def membership(self) -> Membership:
        """Return the newest version of the group that this worker knows."""
        return self._talk.membership

    @property
    def held(self) -> list[int]:
        """Return the partitions whose lock this worker holds and does not give back."""
        return self._ownership.held

    def handle(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        """Handle one event; return the effects to execute, in this order."""
        if self.phase is Phase.GONE:
            return []
        effects = self._dispatch(event, now_ms)
        effects += self._pulse.check(now_ms) + self._peers.check(now_ms)
        is_our_turn = self._balancer.is_our_turn and self.phase is Phase.ACTIVE
        effects += self._balancer.advance(now_ms, is_our_turn=is_our_turn)
        is_changing = self._door.others_wait or not self._talk.may_call(now_ms)
        if not self._founding.is_resting(now_ms, others_wait=is_changing):
            effects += self._ownership.advance(now_ms, self.membership.ids)
        self._talk.must_read |= self._ownership.looks_stale()
        effects += self._converse(now_ms)
        return effects

    def next_deadline_ms(self) -> int | None:
        """Return when to deliver ``DeadlinePassed`` if no other event comes before."""
        if self.phase is Phase.GONE:
            return None
        times = (
            self._founding.not_before_ms(self._ownership.next_deadline_ms()),
            self._pulse.next_deadline_ms(),
            self._peers.next_deadline_ms(),
            self._balancer.next_deadline_ms(),
            self._talk.next_deadline_ms(),
            self._talk.earliest_ms(self._door_ms()),
        )
        return min((at for at in times if at is not None), default=None)

    def _dispatch(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        match event:
            case ev.Started():
                self.phase = Phase.JOINING
                self._talk.must_read = True
            case ev.StopRequested():
                # Draining starts before the document says so; the other order would only take longer.
                self.phase = Phase.LEAVING
                return self._assign(now_ms)
            case calls.DocumentRead() | calls.ChangeRefused():
                read = self._talk.answered(event, self.member, now_ms)
                if isinstance(read, ev.Note):
                    return [read]
                knock = self._knock(now_ms) if isinstance(event, calls.ChangeRefused) else []
                return knock + self._adopt(read, now_ms)
            case calls.DocumentChanged():
                return self._adopt(self._talk.changed(event), now_ms)
            case ev.Unanswered(calls.DocumentCall()):
                self._talk.failed(now_ms)
            case ev.Unanswered(calls.ProbePeers()):
                self._asked = None
            case ev.Unanswered(calls.ReadLoads()):
                self._balancer.failed()
            case ev.PartitionsSeen(first, total):
                self._seen, self._is_looking = range(first, max(total, self._seen.stop)), False
                self._compared = self.membership.active
                return self._assign(now_ms)
            case calls.LoadsRead():
                self._balancer.seen(event, self.membership, self.member)
            case ev.ControlReceived():
                self._control(event, now_ms)
                return self._ownership.handle(event, now_ms)
            case calls.HeartbeatDone():
                return self._heartbeat(event, now_ms)
            case calls.PeersProbed(connected):
                self._dead = frozenset(self._peers.judge(self._asked or (), connected))
                self._asked = None
            case _:
                return self._ownership.handle(event, now_ms)
        return []

    # -- the document --------------------------------------------------------------------------

    def _converse(self, now_ms: int) -> list[ev.Effect]:
        """Start the next call about the document, if one is needed and none is under way."""
        if not self._talk.may_call(now_ms):
            return []
        if self._talk.must_read:
            return self._talk.read(self.member, now_ms, self._ownership.newest)
        if self.phase is Phase.LEAVING and self.membership.present(self.member) is None:
            if self._door.is_patient(now_ms):
                return self._talk.rest()  # a member may still let this worker in, and then it must leave
            self.phase = Phase.GONE
            return [calls.StopHeartbeat(), ev.Finished()]
        wanted = self._wanted(now_ms)
        return self._talk.rest() if wanted is None else self._talk.propose(wanted, self._ownership.newest)

    def _wanted(self, now_ms: int) -> Change | None:
        """Return the change that this worker wants, if any."""
        now, who, server_ms = self.membership, self._identity, self._talk.server_ms
        me, hold_until_ms = now.present(self.member), server_ms + self._timing.hold_ms
        if self.phase is Phase.JOINING and me is None:
            if self._door.is_patient(now_ms):
                return None
            cause = "return" if now.seat_for(who.static_id, self._former) else "join"
            kept = now if who.static_id else now.without(self._former)
            return Change(cause, who.name, kept.with_member(self._joining(), self._strategy))
        if me is None:
            return None
        if self.phase is Phase.LEAVING and me.state == "active":
            return Change("leave", me.name, now.with_leaving(self.member))
        if self.phase is Phase.LEAVING and self._ownership.is_idle:
            return Change("left", me.name, now.with_gone([self.member], hold_until_ms))
        if self.phase is not Phase.ACTIVE:
            return None
        if dead := self._dead & set(now.present_ids):
            return Change("death", now.names(dead), now.with_gone(dead, hold_until_ms))
        if over := now.expired(server_ms, self.member, self._timing.heartbeat_interval_ms // 2):
            return Change("hold-expired", now.names(over), now.without(over))
        if self._ownership.newest > now.generation:
            # A failover restored an old document, and a lock was taken in a generation that was lost.
            return Change("rollback", me.name, now)
        is_ahead = now.active == self._compared != self._seen and self._seen.stop >= now.partitions
        if is_ahead:
            return Change("partitions", me.name, now.with_active(self._seen))
        return self._door.let_in(now, now_ms, server_ms) or self._balancer.change(now)

    def _joining(self) -> Member:
        """Return this worker as a member that joins now."""
        who = self._identity
        at_ms, static_id, capacity = self._talk.server_ms, who.static_id, who.capacity
        return Member(self.member, who.name, who.host, who.pid, at_ms, static_id=static_id, capacity=capacity)

    def _knock(self, now_ms: int) -> list[ev.Effect]:
        """Ask the members to let this worker in, after another worker's change was first."""
        now = self.membership
        if self.phase is not Phase.JOINING or self._identity.static_id or not now.active_ids:
            return []
        if now.present(self.member) is not None:
            return []
        applicant = Applicant(**structs.asdict(self._joining()), strategy=self._strategy, former=self._former)
        return [ev.PostControl(self._door.knock(applicant, now_ms))]

    def _door_ms(self) -> int | None:
        if self.phase is not Phase.ACTIVE and self.membership.present(self.member) is not None:
            return None
        return self._door.next_deadline_ms(is_in=self.phase is Phase.ACTIVE)

    def _adopt(self, membership: Membership, now_ms: int) -> list[ev.Effect]:
        """Act on the newest version, regardless of the versions since the last one that this worker knew."""
        self._balancer.take_turn(self.membership, self.member, self._peers.suspects)
        self._door.look(membership, self.member)
        self._founding.look(membership, now_ms)
        self._peers.keep(membership.present_ids)
        if membership.present(self.member) is None:
            return self._removed()
        effects: list[ev.Effect] = []
        if self.phase is Phase.JOINING:
            self.phase = Phase.ACTIVE
        if not self._pulse.is_started:
            self._pulse.start(now_ms)
            effects += [
                calls.StartHeartbeat(self.member),
                ev.Note("joined", {"member": self.member, "generation": membership.generation}),
            ]
        if membership.active not in (self._seen, self._compared) and not self._is_looking:
            self._is_looking = True
            effects.append(ev.LookAtPartitions())
        effects += self._balancer.measure(membership)
        return effects + self._assign(now_ms)

    def _assign(self, now_ms: int) -> list[ev.Effect]:
        now = self.membership
        owned = frozenset[int]() if self.phase is Phase.LEAVING else now.owned_by(self.member)
        known = (partition for partition in owned if partition < self._seen.stop)
        return self._ownership.assign(dict.fromkeys(known, now.generation), now.generation, now_ms)

    def _removed(self) -> list[ev.Effect]:
        """Give up everything and join again under a new name: the group removed this worker."""
        if self.phase is not Phase.ACTIVE and self._ownership.is_idle:
            return []  # this worker has not joined yet, or has left
        lost = self.member
        effects = self._ownership.drop() + self._pulse.end()
        self._former = (*self._former[-3:], lost)
        self._renew_identity()
        if self.phase is Phase.ACTIVE:
            self.phase = Phase.JOINING
        self._talk.must_read = True
        return [*effects, calls.StopHeartbeat(), ev.Note("membership_lost", {"member": lost})]

    def _renew_identity(self) -> None:
        setup, timing = self._setup, self._timing
        self._ownership = Ownership(setup.new_owner(), timing.grace_period_ms, setup.retry_ms)
        self._peers = PeerWatch(timing)
        self._pulse = Pulse(self.member, timing.dead_after_ms)
        self._dead = frozenset()

    # -- hints and heartbeats ------------------------------------------------------------------

    def _control(self, event: ev.ControlReceived, now_ms: int) -> None:
        for message in event.messages:
            if isinstance(message, GroupChanged):
                self._talk.heard(message.generation)
            elif isinstance(message, JoinWanted):
                self._door.heard(message, now_ms)

    def _heartbeat(self, event: calls.HeartbeatDone, now_ms: int) -> list[ev.Effect]:
        if event.member != self.member or not self._pulse.is_started:
            return []
        if event.lost:
            return self._removed()
        self._talk.must_read |= self._talk.differs(event)
        if (mine := event.beats.get(self.member)) is not None:
            self._talk.server_ms = mine.server_ms
        effects = self._pulse.renewed(event.sent_ms, now_ms)
        present = self.membership.present_ids
        ask = self._peers.observe(self.member, present, event.beats, event.run_id, now_ms)
        self._dead = frozenset(self._dead & set(self._peers.suspects))
        self._balancer.take_turn(self.membership, self.member, self._peers.suspects)
        if self._peers.suspects and self._asked is None:
            self._asked = ask
            effects.append(calls.ProbePeers(ask))
        return effects
