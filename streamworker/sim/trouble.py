"""Applies faults to the workers, network and server of a world."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from streamworker.core.protocols.membership.mending import is_of_later_release
from streamworker.sim.faults import Fault, Kind
from streamworker.sim.ground import Ground
from streamworker.sim.server.damage import LATER, damaged, places
from streamworker.sim.server.stored import Lock
from streamworker.sim.worker import SimWorker

WORKERS_MOST = 10
FLAPS = 3
FLAP_EVERY_MS = 1_400
FLAP_STAYS_MS = 700
SLOW_MS = (20, 100, 300)
LAG_MS = (50, 500, 2_000)
"""How far a replica may lag behind."""
LOADS_AWAY_MS = 20_000
"""Time until damaged loads are repaired by hand: workers do not repair them."""
LATER_AWAY_MS = 6_000
"""Time until a document of a later release is replaced by hand: workers do not touch it."""
LATER_LOOKS = 3
"""How often the document of a later release is looked for, since a failover may restore it."""
WORSE: dict[Kind, dict[str, float]] = {
    Kind.LOST: {"lost": 0.15, "repeated": 0.1, "latency_ms": 400},
    Kind.SILENCE: {"control_lost": 1.0},
    Kind.STUCK: {"stuck": 0.1},
}
"""The conditions that a fault worsens for a time."""


class Place(Ground):
    """The surroundings together with the workers, and what can be done to them."""

    workers: list[SimWorker]

    @property
    @abstractmethod
    def reads_partitions(self) -> bool:
        """Whether the protocol reads the number of partitions repeatedly."""

    @property
    @abstractmethod
    def has_document(self) -> bool:
        """Whether the protocol has a membership document."""

    @property
    @abstractmethod
    def staying(self) -> list[SimWorker]:
        """The live workers with a right configuration that were not asked to leave."""

    @abstractmethod
    def start(self, name: str = "", static_id: str = "") -> SimWorker:
        """Start a worker."""

    @abstractmethod
    def start_wrong(self, partitions: int) -> None:
        """Start a worker with another number of partitions."""

    @abstractmethod
    def stop(self, worker: SimWorker, *, comes_back: bool = False) -> None:
        """Ask a worker to leave."""

    @abstractmethod
    def kill(self, worker: SimWorker, *, comes_back: bool = False) -> None:
        """Kill a worker."""

    @abstractmethod
    def declare(self) -> None:
        """Declare the number of partitions."""

    @abstractmethod
    def grow(self, partitions: int) -> None:
        """Add partitions to the stream."""

    @abstractmethod
    def damage_loads(self, away_ms: int) -> None:
        """Replace the loads by a list for a time."""


class Trouble:
    """Applies the faults of one world."""

    def __init__(self, world: "Place") -> None:
        self._world = world
        self._is_over = False
        self._flapping: list[SimWorker] = []
        """Workers that were started to stop soon."""
        self._before_later = b""
        """The document before the one of a later release."""

    def happen(self, fault: Fault) -> None:
        """Apply a fault."""
        match fault.kind:
            case Kind.START | Kind.HERD | Kind.FLAP:
                self._come(fault)
            case Kind.LOST | Kind.SILENCE | Kind.STUCK:
                self._weather(fault)
            case Kind.RESTART | Kind.FLUSH | Kind.FAILOVER:
                self._redis(fault)
            case Kind.DAMAGE:
                self._damage(fault)
            case Kind.REPARTITION:
                self._repartition(1 + fault.pick % 4)
            case _:
                there = [w for w in self._world.workers if w.alive and not w.finished]
                if there:
                    self._happen_to(there[fault.pick % len(there)], fault)

    def end(self) -> None:
        """End the faults that are still going on."""
        self._is_over = True
        for worker in self._flapping:
            self._end_flap(worker)

    # -- workers that come ---------------------------------------------------------------------

    def _come(self, fault: Fault) -> None:
        world = self._world
        room = WORKERS_MOST - len(world.staying)
        if fault.kind is Kind.FLAP and room > 0:
            for turn in range(FLAPS):
                world.clock.after(turn * FLAP_EVERY_MS, self._flap)
            return
        for _ in range(min(room, 1 if fault.kind is Kind.START else 2 + fault.pick % 6)):
            world.start()

    def _flap(self) -> None:
        if not self._is_over:
            worker = self._world.start()
            self._flapping.append(worker)
            self._world.clock.after(FLAP_STAYS_MS, lambda: self._end_flap(worker))

    def _end_flap(self, worker: SimWorker) -> None:
        if worker.alive and not worker.stopping:
            self._world.stop(worker)

    def _repartition(self, more: int) -> None:
        """Add partitions if the protocol supports it; otherwise start a worker with a wrong number.

        Without a membership document no worker is started: then the declaration of the stream would
        refuse that worker before it takes part.
        """
        world = self._world
        if world.reads_partitions:
            world.grow(len(world.model.locks) + more)
        elif world.model.membership is not None:
            world.start_wrong(len(world.model.locks) + more)

    # -- the network and the server ------------------------------------------------------------

    def _weather(self, fault: Fault) -> None:
        world, worse = self._world, WORSE[fault.kind]
        world.note(f"for {fault.span_ms} ms: {', '.join(f'{name} {value}' for name, value in worse.items())}")
        world.conditions = replace(world.conditions, **worse)  # type: ignore[arg-type]
        usual = {name: getattr(world.usual, name) for name in worse}

        def better() -> None:
            world.conditions = replace(world.conditions, **usual)

        world.clock.after(fault.span_ms, better)

    def _redis(self, fault: Fault) -> None:
        world, model = self._world, self._world.model
        if fault.kind is Kind.FAILOVER:
            snapshot, lag_ms = model.snapshot(), LAG_MS[fault.pick % len(LAG_MS)]
            world.clock.after(lag_ms, lambda: self._fail_over(snapshot, lag_ms, fault.span_ms))
            return
        world.note(f"Redis restarts {'without' if fault.kind is Kind.FLUSH else 'with'} its data")
        if fault.kind is Kind.FLUSH:
            model.flush()
        else:
            model.restart()
        self._reconnect(fault.span_ms)

    def _fail_over(self, snapshot: object, lag_ms: int, away_ms: int) -> None:
        model, partitions = self._world.model, len(self._world.model.locks)
        self._world.note(f"Redis fails over to a replica that lacks the last {lag_ms} ms")
        model.lose_suffix(snapshot)
        # The operator who added partitions notices that they are missing, and adds them again.
        model.locks.extend(Lock() for _ in range(partitions - len(model.locks)))
        self._reconnect(away_ms)

    def _damage(self, fault: Fault) -> None:
        world, stored = self._world, self._world.model.stored
        if not world.has_document:
            return
        damage = places(fault.pick)
        world.checker.figures.happened()
        if "heartbeats" in damage:
            world.note("a list stands in place of the heartbeats")
            world.model.damage_beats()
        if "loads" in damage:
            world.note("a list stands in place of the loads")
            world.damage_loads(LOADS_AWAY_MS)
        if "document" not in damage:
            return
        before = stored.document or b""  # There may be no document yet, or a list in its place.
        what, after = damaged(before, fault.pick)
        world.note(f"the membership document {what}")
        world.model.damage(after)
        if what == LATER:
            # If the previous document is also one of a later release, keep the one before it.
            self._before_later = self._before_later if is_of_later_release(before) else before
            for turn in range(1, LATER_LOOKS + 1):
                self._then(turn * LATER_AWAY_MS, self._put_back)
        for worker in world.workers:
            if worker.is_wrong:
                worker.kill()  # Without a document, the declaration of its stream refuses it.

    def _put_back(self) -> None:
        """Replace a document of a later release by the previous one."""
        if is_of_later_release(self._world.model.stored.document or b""):
            self._world.note("the document of a later release is taken away again")
            self._world.checker.figures.happened()
            self._world.model.damage(self._before_later)

    def _reconnect(self, away_ms: int) -> None:
        world = self._world
        world.checker.restarted(world.model)
        world.checker.figures.happened(away_ms)
        world.clock.after(away_ms + world.random.randint(0, 1_000), world.declare)
        for worker in world.workers:
            worker.disconnect()
            if worker.is_wrong:
                worker.kill()  # It declares its stream again, and is refused.
            elif worker.alive:
                worker.later(away_ms + world.random.randint(0, 1_000), worker.connect)

    # -- one worker ----------------------------------------------------------------------------

    def _happen_to(self, worker: SimWorker, fault: Fault) -> None:
        world, span_ms = self._world, fault.span_ms
        match fault.kind:
            case Kind.STOP:
                world.stop(worker)
                return
            case Kind.KILL:
                world.kill(worker)
                return
            case Kind.ROLL:
                self._roll(worker, fault)
                return
            case Kind.SLOW:
                worker.slow(SLOW_MS[fault.pick % len(SLOW_MS)])
                self._then(span_ms, lambda: worker.slow(0))
                world.note(
                    f"{worker.name} is slow for {span_ms} ms: up to {worker.slow_ms} ms for each thing"
                )
                return
            case Kind.DRIFT:
                pace = 950 + fault.pick % 101
                worker.drift(pace)
                world.note(f"the clock of {worker.name} goes at {pace} thousandths")
                return
            case Kind.PAUSE:
                worker.pause()
                self._then(span_ms, worker.wake)
            case Kind.DISCONNECT:
                worker.disconnect()
                worker.later(span_ms, worker.connect)
            case Kind.CUT | Kind.DEAF:
                setattr(worker, fault.kind.value, True)
                self._then(span_ms, lambda: setattr(worker, fault.kind.value, False))
        world.note(f"{worker.name}: {fault.kind.value} for {span_ms} ms")
        world.checker.figures.happened(span_ms)

    def _roll(self, worker: SimWorker, fault: Fault) -> None:
        """Restart a worker: after a time, or at once while the old process is only paused."""
        world, how = self._world, fault.pick % 3
        if worker.stopping or worker.is_wrong:
            return
        if how == 0 and worker.static_id:
            worker.pause()
            self._then(fault.span_ms, worker.wake)
            world.note(f"{worker.name}: paused for {fault.span_ms} ms, and taken for dead")
            self._return(worker)
            return
        if how == 1:
            world.kill(worker, comes_back=bool(worker.static_id))
        else:
            world.stop(worker, comes_back=bool(worker.static_id))
        self._then(fault.span_ms, lambda: self._return(worker))

    def _return(self, worker: SimWorker) -> None:
        if not self._is_over:
            self._world.start(worker.name if worker.static_id else "", worker.static_id)

    def _then(self, after_ms: int, do: Callable[[], object]) -> None:
        self._world.clock.after(after_ms, do)
