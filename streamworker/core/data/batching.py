"""Decides how much to handle at once: batch limits, reads within a budget, the search for poison records.

Rules of this file: numbers in, numbers out. The code touches no entry, record or clock, so that tests can
check every rule with small integers.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from streamworker.errors import InternalError

ENTRY_OVERHEAD_BYTES = 450
"""What an entry costs in memory in addition to its bytes: an id, a dict, the bytes objects (measured on
CPython 3.11: 445 bytes for an entry of one field). Byte budgets include it, since for small records it is
most of the memory."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is big enough or old enough to be handled."""

    records: int
    bytes: int
    within_ms: int
    """How long a batch waits for more records after its first one."""

    def is_ready(self, waiting: int, waiting_bytes: int, age_ms: int, *, no_more: bool = False) -> bool:
        """Tell whether the waiting entries, of which the first has waited ``age_ms``, should be handled now.

        With ``no_more`` no entry can be added because the buffer is full: then waiting gains nothing.
        """
        if waiting == 0:
            return False
        full = waiting >= self.records or waiting_bytes >= self.bytes
        return full or no_more or age_ms >= self.within_ms


def prefix_within(sizes: Iterable[int], records: int, bytes_max: int, *, at_least: int = 1) -> int:
    """Return how many of the first sizes fit into a batch, or ``at_least`` (0 or 1) if none do.

    An entry that alone is larger than the limit is a batch of its own; otherwise no batch could ever include
    it.

    >>> prefix_within([40, 40, 40], records=10, bytes_max=100)
    2
    >>> prefix_within([500], records=10, bytes_max=100)
    1
    """
    count = total = 0
    for size in sizes:
        total += size
        if count >= records or (total > bytes_max and count >= at_least):
            break
        count += 1
    return count


class SizeEstimate:
    """Estimates the cost of the next entry of a partition by a moving mean and deviation.

    The smoothing is that of TCP's round-trip times (RFC 6298: gain 1/8 for the mean, 1/4 for the deviation,
    mean + 4 deviations as the bound), because the question is the same: a bound that is rarely exceeded, and
    that follows when the load changes.
    """

    FIRST_BYTES = 64 * 1024
    """The estimate before the first reads: that of an entry of many records, so that they are careful. This
    costs extra small reads; with too small a number they would exceed the budget."""
    SEEN_MIN = 8
    """Entries to see before the estimate follows them: entries of one record and of many alternate."""

    def __init__(self) -> None:
        self._seen = 0
        self._mean = 0.0
        self._deviation = 0.0

    def observe(self, total_bytes: int, count: int, largest_bytes: int | None = None) -> None:
        """Update the estimate from a read of ``count`` entries with ``total_bytes`` together."""
        if count <= 0:
            return
        self._seen += count
        sample = total_bytes / count
        spread = max(0.0, (largest_bytes or sample) - sample)
        if self._mean == 0.0:
            self._mean, self._deviation = sample, spread / 4
            return
        self._deviation += (max(abs(sample - self._mean), spread / 4) - self._deviation) / 4
        # The mean follows a larger size at once: too small an estimate costs memory, too large a one only
        # a round trip.
        self._mean = max(sample, self._mean + (sample - self._mean) / 8)

    @property
    def is_known(self) -> bool:
        """Whether enough was observed; otherwise the estimate is a guess."""
        return self._seen >= self.SEEN_MIN

    @property
    def bytes_per_entry(self) -> int:
        """An upper estimate of what one entry costs."""
        known = max(1, int(self._mean + 4 * self._deviation))
        return known if self.is_known else max(known, self.FIRST_BYTES)


READ_ENTRIES_MAX = 8_000
"""Entries that one read may return in total. Parsing a reply into entries blocks the event loop for 1.3 us
per entry (measured), so this limits the pause of one read to some 10 ms."""


