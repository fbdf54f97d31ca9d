"""The processors of an app at a glance: a line for each, for ``streamworker status`` and the live view."""

from collections import Counter

from streamworker.core.snapshot import TableView
from streamworker.core.words import counted
from streamworker.tui.figures import duration, held_up, memory, per_second, state_of
from streamworker.tui.model import Model

COLUMNS = ("stream", "processor", "workers", "partitions", "lag", "rate", "failing")


def line(rows: Model) -> tuple[str, str, int, str, str, str, str]:
    """Return a processor's cells of ``COLUMNS``, with its first partition that does not go on."""
    group = rows.snapshot
    states = Counter(state_of(view) for view in group.partitions)
    held = ((view, held_up(view, group.taken_ms)) for view in group.partitions)
    failing = next((f"partition {view.partition} {why}" for view, why in held if why), "")
    partitions = f"{states.total()}: {', '.join(f'{n} {state}' for state, n in states.most_common())}"
    workers = sum(bool(member.partitions) for member in group.alive)
    lag = lagging(group.lag, rows.committed_per_s)
    rate = per_second(rows.committed_per_s)
    return group.stream, group.processor, workers, partitions, lag, rate, failing


def lagging(records: int, per_s: float | None) -> str:
    """Return a lag in records, and in time at a rate.

    >>> lagging(4_120, 412.0), lagging(0, 412.0), lagging(7, None)
    ('4,120 in 10.0 s', '0', '7')
    """
    return (
        f"{records:,} in {duration(round(1000 * records / per_s))}" if records and per_s else f"{records:,}"
    )


def table_line(table: TableView) -> str:
    """Return what a table holds."""
    return f"{table.name}  {counted(table.keys, 'key')}  {memory(table.bytes)}"
