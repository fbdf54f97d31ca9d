"""Reads the partitions of one processor into their buffers, from Redis and from the stream's archive.

On one server a single ``XREAD`` asks for every partition that has room, and blocks at the server until one
of them has entries. So the fetcher does not poll and needs one connection for any number of partitions. When
a partition is added, or gets room again while a read without it blocks, the fetcher wakes that read with
``CLIENT UNBLOCK``. On a Cluster no read may ask for all partitions: ``PollingFetcher`` asks each node.

Both are :class:`Reads`: they retry with backoff and jitter if Redis does not answer, and never end by
themselves. A partition's read position moves only with the entries that were put into its buffer.

A partition of whose records Redis may lack some, which are archived, is left out of these reads, and read
from the archive beside them (``cold``) until it has come to its end.

If a key holds another type, Redis refuses the whole read. ``streamwatch`` leaves its partition out until the
key is a stream again, and checks what a read does not report.
"""

import contextlib
import random
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from streamworker.core.data.batching import Candidate, Candidates, ReadPlan, plan_read, spacing_us
from streamworker.core.data.entries import EntryId
from streamworker.core.pauses import Pauses
from streamworker.errors import ArchiveError, BackendError, BackendUnavailable
from streamworker.log import get_logger
from streamworker.records.entries import Entries
from streamworker.redisio.data import streams
from streamworker.redisio.group import archiving
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend, BlockingConnection
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.read.buffer import ByteBudget, PartitionBuffer
from streamworker.runtime.read.streamwatch import StreamWatch, Tell
from streamworker.runtime.signals import Signal
from streamworker.runtime.telling import warn
from streamworker.settings import Settings

if TYPE_CHECKING:
    from streamworker.runtime.read.cold import ColdReader

log = get_logger("streamworker.fetcher")

PARTIAL_BLOCK_MS = 20
"""How long a read blocks if the budget forced it to leave out partitions without work. The next read asks
those: they may have entries that this read does not report."""

SPACING_MIN_S = 0.001
"""A shorter spacing of two reads is not kept."""

IDLE_LOOK_S = 5.0
"""How often partitions that bring nothing are asked whether the archive has what they wait for."""

UNBLOCK_RETRY_MS = 5
"""Pause before a wake-up is repeated: one that reaches the server before the read has no effect."""


