"""A worker of the simulator: the counterpart of the runtime, on virtual time.

``SimWorker`` passes events to a core and performs its effects. It does not depend on the protocol: redisio's
table of operations says what an effect does at Redis.
"""

from typing import TYPE_CHECKING

from streamworker.core import events as ev
from streamworker.core.ownership.pulse import BEAT_RETRIES
from streamworker.core.protocols.membership import events as calls
from streamworker.errors import BackendError, ConfigurationError
from tests.simulator.process import Process
from tests.simulator.runner import SimRunner

if TYPE_CHECKING:
    from tests.simulator.group import SimulatedGroup


class SimWorker(Process):
    """One process: a core, its connection, its clock and its runners."""

    def __init__(self, world: "SimulatedGroup", name: str, *, static_id: str = "") -> None:
        super().__init__(world)
        self.name, self.static_id = name, static_id
        self.stopping, self.finished = False, False
        self.owner = ""
        """Its latest owner id in the locks."""
        self.runners: dict[int, SimRunner] = {}
        self._calls: set[object] = set()
        self._beats_for: str | None = None
        self._rounds = 0
        """The current series of heartbeats: an immediate heartbeat starts a new series and ends the old."""
        self._is_beating = self._is_hurried = False
        """Whether a heartbeat has no answer yet, and whether another must follow it at once."""
        self._reports_load = False
        self._polling = False
        """Whether a read of the control stream is scheduled; it finds all messages until then."""
        self._look_ms: int | None = None
        """When the core's deadline is looked at next, by the simulation's clock."""
        self._control_read = world.server.newest_message()
        self._seen = world.server.placement.total
        """How many partitions it knows."""
        self.core = world.make_core(self)
        self.connect()
        self.later(0, lambda: self.handle(ev.Started()))
        self.later(0, lambda: self._beat(0))

    def connect(self) -> None:
        """Connect, or reconnect, and read the control stream."""
        super().connect()
        self.poll_soon()

    def stop(self) -> None:
        """Ask it to leave."""
        self.stopping = True
        self.later(0, lambda: self.handle(ev.StopRequested()))

    # -- the core ------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Pass an event to the core, and start its effects."""
        if self.finished:
            return
        try:
            effects = self.core.handle(event, self.now_ms)
        except ConfigurationError as error:
            self.world.refused(self, error)
            return
        if self.world.trace is not None:
            self.world.trace.took(self.world.clock.now_ms, self.name, event, effects)
        for effect in effects:
            self._perform(effect)
        self._watch_deadline()

    def _watch_deadline(self) -> None:
        deadline_ms = self.core.next_deadline_ms()
        if deadline_ms is None:
            return
        now_ms = self.now_ms
        if deadline_ms <= now_ms:
            self.world.checker.found("crash", f"{self.name} would spin")
            deadline_ms = now_ms + 1_000
        wait_ms = -(-(deadline_ms - now_ms) * 1_000 // self._clock[2])
        look_ms = self.world.clock.now_ms + wait_ms
        if self._look_ms is None or look_ms < self._look_ms:
            self._look_ms = look_ms
            self.later(wait_ms, lambda: self._look(look_ms))

    def _look(self, look_ms: int) -> None:
        if look_ms != self._look_ms or self.finished:
            return
        self._look_ms = None
        deadline_ms = self.core.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.handle(ev.DeadlinePassed())
        else:
            self._watch_deadline()

    def poll_soon(self) -> None:
        """Schedule a read of the control stream, unless one is scheduled."""
        if not self._polling:
            self._polling = True
            self.later(self.world.latency_ms(), self._poll_control)

    def _poll_control(self) -> None:
        self._polling = False
        if self.link is None or self.cut or self.deaf:
            return
        self._control_read, messages = self.world.server.control_after(self._control_read)
        if messages and self.world.random.random() >= self.world.conditions.control_lost:
            self.handle(ev.ControlReceived(messages))

    def look_for_requests(self) -> None:
        """Read the versions of the requests in the locks that it holds."""
        server, held = self.world.server, self.core.held
        self.request(lambda: ev.RequestsSeen(server.requested(held)), self.handle, lambda: None)

    def look_at_partitions(self) -> None:
        """Read on which partitions the group works, and begin with what that says."""

        def heard(active: range) -> None:
            self._seen = active.stop
            self.handle(ev.PartitionsSeen(active.start, active.stop))

        self.request(lambda: self.world.server.active, heard, lambda: None)

    def go_on(self) -> None:
        """Look as at intervals: a failover may have lost that the group is done with a partition."""
        self.look_at_partitions()
        for runner in list(self.runners.values()):
            runner.is_done = False
            runner.told()

    # -- effects -------------------------------------------------------------------------------

    def _perform(self, effect: ev.Effect) -> None:
        """Perform an effect; those that a worker does not perform itself are redisio's."""
        match effect:
            case ev.StartRunner():
                self._start_runner(effect)
            case ev.DrainRunner(partition, epoch):
                self._runner(partition, epoch).drain()
            case ev.CancelRunner(partition, epoch):
                self._runner(partition, epoch).cancel()
            case ev.DropRunner(partition, epoch):
                self._runner(partition, epoch).ended = True
            case ev.PauseBatches():
                self.batches_paused = True
            case ev.ResumeBatches():
                self.batches_paused = False
                for runner in list(self.runners.values()):
                    self.later(0, runner.begin)
            case ev.LookAtPartitions():
                self.go_on()
            case ev.PostControl():
                self._post(effect)
            case ev.Finished():
                self._finish()
            case calls.StartHeartbeat(member):
                self._beats_for = self.owner = member
            case calls.SendHeartbeat():
                self._send_heartbeat()
            case calls.StopHeartbeat():
                self._beats_for = None
            case calls.ReportLoad(every_ms):
                self._reports_load = every_ms > 0
            case ev.Note() | ev.MarkLock():
                pass  # They only serve observers.
            case _:
                self._operate(effect)

    def _post(self, effect: ev.PostControl) -> None:
        """Send a message to the control stream, without waiting for an answer."""
        world, server, link, run = self.world, self.world.server, self.link, self.world.server.runs
        if link is None or self.cut or world.random.random() < world.conditions.lost / 2:
            return

        def arrive() -> None:
            if server.runs == run and (self.link == link or world.random.random() < 0.5):
                server.post(effect.message)

        world.clock.after(world.latency_ms(), arrive)

    def _send_heartbeat(self) -> None:
        if self._is_beating:
            self._is_hurried = True
            return
        self._rounds += 1
        this_round = self._rounds
        self.world.clock.after(0, lambda: self._beat(this_round), self._thread)

    def _finish(self) -> None:
        if any(not runner.ended for runner in self.runners.values()):
            self.world.checker.found("crash", f"{self.name} finished with work in hand")
        self.finished = True
        # The group may hold its place for a time, and reassigns its partitions only after that.
        self.world.checker.figures.happened(self.world.timing.hold_ms if self.static_id else 0)

    def _start_runner(self, effect: ev.StartRunner) -> None:
        partition, old = effect.partition, self.runners.get(effect.partition)
        if old is not None and not old.ended:
            self.world.checker.found("crash", f"{self.name} runs partition {partition} twice")
        self.owner = effect.owner
        self.runners[partition] = SimRunner(self, partition, effect.owner, effect.lock)

    def _runner(self, partition: int, epoch: int) -> SimRunner:
        runner = self.runners[partition]
        if runner.epoch != epoch:
            self.world.checker.found("crash", f"{self.name} means epoch {epoch} of {runner.epoch}")
        return runner

    def _operate(self, effect: ev.Effect) -> None:
        """Perform an effect at the server, and pass its answer, or "no answer", to the core."""
        world, server = self.world, self.world.server
        if isinstance(effect, ev.AcquireLocks) and max(effect.partitions) >= self._seen:
            world.checker.found("crash", f"{self.name} asks for a partition that it has not seen: {effect}")
        subjects = _subjects(effect)
        if subjects & self._calls:
            world.checker.found("crash", f"{self.name} has two calls about one thing under way: {effect}")
        self._calls |= subjects

        def answered(event: ev.Event) -> None:
            self._calls.difference_update(subjects)
            self.handle(event)

        self.request(
            lambda: server.perform(effect, lambda: world.random.random() < world.conditions.lost),
            answered,
            lambda: answered(ev.Unanswered(effect)),
        )

    def _beat(self, this_round: int) -> None:
        """Send a heartbeat from the heartbeat thread, which a busy loop does not delay.

        It sends none if a new series of heartbeats has begun.
        """
        if self._rounds != this_round:
            return
        member, link, sent_ms = self._beats_for, self.link, self.now_ms
        world = self.world

        def again(after_ms: int) -> None:
            self._is_beating = False
            if self._is_hurried:
                self._is_hurried, after_ms = False, 0
            wait_ms = max(0, sent_ms + after_ms - self.now_ms)
            world.clock.after(wait_ms, lambda: self._beat(this_round), self._thread)

        interval_ms = world.timing.heartbeat_interval_ms
        retry_ms = interval_ms // BEAT_RETRIES

        def heard(event: calls.HeartbeatDone | BackendError) -> None:
            if isinstance(event, BackendError):
                again(retry_ms)
                return
            self.soon(lambda: self.handle(event))
            again(interval_ms)

        if member is None or link is None:
            again(interval_ms if member is None else retry_ms)
            return
        loads = None
        if self._reports_load:
            loads = {p: world.load_of(p) for p, runner in self.runners.items() if not runner.ended}
        load = sum((loads or {}).values())
        self._is_beating = True

        def ask() -> calls.HeartbeatDone | BackendError:
            done = world.server.heartbeat(member, link, sent_ms, load, loads)
            if isinstance(done, calls.HeartbeatDone):
                world.checker.beaten(done, world.server)
            return done

        self.request(ask, heard, lambda: again(retry_ms), lane=self._thread)


def _subjects(effect: ev.Effect) -> frozenset[object]:
    """Return the subjects of a call; a core has at most one call about each subject."""
    match effect:
        case ev.AcquireLocks(partitions, owner):
            return frozenset((owner, partition) for partition in partitions)
        case ev.ReleaseLocks(owner, epochs):
            return frozenset((owner, partition) for partition in epochs)
        case calls.DocumentCall():
            return frozenset([calls.DocumentCall])
        case calls.ProbePeers() | calls.ReadLoads():
            return frozenset([type(effect)])
    return frozenset()
