"""Reads the partitions of one processor into their buffers: of one server all on one connection.

There, one ``XREAD`` asks for every partition that has room, and blocks at the server until one of them
has something: no polling, and one connection however many partitions there are. When a
partition is added, or gets room again while a read that does not include it blocks, the read is
woken with ``CLIENT UNBLOCK``. On a Cluster no read may ask for all: :class:`Polling` asks node by node.

A fetcher never dies of Redis: without an answer it tries again after a pause that grows with
jitter. Nor does it lose its place: a partition's position only moves with the entries that
were put into its buffer.

A key that holds another type makes Redis refuse a read of many: its partition is left out of the
reads until it is right. What no read tells is in ``streamwatch``.
"""

import contextlib
import random
import time
from collections.abc import Callable, Collection, Mapping

import anyio

from streamworker.core.batching import Candidate, ReadPlan, plan_read
from streamworker.core.entries import EntryId
from streamworker.errors import BackendError, BackendUnavailable
from streamworker.log import get_logger
from streamworker.records.entries import Entries
from streamworker.redisio import streams
from streamworker.redisio.client import Backend, BlockingConnection
from streamworker.redisio.keys import StreamKeys
from streamworker.runtime.buffer import ByteBudget, PartitionBuffer
from streamworker.runtime.pauses import Pauses
from streamworker.runtime.polling import Polling
from streamworker.runtime.signals import Signal
from streamworker.runtime.streamwatch import StreamWatch, Tell
from streamworker.settings import Settings

PARTIAL_BLOCK_MS = 20
"""How long a read waits that the budget made leave out partitions without work; then it is their
turn. They may have entries, which nobody would tell."""

SPACING_US = 50
"""How far apart reads begin for each partition that they ask, where they bring less than one entry for
each. To ask costs worker and server together 3 us a partition (measured), whether it has entries or
not: so asking takes 6% of a core at most. Where one worker has a thousand partitions, an entry waits
for its read by 50 ms at most, which is how long a batch waits for company; where it has few or little
comes, by nothing. Partitions that are known to have more are read meanwhile, alone."""
SPACING_MIN_S = 0.001

UNBLOCK_RETRY_MS = 5
"""A wake-up that reaches the server before the read does wakes nobody, so it is repeated."""

_log = get_logger("streamworker.fetcher")


