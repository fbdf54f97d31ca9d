"""A deterministic world for cores: workers, a network, senders, and a server on plain values.

The same seed gives the same run, event for event. What an observer could see goes to a ``Checker``.
"""

from collections.abc import Callable
from dataclasses import replace

from streamworker.core.claim_timing import ClaimTiming
from streamworker.core.lease_timing import LeaseTiming
from streamworker.core.protocols import Coordinator, Setup, make_coordinator
from streamworker.core.worker import Identity, Timing
from streamworker.testing.checkers import Checker, worker_of
from streamworker.testing.clock import Dice, VirtualClock
from streamworker.testing.extensions import EXTENSIONS
from streamworker.testing.faults import QUIET, Fault, Kind
from streamworker.testing.model import Lock, RedisModel
from streamworker.testing.process import CALL_TIMEOUT_MS, LATEST_MS, SimWorker
from streamworker.testing.transcript import Transcript

START_MS = 1_000_000
"""The server's clock at first; generations and epochs begin there."""
WORKERS_MOST = 10
FLAPS = 3
SLOW_MS = (20, 100, 300)
LAG_MS = (50, 500, 2_000)
"""How far a replica may be behind."""


class World:
    """The clock, the dice, the server, the senders and the workers.

    Parameters
    ----------
    seed
        Of the dice.
    partitions
        Number of partitions.
    protocol, assignment
        What the workers' cores are made by.
    timing, claim, lease
        The protocols' time spans.
    drain_deadline_ms
        How long a contender waits for a live owner.
    entry_every_ms
        About how often somebody sends an entry; never if None, see ``send``.
    start_ms
        What the server's clock shows at first.
    model, wrap
        Stand in for the model, and around each core: this is how mistakes are planted.
    trace
        Writes down what the cores are told and answer.
    """

    def __init__(
        self,
        seed: int,
        *,
        partitions: int = 8,
        protocol: str = "membership",
        assignment: str = "range",
        timing: Timing | None = None,
        claim: ClaimTiming | None = None,
        lease: LeaseTiming | None = None,
        drain_deadline_ms: int = 12_000,
        entry_every_ms: int | None = 60,
        start_ms: int = START_MS,
        model: type[RedisModel] = RedisModel,
        wrap: Callable[[Coordinator], Coordinator] = lambda core: core,
        trace: Transcript | None = None,
    ) -> None:
        self.random = Dice(seed)
        self.timing = timing or Timing()
        self.claim, self.lease = claim or ClaimTiming(), lease or LeaseTiming()
        self.usual = self.conditions = QUIET
        self.clock = VirtualClock(start_ms)
        self.trace = trace
        if trace is not None:
            trace.start_ms = start_ms
        self.model = model(
            partitions,
            drain_deadline_ms=drain_deadline_ms,
            clock=lambda: self.clock.now_ms,
            on_post=self._spread_the_word,
            extend=EXTENSIONS.get(protocol),
        )
        self.checker = Checker(partitions, lambda: self.clock.now_ms - start_ms)
        self.model.on_lock = self.checker.locked
        self.model.on_held = lambda partition: self.checker.held(partition, drain_deadline_ms)
        self.model.on_commit = self.checker.committed
        self.workers: list[SimWorker] = []
        self._flapping: list[SimWorker] = []
        """Those that came to leave again soon."""
        self._is_healed = False
        self._protocol, self._assignment, self._wrap = protocol, assignment, wrap
        self._connections = 0
        self._numbers = [0] * partitions
        self._sending = [False] * partitions
        self._entry_every_ms = entry_every_ms
        self.clock.after(0, self._send_some)

    # -- workers -------------------------------------------------------------------------------

    def start(self, name: str = "") -> SimWorker:
        """Start a worker."""
        worker = SimWorker(self, name or f"w{len(self.workers) + 1}", self.make_core)
        self.workers.append(worker)
        self.checker.figures.came(worker.name)
        self._note(f"{worker.name} starts")
        return worker

    def stop(self, worker: SimWorker) -> None:
        """Ask a worker to leave."""
        self._note(f"{worker.name} is asked to leave")
        self.checker.figures.went(worker.name, at_once=False)
        worker.stop()

    def kill(self, worker: SimWorker) -> None:
        """End a worker at once."""
        self._note(f"{worker.name} is killed; its connection closes")
        worker.kill()
        self.checker.figures.went(worker.name, at_once=True)

    def setup(self, worker: SimWorker) -> Setup:
        """Return what a worker's core is made from."""
        return Setup(
            identity=Identity(worker.name, "host", 1),
            partitions=len(self.model.locks),
            assignment=self._assignment,
            timing=self.timing,
            nonce=lambda: f"{self.random.getrandbits(40):010x}",
            jitter=lambda most: self.random.randint(0, most),
            claim=self.claim,
            lease=self.lease,
        )

    def make_core(self, worker: SimWorker) -> Coordinator:
        """Make a worker's core."""
        return self._wrap(make_coordinator(self._protocol, self.setup(worker)))

    @property
    def staying(self) -> list[SimWorker]:
        """The workers that are there and were not told to leave."""
        return [worker for worker in self.workers if worker.alive and not worker.stopping]

    # -- the network ---------------------------------------------------------------------------

    def latency_ms(self) -> int:
        """How long one way takes."""
        return self.random.randint(1, self.conditions.latency_ms)

    def new_connection(self) -> int:
        """Return the client id of a new connection."""
        self._connections += 1
        self.model.connections.add(self._connections)
        return self._connections

    def _spread_the_word(self) -> None:
        for worker in self.workers:
            if worker.alive and not worker.finished:
                worker.poll_soon()

    # -- senders -------------------------------------------------------------------------------

    def stop_sending(self) -> None:
        """Send a last entry to each partition, and no more."""
        self._entry_every_ms = None
        for partition in range(len(self._numbers)):
            self.send(partition)

    @property
    def is_sent(self) -> bool:
        """Whether every entry was confirmed."""
        return not any(self._sending)

    def _send_some(self) -> None:
        if self._entry_every_ms is not None:
            draw = self.random.random
            self.send(int(draw() * len(self._numbers)))
            self.clock.after(1 + int(draw() * 2 * self._entry_every_ms), self._send_some)

    def send(self, partition: int) -> None:
        """Send the partition's next entry, unless one is still on its way."""
        if not self._sending[partition]:
            self._sending[partition] = True
            self._numbers[partition] += 1
            self._send(partition, self._numbers[partition])

    def _send(self, partition: int, number: int) -> None:
        """Bring an entry to the server until it is confirmed; a lost answer makes it come twice."""
        model, conditions, chance = self.model, self.conditions, 1.0
        if conditions.lost:
            chance = self.random.random()
        if chance < conditions.lost / 2:
            self.clock.after(CALL_TIMEOUT_MS, lambda: self._send(partition, number))
            return
        model.append(partition, number)
        for worker in self.workers:
            runner = worker.runners.get(partition)
            if runner is not None:
                runner.told()
        if conditions.repeated and self.random.random() < conditions.repeated:
            run = model.run

            def again() -> None:
                if model.run == run:
                    model.append(partition, number)

            self.clock.after(self.random.randint(1, LATEST_MS), again)
        if chance < conditions.lost:
            self.clock.after(CALL_TIMEOUT_MS, lambda: self._send(partition, number))
        else:
            self.checker.confirmed(partition, number)
            self._sending[partition] = False

    def grow(self, partitions: int) -> None:
        """Give the stream more partitions, for the protocols that read their number."""
        more = partitions - len(self._numbers)
        self._note(f"the stream has {partitions} partitions now")
        self._numbers += [0] * more
        self._sending += [False] * more
        self.model.locks.extend(Lock() for _ in range(more))
        self.checker.grow(more)

    # -- faults --------------------------------------------------------------------------------

    def happen(self, fault: Fault) -> None:
        """Let one thing happen."""
        match fault.kind:
            case Kind.START | Kind.HERD | Kind.FLAP:
                self._come(fault)
            case Kind.LOST | Kind.SILENCE | Kind.STUCK:
                self._weather(fault)
            case Kind.RESTART | Kind.FLUSH | Kind.FAILOVER:
                self._redis(fault)
            case _:
                there = [w for w in self.workers if w.alive and not w.finished]
                if there:
                    self._happen_to(there[fault.pick % len(there)], fault)

    def _come(self, fault: Fault) -> None:
        room = WORKERS_MOST - len(self.staying)
        if fault.kind is Kind.FLAP and room > 0:
            for turn in range(FLAPS):
                self.clock.after(turn * 1_400, lambda: self._flap(700))
            return
        for _ in range(min(room, 1 if fault.kind is Kind.START else 2 + fault.pick % 6)):
            self.start()

    def _flap(self, after_ms: int) -> None:
        if not self._is_healed:
            worker = self.start()
            self._flapping.append(worker)
            self.clock.after(after_ms, lambda: self._end_flap(worker))

    def _end_flap(self, worker: SimWorker) -> None:
        if worker.alive and not worker.stopping:
            self.stop(worker)

    def _weather(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.LOST:
                worse = {"lost": 0.15, "repeated": 0.1, "latency_ms": 400}
            case Kind.SILENCE:
                worse = {"control_lost": 1.0}
            case _:
                worse = {"stuck": 0.1}
        self._note(f"for {fault.span_ms} ms: {', '.join(f'{name} {value}' for name, value in worse.items())}")
        self.conditions = replace(self.conditions, **worse)  # type: ignore[arg-type]
        usual = {name: getattr(self.usual, name) for name in worse}

        def better() -> None:
            self.conditions = replace(self.conditions, **usual)

        self.clock.after(fault.span_ms, better)

    def _redis(self, fault: Fault) -> None:
        if fault.kind is Kind.FAILOVER:
            snapshot, lag_ms = self.model.snapshot(), LAG_MS[fault.pick % len(LAG_MS)]
            self.clock.after(lag_ms, lambda: self._fail_over(snapshot, lag_ms, fault.span_ms))
            return
        self._note(f"Redis restarts {'without' if fault.kind is Kind.FLUSH else 'with'} its data")
        if fault.kind is Kind.FLUSH:
            self.model.flush()
        else:
            self.model.restart()
        self._reconnect(fault.span_ms)

    def _fail_over(self, snapshot: object, lag_ms: int, away_ms: int) -> None:
        self._note(f"Redis fails over to a replica that lacks the last {lag_ms} ms")
        self.model.lose_suffix(snapshot)
        self._reconnect(away_ms)

    def restart_server(self) -> None:
        """Restart it with its data; nobody is connected then."""
        self.model.restart()
        for worker in self.workers:
            worker.disconnect()

    def _reconnect(self, away_ms: int) -> None:
        self.checker.restarted(self.model)
        self.checker.figures.happened(away_ms)
        for worker in self.workers:
            worker.disconnect()
            if worker.alive:
                worker.later(away_ms + self.random.randint(0, 1_000), worker.connect)

    def _happen_to(self, worker: SimWorker, fault: Fault) -> None:
        span_ms = fault.span_ms
        match fault.kind:
            case Kind.STOP:
                self.stop(worker)
                return
            case Kind.KILL:
                self.kill(worker)
                return
            case Kind.SLOW:
                worker.slow(SLOW_MS[fault.pick % len(SLOW_MS)])
                self.clock.after(span_ms, lambda: worker.slow(0))
                self._note(
                    f"{worker.name} is slow for {span_ms} ms: up to {worker.slow_ms} ms for each thing"
                )
                return
            case Kind.DRIFT:
                pace = 950 + fault.pick % 101
                worker.drift(pace)
                self._note(f"the clock of {worker.name} goes at {pace} thousandths")
                return
            case Kind.PAUSE:
                worker.pause()
                self.clock.after(span_ms, worker.wake)
            case Kind.DISCONNECT:
                worker.disconnect()
                worker.later(span_ms, worker.connect)
            case Kind.CUT | Kind.DEAF:
                setattr(worker, fault.kind.value, True)
                self.clock.after(span_ms, lambda: setattr(worker, fault.kind.value, False))
        self._note(f"{worker.name}: {fault.kind.value} for {span_ms} ms")
        self.checker.figures.happened(span_ms)

    def heal(self) -> None:
        """End all faults; what a handler began it still has to end."""
        self._note("all faults end")
        self.conditions = self.usual = QUIET
        self._is_healed = True
        for worker in self._flapping:
            self._end_flap(worker)
        for worker in self.workers:
            worker.cut = worker.deaf = False
            worker.slow(0)
            if worker.alive and worker.link is None:
                worker.connect()
            if worker.paused:
                worker.wake()

    def _note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.happened(self.clock.now_ms, text)

    # -- what an observer sees -----------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether each partition is handled by the owner of its lock, and all have about as many."""
        if any(w.alive and not w.finished for w in self.workers if w.stopping):
            return False
        handled = {
            (runner.partition, runner.owner, runner.epoch)
            for worker in self.staying
            for runner in worker.runners.values()
            if not runner.ended and not runner.draining
        }
        locks = self.model.locks
        if handled != {(p, lock.owner, lock.epoch) for p, lock in enumerate(locks)}:
            return False
        if any(r.draining and not r.ended for w in self.staying for r in w.runners.values()):
            return False
        counts = dict.fromkeys((worker.name for worker in self.staying), 0)
        for lock in locks:
            counts[worker_of(lock.owner)] += 1
        return max(counts.values()) - min(counts.values()) <= 1

    @property
    def is_agreed(self) -> bool:
        """Whether the document names exactly those who are there, and all locks' owners."""
        document = self.model.membership
        if document is None:
            return not self.staying
        return {member.name for member in document.members} == {worker.name for worker in self.staying} and (
            document.owners == tuple(lock.owner or None for lock in self.model.locks)
        )

    @property
    def is_caught_up(self) -> bool:
        """Whether every entry is committed, but for partitions whose handler gave up."""
        halted = {p for w in self.staying for p, r in w.runners.items() if r.halted and not r.ended}
        return self.is_sent and all(
            not lock.events or lock.events[-1].id <= lock.checkpoint or p in halted
            for p, lock in enumerate(self.model.locks)
        )

    def story(self) -> str:
        """Say who has what, for the text of a failure."""
        document = self.model.membership
        lines = [f"document: {None if document is None else (document.generation, document.owners)}"]
        lines += [
            f"lock {p}: {lock.owner or 'nobody'}, epoch {lock.epoch}, committed {lock.checkpoint}, "
            f"{len(lock.events)} entries wait"
            for p, lock in enumerate(self.model.locks)
        ]
        for worker in self.workers:
            running = {p: r.epoch for p, r in worker.runners.items() if not r.ended}
            what = "gone" if not worker.alive else "finished" if worker.finished else "there"
            lines.append(f"{worker.owner or worker.name}: {what}, handles {running}")
        return "\n".join(lines)
