"""``python -m benchmarks.spark_into``: how fast rows go back into a stream, beside sending them.

Spark stages rows of three columns. Encoding and publishing them is compared with ``send_many`` of records
that are there, in turn. Then micro-batches of ten rows go into a stream, and as many into Parquet.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
import typer

from streamworker import App
from streamworker.cli.output import say
from streamworker.declaring.stream import Stream
from streamworker.dev.server import EmbeddedServer
from streamworker.runtime.connecting import connected
from streamworker.spark.driver.session import open_session
from streamworker.spark.into.points import Decision
from streamworker.spark.into.publishing import Publisher
from streamworker.spark.into.sink import StreamSink
from streamworker.spark.into.staging import Stages
from streamworker.testing import quiet_logs

PARTITIONS = 4
SMALL = 10
"""Rows of a small micro-batch."""
COLUMNS = ("id AS n", "concat('k', id % 1000) AS k", "id / 2 AS v")


class Event(msgspec.Struct):
    """A row."""

    n: int
    k: str
    v: float


def stream_of(url: str, codec: Any, name: str) -> Stream[Event]:
    """Return a new stream."""
    return App("bench", redis_url=url).stream(name, Event, key="k", partitions=PARTITIONS, codec=codec)


async def publish(stream: Stream[Event], stages: Stages, nonce: str) -> tuple[float, float]:
    """Encode and publish the staged rows; return the seconds of each."""
    backend = connected(stream.app.settings, "benchmark", 2)
    try:
        publisher = Publisher(backend, stream.spec, stream.app.settings, "bench", stages)
        await publisher.declare()
        decision = Decision(batch=0, nonce=nonce, counts=(PARTITIONS,), begins={}, at_ms=0)
        begun = time.perf_counter()
        chunks = publisher.encoded(decision)
        encoded = time.perf_counter()
        await publisher.publish(decision, chunks)
        return encoded - begun, time.perf_counter() - encoded
    finally:
        await backend.aclose()


async def send(stream: Stream[Event], records: Sequence[Event]) -> float:
    """Send records that are there; return the seconds."""
    async with stream.app:
        begun = time.perf_counter()
        await stream.send_many(records)
        return time.perf_counter() - begun


def told(ratios: Sequence[float]) -> str:
    """Return a median, and the least and the largest."""
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main(
    rows: Annotated[int, typer.Option(help="Rows of the large micro-batch.")] = 200_000,
    runs: Annotated[int, typer.Option(help="Rounds.")] = 5,
    small: Annotated[int, typer.Option(help="Micro-batches of ten rows.")] = 40,
) -> None:
    """Compare the sink into a stream with sending records, and with Parquet."""
    quiet_logs()
    records = [Event(n, f"k{n % 1000}", n / 2) for n in range(rows)]
    with (
        tempfile.TemporaryDirectory(prefix="bench") as temporary,
        EmbeddedServer(port=0) as server,
        open_session("benchmark", master="local[2]", redis_url=server.url) as session,
    ):
        folder = Path(temporary)
        for codec in ("json", "msgpack", "arrow"):
            stages = Stages(str(folder / codec))
            nonce = stages.stage(session.spark.range(rows).selectExpr(*COLUMNS), 0)
            ratios, rates = list[float](), list[float]()
            for run in range(runs + 1):
                sent_s = asyncio.run(send(stream_of(server.url, codec, f"{codec}-sent-{run}"), records))
                encode_s, publish_s = asyncio.run(
                    publish(stream_of(server.url, codec, f"{codec}-{run}"), stages, nonce)
                )
                if run:  # The first one warms up.
                    ratios.append(sent_s / (encode_s + publish_s))
                    rates.append(rows / (encode_s + publish_s))
            say(f"{codec}: {median(rates):,.0f} rows a second, {told(ratios)} of send_many")
        sink, millis = (
            StreamSink(*_small(server.url), "small", str(folder / "small")),
            dict[str, list[float]](),
        )
        for batch in range(small + 5):
            frame = session.spark.range(batch * SMALL, (batch + 1) * SMALL, 1, 2).selectExpr(*COLUMNS)
            begun = time.perf_counter()
            frame.write.mode("append").parquet(str(folder / "plain"))
            written = time.perf_counter()
            sink(frame, batch)
            if batch >= 5:
                millis.setdefault("parquet", []).append((written - begun) * 1000)
                millis.setdefault("stream", []).append((time.perf_counter() - written) * 1000)
    more = [one - other for one, other in zip(millis["stream"], millis["parquet"], strict=True)]
    say(f"{SMALL} rows: Parquet {median(millis['parquet']):.0f} ms, a stream {median(more):.0f} ms more")


def _small(url: str) -> tuple[Any, Any]:
    stream = stream_of(url, "json", "small")
    return stream.spec, stream.app.settings


if __name__ == "__main__":
    typer.run(main)
