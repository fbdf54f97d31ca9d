"""A process of the simulator, on virtual time: its loop, its clock, and its connection that loses calls."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from streamworker.core.events import Event
from tests.simulator.clock import Executor

if TYPE_CHECKING:
    from tests.simulator.group import SimulatedGroup

T = TypeVar("T")

CALL_TIMEOUT_MS = 2_500
LATEST_MS = 3_000
"""A late or repeated request arrives at most this much after its sender's timeout or the first request."""
REFUSED_MS = 50
"""Time until a call without a connection fails."""
BUSY_MAX_MS = 5_000
"""Longest delay of a busy loop."""


class Process(ABC):
    """One process."""

    def __init__(self, world: "SimulatedGroup") -> None:
        self.world = world
        self.alive, self.paused, self.batches_paused = True, False, False
        self.cut = self.deaf = False
        """Whether its requests are lost on their way there, or the answers on their way back."""
        self.slow_ms = 0
        """Longest time that each action takes while its loop is busy."""
        self._loop, self._thread = Executor(self._hold_up), Executor(self._hold_up_thread)
        """The actions of its loop, and those of its heartbeat thread, which a busy loop does not delay."""
        self._clock = (world.clock.now_ms, world.random.randrange(10**9), 1_000)
        self.link: int | None = None
        """The client id of its connection; None without a connection."""
        self._backlog: list[Callable[[], object]] = []
        self._busy_until_ms = 0

    @abstractmethod
    def handle(self, event: Event) -> None:
        """Pass an event to the core, and start its effects."""

    @abstractmethod
    def look_at_partitions(self) -> None:
        """Read on which partitions the group works, and tell the core."""

    # -- time ----------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The time of its own clock."""
        since_ms, showed_ms, pace = self._clock
        return showed_ms + (self.world.clock.now_ms - since_ms) * pace // 1_000

    def drift(self, pace: int) -> None:
        """Let its clock run at another rate from now on, in thousandths."""
        self._clock = (self.world.clock.now_ms, self.now_ms, pace)

    def later(self, delay_ms: int, action: Callable[[], object]) -> None:
        """Schedule an action of its loop; a paused worker runs it when it continues."""
        self.world.clock.after(delay_ms, action, self._loop)

    def _hold_up(self, action: Callable[[], object]) -> None:
        """Delay an action that the loop cannot run now."""
        if self.paused or not self.alive:
            self._hold_up_thread(action)
            return
        now_ms = self.world.clock.now_ms
        takes_ms = self.world.random.randint(0, self.slow_ms)
        self._busy_until_ms = min(max(self._busy_until_ms, now_ms) + takes_ms, now_ms + BUSY_MAX_MS)
        self.world.clock.after(self._busy_until_ms - now_ms, action, self._thread)

    def _hold_up_thread(self, action: Callable[[], object]) -> None:
        """Keep an action until the worker continues; drop it if the worker is dead."""
        if self.alive:
            self._backlog.append(action)

    def soon(self, action: Callable[[], object]) -> None:
        """Run an action now, or later if the worker is paused or busy."""
        if self._loop.is_open:
            action()
        else:
            self._hold_up(action)

    def _open(self) -> None:
        self._thread.is_open = self.alive and not self.paused
        self._loop.is_open = self._thread.is_open and not self.slow_ms

    # -- the network ---------------------------------------------------------------------------

    def request(
        self,
        do: Callable[[], T],
        heard: Callable[[T], None],
        failed: Callable[[], None],
        *,
        lane: Executor | None = None,
    ) -> None:
        """Make one round trip. It ends in ``heard``, or in ``failed`` with an unknown result."""
        lane, after, draw = lane or self._loop, self.world.clock.after, self.world.random.random
        server, link, run = self.world.server, self.link, self.world.server.runs
        conditions, chance = self.world.conditions, draw()
        if link is None:
            after(REFUSED_MS, failed, lane)
            return

        if self.cut or chance < conditions.lost / 2:
            after(CALL_TIMEOUT_MS, failed, lane)
            if not self.cut and chance < conditions.lost / 4:
                late_ms = 1 + int(draw() * (CALL_TIMEOUT_MS + LATEST_MS))
                after(late_ms, lambda: server.runs == run and do())
            return

        def arrive() -> None:
            if server.runs != run or (self.link != link and draw() < 0.5):
                after(0, failed, lane)
                return
            answer = do()
            if conditions.repeated and draw() < conditions.repeated:
                after(1 + int(draw() * LATEST_MS), lambda: server.runs == run and do())
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
        """Connect, or reconnect."""
        self.disconnect()
        self.link = self.world.new_connection()

    def disconnect(self) -> None:
        """Lose the connection and every pending answer."""
        self.world.server.connections.discard(self.link or 0)
        self.link = None

    # -- what can happen to a process ----------------------------------------------------------

    def kill(self) -> None:
        """End at once; the connection closes."""
        self.disconnect()
        self.alive = False
        self._open()

    def slow(self, slow_ms: int) -> None:
        """Let each action take up to ``slow_ms``; 0 ends this."""
        self.slow_ms = slow_ms
        self._open()

    def pause(self) -> None:
        """Stop running, as after SIGSTOP."""
        self.paused = True
        self._open()

    def wake(self) -> None:
        """Continue after a pause, and run the actions that became due during it."""
        self.paused = False
        self._open()
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.soon(action)
