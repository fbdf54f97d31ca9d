"""An app of windows of all kinds over the same events, for workers that are killed meanwhile."""

import os
from datetime import datetime
from typing import Any

import msgspec

from streamworker import App, Window
from streamworker.declaring.stream import Stream
from streamworker.declaring.windows import Windowed

PARTITIONS = 4
FIXED: dict[str, dict[str, Any]] = {
    "tumbling": {"every": "10 minutes", "late": "15 minutes"},
    "hopping": {"every": "30 minutes", "step": "10 minutes", "late": "5 minutes"},
    "days": {"every": "1 day", "tz": "Europe/Paris", "late": "2 hours"},
    "changes": {"every": "1 hour", "late": "10 minutes", "emit": "changes"},
}
TAIL_S, TAIL_LATE_S = 2, 5
"""How long the windows of the last records are, which the clock closes, and how long each waits."""


class Event(msgspec.Struct):
    user: str
    n: int
    at: datetime
    amount: int


class Row(msgspec.Struct):
    """What a window comes to."""

    user: str
    start: datetime
    end: datetime
    events: int = 0
    amount: int = 0


def add(row: Row | None, event: Event, window: Window) -> Row:
    row = row or Row(event.user, *window)
    row.events += 1
    row.amount += event.amount
    return row


class Site:
    """The app, by its server."""

    def __init__(self, url: str | None, durability: Any = "memory") -> None:
        self.app = App(
            "site",
            redis_url=url,
            durability=durability,
            heartbeat_interval_ms=500,
            call_timeout_ms=800,
            session_timeout_ms=2_500,
            slow_after_ms=3_000,
        )
        self.events, self.tail, self.late = (self._stream(name, Event) for name in ("events", "tail", "late"))
        self.rows = {name: self._stream(f"of_{name}", Row) for name in (*FIXED, "sessions", "soon")}
        self.windows: dict[str, Windowed[Event, Row]] = {}
        for name, options in FIXED.items():
            late_into = self.late if name == "hopping" else None
            self.windows[name] = self._windows(name, self.events, late_into=late_into, **options)
        self.windows["soon"] = self._windows(
            "soon", self.tail, every=f"{TAIL_S} seconds", late=f"{TAIL_LATE_S} seconds"
        )
        sessions = self.app.session(
            self.events, gap="1 hour", by="at", late="30 minutes", name="sessions", batch=200
        )(add)
        self.sessions = self.windows["sessions"] = sessions

        @sessions.merge
        def joined(one: Row, other: Row) -> Row:
            return Row(one.user, one.start, one.end, one.events + other.events, one.amount + other.amount)

        @sessions.closed(into=self.rows["sessions"])
        async def ended(row: Row, window: Window) -> Row:
            return Row(row.user, *window, row.events, row.amount)

    def _stream(self, name: str, record: Any) -> Stream[Any]:
        return self.app.stream(name, record, key="user", partitions=PARTITIONS, retention="1 day")

    def _windows(self, name: str, stream: Stream[Event], **options: Any) -> Windowed[Event, Row]:
        found: Windowed[Event, Row] = self.app.window(
            stream, by="at", name=name, into=self.rows[name], batch=200, **options
        )(add)
        return found


app = Site(os.environ.get("STREAMWORKER_REDIS_URL"), os.environ.get("STREAMWORKER_DURABILITY", "memory")).app
