"""``@app.window`` and ``@app.session``: totals of windows by event time."""

import typing
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar, Unpack, overload

from streamworker.context import Context
from streamworker.core.time.lifetimes import Lifetime
from streamworker.core.units import Duration, duration_ms
from streamworker.declaring.callables import look, refused
from streamworker.declaring.functions import describe
from streamworker.declaring.options import ProcessorOptions
from streamworker.declaring.parameters import Parameters, read_parameters
from streamworker.declaring.processors import Processor
from streamworker.declaring.registry import DeclaringApp
from streamworker.declaring.specs import ExpirySpec, WindowSpec
from streamworker.declaring.stream import IntoStreams, Stream, specs_of
from streamworker.declaring.table import Table, become
from streamworker.declaring.timed.describing import (
    Emit,
    SessionForm,
    WindowForm,
    WindowOptions,
    common,
    key_names,
    read_fold,
    windows_of,
)
from streamworker.declaring.timed.expiring import (
    Expired,
    ExpiredInto,
    ExpiredOf,
    check_taken,
    check_types,
    of_pairs,
)
from streamworker.declaring.timed.folding import FixedFolding, Folding, OpenSession, SessionFolding, Window
from streamworker.declaring.timed.timers import call_by_time
from streamworker.records.types import RecordKind, kind_of, label, read_hint

T = TypeVar("T")
A = TypeVar("A")
O = TypeVar("O")  # noqa: E741 - what goes out


class Windowed(Processor[[A | None, T, Window], A], Generic[T, A]):
    """A processor of windows, as ``App.window`` makes it; calling it calls the function itself."""

    open: Table[Any, A]
    """What is open: totals by the stream's key and the start of the window, readable from anywhere.

    Its keys are tuples of the parts of the stream's key, the start and the end; the end may be left out.
    """
    _total: Any

    @overload
    def closed(self, *, into: Stream[O]) -> ExpiredInto[A, Window, O]: ...
    @overload
    def closed(self, *, into: None = None) -> ExpiredOf[A, Window]: ...
    def closed(self, *, into: IntoStreams = None) -> Any:
        """Call a function when a window is over, with its total and the window, once in effect.

        It may be async and take resources, and return a row, a list of rows, or None. What it returns is
        committed with the removal of the window. It is called by the rules of ``Processor.expired``.

        Parameters
        ----------
        into
            The stream that what it returns goes to.

        Raises
        ------
        ConfigurationError
            If the totals are sent already when a window closes, or the function does not fit.

        Examples
        --------
        >>> from datetime import datetime
        >>> import msgspec
        >>> from streamworker import App, Window
        >>> class Reading(msgspec.Struct):
        ...     meter: str
        ...     at: datetime
        ...     degrees: float
        >>> class Alarm(msgspec.Struct):
        ...     meter: str
        ...     degrees: float
        >>> app = App("meters")
        >>> readings = app.stream("readings", Reading, key="meter")
        >>> alarms = app.stream("alarms", Alarm, key="meter")
        >>> @app.window(readings, every="10 minutes", step="1 minute", by="at", late="30 seconds")
        ... def heat(top: Reading | None, reading: Reading, window: Window) -> Reading:
        ...     return reading if top is None or reading.degrees > top.degrees else top
        >>> @heat.closed(into=alarms)
        ... def alarm(top: Reading, window: Window) -> Alarm | None:
        ...     return Alarm(top.meter, top.degrees) if top.degrees > 90 else None
        """
        return self._bound_at_close(into)

    def _bound_at_close(self, into: IntoStreams) -> Callable[[Callable[..., Any]], Any]:
        def bind(function: Callable[..., Any]) -> Any:
            group, looked = self.spec, look(function, "Function")
            [expiry] = group.expiries
            assert expiry.window is not None
            if expiry.window.sends:
                raise refused(
                    looked.whose,
                    f"is called when a window of {self.name!r} closes. Its total is sent then, or another "
                    "function is called.",
                    "Leave out into= where the windows are declared, or call both from one function.",
                )
            first = next(iter(looked.signature.parameters), "")
            takes_many = typing.get_origin(looked.hints.get(first)) is list
            taken = looked if takes_many else of_pairs(looked, "a total and its window")
            if not takes_many:
                check_types(looked, (self._total, Window), f"windows of {self.name!r} have")
            call = call_by_time(group, taken, read_parameters(taken, self._app.registry.resources), into)
            check_taken(looked, into)
            window = replace(expiry.window, sends=True, returns_totals=False)
            spec = replace(expiry, call=call, takes_many=takes_many, window=window)
            self._app.registry.keep(replace(group, expiries=(spec,)))
            return Expired(looked.name, function)

        return bind


