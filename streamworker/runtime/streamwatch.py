"""Looks at the streams of a worker's partitions, for what a read of them does not tell.

What XREAD does not tell: a stream that was deleted, or recreated with lower ids, looks to it like
one without news, for ever. So every few seconds idle partitions are asked for: all of them whether
they are there, and some of them, in turn, for their last id, which is compared with the position.
Such a partition is reported and not read again: to go on would skip what its stream holds now.

A key that holds another type for a while is an accident that somebody puts right. Its partition is
left out of the reads, and the key is looked at every second: when it is a stream that has
what was read of it, reading goes on where it had stopped.
"""

from collections.abc import Callable, Mapping, Sequence

import anyio

from streamworker.core.entries import ZERO, EntryId
from streamworker.errors import BackendError, BackendUnavailable
from streamworker.log import get_logger
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import StreamKeys
from streamworker.runtime.buffer import PartitionBuffer
from streamworker.runtime.signals import Signal

REGRESSION_CHECK_MS = 5_000
"""How often idle partitions are compared with what Redis has. Rare, since it is for accidents."""
REGRESSION_CHECKS = 8
"""Streams that are looked at each time, in turn, so that many idle partitions cost no more than a few.
One command for all tells whether any is gone; then all are looked at."""

LOOK_AGAIN_MS = 1_000
"""How often a key that held another type is looked at: whoever put it right expects to see its
partition go on. What is gone for two looks was deleted, so they must be further apart than the
DEL and the RENAME of somebody who puts it right."""

Tell = Callable[[int, str], None]

_log = get_logger("streamworker.fetcher")


