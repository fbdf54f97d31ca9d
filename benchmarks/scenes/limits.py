"""Scene ``limits``: a batch handler compared with the limits of server, parser and decoder."""

from dataclasses import replace

from benchmarks.contest import Contest
from benchmarks.figures import Row, Target
from benchmarks.filling import fill_records
from benchmarks.measuring.figures import figures_of
from benchmarks.measuring.programs import Program, RunTiming
from benchmarks.measuring.scenes import BATCH, PACKED
from benchmarks.measuring.task import SentRecords

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
    """Measure a batch handler in one partition, in turn with each single step of its work.

    The steps have entries of one record, as XADD writes them. Of entries of many, only the decoder is a step
    that both have in common.
    """
    contest.say("filling")
    keys = {
        "limits": await fill_records(contest.ground, "limits", contest.records),
        PACKED: await contest.ground.fill_packed(PACKED, contest.records),
    }
    single = replace(BATCH, name="batch handler, single entries", entries="limits")
    steps = [Program(name, BARE, mode, "limits") for mode, name in STEPS.items()]

    async def measure(program: Program) -> RunTiming | SentRecords:
        if program not in steps:
            return await contest.handled(program, keys[program.entries])
        async with contest.started(program, keys["limits"], records=contest.records) as process:
            return await process.told(SentRecords)

    speed = figures_of(await contest.in_turn([single, BATCH, *steps], measure), "per_s", "events/s")
    what = "batch handler (1,000), single entries, against a limit"
    rows = [Row(f"limits-{step.mode}", what, speed[single.name], speed[step.name]) for step in steps]
    ours, decoder = speed[BATCH.name], speed[STEPS["decode"]]
    return [*rows, Row("limits-packed", "batch handler (1,000)", ours, decoder, Target(0.5))]
