"""Scene ``columns``: sending, handling and forwarding tables, compared with batches of JSON records."""

from benchmarks.contest import Contest
from benchmarks.figures import Row, Target
from benchmarks.measuring.figures import figures_of
from benchmarks.measuring.scenes import COLUMNS, JSON_RECORDS, rows_and_records


async def columns(contest: Contest) -> list[Row]:
    """Measure ``codec="arrow"``, end to end and in parts, against the batch handler, on one core."""
    found = await rows_and_records(contest)
    rows = []
    for part, what, target in (
        ("both", "columns: send, handle and forward, in one process", Target(10)),
        ("send", "columns: send_table against send_many", None),
        ("handle", "columns: handle and forward", None),
    ):
        rates = figures_of(found, f"{part}_per_s", "rows/s")
        rows.append(Row(f"columns-{part}", what, rates[COLUMNS.name], rates[JSON_RECORDS.name], target))
    return rows