class Sessions(Windowed[T, A]):
    """A processor of sessions, as ``App.session`` makes it; calling it calls the function itself."""

    open: Table[Any, list[OpenSession[A]]]  # type: ignore[assignment]
    """What is open: the sessions of each key, readable from anywhere."""
    _folding: SessionFolding

    def merge(self, function: Callable[[A, A], A], /) -> Callable[[A, A], A]:
        """Say what becomes of two sessions that an event joins: the function returns the total of both.

        Parameters
        ----------
        function
            Gets the totals of two sessions of a key, the earlier one first.

        Examples
        --------
        >>> from datetime import datetime
        >>> import msgspec
        >>> from streamworker import App, Window
        >>> class Seen(msgspec.Struct):
        ...     user: str
        ...     at: datetime
        >>> app = App("visits")
        >>> events = app.stream("events", Seen, key="user")
        >>> @app.session(events, gap="30 minutes", by="at", late="5 minutes")
        ... def visits(count: int | None, seen: Seen, window: Window) -> int:
        ...     return (count or 0) + 1
        >>> @visits.merge
        ... def joined(one: int, other: int) -> int:
        ...     return one + other
        >>> joined(2, 3)
        5
        """
        looked = look(function, "Function")
        if looked.is_async or len(looked.signature.parameters) != 2:
            raise refused(looked.whose, "merges no two totals.", "Write `def joined(one, other)`, not async.")
        check_types(looked, (self._total, self._total), f"sessions of {self.name!r} have")
        self._folding.merge = looked.function
        return function


class Opened(Protocol[T]):
    """A decorator of a function whose totals go nowhere, or to a function that ``closed`` declares."""

    def __call__(self, function: Callable[[A | None, T, Window], A], /) -> Windowed[T, A]:
        """Bind the function."""
        ...


class OpenedSessions(Protocol[T]):
    """A decorator of a function whose sessions go nowhere, or to a function that ``closed`` declares."""

    def __call__(self, function: Callable[[A | None, T, Window], A], /) -> Sessions[T, A]:
        """Bind the function."""
        ...


