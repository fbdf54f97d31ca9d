"""A stream that pipelines send to, and rows as Spark stages them, for tests without a JVM."""

import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema

from streamworker import App
from streamworker.declaring.stream import Stream
from streamworker.records.entries import Entries, headers_of, readable_fields
from streamworker.redisio.data.columns import unpacked
from streamworker.redisio.keys import StreamKeys
from streamworker.spark.into.sink import StreamSink
from streamworker.spark.into.staging import ROW_METADATA
from streamworker.spark.source.places import place_at
from tests.raw import opened

FILES = 3


class Event(msgspec.Struct):
    n: int
    k: str
    v: float = 0.0


def events_of(url: str, *, codec: Any = "json", key: Any = "k", **given: Any) -> Stream[Event]:
    """Return the stream of events of an app on a server."""
    partitions = given.pop("partitions", 4)
    return App("shop", redis_url=url, **given).stream(
        "events", Event, key=key, partitions=partitions, codec=codec
    )


def table_of(numbers: Sequence[int]) -> pa.Table:
    """Return events of ten keys."""
    return pa.table(
        {"n": [*numbers], "k": [f"k{n % 10}" for n in numbers], "v": [n / 2 for n in numbers]},
        schema=pa.schema([("n", pa.int64()), ("k", pa.string()), ("v", pa.float64())]),
    )


@dataclass
class Staged:
    """What the sink asks of a DataFrame; each call computes its rows in another order, as after a shuffle."""

    table: pa.Table
    rng: random.Random = field(default_factory=random.Random)
    written: int = 0

    @property
    def schema(self) -> Any:
        return from_arrow_schema(self.table.schema)

    @property
    def write(self) -> "Staged":
        return self

    def mode(self, _: str) -> "Staged":
        return self

    def parquet(self, path: str) -> None:
        """Write files as Spark does: their names, and what they say of the columns."""
        self.written += 1
        order = self.rng.sample(range(self.table.num_rows), self.table.num_rows)
        rows = self.table.take(pa.array(order, pa.int64()))
        rows = rows.replace_schema_metadata({ROW_METADATA: self.schema.json()})
        place, job = place_at(path), uuid.UUID(int=self.rng.getrandbits(128))
        ends = [rows.num_rows * n // FILES for n in range(FILES + 1)]
        for n, (start, end) in enumerate(pairwise(ends)):
            body = BytesIO()
            pq.write_table(rows.slice(start, end - start), body)
            place.put_new(f"part-{n:05d}-{job}-c000.snappy.parquet", body.getvalue())
        place.put_new("_SUCCESS", b"")


def in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort the rows of a task by number, for ``mapInArrow``: Spark itself sorts no streams."""
    if found := [*batches]:
        yield from pa.Table.from_batches(found).sort_by("n").to_batches()


def sink_of(stream: Stream[Any], checkpoint: Path | str, name: str = "back") -> StreamSink:
    """Return the sink of a pipeline with its checkpoint directory."""
    return StreamSink(stream.spec, stream.app.settings, name, f"{checkpoint}/into/{stream.name}")


class Got(NamedTuple):
    """One record of a stream."""

    partition: int
    record: Any
    headers: dict[str, str]


def got(url: str, stream: Stream[Any]) -> list[Got]:
    """Return the records of all partitions, old ones first, in order."""
    spec, found = stream.spec, list[Got]()
    keys = StreamKeys(spec.app, spec.name)
    with opened(url) as redis:
        counts = (redis.hget(keys.meta, "partitions") or b"0").decode().split("+")
        for p in range(sum(map(int, counts))):
            reply = [
                [id_, [part for pair in fields.items() for part in pair]]
                for id_, fields in redis.xrange(keys.events(p))
            ]
            if spec.codec == "arrow":
                for _, flat in reply:
                    batch = unpacked(dict(zip(flat[::2], flat[1::2], strict=True)))
                    found += [
                        Got(p, each, {}) for each in spec.record.from_arrow(spec.record.fit_arrow(batch))
                    ]
                continue
            decode = spec.record.decoder(spec.codec)
            found += [Got(p, decode(readable_fields(each)), headers_of(each)) for each in Entries.of(reply)]
    return found


def numbers(url: str, stream: Stream[Any]) -> list[int]:
    """Return the numbers of the events in a stream, sorted."""
    return sorted(each.record.n for each in got(url, stream))
