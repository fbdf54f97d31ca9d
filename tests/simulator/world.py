"""The simulator's world: a group, and the faults that are applied to its workers, network and server."""

from collections.abc import Sequence
from dataclasses import replace

from streamworker.core.data.entries import ZERO
from streamworker.core.protocols.membership.mending import is_of_later_release
from tests.simulator.faults import QUIET, Fault, FaultKind
from tests.simulator.group import SimulatedGroup
from tests.simulator.server.damage import LATER, damaged, places
from tests.simulator.store.keyspace import Snapshot
from tests.simulator.worker import SimWorker

WORKERS_MOST = 10
FLAPS = 3
FLAP_EVERY_MS = 1_400
FLAP_STAYS_MS = 700
SLOW_MS = (20, 100, 300)
LAG_MS = (50, 500, 2_000)
"""How far a replica may lag behind."""
BEHIND_MS = (0, 0, 3_000)
"""How far the clock of the locks' server that takes over may be behind."""
ALONE = ("", "sources", "targets")
"""Which of the two servers of a chain fails over; an empty text stands for one server that holds both."""
LOADS_AWAY_MS = 20_000
"""Time until damaged loads are repaired by hand: workers do not repair them."""
LATER_AWAY_MS = 6_000
"""Time until a document of a later release is replaced by hand: workers do not touch it."""
GROWN_MAX = 60
"""A stream that has so many partitions in all generations does not grow."""
KNOWN_MS = 2_000
"""Time until each worker has read the document that was put back: it looks once a second."""
REQUESTS_LOOK_MS = 5_000
"""How often a worker looks for requests, once there was one."""
LATER_LOOKS = 3
"""How often the document of a later release is looked for, since a failover may restore it."""
WORSE: dict[FaultKind, dict[str, float]] = {
    FaultKind.LOST: {"lost": 0.15, "repeated": 0.1, "latency_ms": 400},
    FaultKind.SILENCE: {"control_lost": 1.0},
    FaultKind.STUCK: {"stuck": 0.1},
}
"""The conditions that a fault worsens for a time."""


