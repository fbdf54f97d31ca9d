"""Scenes ``partitions``, ``idle`` and ``memory``: CPU, connections and memory of a worker."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.contest import Contest
from benchmarks.figures import Row, Target
from benchmarks.filling import append
from benchmarks.measuring.figures import BenchFigures
from benchmarks.measuring.ground import BenchGround
from benchmarks.measuring.programs import BenchProcess, Program
from benchmarks.measuring.task import Pace, payloads
from benchmarks.rebalances.command_count import CommandCount

MANY, FEW = 1024, 8
PER_S = 5_000
SECONDS_MAX = 10.0
SETTLE_S = 6.0
"""Time after which a worker is idle after a start or a burst: three times ``trim_interval_ms``. Committed
entries are trimmed up to two intervals later, in all partitions at once."""
CPU_PERCENT_MAX, COMMANDS_MAX, CONNECTIONS_MAX = 1.0, 5.0, 8.0
WORKER_MIB_MAX = 150.0
WARM = 0.25
"""Part of the records after which a worker's memory should not grow any more."""


def cpu_s(process: BenchProcess) -> float:
    """Return the CPU seconds that a process has used."""
    import psutil

    times = psutil.Process(process.child.pid).cpu_times()
    return float(times.user + times.system)


def rss_mib(process: BenchProcess) -> float:
    """Return the resident memory of a process."""
    import psutil

    return float(psutil.Process(process.child.pid).memory_info().rss) / 2**20


@dataclass(frozen=True, slots=True)
class Load:
    """One pattern of sends and one kind of handler, at the same rate for any number of partitions."""

    scene: str
    mode: str
    slice_s: float
    """Interval of sends; each sends as many records as the rate requires."""
    words: str


LOADS = (
    Load("partitions", "record", 0.002, "evenly, record handler"),
    Load("partitions-batch", "batch", 0.002, "evenly, batch handler"),
    Load("partitions-bursts", "batch", 0.1, "500 at once, batch handler"),
)
"""With a record handler, one event is one call for any number of partitions, so the ratio shows the cost of
the partitions. A batch handler has smaller batches in many partitions, above all in bursts: a commit holds
62 records in 8 partitions, and one record in 1,024."""


async def partitions(contest: Contest, loads: Sequence[Load] = LOADS) -> list[Row]:
    """Measure the CPU time of worker and server for a record, in 1,024 and in 8 partitions, at one rate."""
    if not contest.has("psutil", "partitions"):
        return []
    rows = []
    for load in loads:
        ours, theirs = await _costs(contest, load)
        what = f"CPU of worker and server for an event in 1,024 partitions, {PER_S:,} events/s {load.words}"
        rows.append(Row(load.scene, what, ours, theirs, Target(1.3, at_most=True)))
    return rows


async def _costs(contest: Contest, load: Load) -> tuple[BenchFigures, BenchFigures]:
    """Return the CPU time for an event in many partitions, and in few."""
    counts = {
        Program(f"{count:,} partitions", mode=load.mode, entries=f"in{count}"): count for count in (MANY, FEW)
    }

    async def cost_us(program: Program) -> float:
        keys = contest.ground.keys(program.entries, counts[program])
        async with settled(contest, program, keys) as process:
            found = await _cost_us(contest, process, keys, load.slice_s)
        await contest.ground.remove_keys()
        return found

    found = await contest.in_turn(list(counts), cost_us)
    many, few = (BenchFigures(name, "µs", tuple(runs)) for name, runs in found.items())
    return many, few


@asynccontextmanager
async def settled(
    contest: Contest, program: Program, keys: list[str], *, records: int = 0
) -> AsyncIterator[BenchProcess]:
    """Start a worker, and yield when it owns all partitions and is idle; its task has so many ``records``."""
    async with contest.started(program, keys, records=records) as process:
        # When one record in each partition is done, the worker owns all partitions.
        await append(contest.ground, keys, payloads(len(keys)))
        await process.done()
        await asyncio.sleep(SETTLE_S)
        yield process


