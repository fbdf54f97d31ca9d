"""One worker's part in one group: events in, effects out.

``WorkerCore`` joins, keeps its membership, takes over and hands over partitions, notices dead
peers, and leaves. It is the protocol of docs/protocol.md as code, and knows nothing of Redis,
tasks or clocks: the runtime drives it on real ones, the simulator on virtual ones.

Two conversations run beside each other, and each has a module of its own: about the **document**
(``conversation``), which says who is there and who should own what, and about the **locks**
(``ownership``): what the document assigns to us against what we hold. Here is what we want of the
document, and what follows from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from streamworker.core.balance import Balancer, BalanceRules, Verdict
from streamworker.core.control import GroupChanged, JoinWanted, PartitionsReleased
from streamworker.core.conversation import Conversation
from streamworker.core.events import (
    Call,
    CallFailed,
    ChangeRefused,
    ControlReceived,
    DocumentChanged,
    DocumentRead,
    Effect,
    Event,
    Finished,
    HeartbeatDone,
    LoadsRead,
    Note,
    PeersProbed,
    PostControl,
    ProbePeers,
    ReportLoad,
    Started,
    StartHeartbeat,
    StopHeartbeat,
    StopRequested,
)
from streamworker.core.founding import Founding
from streamworker.core.joining import Applicant, Door
from streamworker.core.membership import Member, Membership
from streamworker.core.ownership import Ownership
from streamworker.core.peers import PeerWatch
from streamworker.core.pulse import Pulse


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is to others."""

    name: str
    host: str
    pid: int
    static_id: str = ""
    """Under which it comes back after a restart; empty if its place is not kept."""
    capacity: int = 1
    """What it can carry, beside the other workers of its group."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The time spans of the protocol; see ``Settings`` for why they are what they are."""

    heartbeat_interval_ms: int = 1_000
    dead_after_ms: int = 2_000
    session_timeout_ms: int = 10_000
    slow_after_ms: int = 30_000
    grace_period_ms: int = 8_000
    acquire_retry_ms: int = 200
    hold_ms: int = 30_000
    founding_pause_ms: int = 80


class Phase(Enum):
    """Where a worker is in its membership."""

    NEW = "new"
    JOINING = "joining"
    MEMBER = "member"
    LEAVING = "leaving"
    GONE = "gone"


