"""Sends what was decided to the partitions of the stream, each row once.

Each chunk of a partition's rows begins where the one before it ends, and the partition takes it only if it
stands there (``forward.lua``). So a chunk that is repeated, by this driver or by another one that was taken
for dead, is taken once. Where a partition stands says what is left to send.

If the stream grows in the middle of a batch, its old partitions are sealed, and where they stand is final.
What they have not taken goes to the partitions that follow, in the same order. Those stand at the start.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from streamworker.core.data.channel import AppendCode
from streamworker.core.data.placement import RoundRobin
from streamworker.core.pauses import Pauses
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import BackendUnavailable, ProducerError, StreamworkerError
from streamworker.redisio.data.streams import append_by
from streamworker.redisio.group.readers import ALL_ROWS, mark_of
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.scripts import FORWARD, Call
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.runtime.durability import durability_of
from streamworker.runtime.send.arrowtables import Router
from streamworker.runtime.send.growth import follow_map
from streamworker.runtime.send.lanes import Declaration
from streamworker.runtime.send.refusals import full, not_grown
from streamworker.settings import Settings
from streamworker.spark.into.encoding import Chunk, Encoder
from streamworker.spark.into.points import START, Decision, located, lost
from streamworker.spark.into.staging import Stages

T = TypeVar("T")

WINDOW_ROWS = 20_000
"""Rows that are routed and encoded together."""
CALLS = 16
"""Pieces of one round trip."""
KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of encoded chunks that are kept from the check of a batch until they are sent."""
WAIT_S = 10.0
"""How long a batch waits for room or for a map before its query fails, which says so, and starts again."""


class Routed(NamedTuple):
    """A chunk, and its place in the rows of its partition."""

    partition: int
    first: int
    """Rows of the batch before it in the partition."""
    chunk: Chunk


@dataclass
class _Generation:
    """The partitions of one generation, as rows of a batch pass through them."""

    router: Router
    taken: Mapping[int, int]
    """How many rows of the batch each partition has taken."""
    seen: Counter[int] = field(default_factory=Counter)

    def left(self, batch: pa.RecordBatch, rows: pa.Array) -> dict[int, tuple[int, pa.Array]]:
        """Return by partition which of some rows of a batch it has not taken, and how many were before."""
        # All rows are dealt, so that one without a key goes the same way each time.
        partitions = self.router.partitions_of(batch, 1).take(rows)
        rows = rows.take(pc.sort_indices(partitions))  # The rows of a partition keep their order.
        left, end = {}, 0
        for partition, count in sorted(
            tuple(each.values()) for each in partitions.value_counts().to_pylist()
        ):
            end += count
            before = self.seen[partition]
            self.seen[partition] += count
            skipped = min(max(self.taken.get(partition, 0) - before, 0), count)
            if skipped < count:
                left[partition] = before + skipped, rows.slice(end - count + skipped, count - skipped)
        return left


