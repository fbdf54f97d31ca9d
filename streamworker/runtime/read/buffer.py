"""Entries between the fetcher and a partition's runner, within a budget of bytes.

One processor of a worker has one :class:`ByteBudget`, and each of its partitions a
:class:`PartitionBuffer`. Bytes are charged when entries arrive and returned when they are *committed*, not
when a handler takes them. So the setting ``prefetch_bytes`` limits what a processor holds, whatever its
handlers do. Each partition may hold its share of the budget, so that a partition that makes no progress
does not starve the others.
"""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from streamworker.core.data.batching import ENTRY_OVERHEAD_BYTES, BatchLimits, SizeEstimate, prefix_within
from streamworker.core.data.entries import Entry, EntryId
from streamworker.records.entries import (
    Entries,
    StoredEntry,
    as_stored,
    id_at,
    joined_entries,
    origin_at,
    sizes_of,
)
from streamworker.runtime.clock import monotonic_ms, monotonic_s
from streamworker.runtime.signals import Signal

NEVER_MS = 1 << 62


class Alarms:
    """Wakes partitions whose first entry has waited for long enough, with one timer for a processor.

    One timer for each partition took a third of the time of putting an entry into a buffer.
    """

    __slots__ = ("_count", "_due", "_timer", "_timer_ms")

    def __init__(self) -> None:
        self._due: list[tuple[int, int, PartitionBuffer]] = []
        """A heap of alarms: due time, a number that orders alarms of the same time, and the buffer."""
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def add(self, due_ms: int, buffer: "PartitionBuffer") -> None:
        """Call a buffer's ``ring`` at a time of the monotonic clock, or a few milliseconds later."""
        self._count += 1
        heapq.heappush(self._due, (due_ms, self._count, buffer))
        self._arm()

    def _arm(self) -> None:
        if not self._due or (self._timer is not None and self._timer_ms <= self._due[0][0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = self._due[0][0]
        left_s = self._timer_ms / 1000 - monotonic_s()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left_s), self._ring)

    def _ring(self) -> None:
        self._timer = None
        at_ms = monotonic_ms()
        while self._due and self._due[0][0] <= at_ms:
            heapq.heappop(self._due)[2].ring()
        self._arm()