@overload
def window(
    app: DeclaringApp,
    stream: Stream[T],
    *,
    every: Duration,
    by: str | Callable[[T], datetime],
    late: Duration,
    into: Stream[A],
    emit: Emit = "final",
    step: Duration | None = None,
    tz: str | None = None,
    late_into: Stream[T] | None = None,
    **options: Unpack[WindowOptions],
) -> Callable[[Callable[[A | None, T, Window], A]], Windowed[T, A]]: ...
@overload
def window(
    app: DeclaringApp,
    stream: Stream[T],
    *,
    every: Duration,
    by: str | Callable[[T], datetime],
    late: Duration,
    into: None = None,
    emit: Emit = "final",
    step: Duration | None = None,
    tz: str | None = None,
    late_into: Stream[T] | None = None,
    **options: Unpack[WindowOptions],
) -> Opened[T]: ...
def window(
    app: DeclaringApp,
    stream: Stream[Any],
    *,
    every: Duration,
    by: str | Callable[[Any], datetime],
    late: Duration,
    into: Stream[Any] | None = None,
    emit: Emit = "final",
    step: Duration | None = None,
    tz: str | None = None,
    late_into: Stream[Any] | None = None,
    **options: Unpack[WindowOptions],
) -> Any:
    """Bind a function to the windows of a stream's keys, by the times that the records tell.

    The function gets the total of the window so far, or None, a record, and the window, and returns the new
    total. It is a plain function of these three. A window is over when event time has come to its end and
    ``late`` more: then its total is sent, once, and the window is removed in the same commit.

    Parameters
    ----------
    stream
        The stream that is read. It has a key, and windows are of one key each.
    every
        How long a window is: ``"10 minutes"``; ``"1 day"``, ``"1 week"``, ``"1 month"`` or ``"1 year"`` of
        the calendar.
    by
        The field of a record that says when it happened, or a function of the record that returns that: a
        datetime with a zone.
    late
        How much later than others a record may come and still count. A later one becomes a dead letter, or
        goes to ``late_into``. There is no default: it is also how long each result waits.
    into
        The stream that totals go to.
    emit
        ``final``: one row of each window, when it closes. ``changes``: the total of each window that a batch
        has changed, and none when it closes.
    step
        How far apart windows begin; None for windows that follow each other. ``every`` is a multiple of it.
    tz
        The zone of days, weeks and months, such as ``Europe/Paris``; UTC if None.
    late_into
        A stream of the same records, for those that are late.
    **options
        ``ahead``: how far ahead of its arrival a record may move event time: as far as ``late``, and one
        minute at most, if nothing else is said. ``idle``: by ``"clock"`` event time goes on with the server's
        clock once all is committed that a partition holds, and by ``"never"`` only records move it. ``name``,
        ``batch``, ``within``, ``batch_bytes``, ``errors`` and ``start`` are as for ``processor``.

    Raises
    ------
    ConfigurationError
        If the stream has no key, or an argument or the function does not fit.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> import msgspec
    >>> from streamworker import App, Window
    >>> class Order(msgspec.Struct):
    ...     customer: str
    ...     placed_at: datetime
    ...     amount: float
    >>> class Hourly(msgspec.Struct):
    ...     customer: str
    ...     hour: datetime
    ...     spent: float = 0.0
    >>> app = App("shop")
    >>> orders = app.stream("orders", Order, key="customer")
    >>> hourly = app.stream("hourly", Hourly, key="customer")
    >>> @app.window(orders, every="1 hour", by="placed_at", late="10 minutes", into=hourly)
    ... def per_hour(total: Hourly | None, order: Order, window: Window) -> Hourly:
    ...     total = total or Hourly(order.customer, window.start)
    ...     total.spent += order.amount
    ...     return total
    >>> ten, eleven = (datetime(2026, 11, 28, hour, tzinfo=UTC) for hour in (10, 11))
    >>> per_hour(None, Order("ann", ten, 5.0), Window(ten, eleven)).spent
    5.0
    """
    windows = windows_of(every, step, tz)

    def bind(function: Callable[..., Any]) -> Windowed[Any, Any]:
        looked, total = read_fold(function, stream, options)
        names = key_names(looked, stream)
        names += tuple(f"window_{part}" if part in names else part for part in ("start", "end"))
        form = WindowForm(looked.name, names, total, windows)
        folding = FixedFolding(form=form, **common(looked, stream, by, late, late_into, emit, options))
        folding.windows = windows
        made = Windowed[Any, Any](app, looked.name, function)
        return _declared(app, made, folding, total, into, emit, options)

    return bind


