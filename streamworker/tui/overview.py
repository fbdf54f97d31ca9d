"""The processors of an app at a glance: a line for each, for ``streamworker status`` and the live view."""

from collections import Counter

from streamworker.core.snapshot import TableView
from streamworker.core.units import moment
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


def table_line(table: TableView, now_ms: int | None = None) -> str:
    """Return what a table holds, and at a time when its values end."""
    ends = "" if now_ms is None else ends_of(table, now_ms)
    return "  ".join(filter(None, (table.name, counted(table.keys, "key"), memory(table.bytes), ends)))


def ends_of(table: TableView, now_ms: int) -> str:
    """Return when the values end at whose ends a function is called; an empty text if there are none.

    >>> ends_of(TableView("visits", 3_120, 0, 3_120, 301_000), 60_000)
    '3,120 due later, next in 4 m 01 s'
    >>> ends_of(TableView("visits", 9, 0, 9, 0, 2), 90_000)
    '7 due later, 2 overdue since 1 m 30 s'
    >>> ends_of(TableView("hours", 2, 0, 2, 3_600_000, is_of_windows=True), 0)
    '2 open windows, oldest ends at 1970-01-01 01:00:00 UTC'
    """
    if table.next_ms is None or table.due is None:
        return ""
    if table.is_of_windows:
        at = f"{moment(table.next_ms):%Y-%m-%d %H:%M:%S} UTC"
        return f"{counted(table.due, 'open window')}, oldest ends at {at}"
    later, left_ms = f"{table.due - table.overdue:,} due later", table.next_ms - now_ms
    if table.overdue:
        return f"{later}, {table.overdue:,} overdue since {duration(-left_ms)}"
    return f"{later}, next {f'in {duration(left_ms)}' if left_ms > 0 else 'now'}"
