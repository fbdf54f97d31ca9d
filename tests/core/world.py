"""A small deterministic world for worker cores: workers, a network, handlers and one clock.

``Worker`` is what the runtime is in production: it carries events in and effects out. ``Runner``
stands for the handling of one partition. ``World`` has the clock, the dice, the network and its
faults, and a ``Server``. The same seed gives the same run, event for event.

What a run promises is checked as it goes, by ``assert`` at the place where it would break:
at most one call at a time about the document and about each lock, one runner a partition and
worker, no deadline in the past, no partition drained that nobody took away. What an observer
could see (commits, executions, documents) is kept for the tests to judge.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from streamworker.core import events as ev
from streamworker.core.locks import Acquired
from streamworker.core.worker import Identity, Phase, Timing, WorkerCore
from tests.core.server import Code, Commit, Server

T = TypeVar("T")

CALL_TIMEOUT_MS = 2_500
REFUSED_MS = 50
"""A call without a connection fails this fast."""
STUCK_MS = 20_000
"""Far longer than the grace period, and longer than the drain deadline."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad things are. Numbers between 0 and 1 are probabilities."""

    lost: float = 0.0
    """A call gets no answer: not done, done unheard, or done after everybody gave up."""
    control_lost: float = 0.0
    latency_ms: int = 10
    batch_ms: int = 400
    stuck: float = 0.0
    """A batch takes ``STUCK_MS``, and half of these cannot be cancelled."""
    halted: float = 0.0


QUIET = Faults()
ROUGH = Faults(lost=0.08, control_lost=0.1, latency_ms=300, batch_ms=1_500, stuck=0.01, halted=0.002)


class Runner:
    """Handles the entries of one partition: batches of random size that take random time."""

    def __init__(self, worker: "Worker", partition: int, owner: str, lock: Acquired) -> None:
        self.worker, self.partition, self.owner, self.epoch = worker, partition, owner, lock.epoch
        self.generation = worker.generation
        self.checkpoint = lock.checkpoint.ms
        self.ended = self.draining = self.busy = self.stubborn = self.halted = False
        worker.later(0, self.begin)

    def begin(self) -> None:
        """Handle the next batch, unless there is a reason not to."""
        world = self.worker.world
        if self.ended or self.busy or self.halted:
            return
        if self.draining:
            self._end(ev.RunnerStopped(self.partition, self.epoch))
            return
        if self.worker.batches_paused:
            return
        self.busy = True
        batch_ms = world.random.randint(1, world.faults.batch_ms)
        if world.random.random() < world.faults.stuck:
            batch_ms, self.stubborn = STUCK_MS, world.random.random() < 0.5
        new = self.checkpoint + world.random.randint(1, 5)
        world.executions.update((self.partition, entry) for entry in range(self.checkpoint + 1, new + 1))
        self.worker.later(batch_ms, lambda: self._handled(new))

    def drain(self) -> None:
        """Finish the batch in hand and stop."""
        self.draining = True
        if not self.busy and not self.ended:
            self._end(ev.RunnerStopped(self.partition, self.epoch))

    def cancel(self) -> None:
        """Stop at once, unless the handler does not let itself be stopped."""
        if not self.ended and not self.stubborn:
            self._end(ev.RunnerStopped(self.partition, self.epoch))

    def _handled(self, new: int) -> None:
        world = self.worker.world
        self.stubborn = False
        if self.ended:
            return
        if world.random.random() < world.faults.halted:
            self.busy, self.halted = False, True
            if self.draining:
                self._end(ev.RunnerStopped(self.partition, self.epoch))
            else:
                self._tell(ev.RunnerHalted(self.partition, self.epoch, "poison"))
            return
        self._commit(Commit(self.owner, self.epoch, self.checkpoint, new))

    def _commit(self, commit: Commit) -> None:
        if not self.ended:
            server = self.worker.world.server
            self.worker.request(
                lambda: server.commit(self.partition, commit),
                lambda code: self._committed(code, commit),
                lambda: self.worker.later(100, lambda: self._commit(commit)),
            )

    def _committed(self, code: Code, commit: Commit) -> None:
        if self.ended:
            return
        assert code is not Code.GAP, f"{commit} passed the fence, and its checkpoint is wrong"
        if code is Code.FENCED:
            self._end(ev.RunnerFenced(self.partition, self.epoch))
            return
        self.checkpoint, self.busy = commit.new, False
        self.worker.later(0 if self.draining else self.worker.world.random.randint(1, 200), self.begin)

    def _end(self, event: ev.Event) -> None:
        self.ended = True
        self._tell(event)

    def _tell(self, event: ev.Event) -> None:
        self.worker.later(self.worker.world.random.randint(0, 5), lambda: self.worker.handle(event))


