"""The last hour of one processor: what the page shows now, and what it can go back to.

This module is pure. A frame is complete by itself, so that a tab which is slow may miss some. Partitions are
in it as parallel lists, since a group may have a thousand of them.
"""

import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC
from typing import Any

import msgspec

from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.trends import Trends
from streamworker.tui import model
from streamworker.tui.figures import failure, held_up
from streamworker.tui.overview import ends_of

HOUR_MS = 3_600_000
RECORD_MAX = 500
"""Rebalances and orders that are kept."""
HELD_MAX = 200
"""Partitions that are held up whose reasons a frame has."""

LETTERS = {
    "running": ".", "retrying": "R", "draining": "D", "acquiring": "A", "halted": "H",
    "paused": "P", "pausing": "p", "unowned": "U",
    "unknown": "?",
}  # fmt: skip
"""The letter of each state in a frame."""
POINTS = ("t", "lag", "arrived", "committed", "age")
"""What the charts show at one time: ms, records, records a second, records a second, and ms."""

Point = tuple[int, int, float | None, float | None, int]


class History:
    """One processor's last hour."""

    def __init__(self) -> None:
        self._trends = Trends()
        self._recent: deque[GroupSnapshot] = deque(maxlen=model.RATE_WINDOW)
        self._points: deque[Point] = deque()
        self._matrices: deque[tuple[int, bytes]] = deque()
        """Times, and what stood from then on, compressed; only what differs from what stood before."""
        self._record: dict[tuple[int, int, str, str], dict[str, Any]] = {}
        self.frame: dict[str, Any] = {}
        """The present one; empty before the first snapshot."""

    def add(self, snapshot: GroupSnapshot) -> None:
        """Keep what a new snapshot shows, and forget what is older than an hour."""
        if self._recent and snapshot.taken_ms - self._recent[-1].taken_ms > 60_000:
            self._recent.clear()  # A rate over an outage would not be the current rate.
        self._recent.append(snapshot)
        rows = model.rows(self._recent[0], snapshot)
        now_ms, age_ms = snapshot.taken_ms, self._trends.follow(snapshot).oldest_ms
        self.frame = frame = _frame(rows, age_ms)
        self._points.append((now_ms, snapshot.lag, frame["arrived"], frame["committed"], age_ms))
        matrix = {name: frame[name] for name in ("workers", "first", "owner", "state")}
        matrix["workers"] = [{name: each[name] for name in ("id", "name")} for each in frame["workers"]]
        stored = zlib.compress(msgspec.json.encode(matrix), 1)
        if not self._matrices or self._matrices[-1][1] != stored:
            self._matrices.append((now_ms, stored))
        while self._points[0][0] < now_ms - HOUR_MS:
            self._points.popleft()
        while len(self._matrices) > 1 and self._matrices[1][0] < now_ms - HOUR_MS:
            self._matrices.popleft()
        for change in snapshot.rebalances:
            key = (change.at_ms, change.generation, change.cause, change.member)
            self._record[key] = {
                **asdict(change),
                "moved": len(change.moved),
                "processor": snapshot.processor,
            }
        for key in sorted(self._record)[:-RECORD_MAX]:
            del self._record[key]

    @property
    def record(self) -> list[dict[str, Any]]:
        """The rebalances and the orders of operators, newest first."""
        return [self._record[key] for key in sorted(self._record, reverse=True)]

    @property
    def points(self) -> dict[str, Sequence[Any]]:
        """What the charts show of the last hour, as lists of equal length."""
        columns = zip(*self._points, strict=True) if self._points else [()] * len(POINTS)
        return dict(zip(POINTS, columns, strict=True))

    def at(self, ms: int) -> dict[str, Any] | None:
        """Return the workers and the states of partitions at a time; None if that is not known."""
        place = bisect_right(self._matrices, ms, key=lambda each: each[0])
        if not place:
            return None
        since, stored = self._matrices[place - 1]
        return {"t": ms, "since": since, **msgspec.json.decode(zlib.decompress(stored))}


def _frame(rows: model.Model, age_ms: int) -> dict[str, Any]:
    """Return what the page shows of a group now."""
    group = rows.snapshot
    place = {worker.member.id: at for at, worker in enumerate(rows.workers)}
    held = [
        (view.partition, view.state, why)
        for view in group.partitions
        if (why := held_up(view, group.taken_ms, UTC)) or view.state == "halted"
    ]
    dead = {view.partition: view.dead for view in group.all_partitions if view.dead}
    return {
        **{name: getattr(group, name) for name in ("stream", "processor", "generation")},
        "problems": [*group.problems, *group.unknown],
        "t": group.taken_ms,
        "lag": group.lag,
        "arrived": _rounded(rows.arrived_per_s),
        "committed": _rounded(rows.committed_per_s),
        "age": age_ms,
        "outbox": group.outbox,
        "dead": dead,
        "workers": [
            {
                **{name: getattr(worker.member, name) for name in ("id", "name", "host", "pid", "state")},
                "beat": worker.member.beat_age_ms,
                "per_s": _rounded(worker.per_s),
            }
            for worker in rows.workers
        ],
        "first": rows.cells[0].view.partition if rows.cells else 0,
        # -1: nobody. -2: somebody who is no member any more.
        "owner": [place.get(cell.view.owner, -2) if cell.view.owner else -1 for cell in rows.cells],
        "wanted": [place.get(cell.view.assigned, -2) if cell.view.assigned else -1 for cell in rows.cells],
        "state": "".join(LETTERS[cell.view.state] for cell in rows.cells),
        "lags": [cell.view.lag for cell in rows.cells],
        "rates": [_rounded(cell.per_s) for cell in rows.cells],
        "held": held[:HELD_MAX],
        "held_count": len(held),
        "readers": [
            {
                "name": each.view.name,
                "rows": each.rows,
                "lag": each.view.lag_rows,
                "per_s": _rounded(each.per_s),
                "age": max(0, group.taken_ms - each.view.updated_ms),
                "failed": failure(each.view, group.taken_ms),
            }
            for each in rows.readers
        ],
        "tables": [{**asdict(table), "ends": ends_of(table, group.taken_ms)} for table in group.tables],
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)
