"""The decorators of timers: ``@app.timer``, ``@app.cron`` and ``@processor.timer``."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, overload

from streamworker.core.rules import check_values
from streamworker.core.time.schedules import CHOICES, Missed, PlannedTimes, When
from streamworker.core.time.schedules import cron as cron_
from streamworker.core.time.schedules import every as every_
from streamworker.core.units import Duration
from streamworker.declaring.callables import Co, Looked, P, R, Wrapper, look
from streamworker.declaring.functions import check_into, describe, returned_type
from streamworker.declaring.options import ProcessorOptions
from streamworker.declaring.parameters import Parameters, read_parameters
from streamworker.declaring.registry import DeclaringApp
from streamworker.declaring.specs import TIMERS_STREAM, FunctionMode, ProcessorSpec, StreamSpec, TimerSpec
from streamworker.declaring.stream import ByType, IntoStreams, Stream, specs_of
from streamworker.errors import ConfigurationError
from streamworker.records import RecordType
from streamworker.redisio.keys import check_name

O = TypeVar("O")  # noqa: E741 - what goes out


class Timer(Wrapper[P, R]):
    """A function that is called by time, as ``App.timer`` and others make it; calling it calls the function.

    Examples
    --------
    >>> from streamworker import App
    >>> @App("shop").timer(every="1 hour")
    ... def hourly() -> str:
    ...     return "done"
    >>> hourly.name, hourly()
    ('hourly', 'done')
    """

    def __init__(self, spec: TimerSpec, function: Callable[P, R]) -> None:
        super().__init__(function)
        self.spec = spec
        self.name: str = spec.name
        """The function's name, which commands take: ``streamworker timers run-now shop:hourly``."""


class TimerInto(Protocol[O]):
    """A decorator whose function returns what goes to one stream; the function's exact type is kept."""

    @overload
    def __call__(self, function: Callable[P, Co[list[O]]], /) -> Timer[P, Co[list[O]]]: ...
    @overload
    def __call__(self, function: Callable[P, Co[O]], /) -> Timer[P, Co[O]]: ...
    @overload
    def __call__(self, function: Callable[P, Co[O | None]], /) -> Timer[P, Co[O | None]]: ...
    @overload
    def __call__(self, function: Callable[P, list[O]], /) -> Timer[P, list[O]]: ...
    @overload
    def __call__(self, function: Callable[P, O], /) -> Timer[P, O]: ...
    @overload
    def __call__(self, function: Callable[P, O | None], /) -> Timer[P, O | None]: ...


@overload
def timer(
    app: DeclaringApp, *, every: Duration, into: Stream[O], missed: Missed = "skip"
) -> TimerInto[O]: ...
@overload
def timer(
    app: DeclaringApp, *, every: Duration, into: ByType | None = None, missed: Missed = "skip"
) -> Callable[[Callable[P, R]], Timer[P, R]]: ...
def timer(app: DeclaringApp, *, every: Duration, into: IntoStreams = None, missed: Missed = "skip") -> Any:
    """Call a function once a period in the whole application, whichever of its workers live.

    One worker, the leader, runs the timers of an app. It is chosen as the owner of a partition is, and
    another takes over when it dies. The function runs at least once for each planned time; what it
    returns, sends and stores takes effect once. A function that fails is called again, after a pause
    that grows up to a minute.

    Parameters
    ----------
    every
        The period. Planned times are multiples of it since 1970, in UTC.
    into
        The stream that what the function returns goes to, or a stream for each type of row, as for
        ``processor``; each row is sent once, though the worker dies.
    missed
        What becomes of a planned time that nobody ran within a minute, or before the next one:
        ``skip``; ``once``: the newest of them runs; ``all``: each runs, oldest first. Nothing was missed
        before the timer was first deployed.

    Raises
    ------
    ConfigurationError
        If the period is none, or the function takes what nothing fills.

    Examples
    --------
    >>> from datetime import datetime
    >>> from streamworker import App
    >>> app = App("shop")
    >>> @app.timer(every="10 seconds")
    ... async def sweep(at: datetime) -> None: ...
    """
    return timed(app, _of_app, lambda name: every_(every, name), missed, into)