class WorkerCore:
    """The membership protocol for one worker in one group.

    Parameters
    ----------
    identity
        The worker's name, host and process id.
    partitions
        Number of partitions of the stream.
    strategy
        Name of the assignment.
    timing
        Time spans.
    nonce
        Returns a text that is new each time; part of the member's id.
    jitter
        Returns a number from 0 up to its argument.
    balance
        When load makes partitions move, under the assignment ``weighted``.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        partitions: int,
        strategy: str,
        timing: Timing,
        nonce: Callable[[], str],
        jitter: Callable[[int], int],
        balance: BalanceRules | None = None,
    ) -> None:
        self._identity = identity
        self._timing = timing
        self._strategy = strategy
        self._nonce = nonce
        self._jitter = jitter
        self._phase = Phase.NEW
        self._former: tuple[str, ...] = ()
        self._talk = Conversation(
            Membership.empty(partitions, strategy),
            retry_ms=timing.acquire_retry_ms,
            interval_ms=timing.heartbeat_interval_ms,
            jitter=jitter,
        )
        self._door = Door(timing.heartbeat_interval_ms // 2, jitter)
        self._founding = Founding(timing.founding_pause_ms)
        self._asked: tuple[int, ...] | None = None
        self._dead: frozenset[str] = frozenset()
        self._rules = balance or BalanceRules()
        self._balancer = Balancer(self._rules)
        self._verdict: Verdict | None = None
        self._is_measuring = self._is_balancer = False
        self._renew_identity()

    @property
    def member(self) -> str:
        """Return our member id; a new one after each time the group removed us."""
        return self._ownership.owner

    @property
    def membership(self) -> Membership:
        """Return the newest version of the group that we know."""
        return self._talk.membership

    @property
    def phase(self) -> Phase:
        """Return where we are in our membership."""
        return self._phase

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; return what is to be done, in this order.

        Parameters
        ----------
        event
            What happened.
        now_ms
            Our monotonic clock. Never goes back.

        Raises
        ------
        ConfigurationError
            If the group runs with another number of partitions.
        """
        if self._phase is Phase.GONE:
            return []
        effects = self._dispatch(event, now_ms)
        effects += self._pulse.check(now_ms) + self._peers.check(now_ms)
        is_our_turn = self._is_balancer and self._phase is Phase.MEMBER
        effects += self._balancer.advance(now_ms, is_our_turn=is_our_turn)
        is_changing = self._door.others_wait or not self._talk.may_call(now_ms)
        if not self._founding.is_resting(now_ms, others_wait=is_changing):
            effects += self._ownership.advance(now_ms)
        self._talk.must_read |= self._ownership.looks_stale()
        effects += self._converse(now_ms)
        return effects

    def next_deadline_ms(self) -> int | None:
        """Return when to bring ``DeadlinePassed`` if nothing else happens before."""
        if self._phase is Phase.GONE:
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

    def _dispatch(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Started():
                self._phase = Phase.JOINING
                self._talk.must_read = True
            case StopRequested():
                return self._stop(now_ms)
            case DocumentRead() | ChangeRefused():
                read = self._talk.answered(event, self.member, now_ms)
                if isinstance(read, Note):
                    return [read]
                knock = self._knock(now_ms) if isinstance(event, ChangeRefused) else []
                return knock + self._adopt(read, now_ms)
            case DocumentChanged():
                return self._adopt(self._talk.changed(event), now_ms)
            case CallFailed(Call.DOCUMENT):
                self._talk.failed(now_ms)
            case CallFailed(Call.PROBE):
                self._asked = None
            case CallFailed(Call.LOADS):
                self._balancer.failed()
            case LoadsRead():
                self._verdict = self._balancer.seen(event, self.membership)
            case ControlReceived():
                self._control(event, now_ms)
            case HeartbeatDone():
                return self._heartbeat(event, now_ms)
            case PeersProbed(connected):
                self._dead = frozenset(self._peers.judge(self._asked or (), connected))
                self._asked = None
            case _:
                return self._ownership.handle(event, now_ms)
        return []

    # -- the document --------------------------------------------------------------------------

    def _converse(self, now_ms: int) -> list[Effect]:
        """Start the next call about the document, if one is needed and none is under way."""
        if not self._talk.may_call(now_ms):
            return []
        if self._talk.must_read:
            return self._talk.read(self.member, now_ms, self._ownership.newest)
        if self._phase is Phase.LEAVING and self.membership.present(self.member) is None:
            if self._door.is_patient(now_ms):
                return self._talk.rest()  # we may be let in at any moment, and then must leave
            self._phase = Phase.GONE
            return [StopHeartbeat(), Finished()]
        wanted = self._wanted(now_ms)
        return self._talk.rest() if wanted is None else self._talk.propose(*wanted, self._ownership.newest)

    def _wanted(self, now_ms: int) -> tuple[str, str, Membership] | None:
        """Return the change that the newest document lacks: why, about whom, and what it then says."""
        now, who, server_ms = self.membership, self._identity, self._talk.server_ms
        me, hold_until_ms = now.present(self.member), server_ms + self._timing.hold_ms
        if self._phase is Phase.JOINING and me is None:
            if self._door.is_patient(now_ms):
                return None
            cause = "return" if now.place_for(who.static_id, self._former) else "join"
            kept = now if who.static_id else now.without(self._former)
            return cause, who.name, kept.with_member(self._joining(), self._strategy)
        if me is None:
            return None
        if self._phase is Phase.LEAVING and me.state == "active":
            return "leave", me.name, now.with_leaving(self.member)
        if self._phase is Phase.LEAVING and self._ownership.is_idle:
            return "left", me.name, now.with_gone([self.member], hold_until_ms)
        if self._phase is not Phase.MEMBER:
            return None
        if dead := self._dead & set(now.present_ids):
            return "death", now.names(dead), now.with_gone(dead, hold_until_ms)
        if over := now.expired(server_ms, self.member, self._timing.heartbeat_interval_ms // 2):
            return "hold-expired", now.names(over), now.without(over)
        if self._ownership.newest > now.generation:
            # The document went back, as a failover can do, and a lock was taken since by what was lost.
            return "rollback", me.name, now
        if change := self._door.let_in(now, now_ms, server_ms):
            return change
        verdict, self._verdict = self._verdict, None
        if verdict is not None and verdict.before == now.generation:
            givers = {owner for p in now.moved(verdict.after) if (owner := now.owners[p])}
            return verdict.cause, now.names(givers or {self.member}), verdict.after
        return None

    def _joining(self) -> Member:
        """Return ourselves as we join."""
        who = self._identity
        at_ms, static_id, capacity = self._talk.server_ms, who.static_id, who.capacity
        return Member(self.member, who.name, who.host, who.pid, at_ms, static_id=static_id, capacity=capacity)

    def _knock(self, now_ms: int) -> list[Effect]:
        """Others join as well, and one of them was first: ask those who are in to let us in."""
        now = self.membership
        if self._phase is not Phase.JOINING or self._identity.static_id or not now.active_ids:
            return []
        if now.present(self.member) is not None:
            return []
        applicant = Applicant(self._joining(), self._strategy, self._former)
        return [PostControl(self._door.knock(applicant, now_ms))]

    def _door_ms(self) -> int | None:
        if self._phase is not Phase.MEMBER and self.membership.present(self.member) is not None:
            return None
        return self._door.next_deadline_ms(is_in=self._phase is Phase.MEMBER)

    def _adopt(self, membership: Membership, now_ms: int) -> list[Effect]:
        """Act on the newest version, whatever lies between it and the last one that we knew."""
        self._take_turn()
        self._door.look(membership, self.member)
        self._founding.look(membership, now_ms)
        self._peers.keep(membership.present_ids)
        if membership.present(self.member) is None:
            return self._removed()
        effects: list[Effect] = []
        if self._phase is Phase.JOINING:
            self._phase = Phase.MEMBER
        if not self._pulse.is_started:
            self._pulse.start(now_ms)
            effects += [
                StartHeartbeat(self.member),
                Note("joined", {"member": self.member, "generation": membership.generation}),
            ]
        if self._is_measuring != (membership.strategy == "weighted"):
            self._is_measuring = not self._is_measuring
            effects.append(ReportLoad(self._rules.interval_ms if self._is_measuring else 0))
        desired = frozenset[int]() if self._phase is Phase.LEAVING else membership.owned_by(self.member)
        return effects + self._ownership.assign(desired, membership.generation, membership.ids, now_ms)

    def _removed(self) -> list[Effect]:
        """The group does not have us: give up everything, and join again under a new name."""
        if self._phase is not Phase.MEMBER and self._ownership.is_idle:
            return []  # not yet, or not any more
        lost = self.member
        effects = self._ownership.drop() + self._pulse.end()
        self._former = (*self._former[-3:], lost)
        self._renew_identity()
        if self._phase is Phase.MEMBER:
            self._phase = Phase.JOINING
        self._talk.must_read = True
        return [*effects, StopHeartbeat(), Note("membership_lost", {"member": lost})]

    def _renew_identity(self) -> None:
        timing = self._timing
        self._ownership = Ownership(
            f"{self._identity.name}.{self._nonce()}",
            grace_period_ms=timing.grace_period_ms,
            retry_ms=timing.acquire_retry_ms,
            jitter=self._jitter,
        )
        self._peers = PeerWatch(
            interval_ms=timing.heartbeat_interval_ms,
            dead_after_ms=timing.dead_after_ms,
            session_timeout_ms=timing.session_timeout_ms,
            slow_after_ms=timing.slow_after_ms,
        )
        self._pulse = Pulse(self.member, timing.dead_after_ms)
        self._dead = frozenset()

    def _stop(self, now_ms: int) -> list[Effect]:
        if self._phase in (Phase.NEW, Phase.LEAVING):
            self._phase = Phase.LEAVING
            return []
        self._phase = Phase.LEAVING
        # Draining starts before the document says so: it can only take longer the other way round.
        known = self.membership
        return self._ownership.assign(frozenset(), known.generation, known.ids, now_ms)

    # -- hints and heartbeats ------------------------------------------------------------------

    def _control(self, event: ControlReceived, now_ms: int) -> None:
        for message in event.messages:
            if isinstance(message, GroupChanged):
                self._talk.heard(message.generation)
            elif isinstance(message, JoinWanted):
                self._door.heard(message, now_ms)
            elif isinstance(message, PartitionsReleased):
                self._ownership.told(message.partitions, now_ms)

    def _heartbeat(self, event: HeartbeatDone, now_ms: int) -> list[Effect]:
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
        self._take_turn()
        if self._peers.suspects and self._asked is None:
            self._asked = ask
            effects.append(ProbePeers(ask))
        return effects

    def _take_turn(self) -> None:
        """See whether we are the balancer: the first active member that is not silent."""
        self._is_balancer = False
        if self.membership.strategy == "weighted":
            silent = self._peers.suspects
            first = next((each for each in self.membership.active_ids if each not in silent), "")
            self._is_balancer = first == self.member
