"""Scene ``quiet``: the cost of one event, where single entries come evenly and not in batches.

Beside a loop by hand the cost of an event is measured at three rates, over 8 partitions: CPU of the worker's
process, CPU of the server, and the time from a send to the handler. Then what many partitions cost: bursts
over 1,024 partitions beside bursts over 8, and the commands of a worker that has nothing to do.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.contest import Contest
from benchmarks.figures import LOOP, Row, Target
from benchmarks.filling import append
from benchmarks.measuring.figures import BenchFigures
from benchmarks.measuring.ground import BenchGround
from benchmarks.measuring.programs import Program
from benchmarks.measuring.task import Delays, Pace, payloads
from benchmarks.rebalances.command_count import CommandCount
from benchmarks.scenes.upkeep import FEW, MANY, cpu_s, settled
from streamworker.errors import ConfigurationError

RATES = (200, 2_000, 20_000)
SECONDS_MAX = 10.0
BURST, BURSTS_PER_S = 500, 10
OURS = Program("record handler", mode="latency", entries="quiet")
BY_HAND = Program(LOOP, ("-m", "benchmarks.peers.handwritten"), "each", "quiet")
SENDER = Program("sender", ("-m", "benchmarks.peers.handwritten"), "send slices", "quiet")
COST_MAX, BURST_MAX, COMMANDS_MAX = 1.25, 5.0, 20.0
LATER_MAX_MS = 1.0
IDLE_S = 20.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run has cost."""

    worker_us: float
    """CPU of the process that handles, for each event."""
    server_us: float
    """CPU of the server for each event, with its XADD."""
    commands: float
    """Commands that the server has run for each event, also in scripts, without its XADD."""
    p50_ms: float
    p99_ms: float


UNITS = {"worker_us": "µs", "server_us": "µs", "commands": "commands", "p50_ms": "ms", "p99_ms": "ms"}
WORDS = {
    "worker_us": "CPU of the worker for an event",
    "server_us": "CPU of the server for an event",
    "commands": "commands for an event, also in scripts",
    "p50_ms": "p50 from a send to its call",
    "p99_ms": "p99 from a send to its call",
}


async def quiet(contest: Contest) -> list[Row]:
    """Measure the cost of one event beside a loop by hand, and beside an earlier checkout if one is given."""
    if not contest.has("psutil", "quiet"):
        return []
    trees = [OURS, *_before(contest.before)]
    rows = []
    for per_s in RATES:
        found = await contest.in_turn([*trees, BY_HAND], partial(_even, contest, per_s))
        for field, unit in UNITS.items():
            its = {name: _figures(name, unit, runs, field) for name, runs in found.items()}
            what = f"{WORDS[field]}, {per_s:,} events/s over {FEW} partitions"
            rows += _beside(f"quiet-{field}-{per_s}", what, its, trees, _target(field))
    rows += await _bursts(contest, trees)
    rows += await _idle(contest, trees)
    return rows


def _before(tree: Path | None) -> list[Program]:
    if tree is None:
        return []
    python = tree / ".venv" / "bin" / "python"
    if not python.exists():
        raise ConfigurationError(
            f"{tree} has no environment .venv.", remedy="Make one there with: make ready"
        )
    return [replace(OURS, name=f"before ({tree.name})", python=str(python), tree=tree)]


def _target(field: str) -> Target | None:
    if field.endswith("_us"):
        return Target(COST_MAX, at_most=True)
    return Target(LATER_MAX_MS, at_most=True, is_difference=True) if field.endswith("_ms") else None


def _figures(name: str, unit: str, runs: Sequence[Cost], field: str) -> BenchFigures:
    return BenchFigures(name, unit, tuple(getattr(run, field) for run in runs))


def _beside(
    scene: str, what: str, its: Mapping[str, BenchFigures], trees: Sequence[Program], target: Target | None
) -> list[Row]:
    """Return a row for each tree beside the loop."""
    return [
        Row(scene if each is OURS else f"{scene}-before", what, its[each.name], its[LOOP], target)
        for each in trees
    ]