@overload
def session(
    app: DeclaringApp,
    stream: Stream[T],
    *,
    gap: Duration,
    by: str | Callable[[T], datetime],
    late: Duration,
    into: Stream[A],
    late_into: Stream[T] | None = None,
    **options: Unpack[WindowOptions],
) -> Callable[[Callable[[A | None, T, Window], A]], Sessions[T, A]]: ...
@overload
def session(
    app: DeclaringApp,
    stream: Stream[T],
    *,
    gap: Duration,
    by: str | Callable[[T], datetime],
    late: Duration,
    into: None = None,
    late_into: Stream[T] | None = None,
    **options: Unpack[WindowOptions],
) -> OpenedSessions[T]: ...
def session(
    app: DeclaringApp,
    stream: Stream[Any],
    *,
    gap: Duration,
    by: str | Callable[[Any], datetime],
    late: Duration,
    into: Stream[Any] | None = None,
    late_into: Stream[Any] | None = None,
    **options: Unpack[WindowOptions],
) -> Any:
    """Bind a function to the sessions of a stream's keys: events that are less than a gap apart.

    It is called as that of ``window`` is. An event out of order may join two sessions, whose totals the
    function that ``merge`` declares makes one of.

    Parameters
    ----------
    stream
        The stream that is read. It has a key, and sessions are of one key each.
    gap
        How long nothing happens between two sessions.
    by, late, into, late_into
        As for ``window``.
    **options
        As for ``window``.

    Raises
    ------
    ConfigurationError
        If the stream has no key, or an argument or the function does not fit.

    Examples
    --------
    >>> from datetime import datetime
    >>> import msgspec
    >>> from streamworker import App, Window
    >>> class Seen(msgspec.Struct):
    ...     user: str
    ...     at: datetime
    >>> class Visit(msgspec.Struct):
    ...     user: str
    ...     pages: int = 0
    >>> app = App("visits")
    >>> events = app.stream("events", Seen, key="user")
    >>> ended = app.stream("ended", Visit, key="user")
    >>> @app.session(events, gap="30 minutes", by="at", late="5 minutes", into=ended)
    ... def visits(visit: Visit | None, seen: Seen, window: Window) -> Visit:
    ...     visit = visit or Visit(seen.user)
    ...     visit.pages += 1
    ...     return visit
    >>> @visits.merge
    ... def joined(one: Visit, other: Visit) -> Visit:
    ...     return Visit(one.user, one.pages + other.pages)
    """
    gap_ms = duration_ms(gap, "gap", least_ms=1)

    def bind(function: Callable[..., Any]) -> Sessions[Any, Any]:
        looked, total = read_fold(function, stream, options)
        if kind_of(total) is RecordKind.PYDANTIC:
            raise refused(
                looked.whose,
                f"makes totals of {label(total)}, a pydantic model, which open sessions cannot hold.",
                "Let it make totals of a msgspec.Struct or a dataclass.",
            )
        names = key_names(looked, stream)
        kind = read_hint(stream.spec.record.hints.get(names[0], tuple)).base
        key: Any = kind if len(names) == 1 and kind is not tuple else names
        form = SessionForm(looked.name, key, total)
        folding = SessionFolding(form=form, **common(looked, stream, by, late, late_into, "final", options))
        folding.gap_ms = gap_ms
        made = Sessions[Any, Any](app, looked.name, function)
        made._folding = folding  # noqa: SLF001
        return _declared(app, made, folding, total, into, "final", options)

    return bind


W = TypeVar("W", bound=Windowed[Any, Any])


def _declared(
    app: DeclaringApp,
    made: W,
    folding: Folding,
    total: Any,
    into: Stream[Any] | None,
    emit: Emit,
    options: WindowOptions,
) -> W:
    """Declare the processor of some windows, and the table of what is open."""
    name, stream = folding.name, folding.stream
    if emit == "changes" and into is None:
        raise refused(f"Function {name!r}", 'has emit="changes" without into=.', "Name the stream in into=.")
    if stream.app != app.name:
        raise refused(
            f"Function {name!r}",
            f"has windows of stream {stream.name!r} of app {stream.app!r}.",
            "Declare them with the app of the stream.",
        )

    async def handle(batch: list[Any], ctx: Context) -> list[Any]:
        return await folding.handle(batch, ctx)

    handle.__name__ = handle.__qualname__ = name
    record: Any = stream.record.python_type
    handle.__annotations__ = {"batch": list[record], "ctx": Context, "return": list[total]}
    own = {key: value for key, value in options.items() if key in ProcessorOptions.__annotations__}
    told = ProcessorOptions(**{**own, "name": name, "forward": False})  # type: ignore[arg-type]
    changes_into = specs_of(into) if emit == "changes" else None
    spec = describe(handle, stream, told, into=changes_into)
    app.registry.check_new("processors", name, "Give one of them another name: name=...")
    app.registry.check_new("tables", name, "Give the windows another name: name=...")
    table = Table[Any, Any](app, name, folding.form, 0)
    written = table.written_by(spec)
    of_window = replace(written, lifetime=Lifetime(0, is_called=True, is_event_time=True))
    become(table, of_window)
    app.registry.tables[name] = made.open = table
    made._total = total  # noqa: SLF001
    spec = replace(spec, tables=(of_window,))
    at_close = None if emit == "changes" else into
    totals = look(_same, "Function", name)
    expiry = ExpirySpec(
        name=name,
        table=of_window,
        call=call_by_time(spec, totals, Parameters(record="pair", hints={"return": total}), at_close),
        takes_many=False,
        window=WindowSpec(
            late_ms=folding.late_ms,
            by_clock=options.get("idle", "clock") == "clock",
            ended=folding.ended,
            returns_totals=True,
            sends=at_close is not None,
            late_into=folding.late_into,
            lacks=folding.lacks,
        ),
    )
    app.registry.keep(replace(spec, expiries=(expiry,)))
    return made


async def _same(pair: tuple[Any, Window]) -> Any:
    return pair[0]
