"""Reads the partitions of one processor into their buffers.

On one server, a single ``XREAD`` asks for every partition that has room, and blocks at the server until one
of them has entries. So the fetcher does not poll and needs one connection for any number of partitions.
When a partition is added, or gets room again while a read without it blocks, the fetcher wakes that read
with ``CLIENT UNBLOCK``. On a Cluster no read may ask for all partitions: :class:`Polling` asks each node.

If Redis does not answer, the fetcher retries with backoff and jitter; it never ends by itself. A
partition's read position moves only with the entries that were put into its buffer.

If a key holds another type, Redis refuses the whole read. The fetcher leaves that partition out of its
reads until the key is a stream again. ``streamwatch`` checks what a read does not report.
"""

import contextlib
import random
import time
from collections.abc import Callable, Collection, Mapping

import anyio

from streamworker.core.data.batching import Candidate, ReadPlan, plan_read
from streamworker.core.data.entries import EntryId
from streamworker.core.pauses import Pauses
from streamworker.errors import BackendError, BackendUnavailable
from streamworker.log import get_logger
from streamworker.records.entries import Entries
from streamworker.redisio.data import streams
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend, BlockingConnection
from streamworker.runtime.read.buffer import ByteBudget, PartitionBuffer
from streamworker.runtime.read.polling import PAUSE_MAX_S, Polling
from streamworker.runtime.read.streamwatch import StreamWatch, Tell
from streamworker.runtime.signals import Signal
from streamworker.settings import Settings

PARTIAL_BLOCK_MS = 20
"""How long a read blocks if the budget forced it to leave out partitions without work. The next read asks
those: they may have entries that this read does not report."""

SPACING_US = 50
"""Spacing between the starts of two reads, for each partition that they ask, if a read brings less than one
entry for each. Asking costs worker and server together 3 us a partition (measured), whether it has entries
or not, so asking takes 6% of a core at most. If one worker has a thousand partitions, an entry waits 50 ms
at most for its read, as long as a batch waits for more entries. With few partitions or few entries it does
not wait. Meanwhile the fetcher reads only partitions that are known to have more."""
SPACING_MIN_S = 0.001

UNBLOCK_RETRY_MS = 5
"""Pause before a wake-up is repeated: one that reaches the server before the read has no effect."""

_log = get_logger("streamworker.fetcher")


