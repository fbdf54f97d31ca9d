"""What windows come to, by pandas; which events are late, by a look at each in the order of its partition.

It shares no code with the product. Times are in ms since 1970.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pandas as pd

from streamworker.core.data.placement import Placement
from tests.chaos.windows_app import PARTITIONS, Event, Row

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
MARGIN = 2 * MINUTE
"""No event is made that is this near to being late, or not: the clock of a partition that has caught up
might decide. It goes on while the sender waits for a failover."""
CHANGES = (datetime(2025, 3, 30, 1, tzinfo=UTC), datetime(2025, 10, 26, 1, tzinfo=UTC))
"""Events are of the days around these: the clocks of Paris go ahead an hour, and back."""
SPAN = 4 * DAY / 10_000
"""How far they are from each other there, on the average."""
USERS, LATE_PART = 200, 0.02
NEVER = -(10**15)

Total = tuple[str, int, int, int, int]
"""A user, the start and the end of a window, the number of events, and the sum of their amounts."""


def ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def partition_of(user: str) -> int:
    return Placement(PARTITIONS).partition_of(user.encode())


def total(row: Row) -> Total:
    return row.user, ms(row.start), ms(row.end), row.events, row.amount


class Look(NamedTuple):
    """What becomes of an event."""

    spans: list[tuple[int, int]]
    """The windows that it counts in; of a session its own span, of which only the first moment counts."""
    margin: int
    """How far from another outcome."""


class Oracle(ABC):
    """Tells which events count in which windows."""

    late: int

    @abstractmethod
    def look(self, user: str, at: int, now: int) -> Look:
        """Return what becomes of an event when event time is ``now``."""

    def take(self, user: str, at: int, now: int) -> None:  # noqa: B027
        """Note an event that counts."""

    @abstractmethod
    def totals(self, counted: pd.DataFrame) -> list[Total]:
        """Return what windows come to, from the events that count, a row for each of their windows."""


@dataclass
class Fixed(Oracle):
    """Windows that begin and end by the clock: in UTC, or days of a zone."""

    late: int
    size: int = 0
    step: int = 0
    zone: ZoneInfo | None = None

    def _spans(self, at: int) -> Iterator[tuple[int, int]]:
        if self.zone is None:
            step = self.step or self.size
            for start in range(at - at % step, at - self.size, -step):
                yield start, start + self.size
        else:
            day = datetime.fromtimestamp(at / 1000, self.zone).date()
            yield self._midnight(day), self._midnight(day + timedelta(days=1))

    def _midnight(self, day: date) -> int:
        return ms(datetime(day.year, day.month, day.day, tzinfo=self.zone).astimezone(UTC))

    def look(self, user: str, at: int, now: int) -> Look:
        spans = list(self._spans(at))
        margin = min(abs(end + self.late - now) for _, end in spans)
        return Look([span for span in spans if span[1] + self.late > now], margin)

    def totals(self, counted: pd.DataFrame) -> list[Total]:
        grouped = counted.groupby(["user", "start", "end"])["amount"].agg(["size", "sum"])
        return [(*key, int(size), int(amount)) for key, size, amount in grouped.itertuples()]


@dataclass
class Sessions(Oracle):
    """Events of a user that are less than a gap apart."""

    late: int
    gap: int
    _spans: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def _near(self, user: str, at: int) -> list[tuple[int, int]]:
        return [each for each in self._spans[user] if each[0] - self.gap < at < each[1] + self.gap]

    def look(self, user: str, at: int, now: int) -> Look:
        over, near = now - self.late - self.gap, self._near(user, at)
        alive = [each for each in near if each[1] > over]
        if at <= over and not alive:
            return Look([], over - at)
        # pandas cuts by gaps alone; so no event is made that would join a session that is over.
        margins = [each[1] - over for each in near] + ([] if alive else [at - over])
        return Look([(at, at)], min(margins))

    def take(self, user: str, at: int, now: int) -> None:
        near = self._near(user, at)
        recent = now - self.late - 3 * self.gap
        joined = min([at, *(each[0] for each in near)]), max([at, *(each[1] for each in near)])
        self._spans[user] = [joined] + [
            each for each in self._spans[user] if each not in near and each[1] > recent
        ]

    def totals(self, counted: pd.DataFrame) -> list[Total]:
        frame = counted.sort_values(["user", "at"], kind="stable")
        pause = frame["at"] - frame.groupby("user")["at"].shift()
        frame["session"] = (pause.fillna(self.gap) >= self.gap).cumsum()
        grouped = frame.groupby("session").agg(
            user=("user", "first"),
            start=("at", "min"),
            end=("at", "max"),
            size=("at", "size"),
            sum=("amount", "sum"),
        )
        return [
            (user, int(start), int(end), int(size), int(amount))
            for _, user, start, end, size, amount in grouped.itertuples()
        ]


def oracles() -> dict[str, Oracle]:
    """Return one for the windows of each name over the events."""
    return {
        "tumbling": Fixed(15 * MINUTE, 10 * MINUTE),
        "hopping": Fixed(5 * MINUTE, 30 * MINUTE, 10 * MINUTE),
        "days": Fixed(2 * HOUR, zone=ZoneInfo("Europe/Paris")),
        "changes": Fixed(10 * MINUTE, HOUR),
        "sessions": Sessions(30 * MINUTE, HOUR),
    }


@dataclass
class Expected:
    """What windows come to."""

    totals: list[Total]
    late: list[int]
    """The numbers of the events that are late."""
    counted: pd.DataFrame
    """The events that count, in the order in which they came, a row for each of their windows."""


def expected(oracle: Oracle, events: Iterable[Event]) -> Expected:
    """Return what windows come to; the events of each partition are in the order of its stream."""
    now = dict.fromkeys(range(PARTITIONS), NEVER)
    counted: list[tuple[str, int, int, int, int]] = []
    late: list[int] = []
    for event in events:
        partition, at = partition_of(event.user), ms(event.at)
        found = oracle.look(event.user, at, now[partition])
        assert found.margin >= MARGIN, f"the clock may have decided about {event}"
        if found.spans:
            oracle.take(event.user, at, now[partition])
            counted += [(event.user, at, start, end, event.amount) for start, end in found.spans]
        else:
            late.append(event.n)
        now[partition] = max(now[partition], at)
    frame = pd.DataFrame(counted, columns=["user", "at", "start", "end", "amount"])
    return Expected(sorted(oracle.totals(frame)), sorted(late), frame)


def made(count: int, rng: Random) -> Iterator[Event]:
    """Make events: all out of order, some late, none near to being late.

    The last ones, one in each partition, are two weeks later: they close all windows but their own.
    """
    judges, now = oracles(), dict.fromkeys(range(PARTITIONS), NEVER)
    half = (count - PARTITIONS + 1) // 2
    for n in range(count - PARTITIONS):
        latest = ms(CHANGES[n // half]) + (n % half - half / 2) * SPAN
        while True:
            user = f"user-{rng.randrange(USERS)}"
            is_late = rng.random() < LATE_PART
            at = round(latest - (rng.uniform(HOUR, 30 * HOUR) if is_late else rng.uniform(0, 20 * MINUTE)))
            before = now[partition_of(user)]
            looks = {name: each.look(user, at, before) for name, each in judges.items()}
            if min(look.margin for look in looks.values()) >= MARGIN:
                break
        for name, look in looks.items():
            if look.spans:
                judges[name].take(user, at, before)
        now[partition_of(user)] = max(before, at)
        yield Event(user, n, _moment(at, rng), rng.randrange(100))
    for partition in range(PARTITIONS):
        user = next(name for n in range(1_000) if partition_of(name := f"last-{n}") == partition)
        yield Event(user, count - PARTITIONS + partition, CHANGES[-1] + timedelta(days=14), 1)


def _moment(at: int, rng: Random) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at, microseconds=rng.randrange(1_000))


def is_last(user: str) -> bool:
    """Whether an event of this user is one of the last ones, whose windows stay open."""
    return user.startswith("last-")
