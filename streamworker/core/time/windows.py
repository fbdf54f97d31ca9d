"""Which windows a time is in: of one length, of calendar days or months in a zone, or as long as events come.

Times are in ms since 1970. A window holds its start, and not its end. A :class:`Grid` cuts time into steps
that follow each other; a window is some steps long, and one begins at each.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple, Protocol, TypeVar
from zoneinfo import ZoneInfo

from streamworker.core.units import MOMENT_MAX_MS, MOMENT_MIN_MS, moment

DAY_MS = 86_400_000
FIRST_MS, LAST_MS = MOMENT_MIN_MS + 800 * DAY_MS, MOMENT_MAX_MS - 800 * DAY_MS
"""The times that windows have: each has days and months of the calendar on both sides."""
MONDAY = date(1969, 12, 29).toordinal()
"""A day from which weeks are counted, and all numbers of days."""


KNOWN_MAX = 4
"""Steps that are remembered: events that are out of order are in a few."""


class Span(NamedTuple):
    """From when to when a window is."""

    start_ms: int
    end_ms: int


class Grid(ABC):
    """Steps that follow each other, by number."""

    @abstractmethod
    def step_at(self, at_ms: int) -> int:
        """Return the number of the step that a time is in."""

    @abstractmethod
    def start_of(self, step: int) -> int:
        """Return when a step begins."""


@dataclass(frozen=True)
class Lengths(Grid):
    """Steps of one length, counted from 1970 in UTC.

    >>> Lengths(3_600_000).start_of(Lengths(3_600_000).step_at(5_000_000))
    3600000
    """

    step_ms: int

    def step_at(self, at_ms: int) -> int:
        """Return the number of the step that a time is in."""
        return at_ms // self.step_ms

    def start_of(self, step: int) -> int:
        """Return when a step begins."""
        return step * self.step_ms


@dataclass(frozen=True)
class Days(Grid):
    """Steps of some days of the calendar in a zone, each as long as its clocks say.

    >>> paris = Days(1, ZoneInfo("Europe/Paris"))
    >>> step = paris.step_at(1_774_740_000_000)  # on the day on which the clocks went an hour ahead
    >>> (paris.start_of(step + 1) - paris.start_of(step)) / 3_600_000
    23.0
    """

    days: int
    zone: ZoneInfo

    def step_at(self, at_ms: int) -> int:
        """Return the number of the step that a time is in."""
        return (moment(at_ms).astimezone(self.zone).toordinal() - MONDAY) // self.days

    def start_of(self, step: int) -> int:
        """Return the first moment of a step, also where the clocks skip midnight."""
        return _midnight(date.fromordinal(MONDAY + step * self.days), self.zone)


@dataclass(frozen=True)
class Months(Grid):
    """Steps of some months of the calendar in a zone, counted from January of year 1.

    >>> step = Months(1, ZoneInfo("UTC")).step_at(1_774_740_000_000)
    >>> [str(moment(Months(1, ZoneInfo("UTC")).start_of(step + n)).date()) for n in (0, 1)]
    ['2026-03-01', '2026-04-01']
    """

    months: int
    zone: ZoneInfo

    def step_at(self, at_ms: int) -> int:
        """Return the number of the step that a time is in."""
        at = moment(at_ms).astimezone(self.zone)
        return (at.year * 12 + at.month - 13) // self.months

    def start_of(self, step: int) -> int:
        """Return the first moment of a step."""
        year, month = divmod(step * self.months, 12)
        return _midnight(date(year + 1, month + 1, 1), self.zone)


def _midnight(day: date, zone: ZoneInfo) -> int:
    at = datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@dataclass
class Windows:
    """The windows of a grid: one begins at each step, and is ``steps`` long.

    >>> Windows(Lengths(60_000), 2).of(90_000)
    (Span(start_ms=0, end_ms=120000), Span(start_ms=60000, end_ms=180000))
    """

    grid: Grid
    steps: int = 1
    _known: list[tuple[int, int, tuple[Span, ...]]] = field(default_factory=list, init=False, compare=False)
    """The last steps that were asked for, from when to when they are, and their windows."""

    def of(self, at_ms: int) -> tuple[Span, ...]:
        """Return the windows that a time is in, the oldest first."""
        for start_ms, end_ms, found in self._known:
            if start_ms <= at_ms < end_ms:
                return found
        step = self.grid.step_at(at_ms)
        start_of = self.grid.start_of
        first = step - self.steps + 1
        found = tuple(Span(start_of(n), start_of(n + self.steps)) for n in range(first, step + 1))
        self._known = [(start_of(step), start_of(step + 1), found), *self._known[: KNOWN_MAX - 1]]
        return found

    def ends_ms(self, start_ms: int) -> int:
        """Return when the window ends that begins at a time."""
        return self.grid.start_of(self.grid.step_at(start_ms) + self.steps)


class FromTo(Protocol):
    """What goes from its first to its last event."""

    start_ms: int
    end_ms: int


S = TypeVar("S", bound=FromTo)


def near(sessions: Sequence[S], at_ms: int, gap_ms: int, over_ms: int) -> list[S]:
    """Return which of a key's sessions an event joins.

    It joins those that are less than ``gap_ms`` away, unless they are over: their last event is not after
    ``over_ms``.

    >>> from types import SimpleNamespace as Session
    >>> two = [Session(start_ms=0, end_ms=10), Session(start_ms=50, end_ms=60)]
    >>> len(near(two, 35, 30, 5)), len(near(two, 35, 30, 10))
    (2, 1)
    """
    return [
        each
        for each in sessions
        if each.end_ms > over_ms and each.start_ms - gap_ms < at_ms < each.end_ms + gap_ms
    ]
