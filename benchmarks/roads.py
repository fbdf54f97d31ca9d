"""CPU time of a record on each road, this checkout beside another: ``python -m benchmarks.roads FOLDER``.

Each road runs in a process of its own, with the code of one of the two folders in turn. What counts is the
CPU time of that process, so that a busy machine changes little, and less what the pairs of a run share. The
roads ``p50`` and ``p99`` are the time until a single send is confirmed, and need a quiet machine.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import redis
import typer

from benchmarks.measuring.task import BenchEvent, events
from streamworker import App, Stream
from streamworker.dev.server import EmbeddedServer
from streamworker.redisio import scripts
from streamworker.runtime.worker import run_worker

BATCH = 1_000
CONCURRENT = 20_000
"""Sends that wait at the same time."""
ALONE = 3_000
"""Sends of which each waits for the one before it."""
DELAYS = 20_000
"""The same, for quantiles: the slowest hundredth are 200 sends."""


Road = Callable[[App, Stream[BenchEvent], list[BenchEvent]], None]


def _tell(figure_us: float) -> None:
    print(f"road {figure_us}", flush=True)  # noqa: T201 - the other process reads it


def _cpu_of(sends: Callable[[Stream[BenchEvent], list[BenchEvent]], Awaitable[int]]) -> Road:
    def road(app: App, stream: Stream[BenchEvent], records: list[BenchEvent]) -> None:
        async def run() -> None:
            async with app:
                await stream.send(records[0])  # The first makes the connections.
                begun_s = time.process_time()
                count = await sends(stream, records)
                _tell((time.process_time() - begun_s) * 1e6 / count)

        asyncio.run(run())

    return road


async def _send_many(stream: Stream[BenchEvent], records: list[BenchEvent]) -> int:
    for at in range(0, len(records), BATCH):
        await stream.send_many(records[at : at + BATCH])
    return len(records)


async def _sends(stream: Stream[BenchEvent], records: list[BenchEvent]) -> int:
    for _ in range(3):
        await asyncio.gather(*map(stream.send, islice(records, CONCURRENT)))
    return 3 * CONCURRENT


async def _alone(stream: Stream[BenchEvent], records: list[BenchEvent]) -> int:
    for record in records[:ALONE]:
        await stream.send(record)
    return ALONE


def _delay(quantile: float) -> Road:
    """Measure single sends to a server that has all scripts, as one has that workers use.

    The server collects Lua's garbage at every fiftieth script, for longer the more scripts it has.
    """

    def road(app: App, stream: Stream[BenchEvent], records: list[BenchEvent]) -> None:
        with redis.Redis.from_url(app.settings.redis_url) as client:
            for script in scripts.SHARED:
                client.script_load(script.text)

        async def run() -> None:
            async with app:
                delays_s = []
                for record in records[:DELAYS]:
                    begun_s = time.perf_counter()
                    await stream.send(record)
                    delays_s.append(time.perf_counter() - begun_s)
                _tell(sorted(delays_s)[int(quantile * DELAYS)] * 1e6)

        asyncio.run(run())

    return road


def _handled(mode: str) -> Road:
    def road(app: App, stream: Stream[BenchEvent], records: list[BenchEvent]) -> None:
        async def fill() -> None:
            async with app:
                await _send_many(stream, records)

        asyncio.run(fill())
        count = begun = 0
        begun_s = 0.0

        def tally(more: int) -> None:
            nonlocal count, begun, begun_s
            if not count:
                begun_s, begun = time.process_time(), more
            count += more
            if count == len(records):
                _tell((time.process_time() - begun_s) * 1e6 / (count - begun))
                signal.raise_signal(signal.SIGTERM)

        async def record(event: BenchEvent) -> None:  # noqa: ARG001 - it is only counted
            tally(1)

        async def batch(events: list[BenchEvent]) -> None:
            tally(len(events))

        async def forwarding(events: list[BenchEvent]) -> list[BenchEvent]:
            tally(len(events))
            return events

        def plain(event: BenchEvent) -> None:  # noqa: ARG001
            tally(1)

        functions: dict[str, Any] = {"batch": batch, "forwarding": forwarding, "def": plain, "record": record}
        options: dict[str, Any] = {"batch": BATCH, "within": 0.005} if mode in ("batch", "forwarding") else {}
        app.processor(stream, name="road", **options)(functions[mode])
        run_worker(app, use_uvloop=find_spec("uvloop") is not None)

    return road


ROADS: dict[str, Road] = {
    "send_many": _cpu_of(_send_many),
    "sends": _cpu_of(_sends),
    "alone": _cpu_of(_alone),
    "p50": _delay(0.5),
    "p99": _delay(0.99),
    **{mode: _handled(mode) for mode in ("record", "batch", "forwarding", "def")},
}


def _run_here(road: str, count: int) -> None:
    """Run a road with the code that this process imports, and print its µs a record."""
    app = App("roads")
    stream = app.stream("events", BenchEvent, key="key", partitions=1)
    ROADS[road](app, stream, list(events(count)))


def main(
    folder: Annotated[Path, typer.Argument(help="The checkout to compare this one with.")],
    roads: Annotated[str, typer.Option(help="Names of roads, with commas.")] = ",".join(ROADS),
    runs: Annotated[int, typer.Option(min=1)] = 9,
    records: Annotated[int, typer.Option(min=30_000)] = 300_000,
) -> None:
    """Print the medians of each road in both folders, and of the ratio of each pair of runs."""
    here = Path(__file__).parents[1]
    folders = [folder.resolve(), here]
    with TemporaryDirectory() as paths:
        for number, each in enumerate(folders):
            # A road imports the package of one of the folders, and these programs always from here.
            (Path(paths) / str(number)).mkdir()
            (Path(paths) / str(number) / "streamworker").symlink_to(each / "streamworker")
        _compare(roads.split(","), [f"{paths}/{number}:{here}" for number in range(2)], runs, records)


def _compare(roads: list[str], paths: list[str], runs: int, records: int) -> None:
    for road in roads:
        found: list[tuple[float, ...]] = []
        for run in range(runs):
            pair = {}
            for each in paths if run % 2 else paths[::-1]:
                with EmbeddedServer() as server:
                    command = [sys.executable, __file__, "road", road, str(records)]
                    env = {**os.environ, "PYTHONPATH": each, "STREAMWORKER_REDIS_URL": server.url}
                    told = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE)
                pair[each] = float(told.stdout.split(b"road ")[1].split()[0])
            found.append(tuple(pair[each] for each in paths))
        before, after = map(median, zip(*found, strict=True))
        ratios = sorted(old / new for old, new in found)
        typer.echo(
            f"{road}: {before:.3f} to {after:.3f} µs a record, {median(ratios):.2f}x "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["road"]:
        _run_here(sys.argv[2], int(sys.argv[3]))
    else:
        typer.run(main)