async def _even(contest: Contest, per_s: int, program: Program) -> Cost:
    """Send single entries at a rate, in turn to each partition; return the cost of each."""
    ground, keys = contest.ground, contest.ground.keys(program.entries, FEW)
    count = min(contest.records, int(per_s * SECONDS_MAX))
    # Its own first records are among those that its tally waits for.
    async with settled(contest, program, keys, records=count + FEW) as process:
        before = cpu_s(process), await ground.cpu_s(), await _commands(ground)
        async with contest.started(SENDER, keys, records=count, per_s=per_s) as sender:
            delays = await process.told(Delays, beside=sender)
            await process.done()
            after = cpu_s(process), await ground.cpu_s(), await _commands(ground)
    await ground.remove_keys()
    worker_s, server_s, commands = (now - then for now, then in zip(after, before, strict=True))
    return Cost(
        worker_s * 1e6 / count, server_s * 1e6 / count, commands / count, delays.p50_ms, delays.p99_ms
    )


async def _commands(ground: BenchGround) -> int:
    """Return how many commands the server has run, also in scripts, without those of senders and of INFO."""
    stats = await ground.info("commandstats")
    counts = {name: int(text.partition("calls=")[2].partition(",")[0]) for name, text in stats.items()}
    return sum(count for name, count in counts.items() if name not in ("cmdstat_xadd", "cmdstat_info"))


async def _bursts(contest: Contest, trees: Sequence[Program]) -> list[Row]:
    """Send bursts of single entries over many and over few partitions."""
    rows = []
    for tree in trees:
        its = {replace(tree, name=f"{n:,} partitions", entries=f"in{n}"): n for n in (MANY, FEW)}
        found = await contest.in_turn(list(its), partial(_burst_us, contest, its))
        for at, field in enumerate(("worker_us", "server_us")):
            many, few = (BenchFigures(name, "µs", tuple(r[at] for r in runs)) for name, runs in found.items())
            scene = f"quiet-bursts-{field}" + ("" if tree is OURS else "-before")
            what = f"{WORDS[field]}, bursts of {BURST} over {MANY:,} partitions, {tree.name}"
            rows.append(Row(scene, what, many, few, Target(BURST_MAX, at_most=True)))
    return rows


async def _burst_us(contest: Contest, sizes: Mapping[Program, int], program: Program) -> tuple[float, float]:
    """Return the CPU of worker and server for each event of some bursts."""
    keys = contest.ground.keys(program.entries, sizes[program])
    seconds = min(SECONDS_MAX, contest.records / (BURST * BURSTS_PER_S))
    count = int(seconds * BURSTS_PER_S) * BURST
    async with settled(contest, program, keys, records=count + len(keys)) as process:
        before = cpu_s(process), await contest.ground.cpu_s()
        pace = Pace(BURSTS_PER_S)
        for first in range(0, count, BURST):
            await asyncio.sleep(pace.pause_s())
            turned = keys[first % len(keys) :] + keys[: first % len(keys)]
            await append(contest.ground, turned, payloads(BURST))
        await process.done()
        after = cpu_s(process), await contest.ground.cpu_s()
    await contest.ground.remove_keys()
    worker, server = ((now - then) * 1e6 / count for now, then in zip(after, before, strict=True))
    return worker, server


async def _idle(contest: Contest, trees: Sequence[Program]) -> list[Row]:
    """Count the commands that workers send which have nothing to do."""

    async def per_s(program: Program) -> float:
        keys = contest.ground.keys(program.entries, MANY)
        async with settled(contest, program, keys, records=MANY):
            async with CommandCount(contest.ground.url) as count:
                await asyncio.sleep(IDLE_S)
            found = count.total / IDLE_S
        await contest.ground.remove_keys()
        return found

    found = await contest.in_turn(trees, per_s)
    limit = BenchFigures("at most", "commands/s", (COMMANDS_MAX,) * contest.runs)
    what = f"idle worker on {MANY:,} partitions: commands/s"
    return [
        Row(
            "quiet-idle" if each is OURS else "quiet-idle-before",
            what,
            BenchFigures(each.name, "commands/s", tuple(found[each.name])),
            limit,
            Target(1.0, at_most=True),
        )
        for each in trees
    ]
