"""Virtual time: due actions run in order, and the clock jumps from one to the next.

A virtual minute of a group takes some milliseconds of real time, and the same seed gives the same run.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random


class Dice(Random):
    """A ``Random`` with a faster ``randint``, the method that the simulator calls most."""

    def randint(self, a: int, b: int) -> int:
        """Return a number from ``a`` to ``b``; nearly uniform for spans far below 2**53."""
        return a + int(self.random() * (b - a + 1))


class Executor:
    """The actions of one executor, such as an event loop, which may be unable to run them now.

    ``hold`` gets the actions that are due while the lane is closed.
    """

    def __init__(self, hold: Callable[[Callable[[], object]], None]) -> None:
        self.hold = hold
        self.is_open = True


class VirtualClock:
    """A clock that moves only in ``run_for`` and ``run_until``.

    >>> clock, done = VirtualClock(), []
    >>> clock.after(20, lambda: done.append(clock.now_ms))
    >>> clock.run_for(100)
    >>> done, clock.now_ms
    ([20], 100)
    """

    def __init__(self, start_ms: int = 0) -> None:
        self.now_ms = start_ms
        self._agenda: list[tuple[int, int, Callable[[], object], Executor | None]] = []
        self._asked = 0

    def after(self, delay_ms: int, action: Callable[[], object], lane: Executor | None = None) -> None:
        """Schedule an action, in a lane if given. Actions of the same time run in the order of the calls."""
        self._asked += 1
        heappush(self._agenda, (self.now_ms + delay_ms, self._asked, action, lane))

    def run_for(self, ms: int) -> None:
        """Let virtual time pass, and run the actions that are due."""
        end_ms, agenda = self.now_ms + ms, self._agenda
        while agenda and agenda[0][0] <= end_ms:
            self.now_ms, _, action, lane = heappop(agenda)
            if lane is None or lane.is_open:
                action()
            else:
                lane.hold(action)
        self.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], within_ms: int, *, step_ms: int = 50) -> int | None:
        """Let virtual time pass until a condition holds; return how long, or None after ``within_ms``."""
        start_ms = self.now_ms
        while not condition():
            if self.now_ms - start_ms >= within_ms:
                return None
            self.run_for(step_ms)
        return self.now_ms - start_ms
