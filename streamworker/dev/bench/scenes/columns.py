"""Scene ``columns``: sending, handling and forwarding tables, compared with batches of JSON records."""

from streamworker.dev.bench.contest import Contest, Contestant
from streamworker.dev.bench.figures import Figures, Row, Target
from streamworker.dev.bench.task import RowRates

PROGRAM = ("-m", "streamworker.dev.bench.rows")
TIMES = 10
"""Rows for each JSON record, so that both runs take long enough to be measured."""


async def columns(contest: Contest) -> list[Row]:
    """Measure ``codec="arrow"``, end to end and in parts, against the batch handler, on one core."""
    both = [Contestant("columns", PROGRAM, "columns"), Contestant("JSON records", PROGRAM, "records")]
    found: dict[str, list[RowRates]] = {each.name: [] for each in both}
    for run, each in contest.turns(both):
        contest.say(f"run {run + 1} of {contest.runs}: {each.name}")
        count = contest.records * (TIMES if each.mode == "columns" else 1)
        keys = contest.ground.keys("rows", contest.partitions)
        async with contest.started(each, keys, stream="rows", records=count) as process:
            found[each.name].append(await process.told(RowRates))
        await contest.ground.remove_keys()
    rows = []
    for field, what, target in (
        ("both_per_s", "columns: send, handle and forward, in one process", Target(10)),
        ("send_per_s", "columns: send_table against send_many", None),
        ("handle_per_s", "columns: handle and forward", None),
    ):
        ours, theirs = (
            Figures(each.name, "rows/s", tuple(getattr(rates, field) for rates in found[each.name]))
            for each in both
        )
        rows.append(Row(f"columns-{field.removesuffix('_per_s')}", what, ours, theirs, target))
    return rows
