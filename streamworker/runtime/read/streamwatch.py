"""Checks the streams of a worker's partitions for errors that a read does not report.

XREAD cannot distinguish a stream that was deleted, or recreated with lower ids, from one without new
entries. So every few seconds the watch checks idle partitions: whether all their streams exist, and, for
some of them in turn, whether the last id is not below the read position. It reports a partition that fails
the check, and the fetcher stops reading it: continuing would skip what its stream holds now.

A key that holds another type is treated as an accident that somebody will repair. The fetcher leaves its
partition out of the reads, and the watch checks the key every second. When the key is a stream again that
reaches the read position, reading continues from there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.errors import BackendError, BackendUnavailable
from streamworker.log import get_logger
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import is_missing_key
from streamworker.redisio.wire.info import pairs_of
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.signals import Signal

REGRESSION_CHECK_MS = 5_000
"""How often the watch compares idle partitions with Redis. It is seldom because it is for accidents."""
REGRESSION_CHECKS = 8
"""How many streams are checked each time, in turn, so that many idle partitions cost no more than a few. One
command for all shows whether any is missing; if so, all are checked."""

LOOK_AGAIN_MS = 1_000
"""How often the watch checks a key that held another type: a user who repairs it expects its partition to
continue soon. A key that is missing in two checks counts as deleted, so the checks must be further apart
than the DEL and the RENAME of a repair."""

Tell = Callable[[int, str], None]

_log = get_logger("streamworker.fetcher")


@dataclass(kw_only=True, eq=False)
class StreamWatch:
    """Which partitions of a fetcher cannot be read, and why."""

    backend: Backend
    keys: StreamKeys
    buffers: Mapping[int, PartitionBuffer]
    on_change: Callable[[PartitionBuffer], None]
    """Called when reads of a partition must stop, or may start again."""
    on_regressed: Tell
    on_unreadable: Tell
    """As of the fetcher."""

    def __post_init__(self) -> None:
        self.left_out: set[int] = set()
        """Partitions that the fetcher must not read."""
        self._unreadable: dict[int, bool] = {}
        """Partitions whose key held another type, and whether the key was missing in the last check."""
        self._added = Signal()
        self._compared = 0

    def leave_out(self, partition: int, kind: str) -> None:
        """Stop reads of a partition whose key holds ``kind`` instead of a stream."""
        buffer = self.buffers.get(partition)
        if buffer is None or partition in self.left_out:
            return
        reason = f"key {self.keys.events(partition)} holds a {kind} and not a stream"
        self._unreadable[partition] = False
        self.left_out.add(partition)
        self.on_change(buffer)
        _log.error("partition_unreadable", partition=partition, reason=reason)
        self.on_unreadable(partition, reason)
        self._added.fire()

    def forget(self, partition: int) -> None:
        """Forget a partition that is removed or added again."""
        self.left_out.discard(partition)
        self._unreadable.pop(partition, None)

    # -- keys of another type ------------------------------------------------------------------

    async def look_again(self) -> None:
        """Check until cancelled whether keys of another type are streams again."""
        while True:
            if not self._unreadable:
                await self._added.wait()
            await anyio.sleep(LOOK_AGAIN_MS / 1000)
            for buffer, answer in await self._ask([self.buffers[p] for p in self._unreadable]):
                if self.buffers.get(buffer.partition) is buffer:
                    self._judge(buffer, answer)

    def _judge(self, buffer: PartitionBuffer, answer: Any) -> None:
        """Resume reads of a partition if its key holds its stream again."""
        partition = buffer.partition
        is_missing = is_missing_key(answer)
        if isinstance(answer, Exception) and not is_missing:
            if not isinstance(answer, BackendUnavailable):
                self._unreadable[partition] = False  # It still holds another type; its node has answered.
            return
        if is_missing and not self._unreadable[partition]:
            self._unreadable[partition] = True
            return
        del self._unreadable[partition]
        self.left_out.discard(partition)
        if reason := regression(buffer.position, answer):
            self._break(buffer, reason)
            return
        _log.info("partition_readable", partition=partition)
        self.on_change(buffer)
        self.on_unreadable(partition, "")

    # -- streams that went backwards -----------------------------------------------------------

    async def compare_idle(self) -> None:
        """Check until cancelled the streams of partitions without new entries."""
        seen: dict[int, EntryId] = {}
        while True:
            await anyio.sleep(REGRESSION_CHECK_MS / 1000)
            idle = [
                buffer
                for partition, buffer in self.buffers.items()
                if seen.get(partition) == buffer.position and partition not in self.left_out
            ]
            seen = {partition: buffer.position for partition, buffer in self.buffers.items()}
            if idle:
                await self._compare(idle)

    async def _compare(self, idle: Sequence[PartitionBuffer]) -> None:
        names = [self.keys.events(buffer.partition) for buffer in idle if buffer.position > ZERO]
        parts = self.backend.server.by_slot(names)
        try:
            found = await self.backend.pipeline([("EXISTS", *part) for part in parts])
        except BackendError:
            return
        # A node that does not answer is no reason to check all streams of the other nodes.
        away = {
            name
            for part, each in zip(parts, found, strict=True)
            if isinstance(each, BackendUnavailable)
            for name in part
        }
        idle = [buffer for buffer in idle if self.keys.events(buffer.partition) not in away]
        if not idle:
            return
        if sum(each for each in found if isinstance(each, int)) == len(names) - len(away):
            first = self._compared % len(idle)
            idle = [*idle[first:], *idle[:first]][:REGRESSION_CHECKS]
            self._compared += len(idle)
        positions = {buffer: buffer.position for buffer in idle}
        for buffer, answer in await self._ask(idle):
            position = positions[buffer]
            has_moved = buffer.closed or buffer.position != position
            reason = regression(position, answer)
            if reason and not has_moved and buffer.partition not in self.left_out:
                self._break(buffer, reason)

    async def _ask(self, buffers: Sequence[PartitionBuffer]) -> list[tuple[PartitionBuffer, Any]]:
        """Return what Redis says of some streams; nothing if it does not answer."""
        asked = [("XINFO", "STREAM", self.keys.events(buffer.partition)) for buffer in buffers]
        try:
            return list(zip(buffers, await self.backend.pipeline(asked), strict=True))
        except BackendError:
            return []

    def _break(self, buffer: PartitionBuffer, reason: str) -> None:
        partition = buffer.partition
        if self.buffers.get(partition) is buffer:
            self.left_out.add(partition)
            self.on_change(buffer)
            self.on_regressed(partition, f"stream {self.keys.events(partition)} {reason}")


def regression(position: EntryId, answer: Any) -> str:
    """Return what the answer to ``XINFO STREAM``, or its error, shows to be wrong; empty if nothing is."""
    if isinstance(answer, Exception):
        is_deleted = is_missing_key(answer) and position > ZERO
        return f"was deleted; we had read up to {position}" if is_deleted else ""
    last = EntryId.parse(pairs_of(answer)[b"last-generated-id"])
    if last < position:
        return f"was recreated: its last id is {last}, and we had read up to {position}"
    return ""
