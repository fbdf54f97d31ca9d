"""Event time: how far the times that records tell have come in one partition.

It is the newest such time, but at most some ``ahead`` after the record's arrival, so that one clock that is
wrong makes nobody else late. When the partition has caught up, event time goes on with the server's clock
from the arrival of that record, so that what ends is told though no record comes. No partition waits for
another.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import msgspec

NO_TIME_MS = -(1 << 53)
"""The event time of a partition that has had no record: before all others."""


class EventTime(NamedTuple):
    """How far event time has come.

    >>> now = EventTime().after(at_ms=1_000, arrived_ms=5_000, ahead_ms=60_000)
    >>> now.now_ms, now.ticked(9_000).now_ms, now.reaches_ms(1_500)
    (1000, 5000, 5500)
    """

    newest_ms: int = NO_TIME_MS
    """The newest time that a record has told, as far as it counts."""
    since_ms: int = 0
    """When that record arrived, by the server's clock."""
    clock_ms: int = NO_TIME_MS
    """How far the server's clock has taken it."""

    @property
    def now_ms(self) -> int:
        """The event time now; it never goes back."""
        return max(self.newest_ms, self.clock_ms)

    def after(self, at_ms: int, arrived_ms: int, ahead_ms: int) -> Self:
        """Return the event time after a record."""
        counts_ms = min(at_ms, arrived_ms + ahead_ms)
        if counts_ms < self.newest_ms:
            return self
        return self._replace(newest_ms=counts_ms, since_ms=arrived_ms)

    def ticked(self, server_ms: int) -> Self:
        """Return the event time once all is committed that the partition held at a time of the server."""
        if self.newest_ms == NO_TIME_MS:
            return self
        passed_ms = max(server_ms - self.since_ms, 0)
        return self._replace(clock_ms=max(self.clock_ms, self.newest_ms + passed_ms))

    def reaches_ms(self, at_ms: int) -> int | None:
        """Return at which time of the server's clock it reaches a time without any record; None if never."""
        if self.newest_ms == NO_TIME_MS:
            return None
        return self.since_ms + at_ms - self.newest_ms

    def joined(self, other: Self) -> Self:
        """Return the later of the event times of two partitions that one follows.

        No window is open that one of them has closed, so that none comes twice.
        """
        return max(self, other, key=lambda each: each.now_ms)

    def encode(self) -> bytes:
        """Return it as it is stored."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, stored: bytes | None) -> Self:
        """Read it as it is stored.

        >>> EventTime.decode(EventTime(1, 2, 3).encode()), EventTime.decode(None) == EventTime()
        (EventTime(newest_ms=1, since_ms=2, clock_ms=3), True)
        """
        return cls() if stored is None else msgspec.msgpack.decode(stored, type=cls)


def passed(
    now: EventTime, ats_ms: Sequence[int], arrived_ms: Sequence[int], ahead_ms: int
) -> tuple[list[int], EventTime]:
    """Return the event time before each of some records, in order, and after all of them.

    Whether a record is late depends on the records before it alone: neither on the batch that it is in, nor
    on the worker that handles it.

    >>> passed(EventTime(), [1_000, 3_000, 2_000], [5_000, 5_001, 5_002], 60_000)[0][1:]
    [1000, 3000]
    """
    before: list[int] = []
    newest_ms, since_ms, clock_ms = now
    for at_ms, arrival_ms in zip(ats_ms, arrived_ms, strict=True):
        before.append(max(newest_ms, clock_ms))
        if at_ms >= newest_ms:
            counts_ms = min(at_ms, arrival_ms + ahead_ms)
            if counts_ms >= newest_ms:
                newest_ms, since_ms = counts_ms, arrival_ms
    return before, EventTime(newest_ms, since_ms, clock_ms)