class Publisher:
    """Publishes the batches of one source to one stream."""

    def __init__(
        self,
        backend: Backend,
        spec: StreamSpec,
        settings: Settings,
        name: str,
        stages: Stages,
    ) -> None:
        self._backend, self._spec, self._stages = backend, spec, stages
        self._mark = mark_of(name)
        self._keys = StreamKeys(spec.app, spec.name)
        self._encoder = Encoder(spec, settings.entry_bytes_max)
        self._declaration = Declaration(backend, spec, settings)
        self._durability = durability_of(settings)
        self._pauses = Pauses(random.random)
        self._moved_s = time.monotonic()
        """When a partition took something last, or the first was asked."""

    async def declare(self) -> None:
        """Declare the stream as its producers do, and take in its map."""
        await self.patiently(self._declaration.make)

    async def stands(self) -> dict[int, str]:
        """Read the stream's map, and where each of its partitions stands: sealed ones for good."""
        await follow_map(self._backend, self._spec)
        partitions = self._spec.placement.all
        asked = [("HGET", self._keys.taken(p), self._mark) for p in partitions]
        marks = all_answered(await self._backend.pipeline(asked))
        return {
            p: START if mark is None else mark.decode() for p, mark in zip(partitions, marks, strict=True)
        }

    def encoded(self, staged: Decision) -> list[Routed] | None:
        """Encode all rows of a batch, so that none is decided that cannot be sent; return their chunks.

        None if they are too many to keep. A row that does not fit is a RecordError.
        """
        size, kept = 0, list[Routed]()
        for routed in self._left(staged, {}):
            size += routed.chunk.size
            if size <= KEPT_BYTES:
                kept.append(routed)
        return kept if size <= KEPT_BYTES else None

    def located(self, decisions: Sequence[Decision], stands: Mapping[int, str]) -> dict[int, int]:
        """Return which of some decisions each partition is at; raise DataLoss for one that is at none."""
        found: dict[int, int] = {}
        for decision in decisions:
            had = {*decision.begins, *range(sum(decision.counts))}
            for partition in sorted(had - stands.keys()):  # A failover took the growth of the stream back.
                raise lost(self._spec.name, partition, START, decisions[0], decision)
        for partition, mark in stands.items():
            if (index := located(decisions, partition, mark)) is None:
                raise lost(self._spec.name, partition, mark, decisions[0], decisions[-1])
            found[partition] = index
        return found

    async def publish(self, decision: Decision, chunks: Sequence[Routed] | None = None) -> dict[int, str]:
        """Send the rows of a batch that its partitions have not taken; return where they stand then.

        ``chunks`` are all of them, if they are encoded already. What a failover took back of batches before
        is sent again first.
        """
        self._moved_s = time.monotonic()
        while (stands := await self.patiently(lambda: self._round(decision, chunks))) is None:
            pass
        return stands

    async def _round(self, decision: Decision, chunks: Sequence[Routed] | None) -> dict[int, str] | None:
        """Look where the partitions stand, and send what they lack of one batch; None if that is not all."""
        stands = await self.stands()
        is_whole = all(located([decision], *each) is not None for each in stands.items())
        decisions = [decision] if is_whole else self._stages.up_to(decision.batch)
        at = self.located(decisions, stands)
        oldest = decisions[min(at.values())]
        later = {p for p, index in at.items() if decisions[index] is not oldest}
        is_first = self._spec.placement.counts == decision.counts and all(
            mark == decision.begin(p) for p, mark in stands.items()
        )
        left = iter(chunks if chunks is not None and is_first else self._left(oldest, stands, later))
        first = next(left, None)
        if first is None and oldest is not decision:  # What follows does not begin where this ends.
            partition = min(at, key=lambda p: at[p])
            raise lost(self._spec.name, partition, stands[partition], decisions[0], decision)
        if await self._send(oldest, chain([first] if first else (), left)) and oldest is decision:
            return await self._confirmed(decision)
        return None

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until Redis answers; raise if nothing has moved for long."""
        while True:
            try:
                return await call()
            except BackendUnavailable as error:
                await self._wait(error)

    async def _confirmed(self, decision: Decision) -> dict[int, str]:
        """Return where the partitions stand, once that is as safe as the settings ask."""
        stands = await self.stands()
        if self._durability.command:  # What was taken before a crash may be in memory only.
            named = {
                p: {"since": mark, "through": mark} for p, mark in stands.items() if decision.taken(mark)
            }
            calls = [self._call(p, **each, records=[0, "v"]) for p, each in named.items()]
            for reply in await append_by(self._backend, FORWARD, calls, self._durability):
                if reply.error is not None:
                    raise reply.error
        return stands

    # -- sending ---------------------------------------------------------------------------------

    async def _send(self, decision: Decision, chunks: Iterable[Routed]) -> bool:
        """Send chunks in order; return False if it must be looked anew what is left."""
        each, under_way = iter(chunks), None
        try:
            while group := list(islice(each, CALLS)):  # They are encoded while Redis takes those before.
                if under_way is not None and not await under_way:
                    return False
                under_way = asyncio.create_task(self._send_group(decision, group))
                await asyncio.sleep(0)  # The event loop writes them to the socket in this turn.
            return under_way is None or await under_way
        finally:
            if under_way is not None:
                await asyncio.wait([under_way])

    async def _send_group(self, decision: Decision, group: list[Routed]) -> bool:
        while group:
            calls = [
                self._call(p, since=_point(decision, p, first), through=decision.point(first + chunk.rows),
                           records=chunk.args)
                for p, first, chunk in group
            ]  # fmt: skip
            replies = await append_by(self._backend, FORWARD, calls, self._durability)
            left: list[Routed] = []
            stuck: dict[int, StreamworkerError] = {}
            for routed, reply in zip(group, replies, strict=True):
                p = routed.partition
                if reply.is_there:
                    self._moved_s = time.monotonic()
                    self._pauses.reset()
                    continue
                if reply.code is AppendCode.SEALED:
                    await self._wait(not_grown(self._spec, p, WAIT_S))
                    return False
                if reply.error is not None:
                    raise reply.error
                if reply.code is AppendCode.FULL:
                    stuck[p] = full(self._spec, p)
                elif p not in stuck:  # Another driver sends the same rows, or a failover took some back.
                    await self._wait(_elsewhere(self._spec, p))
                    return False
                left.append(routed)
            if left:
                await self._wait(next(iter(stuck.values())))
            group = left
        return True

    def _call(self, partition: int, **named: Any) -> Call:
        limit = self._spec.records_max
        return FORWARD.at(self._keys, partition, source=self._mark, limit=limit, **named)

    async def _wait(self, error: StreamworkerError) -> None:
        """Pause; raise the error if nothing has moved for long."""
        if time.monotonic() - self._moved_s > WAIT_S:
            raise error
        await asyncio.sleep(self._pauses.next_ms() / 1000)

    # -- what is left ------------------------------------------------------------------------------

    def _left(
        self, decision: Decision, stands: Mapping[int, str], later: Collection[int] = ()
    ) -> Iterator[Routed]:
        """Return the rows of a batch that partitions lack; those that are at a ``later`` one lack none."""
        taken = {p: ALL_ROWS if p in later else decision.taken(mark) or 0 for p, mark in stands.items()}
        counts = self._spec.placement.counts
        *old, newest = (
            _Generation(Router(self._spec_of(counts[:length]), RoundRobin(int(decision.nonce, 16))), taken)
            for length in range(len(decision.counts), len(counts) + 1)
        )
        for batch in self._stages.batches(decision, WINDOW_ROWS):
            rows, headers = self._encoder.fit(batch)
            left = pa.arange(0, rows.num_rows)
            for generation in old:
                parts = [its for _, its in generation.left(rows, left).values()]
                left = pa.concat_arrays([left.slice(0, 0), *parts]).sort()
            for partition, (first, its) in newest.left(rows, left).items():
                heads = None if headers is None else headers.take(its)
                for chunk in self._encoder.chunks(partition, rows.take(its), heads):
                    yield Routed(partition, first, chunk)
                    first += chunk.rows

    def _spec_of(self, counts: tuple[int, ...]) -> StreamSpec:
        """Return the stream as it was when it had these partitions."""
        found = replace(self._spec)
        found.placement.become(*counts)
        return found


def _elsewhere(spec: StreamSpec, partition: int) -> ProducerError:
    return ProducerError(
        f"Partition {partition} of stream {spec.name!r} moves, and not by what this driver sends.",
        remedy="Does another driver run the same pipeline? End one of them.",
    )


def _point(decision: Decision, partition: int, rows: int) -> str:
    return decision.point(rows) if rows else decision.begin(partition)