async def _cost_us(contest: Contest, process: BenchProcess, keys: list[str], slice_s: float) -> float:
    """Send records at the rate for some seconds; return the CPU time for each, in µs."""
    count = int(PER_S * seconds_of(contest))
    a_slice = round(PER_S * slice_s)
    before = cpu_s(process) + await contest.ground.cpu_s()
    pace = Pace(round(1 / slice_s))
    for first in range(0, count, a_slice):
        await asyncio.sleep(pace.pause_s())
        turned = keys[first % len(keys) :] + keys[: first % len(keys)]
        await append(contest.ground, turned, payloads(a_slice))
    # Wait for all records: otherwise a worker that is behind would seem cheap.
    await process.done()
    after = cpu_s(process) + await contest.ground.cpu_s()
    return (after - before) * 1e6 / count


def seconds_of(contest: Contest) -> float:
    """Return the seconds of a measurement: fewer if the bench has few records."""
    return min(SECONDS_MAX, contest.records / PER_S)


async def clients_of(ground: BenchGround) -> set[str]:
    """Return the ids of the connected clients, without those of the bench."""
    text: bytes = await ground.backend.execute("CLIENT", "LIST")
    lines = (line.split(" ") for line in text.decode().splitlines())
    return {fields[0] for fields in lines if f"name={ground.name}:bench" not in fields}


async def idle(contest: Contest) -> list[Row]:
    """Measure CPU, commands and connections of an idle worker with 1,024 partitions."""
    if not contest.has("psutil", "idle"):
        return []
    seconds = seconds_of(contest)
    found: dict[str, list[float]] = {"%": [], "commands/s": [], "connections": []}
    for run in range(contest.runs):
        contest.say(f"run {run + 1} of {contest.runs}")
        keys = contest.ground.keys("idle", MANY)
        clients = await clients_of(contest.ground)
        async with settled(contest, Program("idle worker", entries="idle"), keys) as process:
            found["connections"].append(float(len(await clients_of(contest.ground) - clients)))
            before, begun_s = cpu_s(process), time.monotonic()
            await asyncio.sleep(seconds)
            found["%"].append(100 * (cpu_s(process) - before) / (time.monotonic() - begun_s))
            # Counting commands costs CPU, so it follows the measurement of CPU.
            async with CommandCount(contest.ground.url) as count:
                await asyncio.sleep(seconds)
                found["commands/s"].append(count.total / seconds)
        await contest.ground.remove_keys()
    rows = []
    for unit, most in (
        ("%", CPU_PERCENT_MAX),
        ("commands/s", COMMANDS_MAX),
        ("connections", CONNECTIONS_MAX),
    ):
        what = f"idle worker on 1,024 partitions: {'CPU of a core' if unit == '%' else unit}"
        rows.append(within(f"idle-{unit}", what, BenchFigures("worker", unit, tuple(found[unit])), most))
    return rows


def within(scene: str, what: str, ours: BenchFigures, most: float) -> Row:
    """Return a row that compares figures with a fixed limit."""
    limit = BenchFigures("at most", ours.unit, (most,) * len(ours.runs))
    return Row(scene, what, ours, limit, Target(1.0, at_most=True))


async def memory(contest: Contest) -> list[Row]:
    """Measure a worker's memory after all records, against its memory after a quarter of them."""
    if not contest.has("psutil", "memory"):
        return []
    warm: list[float] = []
    ended: list[float] = []
    first = int(contest.records * WARM)
    for run in range(contest.runs):
        contest.say(f"run {run + 1} of {contest.runs}")
        keys = contest.ground.keys("memory", FEW)
        async with settled(contest, Program("worker", entries="memory"), keys) as process:
            for part, sizes in ((first, warm), (contest.records - first, ended)):
                await append(contest.ground, keys, payloads(part))
                await process.done()
                sizes.append(rss_mib(process))
        await contest.ground.remove_keys()
    ours = BenchFigures(f"after {contest.records:,} records", "MiB", tuple(ended))
    theirs = BenchFigures(f"after {first:,} records", "MiB", tuple(warm))
    return [
        Row("memory-growth", "memory of a worker", ours, theirs, Target(1.1, at_most=True)),
        within("memory", "memory of a worker without Spark", ours, WORKER_MIB_MAX),
    ]
