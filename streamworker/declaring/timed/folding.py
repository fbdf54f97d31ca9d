"""What a processor of windows does with a batch: which windows its records are in, which are late, totals.

The totals are values of a table, which the commit of the batch writes with the end of each. The function that
closes them is called at these ends, by event time (``runtime/run/timed/closing.py``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, reduce
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from streamworker.context import Call, Context, Sending, TablesInCall, tables_in_call
from streamworker.core.data.placement import canonical_key, key_parts
from streamworker.core.policies import DeadLetter, Late, Policy, Skip
from streamworker.core.time.eventtime import EventTime, passed
from streamworker.core.time.lifetimes import Timed
from streamworker.core.time.windows import FIRST_MS, LAST_MS, Span, Windows, near
from streamworker.core.units import EPOCH, lateness_text, moment
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import ConfigurationError
from streamworker.records.codecs import short
from streamworker.records.statetables import TableForm
from streamworker.records.types import kept
from streamworker.redisio.keys import EVENT_TIME

A = TypeVar("A")


class Window(NamedTuple):
    """From when to when a window is, in UTC.

    A session goes from its first event to its last one, so far.

    Examples
    --------
    >>> from datetime import UTC
    >>> Window(datetime(2026, 11, 28, 10, tzinfo=UTC), datetime(2026, 11, 28, 11, tzinfo=UTC)).start.hour
    10
    """

    start: datetime
    """The first moment of it."""
    end: datetime
    """The first moment after it; of a session the time of its last event."""


class OpenSession(msgspec.Struct, Generic[A]):
    """A session that is open: the value of ``Sessions.open`` is a list of them.

    Examples
    --------
    >>> from datetime import UTC
    >>> ten = datetime(2026, 11, 28, 10, tzinfo=UTC)
    >>> OpenSession(ten, ten, 3).total
    3
    """

    start: datetime
    """The time of its first event."""
    end: datetime
    """The time of its last event."""
    total: A
    """What the function has made of its events."""


Dated = tuple[int, Any, int, int]
"""The index of a record in its batch, its key, its time in ms, and the event time before it."""


Lateness = dict[int, tuple[int, int]]
"""By the index of a record that is late by how many ms, and at which event time."""


class _SetAside(Exception):
    """The function has set a record aside: the others are folded as if it were not there."""

    def __init__(self, record: Any, policy: Policy) -> None:
        self.record, self.policy = record, policy


@dataclass(kw_only=True)
class Folding(ABC):
    """The windows of one processor: its function is :meth:`handle`."""

    name: str
    stream: StreamSpec
    form: TableForm
    fold: Callable[[Any, Any, Window], Any]
    at: Callable[[Any], Any]
    """Returns the time of a record."""
    late_ms: int
    ahead_ms: int
    late_into: StreamSpec | None
    emits_changes: bool

    async def handle(self, batch: list[Any], ctx: Context) -> list[Any]:
        """Add records to their windows; return the totals that have changed, if they are asked for."""
        call = ctx._call  # noqa: SLF001 - not for users' functions to see
        while True:
            try:
                return await self._handled(batch, call)
            except _SetAside as found:
                index = next(n for n, record in enumerate(batch) if record is found.record)
                call.removed[index] = found.policy

    async def _handled(self, batch: list[Any], call: Call) -> list[Any]:
        tables = tables_in_call.get()
        assert tables is not None
        places, keys, ats_ms = list(range(len(batch))), list(map(self.stream.key, batch)), list[int]()
        for index, at in enumerate(map(self.at, batch)):
            key = keys[index]
            if not isinstance(at, datetime) or at.tzinfo is None:
                call.removed[index] = DeadLetter(f"its time is {short(at)}, which is no datetime with a zone")
            elif not FIRST_MS <= (at_ms := _ms(at)) <= LAST_MS:
                call.removed[index] = DeadLetter(f"its time is {at}, at the end of the calendar")
            elif key is None or (type(key) is tuple and None in key):
                call.removed[index] = DeadLetter("it has no key, and windows are of a key")
            ats_ms.append(0 if index in call.removed else at_ms)
        arrived_ms = call.arrivals_ms
        if call.removed:
            places = [index for index in places if index not in call.removed]
            keys = [keys[n] for n in places]
            ats_ms, arrived_ms = [ats_ms[n] for n in places], [arrived_ms[n] for n in places]
        now = EventTime(*call.state.get(EVENT_TIME, ()))
        befores, after = passed(now, ats_ms, arrived_ms, self.ahead_ms)
        dated = list(zip(places, keys, ats_ms, befores, strict=True))
        late: Lateness = {}
        changed = await self.add(batch, dated, late, tables)
        if after != now:
            call.state[EVENT_TIME] = list(after)
        for index, (by_ms, now_ms) in late.items():
            why = f"late by {lateness_text(by_ms)}, at event time {moment(now_ms):%Y-%m-%d %H:%M:%S} UTC"
            call.removed[index] = Late(why, is_kept=self.late_into is None)
            if self.late_into is not None:
                call.outputs.append(Sending(self.late_into, batch[index], call.headers[index]))
        return changed if self.emits_changes else []

    @abstractmethod
    async def add(
        self, batch: Sequence[Any], dated: Sequence[Dated], late: Lateness, tables: TablesInCall
    ) -> list[Any]:
        """Add records to their windows; return the totals that have changed.

        ``late`` gets each record all of whose windows are over.
        """

    def lacks(self) -> ConfigurationError | None:
        """Return what is missing in its declaration."""
        return None

    @abstractmethod
    def ended(self, field: bytes, body: bytes, over_ms: int) -> tuple[list[tuple[Any, Window]], bytes | None]:
        """Return the windows of a stored value that have ended, and what is left of it.

        Event time has come to ``over_ms`` without what may be late.
        """


class FixedFolding(Folding):
    """Windows that begin and end when a grid says: each is a value of its own."""

    windows: Windows

    async def add(
        self, batch: Sequence[Any], dated: Sequence[Dated], late: Lateness, tables: TablesInCall
    ) -> list[Any]:
        """Add records to their windows; return the totals that have changed."""
        members: dict[Span, dict[Any, list[Any]]] = {}
        windows_of, late_ms = self.windows.of, self.late_ms
        last: tuple[Span, ...] = ()
        groups: list[dict[Any, list[Any]]] = []
        for index, key, at_ms, now_ms in dated:
            spans, over_ms = windows_of(at_ms), now_ms - late_ms
            if spans is not last:
                last, groups = spans, [members.setdefault(span, {}) for span in spans]
            if spans[-1].end_ms <= over_ms:
                late[index] = over_ms - spans[-1].end_ms, now_ms
                continue
            for span, group in zip(spans, groups, strict=True):
                if span.end_ms <= over_ms:
                    continue
                if (its := group.get(key)) is None:
                    group[key] = [batch[index]]
                else:
                    its.append(batch[index])
        return await self._folded(members, tables)

    async def _folded(
        self, members: Mapping[Span, Mapping[Any, Sequence[Any]]], tables: TablesInCall
    ) -> list[Any]:
        """Add records, by window and key, to the totals of these; return the totals."""
        fold, form, name = self.fold, self.form, self.name
        known: dict[Any, tuple[bytes, bytes]] = {}
        open_: list[tuple[bytes, bytes, Span, Window, Sequence[Any]]] = []
        for span, group in members.items():
            window = Window(moment(span.start_ms), moment(span.end_ms))
            # The bytes of a key of several parts are those of its parts, one after the other.
            suffix = canonical_key(tuple(window)) or b""
            for key, its in group.items():
                if (begins := known.get(key)) is None:
                    parts = key if type(key) is tuple else (key,)
                    begins = known[key] = canonical_key(parts) or b"", form.letters((*parts, *window))
                open_.append((begins[0] + suffix, begins[1], span, window, its))
        bodies = await tables.read(name, [field for field, *_ in open_])
        changed: list[Any] = []
        changes: dict[bytes, bytes | None] = {}
        for (field, letters, span, window, its), body in zip(open_, bodies, strict=True):
            total = None if body is None else form.value_of(field, body)
            try:
                for record in its:
                    if (total := fold(total, record, window)) is record:
                        total = kept(record)  # It may be in other windows, too, and be changed there.
            except (Skip, DeadLetter) as policy:
                raise _SetAside(record, policy) from None
            changes[field] = Timed.at(letters + form.encoded(field, total), span.end_ms)
            changed.append(total)
        tables.write(name, changes)
        return changed

    def ended(self, field: bytes, body: bytes, over_ms: int) -> tuple[list[tuple[Any, Window]], bytes | None]:  # noqa: ARG002
        """Return the window, which has ended as a whole."""
        return [(self.form.value_of(field, body), _window_in(field[-TIMES_BYTES:]))], None


TIMES_BYTES = 2 * len("27:2026-11-28T10:00:00.000000Z")
"""How long the start and the end are at the end of a key's bytes."""