class World(SimulatedGroup):
    """A group, and the faults that happen to it, to the network and to the server."""

    _flapping: Sequence[SimWorker] = ()
    """Workers that were started to stop soon."""
    _has_requests = False
    """Whether an operator has made a request."""
    _before_later = b""
    """The document before the one of a later release."""

    def happen(self, fault: Fault) -> None:
        """Apply a fault."""
        match fault.kind:
            case FaultKind.START | FaultKind.HERD | FaultKind.FLAP:
                self._come(fault)
            case FaultKind.LOST | FaultKind.SILENCE | FaultKind.STUCK:
                self._weather(fault)
            case FaultKind.RESTART | FaultKind.FLUSH | FaultKind.FAILOVER:
                self._redis(fault)
            case FaultKind.DAMAGE:
                self._damage(fault)
            case FaultKind.REPARTITION:
                placement = self.server.placement
                # The command that grows a stream refuses one that is part of a chain.
                if placement.total < GROWN_MAX and not self.has_chains:
                    self.grow(placement.live + 1 + fault.pick % 4)
            case FaultKind.ORDER:
                self._operate(fault)
            case _:
                there = [w for w in self.workers if w.alive and not w.finished]
                if there:
                    self._happen_to(there[fault.pick % len(there)], fault)

    def heal(self) -> None:
        """End all faults; handlers finish the batches that they have begun."""
        self.note("all faults end")
        self.conditions = self.usual = QUIET
        self.is_healed = True
        for worker in self._flapping:
            self._end_flap(worker)
        for worker in self.workers:
            worker.cut = worker.deaf = False
            worker.slow(0)
            if worker.alive and worker.link is None:
                worker.connect()
            if worker.paused:
                worker.wake()
        for turn in range(LATER_LOOKS if self._has_requests else 0):
            self.clock.after(
                turn * REQUESTS_LOOK_MS // 2, self._resume_all
            )  # A failover may restore a pause.

    # -- the operator --------------------------------------------------------------------------

    def _operate(self, fault: Fault) -> None:
        partition = fault.pick // 4 % len(self.server.partitions)
        self.operator_request(partition, ("retry", "put", "pause", "pause")[fault.pick % 4])
        if fault.pick % 4 > 1:
            self.clock.after(fault.span_ms, lambda: self.operator_request(partition, "resume"))

    def operator_request(self, partition: int, order: str) -> None:
        """Make a request, and tell the workers; look for it at intervals from then on."""
        self.note(f"an operator requests: {order} {partition}")
        self.checker.figures.happened()
        if not self._has_requests:
            self._has_requests = True
            self.clock.after(REQUESTS_LOOK_MS, self._look_for_requests)
        if order == "resume":
            self.checker.resumed(partition)
        waiting = self.server.partitions[partition].waiting if order == "put" else ()
        self.server.operator_request(partition, order, waiting[0].id if waiting else ZERO)

    def _resume_all(self) -> None:
        for partition, its in enumerate(self.server.partitions):
            if its.is_paused:
                self.operator_request(partition, "resume")

    def _look_for_requests(self) -> None:
        for worker in self.workers:
            if worker.alive and not worker.finished:
                worker.look_for_requests()
        self.clock.after(REQUESTS_LOOK_MS, self._look_for_requests)

    # -- workers that come ---------------------------------------------------------------------

    def _come(self, fault: Fault) -> None:
        room = WORKERS_MOST - len(self.staying)
        if fault.kind is FaultKind.FLAP and room > 0:
            for turn in range(FLAPS):
                self.clock.after(turn * FLAP_EVERY_MS, self._flap)
            return
        for _ in range(min(room, 1 if fault.kind is FaultKind.START else 2 + fault.pick % 6)):
            self.start()

    def _flap(self) -> None:
        if not self.is_healed:
            worker = self.start()
            self._flapping = (*self._flapping, worker)
            self.clock.after(FLAP_STAYS_MS, lambda: self._end_flap(worker))

    def _end_flap(self, worker: SimWorker) -> None:
        if worker.alive and not worker.stopping:
            self.stop(worker)

    # -- the network and the server ------------------------------------------------------------

    def _weather(self, fault: Fault) -> None:
        worse = WORSE[fault.kind]
        self.note(f"for {fault.span_ms} ms: {', '.join(f'{name} {value}' for name, value in worse.items())}")
        self.conditions = replace(self.conditions, **worse)  # type: ignore[arg-type]
        usual = {name: getattr(self.usual, name) for name in worse}

        def better() -> None:
            self.conditions = replace(self.conditions, **usual)

        self.clock.after(fault.span_ms, better)

    def _redis(self, fault: Fault) -> None:
        server = self.server
        if fault.kind is FaultKind.FAILOVER:
            snapshot, lag_ms = server.store.snapshot(), LAG_MS[fault.pick % len(LAG_MS)]
            behind_ms = BEHIND_MS[fault.pick // len(LAG_MS) % len(BEHIND_MS)]
            alone = ALONE[fault.pick // 9 % len(ALONE)] if self.has_chains else ""
            self.clock.after(
                lag_ms, lambda: self._fail_over(snapshot, lag_ms, behind_ms, fault.span_ms, alone)
            )
            return
        self.note(f"Redis restarts {'without' if fault.kind is FaultKind.FLUSH else 'with'} its data")
        restart = server.flush if fault.kind is FaultKind.FLUSH else server.restart
        restart()
        self._reconnect(fault.span_ms)

    def _fail_over(self, snapshot: Snapshot, lag_ms: int, behind_ms: int, away_ms: int, alone: str) -> None:
        if alone == "targets":
            self.note(f"the server of the targets fails over to a replica that lacks the last {lag_ms} ms")
            self.server.fail_over(snapshot, alone)
            return
        clock = f", and the clock of the locks is {behind_ms} ms behind" if behind_ms else ""
        self.note(f"Redis fails over to a replica that lacks the last {lag_ms} ms{clock}")
        self.server.fail_over(snapshot, alone)
        self.server.behind_ms = behind_ms
        # The operator who added partitions notices that they are missing, and adds them again.
        self.server.grow()
        self._reconnect(away_ms)

    def _damage(self, fault: Fault) -> None:
        if not self.protocol.has_document:
            return
        damage = places(fault.pick)
        self.checker.figures.happened()
        if "heartbeats" in damage:
            self.note("a list stands in place of the heartbeats")
            self.server.damage_beats()
        if "loads" in damage:
            self.note("a list stands in place of the loads")
            self.measurable_ms = max(self.measurable_ms, self.clock.now_ms + LOADS_AWAY_MS)
            self.server.damage_loads()
            self.clock.after(LOADS_AWAY_MS, lambda: self.server.damage_loads(is_right=True))
        if "document" not in damage:
            return
        before = self.server.document or b""  # There may be no document yet, or a list in its place.
        what, after = damaged(before, fault.pick)
        self.note(f"the membership document {what}")
        self.server.damage(after)
        self.may_be_uneven |= what == "gives all to the last"
        if what == LATER:
            # If the previous document is also one of a later release, keep the one before it.
            self._before_later = self._before_later if is_of_later_release(before) else before
            for turn in range(1, LATER_LOOKS + 1):
                self.clock.after(turn * LATER_AWAY_MS, self._put_back)

    def _put_back(self) -> None:
        """Replace a document of a later release by the previous one."""
        if is_of_later_release(self.server.document or b""):
            self.note("the document of a later release is taken away again")
            self.checker.figures.happened()
            self.known_ms = self.clock.now_ms + KNOWN_MS
            self.server.damage(self._before_later)

    def _reconnect(self, away_ms: int) -> None:
        self.checker.restarted(self.server)
        self.checker.figures.happened(away_ms)
        # Each worker declares the number of partitions when it reconnects to the server.
        self.clock.after(away_ms + self.random.randint(0, 1_000), self._declare)
        for worker in self.workers:
            worker.disconnect()
            if worker.alive:
                worker.later(away_ms + self.random.randint(0, 1_000), worker.connect)

    def _declare(self) -> None:
        declare = self.server.grow if self.server.placement.base else self.server.declare
        declare()

    # -- one worker ----------------------------------------------------------------------------

    def _happen_to(self, worker: SimWorker, fault: Fault) -> None:
        span_ms = fault.span_ms
        match fault.kind:
            case FaultKind.STOP:
                self.stop(worker)
            case FaultKind.KILL:
                self.kill(worker)
            case FaultKind.ROLL:
                self._roll(worker, fault)
            case FaultKind.SLOW:
                worker.slow(SLOW_MS[fault.pick % len(SLOW_MS)])
                self.clock.after(span_ms, lambda: worker.slow(0))
                self.note(f"{worker.name} is slow for {span_ms} ms: up to {worker.slow_ms} ms for each thing")
            case FaultKind.DRIFT:
                pace = 950 + fault.pick % 101
                worker.drift(pace)
                self.note(f"the clock of {worker.name} goes at {pace} thousandths")
            case _:
                self._interrupt(worker, fault.kind, span_ms)

    def _interrupt(self, worker: SimWorker, kind: FaultKind, span_ms: int) -> None:
        match kind:
            case FaultKind.PAUSE:
                worker.pause()
                self.clock.after(span_ms, worker.wake)
            case FaultKind.DISCONNECT:
                worker.disconnect()
                worker.later(span_ms, worker.connect)
            case FaultKind.CUT | FaultKind.DEAF:
                setattr(worker, kind.value, True)
                self.clock.after(span_ms, lambda: setattr(worker, kind.value, False))
        self.note(f"{worker.name}: {kind.value} for {span_ms} ms")
        self.checker.figures.happened(span_ms)

    def _roll(self, worker: SimWorker, fault: Fault) -> None:
        """Restart a worker: after a time, or at once while the old process is only paused."""
        how = fault.pick % 3
        if worker.stopping:
            return
        if how == 0 and worker.static_id:
            worker.pause()
            self.clock.after(fault.span_ms, worker.wake)
            self.note(f"{worker.name}: paused for {fault.span_ms} ms, and taken for dead")
            self._return(worker)
            return
        end = self.kill if how == 1 else self.stop
        end(worker)
        self.clock.after(fault.span_ms, lambda: self._return(worker))

    def _return(self, worker: SimWorker) -> None:
        if not self.is_healed:
            self.start(worker.name if worker.static_id else "", worker.static_id)
