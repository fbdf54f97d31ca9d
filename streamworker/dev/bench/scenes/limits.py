"""Scene ``limits``: a batch handler compared with the limits of server, parser and decoder."""

from streamworker.dev.bench.contest import Contest, Contestant
from streamworker.dev.bench.figures import Figures, Row
from streamworker.dev.bench.scenes.process import BATCH
from streamworker.dev.bench.task import Sent

BARE = ("-m", "streamworker.dev.bench.peers.bare")
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
    steps = [Contestant(name, BARE, mode, entries="limits") for mode, name in STEPS.items()]
    ours = Contestant(BATCH.name, mode=BATCH.mode, entries="limits")
    found: dict[str, list[float]] = {each.name: [] for each in (ours, *steps)}
    for run, each in contest.turns([ours, *steps]):
        contest.say(f"run {run + 1} of {contest.runs}: {each.name}")
        if each is ours:
            found[each.name].append((await contest.one(each, keys)).per_s)
            continue
        async with contest.started(each, keys, records=contest.records) as process:
            found[each.name].append((await process.told(Sent)).per_s)
    figures = {name: Figures(name, "events/s", tuple(runs)) for name, runs in found.items()}
    return [
        Row(
            f"limits-{step.mode}",
            "batch handler (1,000), against a limit",
            figures[ours.name],
            figures[step.name],
        )
        for step in steps
    ]