@dataclass(slots=True)  # Not frozen: each record may make one, and a frozen one takes three times as long.
class Candidate:
    """A partition that could be read now."""

    partition: int
    room_bytes: int
    """How many more bytes of the budget it may hold."""
    room_entries: int
    estimate_bytes: int
    starved: bool
    """It holds no entries, so its runner has nothing to do."""
    most_entries: int = READ_ENTRIES_MAX
    """How many entries it has room for while it holds none: few, if each has many records."""

    @property
    def entries(self) -> int:
        """How many entries it has room for."""
        return min(self.room_entries, self.room_bytes // self.estimate_bytes)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What one read asks for."""

    partitions: tuple[int, ...]
    count: int
    """The most entries to read from each partition."""
    is_partial: bool = False
    """Partitions without work were left out, so the read must not block for long."""


def plan_read(
    candidates: Sequence[Candidate],
    *,
    free_bytes: int,
    count_max: int,
    turn: int,
    behind: Collection[int] = (),
) -> ReadPlan | None:
    """Choose which partitions the next read asks, and for how many entries; None if nothing can be read now.

    All streams of one XREAD share one COUNT, so the plan first looks for a count that fits all candidates. If
    the free bytes do not hold one entry of each candidate, the read asks as many as fit, beginning with a
    different one each ``turn``. Every other turn, the read asks one of the partitions that hold nothing and
    do not fit, for one entry. Otherwise partitions that cannot proceed (because their acked log is full, say)
    could keep the budget from those that can, forever.

    Partitions whose entries have many records take a few entries, others a thousand. Those of the others that
    are ``behind``, and so have more for sure, are read by themselves every other turn.
    """
    if not candidates:
        return None
    shift = turn % len(candidates)
    ordered = [*candidates[shift:], *candidates[:shift]]
    chosen: list[Candidate] = []
    hungry: list[int] = []
    need = 0
    for candidate in ordered:
        if need + candidate.estimate_bytes <= free_bytes:
            chosen.append(candidate)
            need += candidate.estimate_bytes
        elif candidate.starved:
            hungry.append(candidate.partition)
    if hungry:
        # Choose from all partitions that hold nothing, not from those that do not fit just now: the
        # latter change with the turn, and one partition could be skipped in each.
        starved = sorted(candidate.partition for candidate in candidates if candidate.starved)
        asked = starved[turn // 2 % len(starved)]
        if not chosen or (turn % 2 and asked in hungry):
            return ReadPlan((asked,), 1, is_partial=len(hungry) + len(chosen) > 1)
    if not chosen:
        return None

    def most(of: Sequence[Candidate]) -> int:
        need = sum(candidate.estimate_bytes for candidate in of)
        return min(count_max, max(1, READ_ENTRIES_MAX // len(of)), free_bytes // need)

    # The smallest partition must not slow down the others: a partition with little room left is asked
    # again when it has more, unless its runner has nothing to do.
    count = most(chosen)
    asking = [c for c in chosen if c.starved or c.entries * 4 >= min(count, c.most_entries)] or chosen
    is_partial = bool(hungry)
    if turn % 2 and any(c.most_entries * 4 < count for c in asking):
        rest = [c for c in asking if c.partition in behind and c.most_entries * 4 >= count]
        if rest:
            is_partial |= any(c.starved for c in asking if c not in rest)
            asking, count = rest, most(rest)
    count = min(count, *(max(1, c.entries) for c in asking))
    return ReadPlan(tuple(c.partition for c in asking), max(1, count), is_partial=is_partial)


class Candidates:
    """The partitions that could be read now, and the plan of the next read.

    Nearly all reads ask each partition for as many entries as one read may return. This plan stays the same
    until a partition comes or goes, so it costs the same for any number of partitions.
    """

    def __init__(self) -> None:
        self.known: dict[int, Candidate] = {}
        self._need = 0
        """Bytes of one entry of each."""
        self._tight: set[int] = set()
        """Those that have no room for as many entries as ``_all`` asks for."""
        self._all: ReadPlan | None = None
        """The plan that asks all; None if it is to be made anew."""

    def put(self, candidate: Candidate) -> None:
        """Add a partition, or change it."""
        partition = candidate.partition
        before = self.known.get(partition)
        self.known[partition] = candidate
        self._need += candidate.estimate_bytes
        if before is None:
            self._all = None
            return
        self._need -= before.estimate_bytes
        if self._all is not None and candidate.entries < self._all.count:
            self._tight.add(partition)
        else:
            self._tight.discard(partition)

    def drop(self, partition: int) -> None:
        """Remove a partition, if it is there."""
        if (before := self.known.pop(partition, None)) is not None:
            self._need -= before.estimate_bytes
            self._all = None

    def plan(
        self, *, free_bytes: int, count_max: int, turn: int, behind: Collection[int] = ()
    ) -> ReadPlan | None:
        """Return :func:`plan_read` of all, in any order."""
        if self._all is None and self.known:
            count = min(count_max, max(1, READ_ENTRIES_MAX // len(self.known)))
            self._all = ReadPlan(tuple(self.known), count)
            self._tight = {c.partition for c in self.known.values() if c.entries < count}
        if self._all is not None and not self._tight and self._all.count * self._need <= free_bytes:
            return self._all
        its = list(self.known.values())
        return plan_read(its, free_bytes=free_bytes, count_max=count_max, turn=turn, behind=behind)


SPACING_US = 50
"""Asking for a partition costs worker and server together 3 us (measured), whether it has entries or not. So
asking takes 6% of a core at most. If one worker has a thousand partitions, an entry waits 50 ms at most."""
FEW_ENTRIES = 4
FEW_SPACING_US, FEW_SPACING_MAX_US = 200, 2_000
"""To wake a partition costs as much as ten entries. At 20,000 entries a second over 8 partitions reads are
1.6 ms apart, and each brings four for a partition. Where entries come further apart, none waits."""


def spacing_us(asked: int, answered: int, entries: int) -> int:
    """Return how long after a read the next one may begin; meanwhile partitions that have more are read.

    ``asked`` partitions were read, and ``answered`` of them had ``entries`` together.

    >>> spacing_us(1_024, 500, 500), spacing_us(8, 8, 8), spacing_us(8, 1, 1), spacing_us(8, 8, 800)
    (51200, 1600, 400, 0)
    """
    spacing = SPACING_US * asked if entries < asked else 0
    if entries < FEW_ENTRIES * answered:
        spacing = max(spacing, min(FEW_SPACING_US * answered, FEW_SPACING_MAX_US))
    return spacing


class Halving:
    """Searches for the records that make a batch fail.

    The records are numbered from 0. ``next()`` returns the slice to run, and the caller reports its result
    with ``succeeded()`` or ``failed()``. Slices come in order, and each record either succeeds exactly once
    or is found to be poison. So the effects of the successful slices, taken in order, are those of the batch
    without the poison records.

    If the first half of a failing slice succeeds, its second half must fail, so the search does not run the
    second half as a whole but halves it at once. One poison record among ``n`` costs about log2(n) + 1 calls.

    >>> search = Halving(4)
    >>> while (part := search.next()) is not None:
    ...     search.failed() if part[0] <= 2 < part[1] else search.succeeded()
    >>> search.poison
    [2]
    """

    def __init__(self, count: int) -> None:
        self._stack: list[tuple[int, int, bool]] = [(0, count, True)] if count else []
        """The slices to run, the next one last, and whether each is known to fail."""
        self._current: tuple[int, int, bool] | None = None
        self.poison: list[int] = []
        """The poison records found so far, in ascending order."""

    def next(self) -> tuple[int, int] | None:
        """Return the slice ``(start, end)`` to run now, or None at the end."""
        if not self._stack:
            self._current = None
            return None
        start, end, fails = self._stack.pop()
        first_half = fails and end - start > 1
        if first_half:
            middle = (start + end) // 2
            self._stack.append((middle, end, False))
            end = middle
        self._current = (start, end, first_half)
        return start, end

    def succeeded(self) -> None:
        """Report that the slice of the last ``next()`` succeeded."""
        _, _, first_half = self._running()
        if first_half:
            start, end, _ = self._stack.pop()
            self._stack.append((start, end, True))

    def failed(self) -> None:
        """Report that the slice of the last ``next()`` failed."""
        start, end, _ = self._running()
        if end - start == 1:
            self.poison.append(start)
        else:
            self._stack.append((start, end, True))

    def _running(self) -> tuple[int, int, bool]:
        if self._current is None:
            raise InternalError("The search for a poison record was told of a slice it had not named.")
        current, self._current = self._current, None
        return current
