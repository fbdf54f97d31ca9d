"""When timers run: the planned times of a schedule, and which of them is due.

Everything here is a function of times that are passed in, in milliseconds since 1970 by the server's clock.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from streamworker.core.rules import checked, kind_of
from streamworker.core.units import Duration, duration_ms, duration_text
from streamworker.errors import ConfigurationError

Missed = Literal["skip", "once", "all"]
"""What a timer does about planned times that no worker has run."""

When = Literal["caught up"]
"""What else a tick waits for: that what the partition held when the tick became due is committed."""
CHOICES = {"missed": kind_of(Missed), "when": kind_of(Literal[None, "caught up"])}  # noqa: PYI061 - in order
"""What these arguments of a timer take."""

LATE_MS = 60_000
"""A run that begins so long after its time is not missed. A new leader takes a timer over within seconds,
so a failure of one worker at the planned time skips nothing."""
EVERY_MIN_MS = 100


@dataclass(frozen=True)
class Every:
    """Planned times that are one period apart, counted from 1970, so that all workers agree on them.

    >>> Every(3_600_000).after(1_795_522_000_000) - 1_795_522_000_000
    3200000
    """

    period_ms: int

    def after(self, ms: int) -> int:
        """Return the first planned time after a time."""
        return (ms // self.period_ms + 1) * self.period_ms

    def upto(self, ms: int) -> int:
        """Return the last planned time at or before a time."""
        return ms // self.period_ms * self.period_ms

    def moment(self, ms: int) -> datetime:
        """Return a time in UTC."""
        return datetime.fromtimestamp(ms / 1000, UTC)

    def __str__(self) -> str:
        return f"every {duration_text(self.period_ms).removeprefix('1 ')}"


@dataclass(frozen=True)
class Cron:
    """Planned times of a cron expression, in a time zone, by the rules of Debian's cron.

    A time that a zone skips in spring runs at the end of the skipped hour; one that comes twice in autumn
    runs once.
    """

    spec: str
    zone: ZoneInfo

    def after(self, ms: int) -> int:
        """Return the first planned time after a time."""
        # In the hour that comes twice in autumn, the first that CronSim finds may be behind us.
        return next(found for found in map(_ms, CronSim(self.spec, self.moment(ms))) if found > ms)

    def upto(self, ms: int) -> int:
        """Return the last planned time at or before a time."""
        found = _ms(next(CronSim(self.spec, self.moment(ms // 1000 * 1000 + 1000), reverse=True)))
        while (later := self.after(found)) <= ms:
            found = later
        return found

    def moment(self, ms: int) -> datetime:
        """Return a time in the timer's zone."""
        return datetime.fromtimestamp(ms / 1000, self.zone)

    def __str__(self) -> str:
        told: str = CronSim(self.spec, self.moment(0)).explain()
        return f"{told}, {self.zone.key}"


PlannedTimes: TypeAlias = Every | Cron
"""The planned times of a timer."""


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


class Due(NamedTuple):
    """What a timer has to do now."""

    at_ms: int
    """The planned time up to which the timer is done afterwards."""
    runs: bool
    """Whether the function runs for this time; False if the time was missed and is skipped."""


def due(schedule: PlannedTimes, missed: Missed, last_ms: int, now_ms: int) -> Due | None:
    """Return what is due, where the times up to ``last_ms`` are done; None if nothing is.

    A time is missed if the next one has come, too, or if ``LATE_MS`` have passed since. ``skip`` passes over
    missed times, ``once`` runs the newest of all that have come, and ``all`` runs each, oldest first.

    >>> due(Every(1_000), "skip", 5_000, 5_999), due(Every(1_000), "skip", 5_000, 6_000)
    (None, Due(at_ms=6000, runs=True))
    >>> due(Every(100_000), "skip", 0, 180_000), due(Every(100_000), "once", 0, 180_000)
    (Due(at_ms=100000, runs=False), Due(at_ms=100000, runs=True))
    >>> due(Every(1_000), "all", 5_000, 9_000)
    Due(at_ms=6000, runs=True)
    """
    newest = schedule.upto(now_ms)
    if newest <= last_ms:
        return None
    if missed == "all":
        return Due(schedule.after(last_ms), True)
    return Due(newest, missed == "once" or now_ms - newest < LATE_MS)


def every(period: Duration, timer: str) -> Every:
    """Return the schedule of a period; raise ConfigurationError if it is none."""
    return Every(duration_ms(period, f"{timer}: every", least_ms=EVERY_MIN_MS))


@checked("Timer")
def cron(spec: str, tz: str, timer: str) -> Cron:
    """Return the schedule of a cron expression; raise ConfigurationError if it is none."""
    try:
        zone = ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        raise ConfigurationError(
            f"Timer {timer!r} has tz={tz!r}, which is no time zone here.",
            remedy="Use a name such as 'Europe/Paris'; the package tzdata has all of them.",
        ) from None
    try:
        next(CronSim(spec, datetime.fromtimestamp(0, zone)))
    except (CronSimError, StopIteration) as error:
        why = str(error) or "it never comes"
        raise ConfigurationError(
            f"Timer {timer!r} has the cron expression {spec!r}: {why}.",
            remedy="Write minute, hour, day, month and day of the week, such as '0 6 * * mon'.",
        ) from None
    return Cron(spec, zone)