class Worker:
    """One process: a core, its connection, its clock and its runners."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.alive, self.paused, self.stopping, self.finished = True, False, False, False
        self.clock_ms = world.random.randrange(10**9)
        """What its monotonic clock has more than the world's."""
        self.link: int | None = None
        """Its connection's client id; None while there is none."""
        self.runners: dict[int, Runner] = {}
        self.batches_paused = False
        self._backlog: list[Callable[[], None]] = []
        self._calls: set[object] = set()
        self._beats_for: str | None = None
        self._timer = 0
        self._control_read = len(world.server.control)
        self.core = self.make_core()
        self.connect()
        self.later(0, lambda: self.handle(ev.Started()))
        self.later(0, self._beat)

    def make_core(self) -> WorkerCore:
        """Make its part of the protocol."""
        world = self.world
        return WorkerCore(
            Identity(self.name, "host", 1),
            partitions=len(world.server.locks),
            strategy="range",
            timing=world.timing,
            nonce=lambda: f"{world.random.getrandbits(40):010x}",
            jitter=lambda most: world.random.randint(0, most),
        )

    @property
    def generation(self) -> int:
        """The newest generation that it knows."""
        return self.core.membership.generation

    @property
    def now_ms(self) -> int:
        """Its own clock."""
        return self.world.now_ms + self.clock_ms

    def handle(self, event: ev.Event) -> None:
        """Bring an event to the core and start what it wants done."""
        if self.finished:
            return
        for effect in self.core.handle(event, self.now_ms):
            self._do(effect)
        self._timer += 1
        timer, deadline_ms = self._timer, self.core.next_deadline_ms()
        if deadline_ms is not None:
            assert deadline_ms > self.now_ms, f"{self.name} would spin after {event}"
            self.later(deadline_ms - self.now_ms, lambda: self._deadline(timer))

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something after a while; a worker that is paused then does it when it wakes."""
        self.world.after(delay_ms, lambda: self._run(action))

    def request(
        self, do: Callable[[], T], heard: Callable[[T], None], failed: Callable[[], None] = lambda: None
    ) -> None:
        """Make one round trip; it ends in ``heard`` or ``failed``, after which it may be done or not."""
        world, link = self.world, self.link
        chance = world.random.random()
        if link is None:
            self.later(REFUSED_MS, failed)
            return
        if chance < world.faults.lost / 2:
            self.later(CALL_TIMEOUT_MS, failed)
            if chance < world.faults.lost / 4:
                world.after(CALL_TIMEOUT_MS + world.random.randint(1, 5_000), lambda: (do(), None)[1])
            return

        def arrive() -> None:
            if self.link != link and world.random.random() < 0.5:
                self.later(0, failed)
                return
            answer = do()
            if chance < world.faults.lost:
                self.later(CALL_TIMEOUT_MS, failed)
            else:
                self.later(world.latency_ms(), lambda: heard(answer) if self.link == link else failed())

        world.after(world.latency_ms(), arrive)

    # -- what can happen to a process ----------------------------------------------------------

    def connect(self) -> None:
        """Connect anew."""
        self.disconnect()
        self.link = self.world.new_connection()
        self.later(self.world.latency_ms(), self.poll_control)

    def disconnect(self) -> None:
        """Lose the connection and every answer on its way."""
        self.world.server.connections.discard(self.link or 0)
        self.link = None

    def kill(self) -> None:
        """End at once; the kernel closes the connection."""
        self.disconnect()
        self.alive = False

    def wake(self) -> None:
        """Go on after a pause, with all that piled up."""
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self._run(action)

    def stop(self) -> None:
        """Ask it to leave."""
        self.stopping = True
        self.later(0, lambda: self.handle(ev.StopRequested()))

    def poll_control(self) -> None:
        """Read what is new on the control stream."""
        if self.link is None:
            return
        messages = tuple(self.world.server.control[self._control_read :])
        self._control_read += len(messages)
        if messages and self.world.random.random() >= self.world.faults.control_lost:
            self.handle(ev.ControlReceived(messages))

    def _run(self, action: Callable[[], None]) -> None:
        if self.paused:
            self._backlog.append(action)
        elif self.alive:
            action()

    def _deadline(self, timer: int) -> None:
        if timer == self._timer:
            self.handle(ev.DeadlinePassed())

    def _beat(self) -> None:
        member, link, sent_ms = self._beats_for, self.link, self.now_ms

        def again() -> None:
            self.later(max(0, sent_ms + self.world.timing.heartbeat_interval_ms - self.now_ms), self._beat)

        def heard(event: ev.Event) -> None:
            self.handle(event)
            again()

        if member is None or link is None:
            again()
        else:
            self.request(lambda: self.world.server.heartbeat(member, link, sent_ms), heard, again)

    def check_drain(self, runner: Runner) -> None:
        """A partition is drained only if somebody took it away, or we leave."""
        assert self.stopping or any(
            later.owners[runner.partition] != runner.owner
            for later in self.world.server.history
            if later.generation > runner.generation
        ), f"{self.name} drains partition {runner.partition}, which nobody took away"

    # -- effects -------------------------------------------------------------------------------

    def _do(self, effect: ev.Effect) -> None:
        server = self.world.server
        match effect:
            case ev.ReadDocument():
                self._call("document", server.read, ev.CallFailed(ev.Call.DOCUMENT))
            case ev.ChangeDocument():
                self._call("document", lambda: server.change(effect), ev.CallFailed(ev.Call.DOCUMENT))
            case ev.ProbePeers(connections):
                self._call("probe", lambda: server.probe(connections), ev.CallFailed(ev.Call.PROBE))
            case ev.AcquireLocks(partitions, owner, generation, live):
                self._lock_call(
                    owner,
                    partitions,
                    lambda p: server.acquire(p, owner, generation, live),
                    lambda answers: ev.LocksAnswered(owner, partitions, answers),
                )
            case ev.ReleaseLocks(owner, epochs):
                self._lock_call(
                    owner,
                    tuple(epochs),
                    lambda p: server.release(p, owner, epochs[p]),
                    lambda answers: ev.LocksReleased(owner, tuple(epochs), frozenset(answers)),
                )
            case ev.PostControl(message):
                self.request(lambda: server.post(message), lambda _: None)
            case ev.StartHeartbeat(member):
                self._beats_for = member
            case ev.StopHeartbeat():
                self._beats_for = None
            case ev.PauseBatches():
                self.batches_paused = True
            case ev.ResumeBatches():
                self.batches_paused = False
                for runner in list(self.runners.values()):
                    self.later(0, runner.begin)
            case ev.Finished():
                assert all(runner.ended for runner in self.runners.values()), "finished with work in hand"
                self.finished = True
            case _:
                self._do_runner(effect)

    def _do_runner(self, effect: ev.Effect) -> None:
        match effect:
            case ev.StartRunner(partition, owner, lock):
                old = self.runners.get(partition)
                assert old is None or old.ended, f"{self.name} runs partition {partition} twice"
                self.runners[partition] = Runner(self, partition, owner, lock)
            case ev.DrainRunner(partition, epoch):
                runner = self._runner(partition, epoch)
                self.check_drain(runner)
                runner.drain()
            case ev.CancelRunner(partition, epoch):
                self._runner(partition, epoch).cancel()
            case ev.DropRunner(partition, epoch):
                self._runner(partition, epoch).ended = True

    def _runner(self, partition: int, epoch: int) -> Runner:
        runner = self.runners[partition]
        assert runner.epoch == epoch
        return runner

    def _call(self, name: object, do: Callable[[], ev.Event], failure: ev.Event) -> None:
        assert name not in self._calls, f"{self.name} has two calls about {name} under way"
        self._calls.add(name)

        def answered(event: ev.Event) -> None:
            self._calls.discard(name)
            self.handle(event)

        self.request(do, answered, lambda: answered(failure))

    def _lock_call(
        self,
        owner: str,
        partitions: tuple[int, ...],
        do: Callable[[int], T],
        event: Callable[[dict[int, T]], ev.Event],
    ) -> None:
        names = {(owner, partition) for partition in partitions}
        assert not names & self._calls, f"{self.name} has two calls about a lock under way"
        self._calls |= names

        def do_all() -> dict[int, T]:
            lost = self.world.faults.lost
            done = {p: do(p) for p in partitions if self.world.random.random() >= lost}
            return {p: answer for p, answer in done.items() if self.world.random.random() >= lost}

        def answered(answers: dict[int, T]) -> None:
            self._calls.difference_update(names)
            self.handle(event(answers))

        self.request(do_all, answered, lambda: answered({}))


class World:
    """The clock, the dice, the server and the workers."""

    def __init__(
        self, seed: int, *, partitions: int = 8, timing: Timing | None = None, drain_deadline_ms: int = 12_000
    ) -> None:
        self.random = Random(seed)
        self.timing = timing or Timing()
        self.faults = QUIET
        self.now_ms = 1_000_000
        self.server = Server(
            partitions,
            drain_deadline_ms=drain_deadline_ms,
            clock=lambda: self.now_ms,
            on_post=self._spread_the_word,
        )
        self.workers: list[Worker] = []
        self.executions: Counter[tuple[int, int]] = Counter()
        """How often the handling of an entry was begun, by (partition, entry)."""
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def start(self, name: str = "") -> Worker:
        """Start a worker."""
        worker = Worker(self, name or f"w{len(self.workers) + 1}")
        self.workers.append(worker)
        return worker

    def latency_ms(self) -> int:
        """How long one way takes."""
        return self.random.randint(1, self.faults.latency_ms)

    def new_connection(self) -> int:
        """Return the client id of a new connection."""
        self._count += 1
        self.server.connections.add(self._count)
        return self._count

    def restart_server(self) -> None:
        """Restart it with its data: connections are lost, and client ids mean something else."""
        self.server.run += 1
        for worker in self.workers:
            worker.disconnect()

    def heal(self) -> None:
        """End all faults."""
        self.faults = QUIET
        for worker in self.workers:
            if worker.alive and worker.link is None:
                worker.connect()
            if worker.paused:
                worker.wake()

    def _spread_the_word(self) -> None:
        for worker in self.workers:
            worker.later(self.latency_ms(), worker.poll_control)

    # -- time ----------------------------------------------------------------------------------

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Let something happen after a while; at one time, in the order of asking."""
        self._count += 1
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, self._count, action))

    def run_for(self, ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + ms
        while self._agenda and self._agenda[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._agenda)
            action()
        self.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], what: str, within_ms: int) -> int:
        """Let time pass until something is true; return how long it took."""
        start_ms = self.now_ms
        while not condition():
            assert self.now_ms - start_ms < within_ms, f"not within {within_ms} ms: {what}\n{self.story()}"
            self.run_for(50)
        return self.now_ms - start_ms

    # -- what an observer sees -----------------------------------------------------------------

    @property
    def staying(self) -> list[Worker]:
        """The workers that are there and were not told to leave."""
        return [worker for worker in self.workers if worker.alive and not worker.stopping]

    def is_settled(self) -> bool:
        """Whether all agree on the document, and each partition runs where it says."""
        document, staying = self.server.membership, self.staying
        if any(worker.alive and not worker.finished for worker in self.workers if worker.stopping):
            return False
        if document is None:
            return not staying
        by_member = {worker.core.member: worker for worker in staying}
        if set(document.ids) != set(by_member):
            return False
        if any(w.core.phase is not Phase.MEMBER or w.core.membership != document for w in staying):
            return False
        running = {
            (runner.owner, runner.partition, runner.epoch)
            for worker in staying
            for runner in worker.runners.values()
            if not runner.ended and not runner.draining
        }
        wanted = {
            (owner, p, self.server.locks[p].epoch)
            for p, owner in enumerate(document.owners)
            if owner is not None
        }
        return running == wanted

    def story(self) -> str:
        """Say what stands in the way, for the text of a failed assertion."""
        document = self.server.membership
        lines = [f"document: {None if document is None else (document.generation, document.owners)}"]
        lines += [f"lock {p}: {lock.owner} {lock.epoch}" for p, lock in enumerate(self.server.locks)]
        for worker in self.workers:
            running = {p: r.epoch for p, r in worker.runners.items() if not r.ended}
            lines.append(
                f"{worker.core.member}: alive={worker.alive} {worker.core.phase} stopping={worker.stopping} "
                f"generation={worker.core.membership.generation} running={running}"
            )
        return "\n".join(lines)