@dataclass(eq=False)
class Reads(ABC):
    """The reads of one processor on one stream, on connections of their own."""

    backend: Backend
    keys: StreamKeys
    settings: Settings
    budget: ByteBudget
    on_regressed: Tell = lambda *_: None
    """Called once with a partition and a reason when its stream was deleted, or recreated with ids below the
    read position. The partition is not read until it is added again."""
    on_unreadable: Tell = lambda *_: None
    """Called with a partition and a reason when its key holds no stream, and with an empty reason when it
    holds the stream again and reads continue."""
    on_back: Callable[[], None] = lambda: None
    """Called when Redis answers a read after one that had no answer."""
    rng: random.Random = field(default_factory=random.Random)
    cold: "ColdReader | None" = None
    """The stream's archive, if it has one that this group reads."""

    def __post_init__(self) -> None:
        self._buffers: dict[int, PartitionBuffer] = {}
        self._watch = StreamWatch(
            backend=self.backend,
            keys=self.keys,
            buffers=self._buffers,
            on_change=self._room,
            on_regressed=self.on_regressed,
            on_unreadable=self.on_unreadable,
        )
        self.behind: set[int] = set()
        """Partitions from which the last read brought as much as it asked for: they have more."""
        self._turn = 0
        self.candidates = Candidates()
        """Partitions that have room, updated when they change. With a thousand partitions, checking each
        one before a read would cost more than the read."""
        self._changes: set[PartitionBuffer] = set()
        """Buffers that have changed since the last read plan."""
        self._sharing = (0, False)
        """How many buffers shared the budget at the last read plan, and whether their common estimate was
        known. If one changes, all partitions are noted anew."""
        self.reads = 0
        """How many reads were made."""
        self._cold: dict[int, Pauses] = {}
        """Partitions that are read from the archive, or of which it is not known whether they must be."""
        self._cold_added = Signal()

    @abstractmethod
    async def _read_for_ever(self) -> None:
        """Read until cancelled."""

    @abstractmethod
    def _wake(self, buffer: PartitionBuffer, *, is_new: bool = False) -> None:
        """Read a partition soon that was added, or that may have more room."""

    async def run(self) -> None:
        """Read until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch.compare_idle)
            tasks.start_soon(self._watch.look_again)
            if self.cold is not None:
                tasks.start_soon(self._read_cold, self.cold)
                tasks.start_soon(self._look_at_idle)
            await self._read_for_ever()

    def add(self, partition: int, position: EntryId) -> PartitionBuffer:
        """Start to read a partition, beginning after ``position``.

        If the partition already has a buffer, it is closed, and its runner gets no more entries.
        """
        self._drop(partition)
        buffer = PartitionBuffer(
            partition, position, self.budget, ahead=2 * self.settings.fetch_count, on_room=self._room
        )
        self._buffers[partition] = buffer
        self._freeze(partition)
        self._changes.add(buffer)
        self._wake(buffer, is_new=True)
        return buffer

    def remove(self, partition: int) -> None:
        """Stop reading a partition; drop its buffered entries and those that a running read brings.

        This does nothing while a runner uses the partition's buffer, because that may be a later runner
        than the caller's. A runner closes its buffer when it ends.
        """
        buffer = self._buffers.get(partition)
        if buffer is not None and (buffer.closed or not buffer.in_use):
            self._drop(partition)

    def _drop(self, partition: int) -> None:
        buffer = self._buffers.pop(partition, None)
        self._watch.forget(partition)
        self._cold.pop(partition, None)
        if self.cold is not None:
            self.cold.close(partition)
        self.candidates.drop(partition)
        if buffer is not None:
            buffer.close()

    def _room(self, buffer: PartitionBuffer) -> None:
        """Look at a partition again before the next read."""
        self._changes.add(buffer)
        if buffer.partition in self._cold:
            self._cold_added.fire()
        self._wake(buffer)

    def _pauses(self) -> Pauses:
        return Pauses(self.rng.random, max_ms=self.backend.server.pause_max_ms)

    # -- one read --------------------------------------------------------------------------

    def plan(self, only: Collection[int] | None = None, *, shares: int = 1) -> ReadPlan | None:
        """Choose the partitions of the next read; concurrent reads divide the free budget by ``shares``."""
        sharing = (self.budget.buffers, self.budget.estimate.is_known)
        if self._sharing != sharing:
            self._sharing = sharing
            self._changes.update(self._buffers.values())
        most = self.budget.share
        for buffer in self._changes:
            self._note(buffer, most)
        self._changes.clear()
        self._turn += 1
        free_bytes, count_max = self.budget.free // shares, self.settings.fetch_count
        turn, behind, known = self._turn, self.behind, self.candidates.known
        if only is None:
            return self.candidates.plan(free_bytes=free_bytes, count_max=count_max, turn=turn, behind=behind)
        its = [known[p] for p in only if p in known]
        return plan_read(its, free_bytes=free_bytes, count_max=count_max, turn=turn, behind=behind)

    def _note(self, buffer: PartitionBuffer, share: int) -> None:
        """Update whether a partition can be read, and how many entries."""
        partition = buffer.partition
        if self._buffers.get(partition) is not buffer:
            return
        if not buffer.has_room or partition in self._watch.left_out or partition in self._cold:
            self.candidates.drop(partition)
            return
        estimate = buffer.estimate if buffer.estimate.is_known else self.budget.estimate
        # A guessed size must not exclude a partition: all shares together fit the budget.
        most = self.budget.limit if estimate.is_known else share
        estimate_bytes = max(1, min(estimate.bytes_per_entry, most))
        self.candidates.put(
            Candidate(
                partition=partition,
                room_bytes=max(0, share - buffer.held),
                room_entries=buffer.room_entries,
                estimate_bytes=estimate_bytes,
                starved=buffer.held == 0,
                most_entries=min(buffer.most_entries, share // estimate_bytes),
            )
        )

    def asked(self, plan: ReadPlan) -> dict[int, PartitionBuffer]:
        """Return the buffer of each partition of a plan, and count a read."""
        self.reads += 1
        return {partition: self._buffers[partition] for partition in plan.partitions}

    def put(self, asked: Mapping[int, PartitionBuffer], count: int, answer: Mapping[int, Entries]) -> int:
        """Put the entries of a read into the buffers; return how many records they hold."""
        if self.behind:
            self.behind.difference_update(asked)
        for partition, entries in answer.items():
            # A partition that was removed meanwhile has a closed buffer, which drops entries.
            asked[partition].put(entries)
            self._changes.add(asked[partition])
            if entries.stored >= count:
                self.behind.add(partition)
        return sum(map(len, answer.values()))

    # -- the archive -----------------------------------------------------------------------

    def _freeze(self, partition: int) -> None:
        if self.cold is not None and partition not in self._cold:
            self._cold[partition] = self._pauses()
            self._cold_added.fire()

    async def warm(
        self, positions: Mapping[int, EntryId], answer: Mapping[int, Entries]
    ) -> Mapping[int, Entries]:
        """Return of a read what has no gap; the other partitions are cold from now on."""
        if self.cold is None or not answer:
            return answer
        gone = await archiving.overtaken(self.backend, self.keys, {p: positions[p] for p in answer})
        for partition in gone & self._buffers.keys():
            self._freeze(partition)
            self._changes.add(self._buffers[partition])
        return {p: entries for p, entries in answer.items() if p not in gone}

    async def _look_at_idle(self) -> None:
        """Find partitions that Redis has nothing for, since all was archived and trimmed."""
        while True:
            await anyio.sleep(IDLE_LOOK_S)
            idle = {
                p: buffer.position
                for p, buffer in self._buffers.items()
                if not buffer.waiting and buffer.has_room and p not in self._cold
            }
            try:
                for partition in await archiving.overtaken(self.backend, self.keys, idle) if idle else ():
                    if partition in self._buffers and self._buffers[partition].position == idle[partition]:
                        self._freeze(partition)
                        self._changes.add(self._buffers[partition])
            except BackendError as error:
                log.debug("archive_unknown", error=str(error))

    async def _read_cold(self, cold: "ColdReader") -> None:
        """Read from the archive until cancelled."""
        failing: dict[int, float] = {}
        """Partitions whose last look failed, and when the next one is due."""
        while True:
            now_s = monotonic_s()
            due = [p for p in self._cold if failing.get(p, 0.0) <= now_s and cold.has_place(p)]
            roomy = [p for p in due if self._buffers[p].has_room]
            if not roomy:
                later_s = [failing[p] - now_s for p in self._cold if p in failing]
                await self._cold_added.wait(max(0.01, min([*later_s, IDLE_LOOK_S])))
                continue
            for partition in roomy:
                buffer, pauses = self._buffers.get(partition), self._cold.get(partition)
                if buffer is None or pauses is None or not cold.has_place(partition):
                    continue
                try:
                    await self._read_one(cold, buffer)
                except (ArchiveError, BackendError) as error:
                    pause_ms = pauses.next_ms()
                    failing[partition] = monotonic_s() + pause_ms / 1000
                    cold.close(partition)
                    warn(log, "archive_unread", error, partition=partition, retry_in_ms=pause_ms)
                    self.on_unreadable(partition, f"archive not read: {error}")
                else:
                    if failing.pop(partition, None) is not None:
                        pauses.reset()
                        self.on_unreadable(partition, "")

    async def _read_one(self, cold: "ColdReader", buffer: PartitionBuffer) -> None:
        """Read some records of a cold partition; if Redis has all that follows, it is cold no more."""
        partition, position = buffer.partition, buffer.position
        if not cold.is_open(partition, position):
            gone = await archiving.overtaken(self.backend, self.keys, {partition: position})
            if not gone:
                cold.close(partition)
                if self._buffers.get(partition) is buffer:
                    self._cold.pop(partition, None)
                    self._room(buffer)
                    self._wake(buffer, is_new=True)
                return
        found = await cold.next(partition, position, self.budget.share)
        archived = (await archiving.read_archived(self.backend, self.keys, [partition]))[partition]
        if found is None:
            if archived > position and await cold.next(partition, position) is None:
                raise cold.ended(partition, position)
            return
        if found.id_at(len(found) - 1) > archived:
            # A put may be ahead of the checkpoint, up to which commits of archived records are taken.
            cold.close(partition)
            found = found[: bisect_right(range(len(found)), archived, key=found.id_at)]
        if self._buffers.get(partition) is not buffer:
            cold.close(partition)
        elif buffer.position == position:
            buffer.put(found)
            self._changes.add(buffer)
            if not cold.is_open(partition, buffer.position):  # It is another one's turn.
                self._cold[partition] = self._cold.pop(partition)

    async def sort_out(self, plan: ReadPlan, error: BackendError, pause_ms: int) -> None:
        """Find the partitions whose keys made Redis refuse a read; the others are read again."""
        log.warning("fetch_refused", error=str(error), retry_in_ms=pause_ms)
        try:
            kinds = await self.backend.pipeline([("TYPE", self.keys.events(p)) for p in plan.partitions])
        except BackendError:
            kinds = []
        for partition, kind in zip(plan.partitions, kinds, strict=False):
            if isinstance(kind, bytes) and kind not in (b"stream", b"none"):
                self._watch.leave_out(partition, kind.decode())
        await anyio.sleep(pause_ms / 1000)


class Fetcher(Reads):
    """The reads on one server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._roomy = Signal()
        self._woken = Signal()
        self._waits_for: frozenset[int] | None = None
        """Partitions of the read that blocks at the server; None if none does."""
        self._wake_wanted = False

    async def _read_for_ever(self) -> None:
        connection = self.backend.blocking()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wakes, connection)
            try:
                await self._rounds(connection)
            finally:
                with anyio.CancelScope(shield=True):
                    await connection.aclose()

    async def _rounds(self, connection: BlockingConnection) -> None:
        pauses, was_away = self._pauses(), False
        all_at_s = 0.0  # Before this time only partitions that have more are read.
        while True:
            began_s = monotonic_s()
            left_s = all_at_s - began_s
            brief = left_s > SPACING_MIN_S
            if brief and not self.behind:
                await anyio.sleep(left_s)
                continue
            self._wake_wanted = False
            plan = self.plan(self.behind if brief else None)
            if plan is None:
                await self._roomy.wait(left_s if brief else None)
                continue
            try:
                brought = await self._read(connection, plan, blocks=not brief)
            except BackendUnavailable as error:
                was_away = True
                pause_ms = pauses.next_ms()
                warn(log, "fetch_failed", error, retry_in_ms=pause_ms)
                await anyio.sleep(pause_ms / 1000)
            except BackendError as error:
                await self.sort_out(plan, error, pauses.next_ms())
            else:
                if pauses.failures:
                    pauses.reset()
                if was_away:
                    was_away = False
                    self.on_back()
                if not brief:
                    all_at_s = began_s + spacing_us(len(plan.partitions), *brought) / 1e6

    async def _read(self, connection: BlockingConnection, plan: ReadPlan, *, blocks: bool) -> tuple[int, int]:
        """Make a read; return how many partitions had entries, and how many it brought."""
        asked = self.asked(plan)
        positions = {partition: buffer.position for partition, buffer in asked.items()}
        block_ms = 0
        if blocks:
            block_ms = self.settings.fetch_block_ms
            if plan.is_partial:
                block_ms = min(block_ms, PARTIAL_BLOCK_MS)
            self._waits_for = frozenset(asked)
        try:
            read = await streams.read(connection, self.keys, positions, plan.count, block_ms)
        finally:
            self._waits_for = None
        answer = await self.warm(positions, read)
        return len(answer), self.put(asked, plan.count, answer)

    # -- waking a read that blocks -----------------------------------------------------------

    def _wake(self, buffer: PartitionBuffer, *, is_new: bool = False) -> None:
        waits_for = self._waits_for
        if is_new or (waits_for is not None and buffer.partition not in waits_for and buffer.needs_more):
            self._wake_wanted = True
            self._woken.fire()
        self._roomy.fire()

    async def _wakes(self, connection: BlockingConnection) -> None:
        while True:
            if self._waits_for is not None and self._wake_wanted:
                # Without an answer the read fails too, and the next one asks for all partitions it should.
                with contextlib.suppress(BackendError):
                    await connection.unblock()
                await anyio.sleep(UNBLOCK_RETRY_MS / 1000)
            else:
                await self._woken.wait()
