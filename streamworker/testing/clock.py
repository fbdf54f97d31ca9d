"""Virtual time: what is due happens in order, and no time passes between.

A minute of a group's life takes some milliseconds, and the same seed gives the same minute.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random


class Dice(Random):
    """A generator of the same kind, quicker at small whole numbers, which is most of what it is asked."""

    def randint(self, a: int, b: int) -> int:
        """Return a number from ``a`` to ``b``; even enough for spans far below 2**53."""
        return a + int(self.random() * (b - a + 1))


class Lane:
    """What happens in order for somebody who may not have time now.

    Parameters
    ----------
    hold
        Takes what comes due while the lane is not open.
    """

    __slots__ = ("hold", "is_open")

    def __init__(self, hold: Callable[[Callable[[], object]], None]) -> None:
        self.hold = hold
        self.is_open = True


class VirtualClock:
    """A clock that moves only when it is told to.

    Parameters
    ----------
    start_ms
        What it shows at first.

    Examples
    --------
    >>> clock, done = VirtualClock(), []
    >>> clock.after(20, lambda: done.append(clock.now_ms))
    >>> clock.run_for(100)
    >>> done, clock.now_ms
    ([20], 100)
    """

    def __init__(self, start_ms: int = 0) -> None:
        self.now_ms = start_ms
        self._agenda: list[tuple[int, int, Callable[[], object], Lane | None]] = []
        self._asked = 0

    def after(self, delay_ms: int, action: Callable[[], object], lane: Lane | None = None) -> None:
        """Let something happen after a while, in a lane; at one time, in the order of asking."""
        self._asked += 1
        heappush(self._agenda, (self.now_ms + delay_ms, self._asked, action, lane))

    def run_for(self, ms: int) -> None:
        """Let time pass."""
        end_ms, agenda = self.now_ms + ms, self._agenda
        while agenda and agenda[0][0] <= end_ms:
            self.now_ms, _, action, lane = heappop(agenda)
            if lane is None or lane.is_open:
                action()
            else:
                lane.hold(action)
        self.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], within_ms: int, *, step_ms: int = 50) -> int | None:
        """Let time pass until something is true; return how long it took, or None if it was too long."""
        start_ms = self.now_ms
        while not condition():
            if self.now_ms - start_ms >= within_ms:
                return None
            self.run_for(step_ms)
        return self.now_ms - start_ms
