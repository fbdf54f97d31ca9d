"""Brings faults to a world: what each of them does to workers, network and server."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from streamworker.core.mending import is_of_later_release
from streamworker.testing.damage import LATER, damaged, places
from streamworker.testing.faults import Fault, Kind
from streamworker.testing.stored import Lock

if TYPE_CHECKING:
    from streamworker.testing.process import SimWorker
    from streamworker.testing.world import World

WORKERS_MOST = 10
FLAPS = 3
FLAP_EVERY_MS = 1_400
FLAP_STAYS_MS = 700
SLOW_MS = (20, 100, 300)
LAG_MS = (50, 500, 2_000)
"""How far a replica may be behind."""
LOADS_AWAY_MS = 20_000
"""Nobody mends these: they are put right by hand."""
LATER_AWAY_MS = 6_000
"""Nor a document of a later release."""
LATER_LOOKS = 3
"""So often somebody looks whether it is there: a replica that takes over may bring it back."""
WORSE: dict[Kind, dict[str, float]] = {
    Kind.LOST: {"lost": 0.15, "repeated": 0.1, "latency_ms": 400},
    Kind.SILENCE: {"control_lost": 1.0},
    Kind.STUCK: {"stuck": 0.1},
}
"""What is worse for a while."""


class Trouble:
    """The faults of one world.

    Parameters
    ----------
    world
        Where they happen.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self._is_over = False
        self._flapping: list[SimWorker] = []
        """Those that came to leave again soon."""
        self._before_later = b""
        """What stood in place of the document of a later release."""

    def happen(self, fault: Fault) -> None:
        """Let one thing happen."""
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
        """Let nothing more happen that was begun."""
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

    def _end_flap(self, worker: "SimWorker") -> None:
        if worker.alive and not worker.stopping:
            self._world.stop(worker)

    def _repartition(self, more: int) -> None:
        """Let the stream grow where the protocol reads the number; elsewhere a worker comes that is wrong.

        Where the server does not know the group it has no number to be wrong about: then the
        stream's declaration refuses that worker before it takes part.
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
        # Whoever let the stream grow sees that it did not, and does it again.
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
        before = stored.document or b""  # There may be none yet, or a list that somebody put there.
        what, after = damaged(before, fault.pick)
        world.note(f"the membership document {what}")
        world.model.damage(after)
        if what == LATER:
            # Whatever is written over a later release's document may be one, too: that is no other one.
            self._before_later = self._before_later if is_of_later_release(before) else before
            for turn in range(1, LATER_LOOKS + 1):
                self._then(turn * LATER_AWAY_MS, self._put_back)
        for worker in world.workers:
            if worker.is_wrong:
                worker.kill()  # without a document it is its stream's declaration that refuses it

    def _put_back(self) -> None:
        """Take the document of a later release away, if there is one."""
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
                worker.kill()  # it declares its stream again, and is refused
            elif worker.alive:
                worker.later(away_ms + world.random.randint(0, 1_000), worker.connect)

    # -- one worker ----------------------------------------------------------------------------

    def _happen_to(self, worker: "SimWorker", fault: Fault) -> None:
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

    def _roll(self, worker: "SimWorker", fault: Fault) -> None:
        """Restart one: it comes back after a while, or at once while the old one is only paused."""
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

    def _return(self, worker: "SimWorker") -> None:
        if not self._is_over:
            self._world.start(worker.name if worker.static_id else "", worker.static_id)

    def _then(self, after_ms: int, do: Callable[[], object]) -> None:
        self._world.clock.after(after_ms, do)
