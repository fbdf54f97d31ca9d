"""What one partition does: the calls that run, how long it has rested, and what holds it up.

The mode reports calls here, and the alarms, the load and the lock's reason are read from here. Reading is
safe from any thread.
"""

from collections.abc import Callable
from typing import Literal, get_args

from streamworker.runtime.clock import CLOCK, monotonic_ms

Trouble = Literal["reads", "commit", "outbox", "source", "timer"]
"""What may be held up in a partition. Each recovers independently, so each has its own reason; a timer holds
nothing else up, and is told last."""

SHOWN_MS = 1_000
"""Shortest pause after a first failure that is shown."""


class Activity:
    """What one partition does while one runner has it."""

    def __init__(
        self,
        name: str,
        on_trouble: Callable[[str, tuple[int, ...]], None],
        on_called: Callable[[float], None] | None = None,
    ) -> None:
        self.name = name
        """The name of the tasks that call the function."""
        self._on_trouble = on_trouble
        """Called with what holds the partition up, and with an empty reason when it continues; for a record
        that is tried again with the error, the attempts, and when the first failed and the next begins."""
        self._on_called = on_called
        """Called with the seconds of each call when it has ended, also in its thread."""
        self._failing: dict[int, tuple[str, int, int, int]] = {}
        """Error, attempts, time of the first failure and of the next call, of the records that are tried
        again, by the number of their call."""
        self._shows_retry = False
        self._began_ms = monotonic_ms()
        self._rested_ms = 0
        self._resting_since_ms: int | None = None
        self._calls: dict[int, int] = {}
        """When each running call began (monotonic ns), the oldest first."""
        self.busy_since_ms: int | None = None
        """When the oldest of the running calls began, by the monotonic clock; None if none runs."""
        self._troubles: dict[Trouble, str] = dict.fromkeys(get_args(Trouble), "")
        self._shows = True

    # -- calls -----------------------------------------------------------------------------------

    def begins(self, call: int = 0) -> None:
        """Record that a call begins; ``call`` is its number, where several run at a time."""
        self._calls[call] = clock_ns = CLOCK.now_ns()
        if self.busy_since_ms is None:
            self.busy_since_ms = clock_ns // 1_000_000
            self.works()

    def ends(self, call: int = 0) -> None:
        """Record that a call has ended; ignored if it was not running."""
        began_ns = self._calls.pop(call, None)
        oldest_ns = next(iter(self._calls.values()), None)
        self.busy_since_ms = None if oldest_ns is None else oldest_ns // 1_000_000
        if self._on_called is not None and began_ns is not None:
            self._on_called((CLOCK.now_ns() - began_ns) / 1e9)

    def stops(self) -> None:
        """Record that all calls have ended or were abandoned."""
        self._calls.clear()
        self.busy_since_ms = None

    @property
    def oldest(self) -> int | None:
        """Number of the call that has run for longest."""
        return next(iter(self._calls), None)

    # -- rests -----------------------------------------------------------------------------------

    def rests(self) -> None:
        """Record that there is nothing to do; ignored while a call runs."""
        if self._resting_since_ms is None and self.busy_since_ms is None:
            self._resting_since_ms = monotonic_ms()

    def works(self) -> None:
        """Record that there is something to do again."""
        if self._resting_since_ms is not None:
            self._rested_ms += monotonic_ms() - self._resting_since_ms
            self._resting_since_ms = None

    def worked_ms(self, at_ms: int) -> int:
        """Return how long the partition has worked: its whole time except the waits for entries.

        Only the waits are measured, so that handling a record costs no measurement.
        """
        resting_ms = 0 if self._resting_since_ms is None else at_ms - self._resting_since_ms
        return at_ms - self._began_ms - self._rested_ms - resting_ms

    # -- what holds it up ------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """What holds up the reads, the commit in flight, the outbox or the source; else a timer that fails.

        Timers wait while a record is tried again, so none is told then.
        """
        told = [reason for what, reason in self._troubles.items() if not (self._failing and what == "timer")]
        return next(filter(None, told), "")

    @property
    def is_commit_held_up(self) -> bool:
        """Whether something holds up the commit in flight."""
        return bool(self._troubles["commit"])

    def hinder(self, what: Trouble, reason: str) -> None:
        """Show what holds up one of them; an empty reason shows that this one continues."""
        self._troubles[what] = reason
        self._show()

    def retries(self, error: str, attempts: int, pause_ms: int, call: int = 0) -> None:
        """Record that a call has failed and is made again after a pause.

        The first failure of a record is shown only if the pause is long: most errors are over by then, and
        each show is a write to Redis.
        """
        clock_ms = monotonic_ms()
        since_ms = self._failing[call][2] if call in self._failing else clock_ms
        self._failing[call] = (error, attempts, since_ms, clock_ms + pause_ms)
        if call == min(self._failing) and (attempts > 1 or pause_ms >= SHOWN_MS):
            self._shows_retry = True
            self._show()

    def recovers(self, call: int = 0) -> None:
        """Record that a record is not tried again any more; ignored if it was not."""
        if self._failing.pop(call, None) is not None and self._shows_retry:
            self._shows_retry = bool(self._failing)
            self._show()

    def _show(self) -> None:
        if not self._shows:
            return
        if self._shows_retry and not self.trouble:
            error, attempts, since_ms, next_ms = self._failing[min(self._failing)]
            self._on_trouble(error, (attempts, since_ms, next_ms))
        else:
            self._on_trouble(self.trouble, ())

    def hide_trouble(self) -> None:
        """Show no trouble from now on: the partition ends, or its lock shows why it is halted."""
        self._shows = False