class StreamWatch:
    """Which partitions of a fetcher cannot be read, and why.

    Parameters
    ----------
    backend
        Where the streams are.
    keys
        Their keys.
    buffers
        The fetcher's buffers by partition, as they are at each moment.
    on_change
        Called with the buffer of a partition that is not to be read any more, or is again.
    on_regressed, on_unreadable
        As the fetcher's.
    """

    def __init__(
        self,
        backend: Backend,
        keys: StreamKeys,
        buffers: Mapping[int, PartitionBuffer],
        *,
        on_change: Callable[[PartitionBuffer], None],
        on_regressed: Tell,
        on_unreadable: Tell,
    ) -> None:
        self._backend = backend
        self._keys = keys
        self._buffers = buffers
        self._on_change = on_change
        self._on_regressed = on_regressed
        self._on_unreadable = on_unreadable
        self._broken: set[int] = set()
        self._unreadable: dict[int, bool] = {}
        """Partitions whose key held another type, and whether the last answer was that it is missing."""
        self._added = Signal()
        self._compared = 0

    def leaves_out(self, partition: int) -> bool:
        """Whether a partition is not to be read."""
        return partition in self._broken or partition in self._unreadable

    def leave_out(self, partition: int, kind: str) -> None:
        """Take note of a key that holds this and not a stream."""
        buffer = self._buffers.get(partition)
        if buffer is None or self.leaves_out(partition):
            return
        reason = f"key {self._keys.events(partition)} holds a {kind} and not a stream"
        self._unreadable[partition] = False
        self._on_change(buffer)
        _log.error("partition_unreadable", partition=partition, reason=reason)
        self._on_unreadable(partition, reason)
        self._added.fire()

    def forget(self, partition: int) -> None:
        """Drop what is known of a partition, which is read no more or anew."""
        self._broken.discard(partition)
        self._unreadable.pop(partition, None)

    async def run(self) -> None:
        """Look until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._compare_idle)
            tasks.start_soon(self._look_again)

    # -- keys of another type ------------------------------------------------------------------

    async def _look_again(self) -> None:
        while True:
            if not self._unreadable:
                await self._added.wait()
            await anyio.sleep(LOOK_AGAIN_MS / 1000)
            buffers = [self._buffers[partition] for partition in self._unreadable]
            try:
                answers = await self._backend.pipeline(self._questions(buffers))
            except BackendError:
                continue
            for buffer, answer in zip(buffers, answers, strict=True):
                if self._buffers.get(buffer.partition) is buffer:
                    self._judge(buffer, answer)

    def _judge(self, buffer: PartitionBuffer, answer: object) -> None:
        """Have a partition read on if its key holds the stream that it was."""
        partition = buffer.partition
        is_missing = _is_missing(answer)
        if isinstance(answer, Exception) and not is_missing:
            if not isinstance(answer, BackendUnavailable):
                self._unreadable[partition] = False  # Of another type still; else its node gives no answer.
            return
        if is_missing and not self._unreadable[partition]:
            self._unreadable[partition] = True
            return
        del self._unreadable[partition]
        if reason := regression(buffer.position, answer):
            self._break(buffer, reason)
            return
        _log.info("partition_readable", partition=partition)
        self._on_change(buffer)
        self._on_unreadable(partition, "")

    # -- streams that went backwards -----------------------------------------------------------

    async def _compare_idle(self) -> None:
        seen: dict[int, EntryId] = {}
        while True:
            await anyio.sleep(REGRESSION_CHECK_MS / 1000)
            idle = [
                buffer
                for partition, buffer in self._buffers.items()
                if seen.get(partition) == buffer.position and not self.leaves_out(partition)
            ]
            seen = {partition: buffer.position for partition, buffer in self._buffers.items()}
            if idle:
                await self._compare(idle)

    async def _compare(self, idle: Sequence[PartitionBuffer]) -> None:
        names = [self._keys.events(buffer.partition) for buffer in idle if buffer.position > ZERO]
        parts = self._backend.by_slot(names)
        try:
            found = await self._backend.pipeline([("EXISTS", *part) for part in parts])
        except BackendError:
            return
        # Of a node that gives no answer nothing is known: no reason to look at all the others.
        away = {
            name
            for part, each in zip(parts, found, strict=True)
            if isinstance(each, BackendUnavailable)
            for name in part
        }
        idle = [buffer for buffer in idle if self._keys.events(buffer.partition) not in away]
        if not idle:
            return
        if sum(each for each in found if isinstance(each, int)) == len(names) - len(away):
            first = self._compared % len(idle)
            idle = [*idle[first:], *idle[:first]][:REGRESSION_CHECKS]
            self._compared += len(idle)
        positions = [buffer.position for buffer in idle]
        try:
            answers = await self._backend.pipeline(self._questions(idle))
        except BackendError:
            return
        for buffer, position, answer in zip(idle, positions, answers, strict=True):
            has_moved = buffer.closed or buffer.position != position
            reason = regression(position, answer)
            if reason and not has_moved and not self.leaves_out(buffer.partition):
                self._break(buffer, reason)

    def _questions(self, buffers: Sequence[PartitionBuffer]) -> list[tuple[str, ...]]:
        return [("XINFO", "STREAM", self._keys.events(buffer.partition)) for buffer in buffers]

    def _break(self, buffer: PartitionBuffer, reason: str) -> None:
        partition = buffer.partition
        if self._buffers.get(partition) is buffer:
            self._broken.add(partition)
            self._on_change(buffer)
            self._on_regressed(partition, f"stream {self._keys.events(partition)} {reason}")


def regression(position: EntryId, answer: object) -> str:
    """Return what is wrong with a stream that was read up to ``position``, or nothing.

    Parameters
    ----------
    position
        Id of the last entry that was read.
    answer
        What ``XINFO STREAM`` said, or the error.
    """
    if isinstance(answer, Exception):
        is_deleted = _is_missing(answer) and position > ZERO
        return f"was deleted; we had read up to {position}" if is_deleted else ""
    last = _last_generated_id(answer)
    if last is not None and last < position:
        return f"was recreated: its last id is {last}, and we had read up to {position}"
    return ""


def _is_missing(answer: object) -> bool:
    return isinstance(answer, Exception) and "no such key" in str(answer).lower()


def _last_generated_id(answer: object) -> EntryId | None:
    if isinstance(answer, dict):
        value = answer.get(b"last-generated-id")
    elif isinstance(answer, list):
        pairs = dict(zip(answer[::2], answer[1::2], strict=False))
        value = pairs.get(b"last-generated-id")
    else:
        return None
    return EntryId.parse(value) if isinstance(value, bytes | str) else None
