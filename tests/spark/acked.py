"""Acked logs for tests of the reading side, written by the same script as a worker's commits."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import Placement
from streamworker.core.events import AcquireLocks
from streamworker.core.ownership.locks import Acquired
from streamworker.redisio.data.ackedlog import encode_batch
from streamworker.redisio.data.commit import CommitCode, CommitRequest, commit_many
from streamworker.redisio.data.schemas import provision_schema
from streamworker.redisio.data.streams import provision, register
from streamworker.redisio.group.locks import acquire, move_checkpoint
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import GroupKeys, StreamKeys, declaration, declared_by
from streamworker.redisio.wire.client import Backend
from tests.raw import opened

ORDER = pa.schema([("n", pa.int64()), ("user", pa.string()), ("amount", pa.float64())])
OWNER = "tests"
NOTHING = pa.record_batch({"n": pa.array([], pa.int64())})
"""A batch of which nothing is forwarded."""


def orders(first: int, count: int) -> pa.RecordBatch:
    """Return rows numbered from ``first``."""
    numbers = range(first, first + count)
    return pa.record_batch(
        [
            pa.array(numbers, pa.int64()),
            pa.array([f"user-{n % 7}" for n in numbers], pa.string()),
            pa.array([n / 4 for n in numbers], pa.float64()),
        ],
        schema=ORDER,
    )


class AckedLog:
    """Commits batches of numbered rows for a processor.

    The source entries behind them are made up, but for the last one of each batch: a commit looks
    whether that is there.
    """

    def __init__(
        self,
        url: str,
        *,
        partitions: int,
        app: str = "shop",
        stream: str = "orders",
        processor: str = "price",
    ) -> None:
        # Untyped: redis-py types every reply as all that any command may reply.
        self._held = ExitStack()
        self.redis: Any = self._held.enter_context(opened(url))
        self._url = url
        self.app, self._stream, self._processor = app, stream, processor
        self.keys = GroupKeys(app, stream, processor)
        self.placement = Placement(partitions)
        self.written: dict[int, list[dict[str, Any]]] = {p: [] for p in range(partitions)}
        self._runner = asyncio.Runner()
        self._backend = Backend.open(url, name="tests")
        self._runner.run(provision(self._backend, StreamKeys(app, stream), partitions, "json"))

    def close(self) -> None:
        self._runner.run(self._backend.aclose())
        self._runner.close()
        self._held.close()

    def reconnect(self) -> None:
        self._runner.run(self._backend.aclose())
        self._backend = Backend.open(self._url, name="tests")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def options(self, **more: str) -> dict[str, str]:
        return {"app": self.app, "stream": self._stream, "processor": self._processor, **more}

    def declare(self, schema: pa.Schema) -> None:
        """Store what the processor forwards, as a worker's start does."""
        self._runner.run(provision_schema(self._backend, self.keys, schema))
        self.redis.hset(declared_by(self.app), declaration("processor", self._processor, self._stream), "")

    @property
    def partitions(self) -> int:
        """How many there are, of all generations."""
        return self.placement.total

    def register(self) -> None:
        self._runner.run(register(self._backend, self.keys, self.placement, "earliest"))

    def grow(self, count: int) -> None:
        """Let the stream grow. New partitions are open, though the group is not done with the old ones."""
        self.placement = Placement(*self.placement.counts, count)
        self.redis.hset(self.keys.meta, "partitions", str(self.placement))
        self.register()
        for p in self.placement.active:
            self.redis.hdel(self.keys.lock(p), "from")
            self.written[p] = []

    def finish(self) -> None:
        """Note that the group is done with the old partitions."""
        for p in range(self.placement.base):
            self.redis.hset(self.keys.lock(p), "done", "1")

    def identity(self, partition: int) -> str:
        return str(self.redis.hget(self.keys.lock(partition), "log").decode())

    def append(self, partition: int, batch: pa.RecordBatch, *, check_schema: bool = True) -> int:
        """Commit a batch; returns the rows of the log after it."""
        if check_schema and batch.num_rows:
            self.declare(batch.schema)
        rows = self._runner.run(self._append(partition, batch))
        self.written[partition] += batch.to_pylist()
        return rows

    async def _append(self, partition: int, batch: pa.RecordBatch) -> int:
        access = Access(self._backend, self.keys, 1_000)
        answer = await acquire(access, AcquireLocks((partition,), OWNER, 1, (OWNER,)))
        lock = answer.replies[partition]
        assert isinstance(lock, Acquired), lock
        first = lock.checkpoint.successor()
        acked = encode_batch(batch, first) if batch.num_rows else None
        entries = max(batch.num_rows, 1)
        new = EntryId(lock.checkpoint.ms + entries, 0)
        # Deleted first, since after a reset ids begin again below those that were there.
        self.redis.delete(self.keys.events(partition))
        self.redis.xadd(self.keys.events(partition), {"made": "up"}, id=str(new))
        request = CommitRequest(
            partition=partition, owner=OWNER, epoch=lock.epoch, previous=lock.checkpoint,
            new=new, entries=entries, batch=acked,
        )  # fmt: skip
        reply = (await commit_many(self._backend, self.keys, [request]))[0]
        assert reply.code is CommitCode.OK, reply
        return reply.rows

    def fill(self, partition: int, counts: Sequence[int]) -> None:
        for count in counts:
            first = len(self.written[partition]) + partition * 1_000_000
            self.append(partition, orders(first, count))

    def reset(self, partition: int, to: EntryId) -> None:
        moved = move_checkpoint(self._backend, self.keys, partition, to, entries=0, owner=OWNER)
        assert isinstance(self._runner.run(moved), EntryId)

    def trim(self, partition: int, rows: int) -> None:
        self.redis.xtrim(self.keys.acked(partition), minid=f"{rows}-1", approximate=False)

    def entries(self, partition: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        return list(self.redis.xrange(self.keys.acked(partition)))

    def rewrite(self, partition: int, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        """Put other entries in a log's place, as a failover or a restore may."""
        self.redis.delete(self.keys.acked(partition))
        for entry_id, fields in entries:
            self.redis.xadd(self.keys.acked(partition), fields, id=entry_id)
        entry_id, fields = entries[-1]
        lock = {"rows": EntryId.parse(entry_id).ms, "checkpoint": fields[b"last"], "tail": ""}
        self.redis.hset(self.keys.lock(partition), mapping=lock)

    def numbers(self, partition: int | None = None) -> list[int]:
        chosen = self.written if partition is None else {partition: self.written[partition]}
        return sorted(row["n"] for rows in chosen.values() for row in rows)

    def placed(self) -> list[tuple[int, int, int]]:
        """Return partition, offset and ``n`` of all rows, in order."""
        return [
            (p, offset, row["n"])
            for p, rows in sorted(self.written.items())
            for offset, row in enumerate(rows, 1)
        ]