@overload
def cron(
    app: DeclaringApp, spec: str, *, into: Stream[O], tz: str = "UTC", missed: Missed = "skip"
) -> TimerInto[O]: ...
@overload
def cron(
    app: DeclaringApp, spec: str, *, into: ByType | None = None, tz: str = "UTC", missed: Missed = "skip"
) -> Callable[[Callable[P, R]], Timer[P, R]]: ...
def cron(
    app: DeclaringApp, spec: str, *, into: IntoStreams = None, tz: str = "UTC", missed: Missed = "skip"
) -> Any:
    """Call a function at the times of a cron expression, once in the whole application; see ``timer``.

    Parameters
    ----------
    spec
        Minute, hour, day, month and day of the week, as in ``0 6 * * mon``; or six fields, the first of
        which are seconds.
    into, missed
        As for ``timer``.
    tz
        The time zone of the expression, such as ``Europe/Paris``. A time that the zone skips in spring
        runs after the gap, and one that comes twice in autumn runs once.

    Raises
    ------
    ConfigurationError
        If it is no cron expression or time zone, or the function takes what nothing fills.

    Examples
    --------
    >>> from datetime import datetime
    >>> from streamworker import App
    >>> app = App("shop")
    >>> @app.cron("0 6 * * mon", tz="Europe/Paris", missed="once")
    ... async def report(at: datetime) -> None: ...
    """
    return timed(app, _of_app, lambda name: cron_(spec, tz, name), missed, into)


def timed(
    app: DeclaringApp,
    group_of: Callable[[DeclaringApp], ProcessorSpec],
    schedule: Callable[[str], PlannedTimes],
    missed: Missed,
    into: IntoStreams,
    when: When | None = None,
) -> Callable[[Callable[P, R]], Timer[P, R]]:
    """Return the decorator that adds a function to the timers of a group.

    It raises ConfigurationError if the function cannot be called by time.
    """

    def bind(function: Callable[P, R]) -> Timer[P, R]:
        group = group_of(app)
        looked = look(function, "Timer")
        name = check_name("timer", looked.name)
        check_values({"missed": missed, "when": when}, CHOICES, looked.whose)
        parameters = read_parameters(looked, app.registry.resources, at_time=True)
        check_name_is_free(group, name)
        call = call_by_time(group, looked, parameters, into)
        spec = TimerSpec(name=name, schedule=schedule(name), missed=missed, when=when, call=call)
        app.registry.keep(replace(group, timers=(*group.timers, spec)))
        return Timer(spec, function)

    return bind


def check_name_is_free(group: ProcessorSpec, name: str) -> None:
    """Raise ConfigurationError if a group calls another function of this name by time."""
    if any(other.name == name for other in group.by_time):
        whose = f"Processor {group.name!r}" if group.stream.has_records else f"App {group.stream.app!r}"
        raise ConfigurationError(
            f"{whose} has two timers named {name!r}.", remedy="Rename one of the functions."
        )


def call_by_time(
    group: ProcessorSpec, looked: Looked, parameters: Parameters, into: IntoStreams
) -> ProcessorSpec:
    """Return how a group calls a function between two batches; ConfigurationError if ``into`` is wrong."""
    targets, returned = specs_of(into), returned_type(parameters.hints.get("return"))
    check_into(looked.whose, group.stream, targets, returned, None, False)
    return replace(
        group,
        function=looked.function,
        mode=FunctionMode.RECORD,
        is_async=looked.is_async,
        takes="records",
        takes_context=bool(parameters.context),
        parameters=parameters,
        options=replace(group.options, timeout=None, forward=None),
        forward=False,
        output=None,
        into=targets,
        timers=(),
        expiries=(),
    )


def _of_app(app: DeclaringApp) -> ProcessorSpec:
    """Return the group whose stream never holds a record: it is there for the timers of its app."""
    if app.registry.timers is not None:
        return app.registry.timers
    stream = StreamSpec(
        app=app.name,
        name=TIMERS_STREAM,
        record=RecordType.of(_NoRecord),
        key=lambda _: None,
        declared_partitions=1,
        codec="json",
        records_max=0,
        has_records=False,
    )
    return describe(_no_record, stream, ProcessorOptions(name="timers", forward=False))


@dataclass
class _NoRecord:
    none: int = 0


async def _no_record(batch: list[_NoRecord]) -> None: ...
