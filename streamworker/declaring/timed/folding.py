"""What a processor of windows does with a batch: which windows its records are in, which are late, totals.

The totals are values of a table, which the commit of the batch writes with the end of each. The function that
closes them is called at these ends, by event time (``runtime/run/timed/closing.py``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from streamworker.context import Context, Sending, TablesInCall, tables_in_call
from streamworker.core.policies import DeadLetter, Late
from streamworker.core.time.eventtime import EventTime, passed
from streamworker.core.time.lifetimes import Timed
from streamworker.core.time.windows import Span, Windows, near
from streamworker.core.units import lateness_text, moment
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


class _Dated(NamedTuple):
    """A record that has a key and a time."""

    place: int
    """Its index in the batch."""
    key: tuple[Any, ...]
    at_ms: int
    now_ms: int
    """The event time before it."""


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
        tables = tables_in_call.get()
        assert tables is not None
        found: list[tuple[int, tuple[Any, ...], int]] = []
        for index, record in enumerate(batch):
            at, key = self.at(record), self.stream.key(record)
            if not isinstance(at, datetime) or at.tzinfo is None:
                call.removed[index] = DeadLetter(f"its time is {short(at)}, which is no datetime with a zone")
            elif key is None or (type(key) is tuple and None in key):
                call.removed[index] = DeadLetter("it has no key, and windows are of a key")
            else:
                found.append((index, key if type(key) is tuple else (key,), round(at.timestamp() * 1000)))
        ids = call.entry_ids
        now = EventTime(*call.state.get(EVENT_TIME, ()))
        befores, after = passed(
            now, [at_ms for *_, at_ms in found], [ids[index].ms for index, *_ in found], self.ahead_ms
        )
        if after != now:
            call.state[EVENT_TIME] = list(after)
        dated = [_Dated(*each, before) for each, before in zip(found, befores, strict=True)]
        late: dict[int, int] = {}
        changed = await self.add(batch, dated, late, tables)
        for index, by_ms in late.items():
            call.removed[index] = Late(f"late by {lateness_text(by_ms)}", is_kept=self.late_into is None)
            if self.late_into is not None:
                call.outputs.append(Sending(self.late_into, batch[index], call.headers[index]))
        return changed if self.emits_changes else []

    @abstractmethod
    async def add(
        self, batch: Sequence[Any], dated: Sequence[_Dated], late: dict[int, int], tables: TablesInCall
    ) -> list[Any]:
        """Add records to their windows; return the totals that have changed.

        ``late`` gets the index of each record all of whose windows are over, and by how many ms.
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
        self, batch: Sequence[Any], dated: Sequence[_Dated], late: dict[int, int], tables: TablesInCall
    ) -> list[Any]:
        """Add records to their windows; return the totals that have changed."""
        members: dict[tuple[tuple[Any, ...], Span], list[Any]] = {}
        windows_of, late_ms = self.windows.of, self.late_ms
        for index, key, at_ms, now_ms in dated:
            over_ms = now_ms - late_ms
            spans = windows_of(at_ms)
            if spans[-1].end_ms <= over_ms:
                late[index] = over_ms - spans[-1].end_ms
                continue
            for span in spans:
                if span.end_ms > over_ms:
                    members.setdefault((key, span), []).append(batch[index])
        named = [((*key, moment(span.start_ms), moment(span.end_ms)), span) for key, span in members]
        fields = [self.form.field(key) for key, _ in named]
        bodies = await tables.read(self.name, fields)
        changed: list[Any] = []
        changes: dict[bytes, bytes | None] = {}
        fold, form = self.fold, self.form
        for (key, span), field, body, its in zip(named, fields, bodies, members.values(), strict=True):
            total = None if body is None else form.value_of(field, body)
            window = Window(*key[-2:])
            for record in its:
                total = _own(fold(total, record, window), record)
            changes[field] = Timed.at(form.body(key, total), span.end_ms)
            changed.append(total)
        tables.write(self.name, changes)
        return changed

    def ended(self, field: bytes, body: bytes, over_ms: int) -> tuple[list[tuple[Any, Window]], bytes | None]:  # noqa: ARG002
        """Return the window, which has ended as a whole."""
        return [(self.form.value_of(field, body), Window(*self.form.key_of(field, body)[-2:]))], None