class Fetcher:
    """The reads of one processor on one stream.

    The fetcher opens its own connection to the server, on a Cluster one to each node.

    Parameters
    ----------
    on_regressed
        Called once with a partition and a reason when its stream was deleted, or recreated with ids
        below the read position. The fetcher does not read the partition until it is added again.
    on_unreadable
        Called with a partition and a reason when its key holds no stream, and with an empty reason when
        it holds the stream again and reads continue.
    on_back
        Called when Redis answers a read after one that had no answer.
    """

    def __init__(
        self,
        backend: Backend,
        stream_keys: StreamKeys,
        settings: Settings,
        budget: ByteBudget,
        *,
        on_regressed: Tell = lambda *_: None,
        on_unreadable: Tell = lambda *_: None,
        on_back: Callable[[], None] = lambda: None,
        rng: random.Random | None = None,
    ) -> None:
        self._backend = backend
        self._keys = stream_keys
        self._settings = settings
        self._budget = budget
        self._on_back = on_back
        self._was_away = False
        self._rng = rng or random.Random()
        self._buffers: dict[int, PartitionBuffer] = {}
        self._watch = StreamWatch(
            backend=backend,
            keys=stream_keys,
            buffers=self._buffers,
            on_change=self._left_out,
            on_regressed=on_regressed,
            on_unreadable=on_unreadable,
        )
        self._roomy = Signal()
        self._woken = Signal()
        self._waits_for: frozenset[int] | None = None
        """Partitions of the read that blocks at the server; None if none does."""
        self._wake_wanted = False
        self.behind: set[int] = set()
        """Partitions from which the last read brought as much as it asked for: they have more."""
        self._turn = 0
        self.candidates: dict[int, Candidate] = {}
        """Partitions that have room, updated when they change. With a thousand partitions, checking each
        one before a read would cost more than the read."""
        self._changes: set[PartitionBuffer] = set()
        """Buffers that have changed since the last read plan."""
        self._sharing = 0
        """How many buffers shared the budget at the last read plan."""
        self.reads = 0
        """How many reads the fetcher has made."""
        self._connection = backend.blocking_for_all()
        self._polling: Polling | None = None
        if self._connection is None:
            self._polling = Polling(
                backend=backend,
                keys=stream_keys,
                reads=self,
                pauses=lambda: Pauses(self._rng.random, max_ms=backend.pause_max_ms),
                pause_max_s=min(settings.fetch_block_ms / 1000, PAUSE_MAX_S),
                on_back=on_back,
            )

    def add(self, partition: int, position: EntryId) -> PartitionBuffer:
        """Start to read a partition, beginning after ``position``.

        If the partition already has a buffer, it is closed, and its runner gets no more entries.
        """
        self._drop(partition)
        buffer = PartitionBuffer(
            partition, position, self._budget, ahead=2 * self._settings.fetch_count, on_room=self._room
        )
        self._buffers[partition] = buffer
        self._changes.add(buffer)
        if self._polling is not None:
            self._polling.wake(partition, is_new=True)
        self._wake()
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
        self.candidates.pop(partition, None)
        if buffer is not None:
            buffer.close()

    async def run(self) -> None:
        """Read until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch.run)
            if self._polling is not None:
                await self._polling.run()
            if (connection := self._connection) is not None:
                tasks.start_soon(self._wakes, connection)
                try:
                    await self._reads_for_ever(connection)
                finally:
                    with anyio.CancelScope(shield=True):
                        await connection.aclose()

    # -- reading ---------------------------------------------------------------------------

    async def _reads_for_ever(self, connection: BlockingConnection) -> None:
        pauses = Pauses(self._rng.random, max_ms=self._backend.pause_max_ms)
        all_at_s = 0.0  # Before this time only partitions that have more are read.
        while True:
            began_s = time.monotonic()
            left_s = all_at_s - began_s
            brief = left_s > SPACING_MIN_S
            if brief and not self.behind:
                await anyio.sleep(left_s)
                continue
            plan = self.plan(self.behind if brief else None)
            if plan is None:
                await self._roomy.wait(left_s if brief else None)
                continue
            try:
                brought = await self._read(connection, plan, blocks=not brief)
            except BackendUnavailable as error:
                self._was_away = True
                pause_ms = pauses.next_ms()
                _log.warning("fetch_failed", error=str(error), retry_in_ms=pause_ms)
                await anyio.sleep(pause_ms / 1000)
            except BackendError as error:
                await self.sort_out(plan, error, pauses.next_ms())
            else:
                pauses.reset()
                if self._was_away:
                    self._was_away = False
                    self._on_back()
                if not brief and brought < len(plan.partitions):
                    all_at_s = began_s + len(plan.partitions) * SPACING_US / 1e6

    def plan(self, only: Collection[int] | None = None, *, shares: int = 1) -> ReadPlan | None:
        """Choose the partitions of the next read; concurrent reads divide the free budget by ``shares``."""
        self._wake_wanted = False
        if self._sharing != self._budget.buffers:
            self._sharing = self._budget.buffers
            self._changes.update(self._buffers.values())
        most = self._budget.share
        for buffer in self._changes:
            self._note(buffer, most)
        self._changes.clear()
        self._turn += 1
        known = self.candidates
        return plan_read(
            list(known.values()) if only is None else [known[p] for p in only if p in known],
            free_bytes=self._budget.free // shares,
            count_max=self._settings.fetch_count,
            turn=self._turn,
        )

    def _note(self, buffer: PartitionBuffer, share: int) -> None:
        """Update whether a partition can be read, and how many entries."""
        partition = buffer.partition
        if self._buffers.get(partition) is not buffer:
            return
        if not buffer.has_room or self._watch.leaves_out(partition):
            self.candidates.pop(partition, None)
            return
        # A guessed size must not exclude a partition: all shares together fit the budget.
        most = self._budget.limit if buffer.estimate.is_known else share
        self.candidates[partition] = Candidate(
            partition=partition,
            room_bytes=max(0, share - buffer.held),
            room_entries=buffer.room_entries,
            estimate_bytes=max(1, min(buffer.estimate.bytes_per_entry, most)),
            starved=buffer.held == 0,
        )

    async def _read(self, connection: BlockingConnection, plan: ReadPlan, *, blocks: bool) -> int:
        """Make a read; return how many entries it brought."""
        asked = self.asked(plan)
        positions = {partition: buffer.position for partition, buffer in asked.items()}
        block_ms = 0
        if blocks:
            block_ms = self._settings.fetch_block_ms
            if plan.is_partial:
                block_ms = min(block_ms, PARTIAL_BLOCK_MS)
            self._waits_for = frozenset(asked)
        try:
            answer = await streams.read(connection, self._keys, positions, plan.count, block_ms)
        finally:
            self._waits_for = None
        return self.put(asked, plan.count, answer)

    def asked(self, plan: ReadPlan) -> dict[int, PartitionBuffer]:
        """Return the buffer of each partition of a plan, and count a read."""
        self.reads += 1
        return {partition: self._buffers[partition] for partition in plan.partitions}

    def put(self, asked: Mapping[int, PartitionBuffer], count: int, answer: Mapping[int, Entries]) -> int:
        """Put the entries of a read into the buffers; return how many there are."""
        self.behind.difference_update(asked)
        for partition, entries in answer.items():
            # A partition that was removed meanwhile has a closed buffer, which drops entries.
            asked[partition].put(entries)
            self._changes.add(asked[partition])
            if len(entries) >= count:
                self.behind.add(partition)
        return sum(map(len, answer.values()))

    async def sort_out(self, plan: ReadPlan, error: BackendError, pause_ms: int) -> None:
        """Find the partitions whose keys made Redis refuse a read; the others are read again."""
        _log.warning("fetch_refused", error=str(error), retry_in_ms=pause_ms)
        try:
            kinds = await self._backend.pipeline([("TYPE", self._keys.events(p)) for p in plan.partitions])
        except BackendError:
            kinds = []
        for partition, kind in zip(plan.partitions, kinds, strict=False):
            if isinstance(kind, bytes) and kind not in (b"stream", b"none"):
                self._watch.leave_out(partition, kind.decode())
        await anyio.sleep(pause_ms / 1000)

    # -- waking a read that blocks -----------------------------------------------------------

    def _left_out(self, buffer: PartitionBuffer) -> None:
        """Include or exclude a partition from the next read on."""
        self.candidates.pop(buffer.partition, None)
        self._room(buffer)

    def _room(self, buffer: PartitionBuffer) -> None:
        self._changes.add(buffer)
        if self._polling is not None:
            if buffer.needs_more:
                self._polling.wake(buffer.partition)
        elif self._waits_for is None:
            self._roomy.fire()
        elif buffer.partition not in self._waits_for and buffer.needs_more:
            self._wake()

    def _wake(self) -> None:
        self._wake_wanted = True
        self._roomy.fire()
        self._woken.fire()

    async def _wakes(self, connection: BlockingConnection) -> None:
        while True:
            if self._waits_for is not None and self._wake_wanted:
                # Without an answer the read fails too, and the next one asks for all partitions it should.
                with contextlib.suppress(BackendError):
                    await connection.unblock()
                await anyio.sleep(UNBLOCK_RETRY_MS / 1000)
            else:
                await self._woken.wait()
