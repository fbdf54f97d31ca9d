"""One group of the simulator: its workers, senders and server, before anything goes wrong.

The same seed gives the same run, event for event. A ``Checker`` gets everything that an observer could
see.
"""

from collections.abc import Callable
from random import Random

from streamworker.core.control import StreamGrown
from streamworker.core.data.outbox import OutboxQueue
from streamworker.core.protocols.membership.settings import BalanceRules
from streamworker.core.protocols.registry import PROTOCOLS, Coordinator
from streamworker.core.protocols.settings import Coordination
from streamworker.core.protocols.setup import Identity, Setup, Timing
from streamworker.errors import ConfigurationError
from tests.simulator.checkers import Checker, worker_of
from tests.simulator.clock import Dice, VirtualClock
from tests.simulator.faults import QUIET, Conditions
from tests.simulator.senders import Senders
from tests.simulator.server.server import SimulatedServer
from tests.simulator.server.stored import LockChange
from tests.simulator.transcript import Transcript
from tests.simulator.worker import SimWorker

BALANCE = BalanceRules(interval_ms=1_000, looks=2, moves_per_minute=1_000)
"""Fast enough that the balancer moves partitions during the faults, and settles after them."""
LOAD_IS_A_REASON_MS = 10**9
"""Under ``weighted`` load is a reason for every move, for as long as a simulation may last."""
LOAD_SPELL_MS = 4_000
"""Interval at which loads change during the faults."""
RETENTION_MS = 1_000
"""How long the source records of every third seed stay after their commit."""
LOOK_MS = 10_000
"""How often a worker looks at the partitions of a stream that has grown."""
START_MS = 1_000_000
"""First time of the server's clock; generations and epochs begin there."""