class SessionFolding(Folding):
    """Sessions, which last as long as events come: the open ones of a key are one value."""

    gap_ms: int
    merge: Callable[[Any, Any], Any] | None = None

    async def add(
        self, batch: Sequence[Any], dated: Sequence[_Dated], late: dict[int, int], tables: TablesInCall
    ) -> list[Any]:
        """Add events to their sessions; return the totals that have changed."""
        fields = {key: self.form.field(key if self.form.names else key[0]) for _, key, *_ in dated}
        bodies = await tables.read(self.name, list(fields.values()))
        known: dict[tuple[Any, ...], dict[Span, Any]] = {}
        for (key, field), body in zip(fields.items(), bodies, strict=True):
            known[key] = self._sessions(field, body)
        changed: dict[tuple[tuple[Any, ...], Span], None] = {}
        for index, key, at_ms, now_ms in dated:
            sessions, over_ms = known[key], now_ms - self.late_ms - self.gap_ms
            spans = list(sessions)
            joins = [spans[n] for n in near(spans, at_ms, self.gap_ms, over_ms)]
            if not joins and at_ms <= over_ms:
                late[index] = over_ms - at_ms
                continue
            total = None
            for n, span in enumerate(joins):
                value = sessions.pop(span)
                changed.pop((key, span), None)
                total = self.merge(total, value) if n and self.merge else value
            first = min([at_ms, *(span.start_ms for span in joins)])
            span = Span(first, max([at_ms, *(span.end_ms for span in joins)]))
            window = Window(moment(span.start_ms), moment(span.end_ms))
            sessions[span] = _own(self.fold(total, batch[index], window), batch[index])
            changed[key, span] = None
        tables.write(self.name, {fields[key]: self._stored(key, known[key]) for key, _ in changed})
        return [known[key][span] for key, span in changed]

    def lacks(self) -> ConfigurationError | None:
        """Return an error if nothing says how two sessions become one."""
        if self.merge is not None:
            return None
        return ConfigurationError(
            f"Sessions {self.name!r} have no function that merges two of them.",
            remedy=f"Write @{self.name}.merge above one: an event out of order may join two sessions.",
        )

    def _sessions(self, field: bytes, body: bytes | None) -> dict[Span, Any]:
        its: list[OpenSession[Any]] = [] if body is None else self.form.value_of(field, body)
        return {Span(_ms(each.start), _ms(each.end)): each.total for each in its}

    def _stored(self, key: tuple[Any, ...], sessions: Mapping[Span, Any]) -> Timed:
        value = [
            OpenSession(moment(span.start_ms), moment(span.end_ms), sessions[span])
            for span in sorted(sessions)
        ]
        ends_ms = min(span.end_ms for span in sessions) + self.gap_ms
        return Timed.at(self.form.body(key if self.form.names else key[0], value), ends_ms)

    def ended(self, field: bytes, body: bytes, over_ms: int) -> tuple[list[tuple[Any, Window]], bytes | None]:
        """Return the sessions that have ended, and the others."""
        sessions = self._sessions(field, body)
        over = {span: total for span, total in sessions.items() if span.end_ms + self.gap_ms <= over_ms}
        key = self.form.key_of(field, body)
        left = {span: total for span, total in sessions.items() if span not in over}
        stored = self._stored(key if self.form.names else (key,), left) if left else None
        return [
            (over[span], Window(moment(span.start_ms), moment(span.end_ms))) for span in sorted(over)
        ], stored


def _own(total: Any, record: Any) -> Any:
    """Return a total that is no record, which would change in other windows, too, when it is changed."""
    return kept(total) if total is record else total


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
