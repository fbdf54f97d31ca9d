"""Scene ``limits``: a batch handler compared with the limits of server, parser and decoder."""

from dataclasses import replace

from benchmarks.contest import Contest
from benchmarks.figures import Row
from streamworker.dev.bench.figures import figures_of
from streamworker.dev.bench.programs import Program, RunTiming
from streamworker.dev.bench.scenes import BATCH
from streamworker.dev.bench.task import SentRecords

BARE = ("-m", "benchmarks.peers.bare")
STEPS = {
    "read": "XREAD of 1,000 and hiredis",
    "decode": "msgspec's decoder alone",
    "commit": "commits of 1,000 alone",
    "read and commit": "XREAD, then the commit",
    "all steps": "XREAD, decoding, the commit",
}
"""Modes of the program, and their names in the table. The last two do one step after the other. A worker
reads while the server commits, and so may be faster."""


async def limits(contest: Contest) -> list[Row]:
    """Measure a batch handler in one partition, in turn with each single step of its work."""
    contest.say("filling")
    keys = await contest.ground.fill_records("limits", contest.records)
    ours = replace(BATCH, entries="limits")
    steps = [Program(name, BARE, mode, "limits") for mode, name in STEPS.items()]

    async def measure(program: Program) -> RunTiming | SentRecords:
        if program is ours:
            return await contest.handled(program, keys)
        async with contest.started(program, keys, records=contest.records) as process:
            return await process.told(SentRecords)

    speed = figures_of(await contest.in_turn([ours, *steps], measure), "per_s", "events/s")
    what = "batch handler (1,000), against a limit"
    return [Row(f"limits-{step.mode}", what, speed[ours.name], speed[step.name]) for step in steps]
