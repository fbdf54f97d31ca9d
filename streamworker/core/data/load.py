"""Measures a partition's load: the time its owner spends on it, and more if its backlog grows.

The load is the time that all entries that arrived would have taken, in whole thousandths of the time that
passed; docs/assignments.md has the formula. A backlog that shrinks does not count: while the worker reduces
it, the worker has no more time than it has. An exponential moving average in fixed point smooths the load, so
that one slow batch is no reason to move a partition.
"""

from collections.abc import Mapping
from dataclasses import dataclass

FRACTION_BITS = 8
"""The fraction bits of the average; without them a load of 3 could never fall to 0."""
SMOOTHING = 4
"""A new look counts for a fourth: the average follows a step by 90 % in eight looks."""
GROWTH_MOST = 4
"""The most by which a growing backlog multiplies a load. Beyond that, the backlog shows that there are too
few workers, and not which worker should own what."""


@dataclass(frozen=True, slots=True)
class Counters:
    """A partition's counters at one look."""

    epoch: int
    """The epoch of the acquisition: the counters start with it."""
    at_ms: int
    worked_ms: int
    done: int
    lag: int | None
    """The number of entries that wait; None if it is unknown."""


class LoadMeter:
    """Measures the load of each partition of one member.

    >>> meter = LoadMeter()
    >>> meter.look({3: Counters(epoch=7, at_ms=0, worked_ms=0, done=0, lag=0)})
    {}
    >>> meter.look({3: Counters(epoch=7, at_ms=1_000, worked_ms=300, done=60, lag=20)})
    {3: 400}
    >>> meter.look({3: Counters(epoch=7, at_ms=2_000, worked_ms=600, done=120, lag=20)})
    {3: 375}
    """

    def __init__(self) -> None:
        self._last: dict[int, Counters] = {}
        self._average: dict[int, int] = {}

    def look(self, counters: Mapping[int, Counters]) -> dict[int, int]:
        """Take the counters of all partitions; return the loads of those that were seen before."""
        last, self._last = self._last, dict(counters)
        average, self._average = self._average, {}
        for partition, now in counters.items():
            before = last.get(partition)
            if before is None or before.epoch != now.epoch or before.at_ms >= now.at_ms:
                continue
            load = _load(before, now) << FRACTION_BITS
            known = average.get(partition, load)
            self._average[partition] = known + (load - known) // SMOOTHING
        half = 1 << (FRACTION_BITS - 1)
        return {partition: (value + half) >> FRACTION_BITS for partition, value in self._average.items()}


def _load(before: Counters, now: Counters) -> int:
    load = (now.worked_ms - before.worked_ms) * 1_000 // (now.at_ms - before.at_ms)
    done = now.done - before.done
    growth = 0 if now.lag is None or before.lag is None else now.lag - before.lag
    if done > 0 and growth > 0:
        load = min(load * (done + growth) // done, load * GROWTH_MOST)
    return max(0, load)