class ByteBudget:
    """Bytes that one processor of this worker may hold, over all its partitions."""

    __slots__ = ("alarms", "buffers", "estimate", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.alarms = Alarms()
        self.estimate = SizeEstimate()
        """The cost of an entry of any partition, for partitions that have seen too few to know their own."""
        self.buffers = 0
        """Open buffers that share the budget."""

    @property
    def free(self) -> int:
        """Bytes that are left, at least 0."""
        return max(0, self.limit - self.used)

    @property
    def share(self) -> int:
        """Bytes that one partition may hold."""
        return self.limit // max(1, self.buffers)


def cost_of(count: int, size: int) -> int:
    """Return how much of a budget ``count`` entries with ``size`` bytes use."""
    return size + ENTRY_OVERHEAD_BYTES * count


class PartitionBuffer:
    """Entries of one partition, in order, from the fetcher to the runner.

    The fetcher reads after ``position``, and lets ``ahead`` entries wait. ``on_room`` is called whenever the
    buffer, and so the budget, may have more room.
    """

    def __init__(
        self,
        partition: int,
        position: EntryId,
        budget: ByteBudget,
        *,
        ahead: int,
        on_room: Callable[["PartitionBuffer"], None] = lambda _: None,
    ) -> None:
        self.partition = partition
        self.position = position
        self.estimate = SizeEstimate()
        self.closed = False
        self.in_use = False
        """Whether a runner takes entries from this buffer; the runner closes it when it ends."""
        self._budget = budget
        self._ahead = ahead
        self._on_room = on_room
        self._changed = Signal()
        self._limits: BatchLimits | None = None
        """When the batch that the runner waits for is ready; None while it does not wait."""
        self._alarm_ms = NEVER_MS
        """When the next alarm rings; its entries may have been taken by then."""
        self._chunks: deque[tuple[int, int, Sequence[Entry]]] = deque()
        """Arrival time (monotonic ms), bytes that are left and entries of each read."""
        self._taken = 0
        """Entries of the first read that were taken, and are still part of it."""
        self._reads: deque[tuple[EntryId, EntryId, tuple[EntryId, Any]]] = deque()
        """For each read, the id it began after, its first record's id, and its first entry, until that record
        is committed."""
        self.per_entry = 1.0
        """Records in an entry, on average in the last read."""
        self.waiting = 0
        """How many entries wait."""
        self.waiting_bytes = 0
        self.held = 0
        """Bytes of the budget that this partition holds: waiting, being handled, being committed."""
        budget.buffers += 1

    # -- the fetcher's side ----------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether to read more: not until half of the entries are taken, as few large reads cost less."""
        return not self.closed and 2 * self.waiting <= self._ahead and self.held < self._budget.share

    @property
    def room_entries(self) -> int:
        """How many entries may be added before ``ahead`` records wait; at least one if one fits."""
        return math.ceil(max(0, self._ahead - self.waiting) / self.per_entry)

    @property
    def most_entries(self) -> int:
        """``room_entries`` while none waits."""
        return math.ceil(self._ahead / self.per_entry)

    @property
    def needs_more(self) -> bool:
        """Whether to interrupt a running read, by a call: if nothing waits, or half of the share is free."""
        return self.has_room and (self.waiting == 0 or 2 * self.held <= self._budget.share)

    def put(self, entries: Sequence[Entry]) -> None:
        """Add the entries of a read, and move ``position``; does nothing once the buffer is closed.

        It also ignores entries that another read has already brought: on a Cluster two nodes may be asked
        for one partition while it moves between them. Later entries of an ignored read are read again.
        """
        if self.closed or not entries:
            return
        brought = entries.stored if isinstance(entries, Entries) else len(entries)
        if isinstance(entries, Entries):
            entries = entries.after(self.position)
        first = id_at(entries, 0)
        if first <= self.position:
            return
        sizes = sizes_of(entries)
        count, size, largest = len(sizes), sum(sizes), max(sizes)
        # An entry may hold many records, and a read asks for a number of entries.
        self.per_entry = count / brought
        for estimate in (self.estimate, self._budget.estimate):
            estimate.observe(cost_of(count, size), brought, int(cost_of(1, largest) * self.per_entry))
        self._charge(cost_of(count, size))
        self._chunks.append((monotonic_ms(), size, entries))
        self._reads.append((self.position, first, origin_at(entries, 0)))
        self.waiting += count
        self.waiting_bytes += size
        self.position = id_at(entries, -1)
        if self._limits is None or self.is_ready(self._limits):
            self._changed.fire()
        else:
            self._set_alarm(self._limits)

    # -- the runner's side -----------------------------------------------------------------

    def use(self, entries: int) -> None:
        """Register a runner that takes batches of ``entries`` and closes the buffer when it ends."""
        self.in_use = True
        # Room for one waiting batch and one that is being read.
        self._ahead = max(self._ahead, 2 * entries)
        self._on_room(self)

    def each_waiting(self) -> Iterator[Entry]:
        """Return the entries that wait, in order."""
        return islice((entry for _, _, chunk in self._chunks for entry in chunk), self._taken, None)

    def take(self, records: int, bytes_max: int) -> Sequence[Entry]:
        """Take the next batch: at most ``records`` entries and ``bytes_max`` bytes, at least one entry.

        It is empty only if the buffer is. The bytes stay charged until :meth:`release`.
        """
        parts: list[Sequence[Entry]] = []
        count = total = 0
        while self._chunks and count < records:
            arrived, size, chunk = self._chunks[0]
            start, end = self._taken, len(chunk)
            if end - start > records - count or total + size > bytes_max:
                sizes = sizes_of(chunk)[start : start + records - count]
                fits, size = len(sizes), sum(sizes)
                if total + size > bytes_max:
                    fits = prefix_within(sizes, fits, bytes_max - total, at_least=0 if parts else 1)
                    size = sum(sizes[:fits])
                end = start + fits
            parts.append(chunk[start:end] if end - start < len(chunk) else chunk)
            count, total = count + end - start, total + size
            if end == len(chunk):
                self._chunks.popleft()
                self._taken = 0
            else:
                # To cut off what was taken copies the rest: not for each batch, but when it is half.
                self._taken = 0 if 2 * end > len(chunk) else end
                rest = chunk[end:] if self._taken == 0 else chunk
                self._chunks[0] = (arrived, self._chunks[0][1] - size, rest)
                break
        self.waiting -= count
        self.waiting_bytes -= total
        self._on_room(self)
        return joined_entries(parts)

    def reads_up_to(self, last: EntryId) -> list[tuple[EntryId, StoredEntry]]:
        """Return the start and first entry of each read that began up to ``last``, each read once."""
        found = []
        while self._reads and self._reads[0][1] <= last:
            after, _, origin = self._reads.popleft()
            found.append((after, as_stored(*origin)))
        return found

    def release(self, count: int, size: int) -> None:
        """Return the bytes of ``count`` committed entries to the budget."""
        if not self.closed:
            self._charge(-cost_of(count, size))
            self._on_room(self)

    def wake(self) -> None:
        """Wake the runner, so that it checks its state again."""
        self._changed.fire()

    def is_ready(self, limits: BatchLimits) -> bool:
        """Whether the waiting entries are many enough or old enough to be handled."""
        if not self._chunks:
            return False
        age_ms = monotonic_ms() - self._chunks[0][0]
        return limits.is_ready(self.waiting, self.waiting_bytes, age_ms, no_more=not self.has_room)

    @property
    def gathers_until_ms(self) -> int:
        """Until when entries wait for a full batch (monotonic); 0 if none do. Safe from any thread."""
        limits = self._limits
        try:
            return 0 if limits is None else self._chunks[0][0] + limits.within_ms
        except IndexError:  # It has just been emptied.
            return 0

    async def wait_ready(self, limits: BatchLimits) -> None:
        """Wait until a batch is ready; also return on :meth:`wake`, and when the buffer is closed.

        Entries that do not complete a batch do not wake the runner. Otherwise a thousand partitions with
        one new entry each would wake a thousand tasks that only wait again.
        """
        if self.closed or self.is_ready(limits):
            return
        self._limits = limits
        try:
            if self._chunks:
                self._set_alarm(limits)
            await self._changed.wait()
        finally:
            self._limits = None

    def _set_alarm(self, limits: BatchLimits) -> None:
        due_ms = self._chunks[0][0] + limits.within_ms
        if due_ms < self._alarm_ms:
            self._alarm_ms = due_ms
            self._budget.alarms.add(due_ms, self)

    def ring(self) -> None:
        """Wake the runner if the first entry, which may be a later one by now, has waited long enough."""
        self._alarm_ms = NEVER_MS
        limits = self._limits
        if limits is None or not self._chunks:
            return
        if self.is_ready(limits):
            self._changed.fire()
        else:
            self._set_alarm(limits)

    def close(self) -> None:
        """Drop the waiting entries and return all bytes to the budget; the fetcher forgets the partition."""
        if self.closed:
            return
        self._charge(-self.held)
        self._budget.buffers -= 1
        self.closed = True
        self._chunks.clear()
        self._taken = 0
        self.waiting = self.waiting_bytes = 0
        self._changed.fire()
        self._on_room(self)

    def _charge(self, cost: int) -> None:
        self.held += cost
        self._budget.used += cost
