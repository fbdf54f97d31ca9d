"""Closes windows: calls what their totals go to when event time has passed their ends, and removes them.

Records move event time, and what they close is closed between the next two batches. When the partition has
caught up, event time also goes on with the server's clock. The commit that closes windows notes how far.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from streamworker.core.data.entries import EntryId
from streamworker.core.time.eventtime import EventTime
from streamworker.core.time.schedules import Due
from streamworker.declaring.specs import ExpirySpec, WindowSpec
from streamworker.redisio.keys import EVENT_TIME
from streamworker.runtime.forward.routing import Routed
from streamworker.runtime.run.commits import Commits
from streamworker.runtime.run.invoke import Invoker
from streamworker.runtime.run.timed.expiring import NEVER_MS, Expiry
from streamworker.runtime.run.timed.timers import Made


class ByClock(Due):
    """A time of the server's clock up to which event time has come, since all is committed until then."""


class Closing(Expiry):
    """What is called when windows of a partition are over."""

    def __init__(
        self,
        spec: ExpirySpec,
        window: WindowSpec,
        invoker: Invoker,
        stored: Mapping[str, bytes],
        rng: random.Random,
        commits: Commits,
    ) -> None:
        super().__init__(spec, invoker, stored, rng, commits)
        self.window = window
        self.by_hand_ms: int | None = None
        """Up to when a test has let event time pass."""
        self._is_looking = True
        self._again: Callable[[], None] = lambda: None
        self.state.landed = self._landed

    @property
    def event_time(self) -> EventTime:
        """How far the records that were handled have moved event time."""
        now = EventTime.decode(self.state.get(EVENT_TIME))
        if self.by_hand_ms is not None and self.by_hand_ms > now.now_ms:
            now = now._replace(clock_ms=self.by_hand_ms)
        return now

    def looks(self, again: Callable[[], None]) -> None:
        """A look at the first end begins."""
        super().looks(again)
        self._again, self._is_looking = again, True

    def looked(self, at_ms: int, first_ms: int | None) -> None:
        """A look has found the first end."""
        super().looked(at_ms, first_ms)
        self._is_looking = False

    @property
    def is_over(self) -> bool:  # type: ignore[override]
        """Whether records have closed windows that are not removed yet; True if that is not known."""
        first_ms = self.ends.first_ms
        if self._is_looking or first_ms == 0 or self.by_hand_ms is not None:
            return True
        return first_ms is not None and first_ms + self.window.late_ms <= self.event_time.now_ms

    def _landed(self) -> None:
        """Look again after a commit that has closed windows."""
        if self.is_over and not self._is_looking:
            self._again()

    def due(self, now_ms: int, ends_ms: int | None, committed: EntryId) -> Due | None:
        """Return what is to be closed: at once what records have closed."""
        first_ms = self.ends.first_ms
        if ends_ms is not None or now_ms < self.not_before_ms:
            return None
        if self.by_hand_ms is not None or (
            first_ms is not None and first_ms + self.window.late_ms <= self.event_time.now_ms
        ):
            return Due(self.seen_ms, True)
        return super().due(now_ms, ends_ms, committed)

    def planned(self, now_ms: int, ends_ms: int | None) -> Due | None:  # noqa: ARG002
        """Return whether the server's clock closes a window once all is committed."""
        return ByClock(self.seen_ms, True) if self.next_ms(0) <= self.seen_ms and ends_ms is None else None

    def next_ms(self, now_ms: int) -> int:
        """Return when the server's clock closes the first window."""
        first_ms, at_ms = self.ends.first_ms, None
        if first_ms is not None and self.window.by_clock:
            at_ms = self.event_time.reaches_ms(first_ms + self.window.late_ms)
        return max(self.not_before_ms, NEVER_MS if at_ms is None else at_ms, now_ms)

    def limit_ms(self, found: Due) -> int:
        """Return up to which end windows are closed."""
        return self._reached(found).now_ms - self.window.late_ms

    def _reached(self, found: Due) -> EventTime:
        return self.event_time.ticked(found.at_ms) if isinstance(found, ByClock) else self.event_time

    def let_pass(self, at_ms: int) -> None:
        """Let event time come to a time, if it has not."""
        self.by_hand_ms = at_ms
        self._again()

    async def is_ready(self, found: Due) -> bool:
        """Read which windows are over."""
        return await super().is_ready(found) or self.by_hand_ms is not None

    async def make(self, found: Due) -> Made:
        """Close windows, and note how far event time has come."""
        reached = self._reached(found)
        self.over_ms = reached.now_ms - self.window.late_ms
        made = await super().make(found)
        self.held, self.by_hand_ms = None, None
        return made._replace(changes={**made.changes, EVENT_TIME: reached.encode()})

    async def call(self, stored: Sequence[tuple[bytes, bytes]]) -> Routed:
        """Call the function for windows that are over, or send their totals all at once."""
        if self.window.returns_totals:
            with suppress(Exception):  # One by one those before a total that cannot be read or sent are done.
                ended = [(field, *self.ended(field, body)) for field, body in stored]
                rows = [total for _, given, _ in ended for total, _ in given] if self.window.sends else []
                _, routed = self.invoker.convert(rows)
                self.state.keep({(self.table, field): left for field, _, left in ended})
                return routed
        return await super().call(stored)

    def ended(self, field: bytes, body: bytes) -> tuple[Sequence[Any], bytes | None]:
        """Return the totals in a stored value that are over, with their windows, and what is left."""
        return self.window.ended(field, body, self.over_ms)