class SimulatedGroup:
    """The clock, the random generator, the server, the senders and the workers.

    A contender waits ``drain_deadline_ms`` for a live owner. A worker has a static id with the probability
    ``static``. An entry is sent every ``entry_every_ms`` on average; with None only with ``senders.send``.
    Tests observe the server with ``server``, and the cores with ``wrap``.
    """

    connections = 0
    _has_grown = False
    has_timers = False
    """Whether each partition has a timer."""
    has_chains = False
    """Whether each batch sends a message to another stream."""
    queue = OutboxQueue
    """Decides about these messages."""

    def __init__(
        self,
        seed: int,
        *,
        partitions: int = 8,
        protocol: str = "membership",
        assignment: str = "range",
        timing: Timing | None = None,
        coordination: Coordination | None = None,
        drain_deadline_ms: int = 12_000,
        static: float = 0.0,
        entry_every_ms: int | None = 60,
        start_ms: int = START_MS,
        server: type[SimulatedServer] = SimulatedServer,
        wrap: Callable[[Coordinator], Coordinator] = lambda core: core,
        trace: Transcript | None = None,
    ) -> None:
        self.random = Dice(seed)
        self.timing = timing or Timing()
        self.usual: Conditions = QUIET
        self.conditions: Conditions = QUIET
        """The faults of the network and of handlers that last at this moment."""
        self.clock = VirtualClock(start_ms)
        self.trace = trace
        if trace is not None:
            trace.start_ms = start_ms
        self.server = server(partitions, drain_deadline_ms=drain_deadline_ms, clock=lambda: self.clock.now_ms)
        self.server.retention_ms = RETENTION_MS if seed % 3 == 2 else 0
        self.checker = Checker(partitions, lambda: self.clock.now_ms - start_ms)
        self.is_weighted = assignment == "weighted"
        """Whether the assignment shares partitions by load, not by number."""
        if self.is_weighted:
            self.checker.figures.happened(LOAD_IS_A_REASON_MS)
        self._locked_ms = start_ms
        """When a lock last changed."""
        self.measurable_ms = start_ms
        """When the loads of all workers can be read again, after damage."""
        self.known_ms = start_ms
        """When each worker knows the document that was put back."""
        self.may_be_uneven = False
        """Whether another program gave all partitions to one member, in a valid document. If a failover loses
        the repair, the group follows it until the next join or leave, as if a person had written it."""
        self.server.on_post, self.server.on_lock = self._spread_the_word, self._lock_changed
        self.server.on_held = lambda p, generation: self.checker.held(p, generation, drain_deadline_ms)
        self.server.on_commit, self.server.on_acquired = self.checker.committed, self.checker.acquired
        self.workers: list[SimWorker] = []
        self.is_healed = False
        """Whether all faults have ended."""
        self.protocol, self._assignment, self._wrap = PROTOCOLS[protocol], assignment, wrap
        self._coordination = coordination or self.protocol.settings()
        self._static = static
        self._load_seed = seed
        self.senders = Senders(self, entry_every_ms)

    # -- workers -------------------------------------------------------------------------------

    def start(self, name: str = "", static_id: str = "") -> SimWorker:
        """Start a worker; with the name of an earlier worker, it is that worker's restart."""
        name = name or f"w{len(self.workers) + 1}"
        if not static_id and self.random.random() < self._static:
            static_id = f"s-{name}"
        self.note(f"{name} starts{f' as {static_id}' if static_id else ''}")
        worker = SimWorker(self, name, static_id=static_id)
        self.workers.append(worker)
        self.checker.figures.came(name)
        return worker

    def stop(self, worker: SimWorker) -> None:
        """Ask a worker to leave."""
        self.note(f"{worker.name} is asked to leave")
        self.checker.figures.went(worker.name)
        worker.stop()

    def kill(self, worker: SimWorker) -> None:
        """Kill a worker."""
        self.note(f"{worker.name} is killed; its connection closes")
        worker.kill()
        self.checker.figures.went(worker.name)

    def refused(self, worker: SimWorker, error: ConfigurationError) -> None:
        """End a worker whose core raised an error about its configuration."""
        if not worker.static_id:
            self.checker.found("crash", f"{worker.name}: {error}")
        self.note(f"{worker.name} ends: {error}")
        worker.kill()
        if all(each.name != worker.name for each in self.staying):
            self.checker.figures.went(worker.name)
        if self.is_healed and not self.staying:
            self.start()  # An operator notices that no worker runs.

    def setup(self, worker: SimWorker) -> Setup:
        """Return the setup of a worker's core."""
        return Setup(
            coordination=self._coordination,
            identity=Identity(worker.name, "host", 1, worker.static_id, capacity=self._capacity_of(worker)),
            partitions=self.server.placement.total,
            first=self.server.active.start,
            assignment=self._assignment,
            timing=self.timing,
            nonce=lambda: f"{self.random.getrandbits(40):010x}",
            jitter=lambda most: self.random.randint(0, most),
            balance=BALANCE,
        )

    # -- load ----------------------------------------------------------------------------------

    def load_of(self, partition: int) -> int:
        """Return a partition's load; it changes every few seconds until the faults end."""
        spell = 0 if self.is_healed else self.clock.now_ms // LOAD_SPELL_MS
        dice = Random(f"{self._load_seed} {partition} {spell}")
        return dice.choice((1, 20, dice.randint(10, 100), dice.randint(100, 1_000)))

    def _capacity_of(self, worker: SimWorker) -> int:
        if not self.is_weighted:
            return 1
        return Random(f"{self._load_seed} {worker.name}").choice((1, 1, 1, 2, 4))

    def _lock_changed(self, change: LockChange) -> None:
        self._locked_ms = self.clock.now_ms
        self.checker.locked(change)

    @property
    def has_come_to_rest(self) -> bool:
        """Whether each worker knows a document that was put back.

        And whether the balancer has had time to see the loads, and has moved no partition since.
        """
        if self.clock.now_ms < self.known_ms:
            return False
        document = self.server.membership
        if not self.is_weighted or document is None:
            return True
        # A partition without an owner has no load: its load shows after its lock was acquired.
        quiet_ms = self.clock.now_ms - max(document.generation, self._locked_ms, self.measurable_ms)
        return quiet_ms >= (BALANCE.looks + 2) * BALANCE.interval_ms

    def make_core(self, worker: SimWorker) -> Coordinator:
        """Create a worker's core."""
        setup = self.setup(worker)
        return self._wrap(PROTOCOLS[setup.coordination.name].make(setup))

    @property
    def staying(self) -> list[SimWorker]:
        """The live workers that were not asked to leave."""
        return [w for w in self.workers if w.alive and not w.stopping]

    # -- the network and the senders -----------------------------------------------------------

    def latency_ms(self) -> int:
        """Return the time of one way through the network."""
        return self.random.randint(1, self.conditions.latency_ms)

    def new_connection(self) -> int:
        """Return the client id of a new connection."""
        self.connections += 1
        self.server.connections.add(self.connections)
        return self.connections

    def note(self, text: str) -> None:
        """Write a line to the transcript, if there is one."""
        if self.trace is not None:
            self.trace.happened(self.clock.now_ms, text)

    def _spread_the_word(self) -> None:
        for worker in self.workers:
            if worker.alive and not worker.finished:
                worker.poll_soon()

    def sent(self, partition: int) -> None:
        """Tell the workers of an entry that reached the server."""
        for worker in self.workers:
            if (runner := worker.runners.get(partition)) is not None:
                runner.told()

    def grow(self, count: int) -> None:
        """Grow the stream by some partitions, and tell the workers; they look at intervals from then on."""
        self.server.grow(count)
        self.note(f"the stream has {self.server.placement} partitions now")
        self.checker.grow(count)
        self.checker.figures.happened()
        self.server.post(StreamGrown(str(self.server.placement), "ann"))
        if not self._has_grown:
            self._has_grown = True
            self.clock.after(LOOK_MS, self._look_at_partitions)

    def _look_at_partitions(self) -> None:
        for worker in self.workers:
            if worker.alive and not worker.finished:
                worker.go_on()
        self.clock.after(LOOK_MS, self._look_at_partitions)

    # -- what an observer sees -----------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether the owner of each lock handles its partition, and the shares differ by at most one.

        Nobody handles a partition that the group no longer works on.
        """
        if any(w.alive and not w.finished for w in self.workers if w.stopping):
            return False
        staying = self.staying
        locks = {p: self.server.partitions[p] for p in self.server.active}
        runners = [r for worker in staying for r in worker.runners.values() if not r.ended]
        handled = {(r.partition, r.owner, r.epoch) for r in runners}
        owned = {(p, lock.owner, lock.epoch) for p, lock in locks.items()}
        if handled != owned or any(r.draining for r in runners):
            return False
        if self.is_weighted:
            return True
        counts = dict.fromkeys((worker.name for worker in staying), 0)
        for lock in locks.values():
            counts[worker_of(lock.owner)] += 1
        most = max(counts.values())
        return most - min(counts.values()) <= 1 or (self.may_be_uneven and most == len(locks))

    @property
    def is_agreed(self) -> bool:
        """Whether the document names exactly the current members, and the owners of all locks.

        Ids are compared: an id that a worker had before it lost its membership counts as a dead member.
        """
        document = self.server.membership
        if document is None:
            return not self.staying
        active, locks = self.server.active, self.server.partitions
        owners = *(None,) * active.start, *(locks[p].owner or None for p in active)
        ids = {member.id for member in document.members}
        return ids == {worker.owner for worker in self.staying} and document.owners == owners

    @property
    def is_caught_up(self) -> bool:
        """Whether every entry is committed."""
        return self.senders.is_sent and all(
            partition.has_all_committed for partition in self.server.partitions
        )

    @property
    def is_forwarded(self) -> bool:
        """Whether each target has all that was sent to it, or waits for a person.

        A failover brings back messages that were deleted; the next owner of the partition deletes them again.
        """
        server = self.server
        return not any(
            its.has_messages
            and not self.checker.has_diverged(p)
            and not (
                server.losses
                and all(server.taken(to, p) == position for to, position in its.positions.items())
            )
            for p, its in enumerate(server.partitions)
        )