class Fetcher:
    """The reads of one processor on one stream.

    Parameters
    ----------
    backend
        Where the stream is; the fetcher opens one connection of its own, on a Cluster one to each node.
    stream_keys
        Keys of the stream.
    settings
        ``prefetch_bytes``, ``fetch_count`` and ``fetch_block_ms`` are used.
    budget
        The bytes that the processor may hold.
    on_regressed
        Called once with a partition and a reason when its stream was deleted or recreated below
        our position. The partition is not read any more until it is added anew.
    on_unreadable
        Called with a partition and a reason when its key holds no stream, and with an empty reason when
        it does again and is read on.
    on_back
        Called when a read has an answer after one that had none.
    rng
        For jitter.
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
            backend,
            stream_keys,
            self._buffers,
            on_change=self._left_out,
            on_regressed=on_regressed,
            on_unreadable=on_unreadable,
        )
        self._roomy = Signal()
        self._woken = Signal()
        self._waits_for: frozenset[int] | None = None
        """Partitions of the read that waits at the server, if one does."""
        self._wake_wanted = False
        self._behind: set[int] = set()
        """Partitions of which a read brought as much as it asked for: they have more."""
        self._turn = 0
        self._candidates: dict[int, Candidate] = {}
        """Partitions that have room, as they were when they changed last: with a thousand of them,
        looking at each would cost more than a read."""
        self._changes: set[PartitionBuffer] = set()
        """Buffers that have changed since the last plan."""
        self._sharing = 0
        """Buffers that shared the budget at the last plan."""
        self._reads = 0
        self._polling: Polling | None = None
        if backend.is_cluster:
            self._polling = Polling(
                backend,
                stream_keys,
                self,
                lambda: Pauses(self._rng, max_ms=backend.pause_max_ms),
                pause_max_s=settings.fetch_block_ms / 1000,
                on_back=on_back,
            )

    @property
    def reads(self) -> int:
        """How many reads were made."""
        return self._reads

    def add(self, partition: int, position: EntryId) -> PartitionBuffer:
        """Read a partition from now on, beginning after ``position``.

        A buffer that the partition had before is closed: its runner gets nothing more.
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
        """Stop reading a partition, and drop what was read. What a read still brings is dropped.

        Does nothing while a runner uses the partition's buffer, since that may be a later one than
        the caller's. A runner closes its buffer when it ends.
        """
        buffer = self._buffers.get(partition)
        if buffer is not None and (buffer.closed or not buffer.in_use):
            self._drop(partition)

    def _drop(self, partition: int) -> None:
        buffer = self._buffers.pop(partition, None)
        self._watch.forget(partition)
        self._candidates.pop(partition, None)
        if buffer is not None:
            buffer.close()

    async def run(self) -> None:
        """Read until cancelled."""
        if self._polling is not None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch.run)
                await self._polling.run()
        connection = self._backend.blocking()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._wakes, connection)
                tasks.start_soon(self._watch.run)
                await self._reads_for_ever(connection)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.aclose()

    # -- reading ---------------------------------------------------------------------------

    async def _reads_for_ever(self, connection: BlockingConnection) -> None:
        pauses = Pauses(self._rng, max_ms=self._backend.pause_max_ms)
        all_at_s = 0.0  # Before then not all partitions are asked again.
        while True:
            began_s = time.monotonic()
            left_s = all_at_s - began_s
            brief = left_s > SPACING_MIN_S
            if brief and not self._behind:
                await anyio.sleep(left_s)
                continue
            plan = self.plan(self._behind if brief else None)
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

    @property
    def candidates(self) -> Collection[int]:
        """Partitions that have room, as they were noted last."""
        return self._candidates

    @property
    def behind(self) -> Collection[int]:
        """Partitions of which a read brought as much as it asked for."""
        return self._behind

    def plan(self, only: Collection[int] | None = None, *, shares: int = 1) -> ReadPlan | None:
        """Choose what the next read asks; with one of so many shares of the room, if others go beside it."""
        self._wake_wanted = False
        if self._sharing != self._budget.buffers:
            self._sharing = self._budget.buffers
            self._changes.update(self._buffers.values())
        most = self._budget.share
        for buffer in self._changes:
            self._note(buffer, most)
        self._changes.clear()
        self._turn += 1
        known = self._candidates
        return plan_read(
            list(known.values()) if only is None else [known[p] for p in only if p in known],
            free_bytes=self._budget.free // shares,
            count_max=self._settings.fetch_count,
            turn=self._turn,
        )

    def _note(self, buffer: PartitionBuffer, share: int) -> None:
        """Note whether a partition can be read, and how much of it."""
        partition = buffer.partition
        if self._buffers.get(partition) is not buffer:
            return
        if not buffer.has_room or self._watch.leaves_out(partition):
            self._candidates.pop(partition, None)
            return
        # A guess is no reason to leave a partition out: all the shares together fit the budget.
        most = self._budget.limit if buffer.estimate.is_known else share
        self._candidates[partition] = Candidate(
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
        """Return for whom each partition of a plan is read, and count a read."""
        self._reads += 1
        return {partition: self._buffers[partition] for partition in plan.partitions}

    def put(self, asked: Mapping[int, PartitionBuffer], count: int, answer: Mapping[int, Entries]) -> int:
        """Take what a read of so many entries each brought; return how many these are."""
        self._behind.difference_update(asked)
        for partition, entries in answer.items():
            # A partition that was removed meanwhile has a closed buffer, which takes nothing.
            asked[partition].put(entries)
            self._changes.add(asked[partition])
            if len(entries) >= count:
                self._behind.add(partition)
        return sum(map(len, answer.values()))

    async def sort_out(self, plan: ReadPlan, error: BackendError, pause_ms: int) -> None:
        """Find which partition's key made Redis refuse a read of many; the others go on."""
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
        """Have a partition be read, or not be read any more, from the next read on."""
        self._candidates.pop(buffer.partition, None)
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
                # Without an answer the read fails too, and is made again for all that it should ask.
                with contextlib.suppress(BackendError):
                    await connection.unblock()
                await anyio.sleep(UNBLOCK_RETRY_MS / 1000)
            else:
                await self._woken.wait()
