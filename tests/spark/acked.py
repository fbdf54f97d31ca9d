"""Acked logs for tests of the reading side, as a worker's commits leave them."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import redis

from streamworker.core.entries import EntryId
from streamworker.redisio.ackedlog import encode_batch, schema_fingerprint, serialize_schema
from streamworker.redisio.keys import GroupKeys, StreamKeys

ORDER = pa.schema([("n", pa.int64()), ("user", pa.string()), ("amount", pa.float64())])


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
    """Writes entries as a worker's commits do, one a call, with numbered rows."""

    def __init__(self, url: str, *, partitions: int, app: str = "shop") -> None:
        self.url = url
        self.redis = redis.Redis.from_url(url)
        self.app = app
        self.stream_keys = StreamKeys(app, "orders")
        self.keys = GroupKeys(app, "orders", "price")
        self.partitions = partitions
        self.written: dict[int, list[dict[str, Any]]] = {p: [] for p in range(partitions)}
        self.redis.hset(self.stream_keys.meta, mapping={"partitions": partitions, "codec": "json"})

    def options(self, **more: str) -> dict[str, str]:
        """Return the options that read this log."""
        return {"app": self.app, "stream": "orders", "processor": "price", **more}

    def declare(self, schema: pa.Schema) -> str:
        """Store a schema as the current one; returns its fingerprint."""
        fingerprint = schema_fingerprint(schema)
        self.redis.hset(
            self.keys.schemas,
            mapping={fingerprint: serialize_schema(schema), "current": fingerprint},
        )
        return fingerprint

    def register(self, partition: int, identity: str | None = None) -> None:
        """Make the lock of a partition, as a worker's start does."""
        key = self.keys.lock(partition)
        if not self.redis.exists(key):
            values = {"rows": 0, "checkpoint": "0-0", "log": identity or f"log-{partition}", "epoch": 7}
            self.redis.hset(key, mapping=values)

    def append(self, partition: int, batch: pa.RecordBatch) -> int:
        """Commit a batch; returns the rows of the log after it."""
        self.register(partition)
        self.declare(batch.schema)
        key = self.keys.lock(partition)
        before, checkpoint = (value.decode() for value in self.redis.hmget(key, "rows", "checkpoint"))
        rows = int(before) + batch.num_rows
        last = EntryId(1_000 + rows, 0)
        _, acked = encode_batch(batch, first=EntryId.parse(checkpoint).successor())
        seconds, micros = self.redis.time()
        more = {
            b"last": str(last).encode(),
            b"prev": checkpoint.encode(),
            b"epoch": b"7",
            b"owner": b"tests",
            b"at": b"%d" % (int(seconds) * 1000 + int(micros) // 1000),
        }
        pipe = self.redis.pipeline()
        pipe.xadd(self.keys.acked(partition), {**acked.fields(), **more}, id=f"{rows}-0")
        pipe.hset(key, mapping={"rows": rows, "checkpoint": str(last)})
        pipe.execute()
        self.written[partition] += batch.to_pylist()
        return rows

    def fill(self, partition: int, counts: Sequence[int]) -> None:
        """Commit batches of these sizes with numbers that no other row of the log has."""
        for count in counts:
            first = len(self.written[partition]) + partition * 1_000_000
            self.append(partition, orders(first, count))

    def numbers(self, partition: int | None = None) -> list[int]:
        """Return column ``n`` of all rows written, in order."""
        chosen = self.written if partition is None else {partition: self.written[partition]}
        return sorted(row["n"] for rows in chosen.values() for row in rows)
