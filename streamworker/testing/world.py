"""A deterministic world for cores: workers, a network, senders, and a server on plain values.

The same seed gives the same run, event for event. What an observer could see goes to a ``Checker``.
"""

from collections.abc import Callable
from random import Random

from streamworker.core.balance import BalanceRules
from streamworker.core.claim_timing import ClaimTiming
from streamworker.core.lease_timing import LeaseTiming
from streamworker.core.protocols import Coordinator, Setup, make_coordinator
from streamworker.core.worker import Identity, Timing
from streamworker.errors import ConfigurationError
from streamworker.testing.checkers import Checker, worker_of
from streamworker.testing.clock import Dice, VirtualClock
from streamworker.testing.extensions import EXTENSIONS
from streamworker.testing.faults import QUIET, Fault
from streamworker.testing.model import RedisModel
from streamworker.testing.model_claim import ModelClaims
from streamworker.testing.process import CALL_TIMEOUT_MS, LATEST_MS, SimWorker
from streamworker.testing.stored import Lock, LockChange
from streamworker.testing.transcript import Transcript
from streamworker.testing.trouble import Trouble

BALANCE = BalanceRules(interval_ms=1_000, looks=2, moves_per_minute=1_000)
"""Fast enough that load moves something while faults last, and comes to rest when they are over."""
LOAD_IS_A_REASON_MS = 10**9
"""By load a partition moves with a reason, for as long as a simulation may last."""
LOAD_SPELL_MS = 4_000
"""How long a load stays as it is while faults last."""
GROWING = frozenset({"claim"})
"""The protocols that read the number of partitions while they run. Others refuse another one."""
START_MS = 1_000_000
"""The server's clock at first; generations and epochs begin there."""


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
    static
        How likely a worker has a static id.
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
        static: float = 0.0,
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
        if assignment == "weighted":
            self.checker.figures.happened(LOAD_IS_A_REASON_MS)
        self._locked_ms = start_ms
        """When a lock had another owner last."""
        self._measurable_ms = start_ms
        self.model.on_lock = self._lock_changed
        self.model.on_held = lambda partition: self.checker.held(partition, drain_deadline_ms)
        self.model.on_commit = self.checker.committed
        self.workers: list[SimWorker] = []
        self.trouble = Trouble(self)
        self._is_healed = False
        self._protocol, self._assignment, self._wrap = protocol, assignment, wrap
        self._static = static
        self.hold_ms = (timing or Timing()).hold_ms
        """How long a static member's place is kept."""
        self._connections = 0
        self._numbers = [0] * partitions
        self._sending = [False] * partitions
        self._entry_every_ms = entry_every_ms
        self._load_seed = seed
        self.clock.after(0, self._send_some)

    # -- workers -------------------------------------------------------------------------------

    def start(self, name: str = "", static_id: str = "") -> SimWorker:
        """Start a worker; by a name that was there before, it is the one that comes back."""
        name = name or f"w{len(self.workers) + 1}"
        if not static_id and self.random.random() < self._static:
            static_id = f"s-{name}"
        self.note(f"{name} starts{f' as {static_id}' if static_id else ''}")
        worker = SimWorker(self, name, self.make_core, static_id=static_id)
        self.workers.append(worker)
        self.checker.figures.came(name)
        return worker

    def start_wrong(self, partitions: int) -> None:
        """Start a worker of another release of the app, which has another number of partitions."""
        name = f"w{len(self.workers) + 1}"
        self.note(f"{name} starts, with {partitions} partitions")
        self.workers.append(SimWorker(self, name, self.make_core, partitions=partitions))

    def stop(self, worker: SimWorker, *, comes_back: bool = False) -> None:
        """Ask a worker to leave."""
        self.note(f"{worker.name} is asked to leave")
        if not worker.is_wrong:
            self.checker.figures.went(worker.name, at_once=False, comes_back=comes_back)
        worker.stop()

    def kill(self, worker: SimWorker, *, comes_back: bool = False) -> None:
        """End a worker at once."""
        self.note(f"{worker.name} is killed; its connection closes")
        worker.kill()
        if not worker.is_wrong:
            self.checker.figures.went(worker.name, at_once=True, comes_back=comes_back)

    def refused(self, worker: SimWorker, error: ConfigurationError) -> None:
        """A worker's core says that it was set up wrong, and its process ends."""
        if not worker.is_wrong and not worker.static_id:
            self.checker.found("crash", f"{worker.name}: {error}")
        if worker.is_wrong and any(worker_of(lock.owner) == worker.name for lock in self.model.locks):
            self.checker.found("I4", f"{worker.name} has a lock, and another number of partitions")
        self.note(f"{worker.name} ends: {error}")
        worker.kill()
        others = any(each.name == worker.name for each in self.staying)
        if not others and not worker.is_wrong:
            self.checker.figures.went(worker.name, at_once=True)
        if self._is_healed and not self.staying:
            self.start()  # somebody notices that nobody is there

    def declare(self) -> None:
        """Say how many partitions there are, as each worker does when it has found the server again."""
        if isinstance(self.model.extension, ModelClaims):
            self.model.extension.is_declared = True

    @property
    def reads_partitions(self) -> bool:
        """Whether the protocol reads the number of partitions again and again."""
        return self._protocol in GROWING

    @property
    def has_document(self) -> bool:
        """Whether the protocol has a membership document."""
        return self._protocol == "membership"

    def setup(self, worker: SimWorker) -> Setup:
        """Return what a worker's core is made from."""
        return Setup(
            identity=Identity(worker.name, "host", 1, worker.static_id, capacity=self._capacity_of(worker)),
            partitions=worker.partitions or len(self.model.locks),
            assignment=self._assignment,
            timing=self.timing,
            nonce=lambda: f"{self.random.getrandbits(40):010x}",
            jitter=lambda most: self.random.randint(0, most),
            claim=self.claim,
            lease=self.lease,
            balance=BALANCE,
        )

    # -- load ----------------------------------------------------------------------------------

    def load_of(self, partition: int) -> int:
        """What a partition asks of its owner: another number every few seconds until all is healed."""
        spell = 0 if self._is_healed else self.clock.now_ms // LOAD_SPELL_MS
        dice = Random(f"{self._load_seed} {partition} {spell}")
        return dice.choice((1, 20, dice.randint(10, 100), dice.randint(100, 1_000)))

    def _capacity_of(self, worker: SimWorker) -> int:
        if self._assignment != "weighted":
            return 1
        return Random(f"{self._load_seed} {worker.name}").choice((1, 1, 1, 2, 4))

    @property
    def is_weighted(self) -> bool:
        """Whether partitions are shared by load, and not by number."""
        return self._assignment == "weighted"

    def _lock_changed(self, change: LockChange) -> None:
        self._locked_ms = self.clock.now_ms
        self.checker.locked(change)

    def damage_loads(self, away_ms: int) -> None:
        """Let another program put a list in place of the loads, which nobody mends, for so long."""
        self._measurable_ms = max(self._measurable_ms, self.clock.now_ms + away_ms)
        self.model.damage_loads()
        self.clock.after(away_ms, lambda: self.model.damage_loads(is_right=True))

    @property
    def has_come_to_rest(self) -> bool:
        """Whether load has moved nothing for as long as it takes to see that it should."""
        document = self.model.membership
        if not self.is_weighted or document is None:
            return True
        # A partition that stood still asked for nothing: its load shows from when its lock was taken.
        quiet_ms = self.clock.now_ms - max(document.generation, self._locked_ms, self._measurable_ms)
        return quiet_ms >= (BALANCE.looks + 2) * BALANCE.interval_ms

    def make_core(self, worker: SimWorker) -> Coordinator:
        """Make a worker's core."""
        return self._wrap(make_coordinator(self._protocol, self.setup(worker)))

    @property
    def staying(self) -> list[SimWorker]:
        """The workers that are there, may be there, and were not told to leave."""
        return [w for w in self.workers if w.alive and not w.stopping and not w.is_wrong]

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
        self.note(f"the stream has {partitions} partitions now")
        self._numbers += [0] * more
        self._sending += [False] * more
        self.model.locks.extend(Lock() for _ in range(more))
        self.checker.grow(more)

    # -- faults --------------------------------------------------------------------------------

    def happen(self, fault: Fault) -> None:
        """Let one thing happen."""
        self.trouble.happen(fault)

    def restart_server(self) -> None:
        """Restart it with its data; nobody is connected then."""
        self.model.restart()
        for worker in self.workers:
            worker.disconnect()

    def heal(self) -> None:
        """End all faults; what a handler began it still has to end."""
        self.note("all faults end")
        self.conditions = self.usual = QUIET
        self._is_healed = True
        self.trouble.end()
        for worker in self.workers:
            worker.cut = worker.deaf = False
            worker.slow(0)
            if worker.alive and worker.link is None:
                worker.connect()
            if worker.paused:
                worker.wake()

    def note(self, text: str) -> None:
        """Write into the transcript, if there is one."""
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
        if self.is_weighted:
            return True
        counts = dict.fromkeys((worker.name for worker in self.staying), 0)
        for lock in locks:
            counts[worker_of(lock.owner)] += 1
        return max(counts.values()) - min(counts.values()) <= 1

    @property
    def is_agreed(self) -> bool:
        """Whether the document has exactly those who are there, and all locks' owners.

        By their ids: one that somebody was under before he was lost is a member like a dead one.
        """
        document = self.model.membership
        if document is None:
            return not self.staying
        return {member.id for member in document.members} == {worker.owner for worker in self.staying} and (
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
