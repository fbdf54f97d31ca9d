"""What an app holds in Redis, how far back it can be read again, and when the memory will be full."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from streamworker.core.data.archivelife import is_late
from streamworker.core.data.archives import Archive
from streamworker.core.data.retention import Retention

ID_BYTES = 256
"""Memory of the key that stands for one id in its window, with its name and expiry; a test measures it."""
EARLY_MS = 60_000
"""A history that is this short tells no rate, unless it is a tenth of the time that is kept."""

FULL_SHARE = 0.98
"""Above it the memory counts as full: what is left may be less than one entry takes."""

Kind = Literal["stream", "acked log", "state", "dead letters"]


@dataclass(frozen=True, slots=True)
class Archived:
    """How far the archive of a stream is, by what Redis knows of it."""

    archive: Archive
    partitions: int
    upto_ms: int
    """The time of the last archived record where the least is archived of what waits; of the newest one if
    nothing waits, and 0 if there is none."""
    records: int
    """Records that were archived."""
    only: int
    """Records among them that Redis no longer has."""
    waiting: int
    """Records that are not archived yet."""
    oldest_ms: int | None
    """The time of the oldest of these; None if there is none."""
    reasons: tuple[str, ...] = ()
    """Why partitions stand still, or have no owner."""
    first_ms: int | None = None
    """The time of the first record in the archive; None if it has none, or if nobody asked the store."""

    def waits_ms(self, now_ms: int) -> int:
        """Return how long the oldest record that is not archived has waited."""
        return 0 if self.oldest_ms is None else max(0, now_ms - self.oldest_ms)

    def is_late(self, now_ms: int) -> bool:
        """Return whether it has waited for three times the interval of the archive."""
        return is_late(self.waits_ms(now_ms), self.archive.every_ms, self.archive.after_ms)


@dataclass(frozen=True, slots=True)
class Holding:
    """One stream, or what one processor keeps of one kind, over all partitions."""

    kind: Kind
    name: str
    """Of the stream or the processor."""
    records: int
    """Records, rows or dead letters; 0 for state."""
    size: int
    """Bytes of memory, as the server estimates them."""
    retention: str = ""
    """The declared retention; empty if there is none."""
    oldest_ms: int | None = None
    """The time of the oldest record that can be read again; None if there is none, or if only groups or
    readers end what is kept."""
    is_read: bool = True
    """Whether a stream has a group."""
    archived: Archived | None = None
    """Of a stream with an archive, how far that is."""

    @property
    def is_endless(self) -> bool:
        """Whether neither a group nor a retention ends what it keeps."""
        return not self.is_read and not self.retention

    def is_early(self, now_ms: int) -> bool:
        """Return whether what it holds is too young to tell how it grows."""
        if self.oldest_ms is None:
            return False
        kept_ms = Retention.parse(self.retention).ms if self.retention else None
        return now_ms - self.oldest_ms < min(EARLY_MS, (kept_ms or 10 * EARLY_MS) / 10)

    def growth(self, now_ms: int) -> "Growth":
        """Return how it grows at the rate of the time that it holds."""
        if self.oldest_ms is None or self.is_early(now_ms):
            return Growth(self.size, 0.0, self.size)
        rate = self.size / (now_ms - self.oldest_ms) * 1000
        return Growth(self.size, rate, max(self.size, self.stays_at(rate)))

    def stays_at(self, rate: float) -> float:
        """Return at how many bytes it stays if it gains so many in a second; infinite without a retention.

        >>> Holding("stream", "orders", 10, 1_000, "1 hour, 5_000 records").stays_at(100)
        360000.0
        """
        kept = Retention.parse(self.retention) if self.retention else Retention()
        limits = [
            kept.ms and rate * kept.ms / 1000,
            kept.size,
            kept.records and self.size * kept.records / max(1, self.records),
        ]
        return min((limit for limit in limits if limit is not None), default=math.inf)


@dataclass(frozen=True, slots=True)
class Growth:
    """How many bytes something holds, how many it gains in a second, and at how many it stays."""

    size: float
    rate: float
    most: float

    @property
    def seconds(self) -> float:
        """How long it grows."""
        return (self.most - self.size) / self.rate if self.rate else 0.0


def full_in(free: float, growths: Iterable[Growth]) -> float | None:
    """Return in how many seconds some bytes are used up; None if never.

    >>> full_in(100, [Growth(0, 1, 60), Growth(0, 1, 500)])
    50.0
    >>> full_in(200, [Growth(0, 1, 60), Growth(0, 1, 500)])
    140.0
    >>> full_in(200, [Growth(0, 1, 60), Growth(0, 1, 130)]) is None
    True
    """
    growing = sorted((each for each in growths if each.seconds > 0), key=lambda each: each.seconds)
    passed, rate = 0.0, sum(each.rate for each in growing)
    for each in growing:
        needed = free / rate
        if passed + needed <= each.seconds:
            return passed + needed
        free -= rate * (each.seconds - passed)
        passed, rate = each.seconds, rate - each.rate
    return None


@dataclass(frozen=True, slots=True)
class Holdings:
    """All that an app holds, and the memory of its server or of all nodes of its Cluster."""

    taken_ms: int
    held: tuple[Holding, ...]
    used: int
    limit: int
    """The servers' ``maxmemory`` in bytes; 0 if there is no limit, or if it is not known."""
    expiring: int = 0
    """The servers' keys that expire; ids of ``send(id=...)`` are among them."""

    @property
    def ids(self) -> int:
        """The memory of ids, at most: no key counts them, and others may have keys that expire."""
        return self.expiring * ID_BYTES

    @property
    def without_archives(self) -> "Holdings":
        """What it comes to if nothing more is archived: streams with an archive keep all then."""
        held = (replace(each, retention="") if each.archived else each for each in self.held)
        return replace(self, held=tuple(held))

    @property
    def full_in_s(self) -> float | None:
        """In how many seconds the memory is full at today's rate; None for never, or without a limit."""
        if not self.limit:
            return None
        if self.used >= FULL_SHARE * self.limit:
            return 0.0
        return full_in(max(0, self.limit - self.used), [each.growth(self.taken_ms) for each in self.held])
