"""Virtual time: what is due happens in order, and no time passes between.

A minute of a group's life takes some milliseconds, and the same seed gives the same minute.
"""

import heapq
from collections.abc import Callable
from random import Random


class Dice(Random):
    """A generator of the same kind, quicker at small whole numbers, which is most of what it is asked."""

    def randint(self, a: int, b: int) -> int:
        """Return a number from ``a`` to ``b``; even enough for spans far below 2**53."""
        return a + int(self.random() * (b - a + 1))


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
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._asked = 0

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Let something happen after a while; at one time, in the order of asking."""
        self._asked += 1
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, self._asked, action))

    def run_for(self, ms: int) -> None:
        """Let time pass."""
        end_ms, agenda = self.now_ms + ms, self._agenda
        while agenda and agenda[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(agenda)
            action()
        self.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], within_ms: int, *, step_ms: int = 50) -> int | None:
        """Let time pass until something is true; return how long it took, or None if it was too long."""
        start_ms = self.now_ms
        while not condition():
            if self.now_ms - start_ms >= within_ms:
                return None
            self.run_for(step_ms)
        return self.now_ms - start_ms
