"""Reads the partitions of one processor on one server into their buffers.

A single ``XREAD`` asks for every partition that has room, and blocks at the server until one of them has
entries. So the fetcher does not poll and needs one connection for any number of partitions. When a partition
is added, or gets room again while a read without it blocks, the fetcher wakes that read with ``CLIENT
UNBLOCK``. On a Cluster no read may ask for all partitions: :class:`PollingFetcher` asks each node.
"""

import contextlib

import anyio

from streamworker.core.data.batching import ReadPlan, spacing_us
from streamworker.errors import BackendError, BackendUnavailable
from streamworker.redisio.data import streams
from streamworker.redisio.wire.client import Backend, BlockingConnection
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.read.polling import PollingFetcher
from streamworker.runtime.read.reads import Reads, log
from streamworker.runtime.signals import Signal
from streamworker.runtime.telling import warn

PARTIAL_BLOCK_MS = 20
"""How long a read blocks if the budget forced it to leave out partitions without work. The next read asks
those: they may have entries that this read does not report."""

SPACING_MIN_S = 0.001
"""A shorter spacing of two reads is not kept."""

UNBLOCK_RETRY_MS = 5
"""Pause before a wake-up is repeated: one that reaches the server before the read has no effect."""


def fetcher_for(backend: Backend) -> type[Reads]:
    """Return the fetcher for one server, or for a Cluster, where no read may ask for all partitions."""
    return Fetcher if backend.server.has_all_keys else PollingFetcher


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
            answer = await streams.read(connection, self.keys, positions, plan.count, block_ms)
        finally:
            self._waits_for = None
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
