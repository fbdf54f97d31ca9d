"""A worker of the simulator: what the runtime is in production, on virtual time.

``SimWorker`` carries events into a core and its effects out, over a network that loses things.
``SimRunner`` handles one partition's records and commits them. Neither knows which protocol the
core speaks: what an effect does at Redis, the model's table says.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from streamworker.core import events as ev
from streamworker.core.locks import Acquired
from streamworker.core.protocols import Coordinator
from streamworker.testing.extensions import UNANSWERED
from streamworker.testing.model import Code, Commit

if TYPE_CHECKING:
    from streamworker.testing.world import World

T = TypeVar("T")

CALL_TIMEOUT_MS = 2_500
REFUSED_MS = 50
"""A call without a connection fails this fast."""
STUCK_MS = 20_000
"""Far longer than the grace period, and longer than the drain deadline."""
RETRY_MS = 100
BUSY_MAX_MS = 5_000
"""A busy loop is never further behind than this."""
BATCHES = (1, 2, 3, 5, 100)
"""How many entries a batch may have; the last one is for a partition that is behind."""


class SimRunner:
    """Handles the entries of one partition: batches of random size that take random time."""

    def __init__(self, worker: "SimWorker", partition: int, owner: str, lock: Acquired) -> None:
        self.worker, self.partition, self.owner, self.epoch = worker, partition, owner, lock.epoch
        self.checkpoint = lock.checkpoint.ms
        self.ended = self.draining = self.busy = self.stubborn = self.halted = self.waiting = False
        worker.later(0, self.begin)

    def begin(self) -> None:
        """Handle the next batch, unless there is a reason not to."""
        world, worker = self.worker.world, self.worker
        if self.ended or self.busy or self.halted:
            return
        if self.draining:
            self._end(ev.RunnerStopped(self.partition, self.epoch))
            return
        self.waiting = True
        if worker.batches_paused:
            return
        if worker.link is None or worker.cut or worker.deaf:
            worker.later(RETRY_MS * 5, self.begin)
            return
        records = world.model.read_events(
            self.partition, self.checkpoint, BATCHES[world.random.randint(0, len(BATCHES) - 1)]
        )
        if not records:
            return
        self.busy, self.waiting = True, False
        batch_ms = world.random.randint(1, world.conditions.batch_ms)
        if world.random.random() < world.conditions.stuck:
            batch_ms, self.stubborn = STUCK_MS, world.random.random() < 0.5
        world.checker.executed(worker.name, self.partition, records)
        commit = Commit(self.owner, self.epoch, self.checkpoint, records[-1].id, tuple(records))
        worker.later(batch_ms, lambda: self._handled(commit))

    def told(self) -> None:
        """Look for entries: there are new ones."""
        if self.waiting:
            self.waiting = False
            self.worker.later(self.worker.world.latency_ms(), self.begin)

    def drain(self) -> None:
        """Finish the batch in hand and stop."""
        self.draining = True
        if not self.busy and not self.ended:
            self._end(ev.RunnerStopped(self.partition, self.epoch))

    def cancel(self) -> None:
        """Stop at once, unless the handler does not let itself be stopped."""
        if not self.ended and not self.stubborn:
            self._end(ev.RunnerStopped(self.partition, self.epoch))

    def _handled(self, commit: Commit) -> None:
        world = self.worker.world
        self.stubborn = False
        if self.ended:
            return
        if world.random.random() < world.conditions.halted:
            self.busy, self.halted = False, True
            if self.draining:
                self._end(ev.RunnerStopped(self.partition, self.epoch))
            else:
                self._tell(ev.RunnerHalted(self.partition, self.epoch, "poison"))
            return
        self._commit(commit, tries=1)

    def _commit(self, commit: Commit, tries: int) -> None:
        if not self.ended:
            model = self.worker.world.model
            self.worker.request(
                lambda: model.commit(self.partition, commit),
                lambda code: self._committed(code, commit, tries),
                lambda: self.worker.later(RETRY_MS, lambda: self._commit(commit, tries + 1)),
            )

    def _committed(self, code: Code, commit: Commit, tries: int) -> None:
        self.worker.world.checker.answered(self.partition, commit, code, tries)
        if self.ended:
            return
        if code in (Code.FENCED, Code.GAP):
            self._end(ev.RunnerFenced(self.partition, self.epoch))
            return
        self.checkpoint, self.busy = commit.new, False
        self.worker.later(0, self.begin)

    def _end(self, event: ev.Event) -> None:
        self.ended = True
        self._tell(event)

    def _tell(self, event: ev.Event) -> None:
        self.worker.later(self.worker.world.random.randint(0, 5), lambda: self.worker.handle(event))


class SimWorker:
    """One process: a core, its connection, its clock and its runners.

    Parameters
    ----------
    world
        Where it lives.
    name
        What stands in the locks before the first dot.
    make
        Makes its core.
    """

    def __init__(self, world: "World", name: str, make: Callable[["SimWorker"], Coordinator]) -> None:
        self.world, self.name = world, name
        self.alive, self.paused, self.stopping, self.finished = True, False, False, False
        self.cut = self.deaf = False
        """Whether its requests are lost on their way there, or the answers on their way back."""
        self.slow_ms = 0
        """What each thing that it does may cost: its loop is busy."""
        self._clock = (world.clock.now_ms, world.random.randrange(10**9), 1_000)
        self.link: int | None = None
        """Its connection's client id; None while there is none."""
        self.owner = ""
        """Its name in the locks, as it was last seen there."""
        self.runners: dict[int, SimRunner] = {}
        self.batches_paused = False
        self._backlog: list[Callable[[], None]] = []
        self._calls: set[object] = set()
        self._beats_for: str | None = None
        self._look_ms: int | None = None
        """When its core's deadline is looked at next, by the world's clock."""
        self._busy_until_ms = 0
        self._control_read, _ = world.model.control_after(0)
        self.core = make(self)
        self.connect()
        self.later(0, lambda: self.handle(ev.Started()))
        self.later(0, self._beat)

    # -- time ----------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Its own clock."""
        since_ms, showed_ms, pace = self._clock
        return showed_ms + (self.world.clock.now_ms - since_ms) * pace // 1_000

    def drift(self, pace: int) -> None:
        """Let its clock go on at another pace, in thousandths."""
        self._clock = (self.world.clock.now_ms, self.now_ms, pace)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something after a while; a worker that is paused then does it when it wakes."""
        self.world.clock.after(delay_ms, lambda: self._run(action))

    def _later_at_once(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something after a while, however busy the loop is."""
        self.world.clock.after(delay_ms, lambda: self._run_now(action))

    def _run(self, action: Callable[[], None]) -> None:
        if not self.slow_ms or self.paused or not self.alive:
            self._run_now(action)
            return
        now_ms = self.world.clock.now_ms
        takes_ms = self.world.random.randint(0, self.slow_ms)
        self._busy_until_ms = min(max(self._busy_until_ms, now_ms) + takes_ms, now_ms + BUSY_MAX_MS)
        self.world.clock.after(self._busy_until_ms - now_ms, lambda: self._run_now(action))

    def _run_now(self, action: Callable[[], None]) -> None:
        if self.paused:
            self._backlog.append(action)
        elif self.alive:
            action()

    # -- the core ------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Bring an event to the core and start what it wants done."""
        if self.finished:
            return
        effects = self.core.handle(event, self.now_ms)
        if self.world.trace is not None:
            self.world.trace.took(self.world.clock.now_ms, self.name, event, effects)
        for effect in effects:
            self._do(effect)
        self._watch_deadline()

    def _watch_deadline(self) -> None:
        """See to it that the core is told when its time has come."""
        deadline_ms, now_ms = self.core.next_deadline_ms(), self.now_ms
        if deadline_ms is None:
            return
        if deadline_ms <= now_ms:
            self.world.checker.found("crash", f"{self.name} would spin")
            deadline_ms = now_ms + 1_000
        wait_ms = -(-(deadline_ms - now_ms) * 1_000 // self._clock[2])
        look_ms = self.world.clock.now_ms + wait_ms
        if self._look_ms is None or look_ms < self._look_ms:
            self._look_ms = look_ms
            self.later(wait_ms, lambda: self._look(look_ms))

    def _look(self, look_ms: int) -> None:
        """Tell the core that its time has come, if it still has that deadline."""
        if look_ms != self._look_ms or self.finished:
            return
        self._look_ms = None
        deadline_ms = self.core.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.handle(ev.DeadlinePassed())
        else:
            self._watch_deadline()

    # -- the network ---------------------------------------------------------------------------

    def request(
        self,
        do: Callable[[], T],
        heard: Callable[[T], None],
        failed: Callable[[], None] = lambda: None,
        *,
        by_loop: bool = True,
    ) -> None:
        """Make one round trip; it ends in ``heard`` or ``failed``, after which it may be done or not."""
        later = self.later if by_loop else self._later_at_once
        world, model, link, run = self.world, self.world.model, self.link, self.world.model.run
        conditions, chance = world.conditions, world.random.random()
        if link is None:
            later(REFUSED_MS, failed)
            return

        def again() -> None:
            if model.run == run:
                do()

        if self.cut or chance < conditions.lost / 2:
            later(CALL_TIMEOUT_MS, failed)
            if not self.cut and chance < conditions.lost / 4:
                world.clock.after(CALL_TIMEOUT_MS + world.random.randint(1, 5_000), again)
            return

        def arrive() -> None:
            if model.run != run or (self.link != link and world.random.random() < 0.5):
                later(0, failed)
                return
            answer = do()
            if world.random.random() < conditions.repeated:
                world.clock.after(world.random.randint(1, 5_000), again)
            if self.deaf or chance < conditions.lost:
                later(CALL_TIMEOUT_MS, failed)
            else:
                later(world.latency_ms(), lambda: heard(answer) if self.link == link else failed())

        world.clock.after(world.latency_ms(), arrive)

    def connect(self) -> None:
        """Connect anew."""
        self.disconnect()
        self.link = self.world.new_connection()
        self.later(self.world.latency_ms(), self.poll_control)

    def disconnect(self) -> None:
        """Lose the connection and every answer on its way."""
        self.world.model.connections.discard(self.link or 0)
        self.link = None

    def poll_control(self) -> None:
        """Read what is new on the control stream."""
        if self.link is None or self.cut or self.deaf:
            return
        self._control_read, messages = self.world.model.control_after(self._control_read)
        if messages and self.world.random.random() >= self.world.conditions.control_lost:
            self.handle(ev.ControlReceived(messages))

    # -- what can happen to a process ----------------------------------------------------------

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

    # -- effects -------------------------------------------------------------------------------

    def _do(self, effect: ev.Effect) -> None:
        match effect:
            case ev.PostControl(message):
                model = self.world.model
                self.request(lambda: model.post(message), lambda _: None)
            case ev.StartHeartbeat(member):
                self._beats_for = self.owner = member
            case ev.StopHeartbeat():
                self._beats_for = None
            case ev.PauseBatches():
                self.batches_paused = True
            case ev.ResumeBatches():
                self.batches_paused = False
                for runner in list(self.runners.values()):
                    self.later(0, runner.begin)
            case ev.Finished():
                if any(not runner.ended for runner in self.runners.values()):
                    self.world.checker.found("crash", f"{self.name} finished with work in hand")
                self.finished = True
            case ev.Note() | ev.MarkLock():
                pass
            case ev.StartRunner() | ev.DrainRunner() | ev.CancelRunner() | ev.DropRunner():
                self._do_runner(effect)
            case _:
                self._operate(effect)

    def _do_runner(self, effect: ev.Effect) -> None:
        match effect:
            case ev.StartRunner(partition, owner, lock):
                old = self.runners.get(partition)
                if old is not None and not old.ended:
                    self.world.checker.found("crash", f"{self.name} runs partition {partition} twice")
                self.owner = owner
                self.runners[partition] = SimRunner(self, partition, owner, lock)
            case ev.DrainRunner(partition, epoch):
                self._runner(partition, epoch).drain()
            case ev.CancelRunner(partition, epoch):
                self._runner(partition, epoch).cancel()
            case ev.DropRunner(partition, epoch):
                self._runner(partition, epoch).ended = True

    def _runner(self, partition: int, epoch: int) -> SimRunner:
        runner = self.runners[partition]
        if runner.epoch != epoch:
            self.world.checker.found("crash", f"{self.name} means epoch {epoch} of {runner.epoch}")
        return runner

    def _operate(self, effect: ev.Effect) -> None:
        """Do an effect at the model and bring its answer; "no answer" is an answer too."""
        world, model = self.world, self.world.model
        subjects = _subjects(effect)
        if subjects & self._calls:
            world.checker.found("crash", f"{self.name} has two calls about one thing under way: {effect}")
        self._calls |= subjects

        def answered(event: ev.Event) -> None:
            self._calls.difference_update(subjects)
            self.handle(event)

        self.request(
            lambda: model.perform(effect, lambda: world.random.random() < world.conditions.lost),
            answered,
            lambda: answered(UNANSWERED[type(effect)](effect)),
        )

    def _beat(self) -> None:
        """Send heartbeats, from a thread of its own: a busy loop does not delay them."""
        member, link, sent_ms = self._beats_for, self.link, self.now_ms
        world = self.world

        def again() -> None:
            wait_ms = max(0, sent_ms + world.timing.heartbeat_interval_ms - self.now_ms)
            self._later_at_once(wait_ms, self._beat)

        def heard(event: ev.HeartbeatDone) -> None:
            self._run(lambda: self.handle(event))
            again()

        if member is None or link is None:
            again()
        else:
            self.request(lambda: world.model.heartbeat(member, link, sent_ms), heard, again, by_loop=False)


def _subjects(effect: ev.Effect) -> frozenset[object]:
    """Return what a call is about; a core has one call at most about each thing."""
    match effect:
        case ev.AcquireLocks(partitions, owner):
            return frozenset((owner, partition) for partition in partitions)
        case ev.ReleaseLocks(owner, epochs):
            return frozenset((owner, partition) for partition in epochs)
        case ev.ReadDocument() | ev.ChangeDocument():
            return frozenset(["document"])
        case ev.ProbePeers():
            return frozenset(["probe"])
    return frozenset()
