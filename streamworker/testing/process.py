"""A worker of the simulator: what the runtime is in production, on virtual time.

``SimWorker`` carries events into a core and its effects out, over a network that loses things. It
does not know which protocol the core speaks: what an effect does at Redis, the model's table says.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from streamworker.core import events as ev
from streamworker.core.protocols import Coordinator
from streamworker.core.pulse import BEAT_RETRIES
from streamworker.errors import ConfigurationError
from streamworker.redisio.operations import OPERATIONS
from streamworker.testing.clock import Lane
from streamworker.testing.runner import SimRunner

if TYPE_CHECKING:
    from streamworker.testing.world import World

T = TypeVar("T")

CALL_TIMEOUT_MS = 2_500
LATEST_MS = 3_000
"""A request that its sender has given up, or that comes again, comes at most this much later."""
REFUSED_MS = 50
"""A call without a connection fails this fast."""
BUSY_MAX_MS = 5_000
"""A busy loop is never further behind than this."""


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
    static_id
        Under which it keeps its place, if any.
    partitions
        How many it was told that there are, if that is wrong.
    """

    def __init__(
        self,
        world: "World",
        name: str,
        make: Callable[["SimWorker"], Coordinator],
        *,
        static_id: str = "",
        partitions: int = 0,
    ) -> None:
        self.world, self.name, self.static_id, self.partitions = world, name, static_id, partitions
        self.alive, self.stopping, self.finished = True, False, False
        self.paused = False
        self.cut = self.deaf = False
        """Whether its requests are lost on their way there, or the answers on their way back."""
        self.slow_ms = 0
        """What each thing that it does may cost: its loop is busy."""
        self._loop, self._thread = Lane(self._hold_up), Lane(self._hold_up_thread)
        """What its loop does, and what the thread of its heartbeats does however busy the loop is."""
        self._clock = (world.clock.now_ms, world.random.randrange(10**9), 1_000)
        self.link: int | None = None
        """Its connection's client id; None while there is none."""
        self.owner = ""
        """Its name in the locks, as it was last seen there."""
        self.runners: dict[int, SimRunner] = {}
        self.batches_paused = False
        self._backlog: list[Callable[[], object]] = []
        self._calls: set[object] = set()
        self._beats_for: str | None = None
        self._rounds = 0
        """Which of its heartbeats is followed by others: one that is hurried takes the place of the last."""
        self._is_beating = self._is_hurried = False
        """Whether a heartbeat is under way, and another one is to follow at once."""
        self._reports_load = False
        self._polling = False
        """Whether it looks at the control stream soon: one look finds all that is there by then."""
        self._deadline_ms: int | None = None
        """The deadline that it looks at next, by its own clock."""
        self._look_ms: int | None = None
        """When that is, by the world's clock."""
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
        self._deadline_ms = None

    def later(self, delay_ms: int, action: Callable[[], object]) -> None:
        """Do something after a while; a worker that is paused then does it when it wakes."""
        self.world.clock.after(delay_ms, action, self._loop)

    def _hold_up(self, action: Callable[[], object]) -> None:
        """Take what the loop cannot do now."""
        if self.paused or not self.alive:
            self._hold_up_thread(action)
            return
        now_ms = self.world.clock.now_ms
        takes_ms = self.world.random.randint(0, self.slow_ms)
        self._busy_until_ms = min(max(self._busy_until_ms, now_ms) + takes_ms, now_ms + BUSY_MAX_MS)
        self.world.clock.after(self._busy_until_ms - now_ms, action, self._thread)

    def _hold_up_thread(self, action: Callable[[], object]) -> None:
        """Keep what was to be done for when it wakes; the dead do nothing."""
        if self.alive:
            self._backlog.append(action)

    def soon(self, action: Callable[[], object]) -> None:
        """Do something now, unless the worker is paused or busy."""
        if self._loop.is_open:
            action()
        else:
            self._hold_up(action)

    def _open(self) -> None:
        self._thread.is_open = self.alive and not self.paused
        self._loop.is_open = self._thread.is_open and not self.slow_ms

    @property
    def is_wrong(self) -> bool:
        """Whether it has no business to be there: it was told another number of partitions."""
        return self.partitions > 0

    # -- the core ------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Bring an event to the core and start what it wants done."""
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
            self._DO.get(type(effect), SimWorker._operate)(self, effect)
        self._watch_deadline()

    def _watch_deadline(self) -> None:
        """See to it that the core is told when its time has come."""
        deadline_ms = self.core.next_deadline_ms()
        if deadline_ms is None or (self._deadline_ms is not None and self._deadline_ms <= deadline_ms):
            return
        now_ms = self.now_ms
        if deadline_ms <= now_ms:
            self.world.checker.found("crash", f"{self.name} would spin")
            deadline_ms = now_ms + 1_000
        wait_ms = -(-(deadline_ms - now_ms) * 1_000 // self._clock[2])
        look_ms = self.world.clock.now_ms + wait_ms
        if self._look_ms is None or look_ms < self._look_ms:
            self._look_ms, self._deadline_ms = look_ms, deadline_ms
            self.later(wait_ms, lambda: self._look(look_ms))

    def _look(self, look_ms: int) -> None:
        """Tell the core that its time has come, if it still has that deadline."""
        if look_ms != self._look_ms or self.finished:
            return
        self._look_ms = self._deadline_ms = None
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
        failed: Callable[[], None],
        *,
        lane: Lane | None = None,
    ) -> None:
        """Make one round trip; it ends in ``heard`` or ``failed``, after which it may be done or not."""
        lane, after, draw = lane or self._loop, self.world.clock.after, self.world.random.random
        model, link, run = self.world.model, self.link, self.world.model.run
        conditions, chance = self.world.conditions, draw()
        if link is None:
            after(REFUSED_MS, failed, lane)
            return

        if self.cut or chance < conditions.lost / 2:
            after(CALL_TIMEOUT_MS, failed, lane)
            if not self.cut and chance < conditions.lost / 4:
                late_ms = 1 + int(draw() * (CALL_TIMEOUT_MS + LATEST_MS))
                after(late_ms, lambda: model.run == run and do())
            return

        def arrive() -> None:
            if model.run != run or (self.link != link and draw() < 0.5):
                after(0, failed, lane)
                return
            answer = do()
            if conditions.repeated and draw() < conditions.repeated:
                after(1 + int(draw() * LATEST_MS), lambda: model.run == run and do())
            if self.deaf or chance < conditions.lost:
                after(CALL_TIMEOUT_MS, failed, lane)
            else:
                after(
                    1 + int(draw() * conditions.latency_ms),
                    lambda: heard(answer) if self.link == link else failed(),
                    lane,
                )

        after(1 + int(draw() * conditions.latency_ms), arrive)

    def connect(self) -> None:
        """Connect anew."""
        self.disconnect()
        self.link = self.world.new_connection()
        self.poll_soon()

    def disconnect(self) -> None:
        """Lose the connection and every answer on its way."""
        self.world.model.connections.discard(self.link or 0)
        self.link = None

    def poll_soon(self) -> None:
        """Read what is new on the control stream, once for all that comes until then."""
        if not self._polling:
            self._polling = True
            self.later(self.world.latency_ms(), self._poll_control)

    def _poll_control(self) -> None:
        self._polling = False
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
        self._open()

    def slow(self, slow_ms: int) -> None:
        """Let each thing that it does cost up to so much time."""
        self.slow_ms = slow_ms
        self._open()

    def pause(self) -> None:
        """Let it stand still."""
        self.paused = True
        self._open()

    def wake(self) -> None:
        """Go on after a pause, with all that piled up."""
        self.paused = False
        self._open()
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.soon(action)

    def stop(self) -> None:
        """Ask it to leave."""
        self.stopping = True
        self.later(0, lambda: self.handle(ev.StopRequested()))

    # -- effects -------------------------------------------------------------------------------

    def _post(self, effect: ev.PostControl) -> None:
        """Send what has no answer, or one that nobody waits for."""
        world, model, link, run = self.world, self.world.model, self.link, self.world.model.run
        if link is None or self.cut or world.random.random() < world.conditions.lost / 2:
            return

        def arrive() -> None:
            if model.run == run and (self.link == link or world.random.random() < 0.5):
                model.post(effect.message)

        world.clock.after(world.latency_ms(), arrive)

    def _start_heartbeat(self, effect: ev.StartHeartbeat) -> None:
        self._beats_for = self.owner = effect.member

    def _send_heartbeat(self, _: ev.SendHeartbeat) -> None:
        if self._is_beating:
            self._is_hurried = True
            return
        self._rounds += 1
        self.world.clock.after(0, self._beat_in(self._rounds), self._thread)

    def _stop_heartbeat(self, _: ev.StopHeartbeat) -> None:
        self._beats_for = None

    def _pause_batches(self, _: ev.PauseBatches) -> None:
        self.batches_paused = True

    def _resume_batches(self, _: ev.ResumeBatches) -> None:
        self.batches_paused = False
        for runner in list(self.runners.values()):
            self.later(0, runner.begin)

    def _finish(self, _: ev.Finished) -> None:
        if any(not runner.ended for runner in self.runners.values()):
            self.world.checker.found("crash", f"{self.name} finished with work in hand")
        self.finished = True
        # Its place may be kept for a while, and only when that is over its partitions are shared anew.
        self.world.checker.figures.happened(self.world.hold_ms if self.static_id else 0)

    def _pass_over(self, _: ev.Effect) -> None:
        """Do nothing: it is for those who look on."""

    def _start_runner(self, effect: ev.StartRunner) -> None:
        partition, old = effect.partition, self.runners.get(effect.partition)
        if old is not None and not old.ended:
            self.world.checker.found("crash", f"{self.name} runs partition {partition} twice")
        self.owner = effect.owner
        self.runners[partition] = SimRunner(self, partition, effect.owner, effect.lock)

    def _drain_runner(self, effect: ev.DrainRunner) -> None:
        self._runner(effect.partition, effect.epoch).drain()

    def _cancel_runner(self, effect: ev.CancelRunner) -> None:
        self._runner(effect.partition, effect.epoch).cancel()

    def _drop_runner(self, effect: ev.DropRunner) -> None:
        self._runner(effect.partition, effect.epoch).ended = True

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
            lambda: answered(OPERATIONS[type(effect)].failed(effect)),
        )

    def _beat_in(self, this_round: int) -> Callable[[], None]:
        """Return what sends a heartbeat if no other round of them has begun by then."""

        def beat() -> None:
            if self._rounds == this_round:
                self._beat()

        return beat

    def _beat(self) -> None:
        """Send heartbeats, from a thread of its own: a busy loop does not delay them."""
        member, link, sent_ms = self._beats_for, self.link, self.now_ms
        world, this_round = self.world, self._rounds

        def again(after_ms: int) -> None:
            self._is_beating = False
            if self._is_hurried:
                self._is_hurried, after_ms = False, 0
            next_beat = self._beat_in(this_round)
            world.clock.after(max(0, sent_ms + after_ms - self.now_ms), next_beat, self._thread)

        interval_ms = world.timing.heartbeat_interval_ms
        retry_ms = interval_ms // BEAT_RETRIES

        def heard(event: ev.HeartbeatDone) -> None:
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

        def ask() -> ev.HeartbeatDone:
            done = world.model.heartbeat(member, link, sent_ms, load, loads)
            world.checker.beaten(done, world.model)
            return done

        self.request(
            ask,
            heard,
            lambda: again(retry_ms),
            lane=self._thread,
        )

    def _report_load(self, effect: ev.ReportLoad) -> None:
        self._reports_load = effect.every_ms > 0

    _DO: ClassVar[Mapping[type[ev.Effect], Callable[["SimWorker", Any], None]]] = {
        ev.PostControl: _post,
        ev.StartHeartbeat: _start_heartbeat,
        ev.SendHeartbeat: _send_heartbeat,
        ev.StopHeartbeat: _stop_heartbeat,
        ev.ReportLoad: _report_load,
        ev.PauseBatches: _pause_batches,
        ev.ResumeBatches: _resume_batches,
        ev.Finished: _finish,
        ev.Note: _pass_over,
        ev.MarkLock: _pass_over,
        ev.StartRunner: _start_runner,
        ev.DrainRunner: _drain_runner,
        ev.CancelRunner: _cancel_runner,
        ev.DropRunner: _drop_runner,
    }
    """What a worker does itself; all other effects are calls."""


def _subjects(effect: ev.Effect) -> frozenset[object]:
    """Return what a call is about; a core has one call at most about each thing."""
    match effect:
        case ev.AcquireLocks(partitions, owner):
            return frozenset((owner, partition) for partition in partitions)
        case ev.ReleaseLocks(owner, epochs):
            return frozenset((owner, partition) for partition in epochs)
        case ev.ReadDocument() | ev.ChangeDocument() | ev.MendDocument():
            return frozenset(["document"])
        case ev.ProbePeers():
            return frozenset(["probe"])
        case ev.ReadLoads():
            return frozenset(["loads"])
    return frozenset()