@lru_cache(1_000)
def _window_in(times: bytes) -> Window:
    start, end = key_parts(times)
    return Window(*(datetime.fromisoformat((at or b"").decode()) for at in (start, end)))


class _Open:
    """A session while events are added to it."""

    __slots__ = ("end", "end_ms", "has_changed", "start", "start_ms", "total")

    def __init__(self, start: datetime, end: datetime, total: Any) -> None:
        self.start, self.end, self.total = start, end, total
        self.start_ms, self.end_ms = _ms(start), _ms(end)
        self.has_changed = False


class SessionFolding(Folding):
    """Sessions, which last as long as events come: the open ones of a key are one value."""

    gap_ms: int
    merge: Callable[[Any, Any], Any] | None = None

    async def add(
        self, batch: Sequence[Any], dated: Sequence[Dated], late: Lateness, tables: TablesInCall
    ) -> list[Any]:
        """Add events to their sessions; return the totals that have changed."""
        events: dict[Any, list[Dated]] = {}
        for each in dated:
            events.setdefault(each[1], []).append(each)
        fields = [self.form.field(self._whole(key)) for key in events]
        bodies = await tables.read(self.name, fields)
        changed: list[Any] = []
        changes: dict[bytes, bytes | None] = {}
        for (key, its), field, body in zip(events.items(), fields, bodies, strict=True):
            sessions = self._followed(self._sessions(field, body), batch, its, late)
            if rows := [each.total for each in sessions if each.has_changed]:
                changed += rows
                changes[field] = self._stored(key, sessions)
        tables.write(self.name, changes)
        return changed

    def _followed(
        self, sessions: list[_Open], batch: Sequence[Any], events: Sequence[Dated], late: Lateness
    ) -> list[_Open]:
        """Return the open sessions of a key after some events."""
        gap_ms, late_ms, fold = self.gap_ms, self.late_ms, self.fold
        for index, _, at_ms, now_ms in events:
            over_ms = now_ms - late_ms - gap_ms
            joins = near(sessions, at_ms, gap_ms, over_ms)
            if joins:
                session = joins[0] if len(joins) == 1 else self._merged(joins)
                if session is not joins[0]:
                    sessions = [*(each for each in sessions if each not in joins), session]
            elif at_ms <= over_ms:
                late[index] = over_ms - at_ms, now_ms
                continue
            else:
                at = moment(at_ms)
                session = _Open(at, at, None)
                sessions.append(session)
            if at_ms < session.start_ms:
                session.start_ms, session.start = at_ms, moment(at_ms)
            elif at_ms > session.end_ms:
                session.end_ms, session.end = at_ms, moment(at_ms)
            record = batch[index]
            try:
                total = fold(session.total, record, Window(session.start, session.end))
            except (Skip, DeadLetter) as policy:
                raise _SetAside(record, policy) from None
            session.total = kept(record) if total is record else total
            session.has_changed = True
        return sessions

    def _merged(self, joins: Sequence[_Open]) -> _Open:
        assert self.merge is not None  # `lacks` has told otherwise.
        first, *others = sorted(joins, key=lambda each: each.start_ms)
        total = reduce(self.merge, (each.total for each in others), first.total)
        return _Open(first.start, max(each.end for each in joins), total)

    def lacks(self) -> ConfigurationError | None:
        """Return an error if nothing says how two sessions become one."""
        if self.merge is not None:
            return None
        return ConfigurationError(
            f"Sessions {self.name!r} have no function that merges two of them.",
            remedy=f"Write @{self.name}.merge above one: an event out of order may join two sessions.",
        )

    def _whole(self, key: Any) -> Any:
        return key if type(key) is tuple or not self.form.names else (key,)

    def _sessions(self, field: bytes, body: bytes | None) -> list[_Open]:
        its: list[OpenSession[Any]] = [] if body is None else self.form.value_of(field, body)
        return [_Open(each.start, each.end, each.total) for each in its]

    def _stored(self, key: Any, sessions: Sequence[_Open]) -> Timed:
        its = sorted(sessions, key=lambda each: each.start_ms)
        body = self.form.body(
            self._whole(key), [OpenSession(each.start, each.end, each.total) for each in its]
        )
        return Timed.at(body, min(each.end_ms for each in its) + self.gap_ms)

    def ended(self, field: bytes, body: bytes, over_ms: int) -> tuple[list[tuple[Any, Window]], bytes | None]:
        """Return the sessions that have ended, and the others."""
        over: list[tuple[Any, Window]] = []
        left: list[_Open] = []
        for each in self._sessions(field, body):
            if each.end_ms + self.gap_ms <= over_ms:
                over.append((each.total, Window(each.start, each.end)))
            else:
                left.append(each)
        return over, self._stored(self.form.key_of(field, body), left) if left else None


_MS = timedelta(milliseconds=1)


def _ms(at: datetime) -> int:
    # What is nearly at the end of a window is in it.
    return (at - EPOCH) // _MS
