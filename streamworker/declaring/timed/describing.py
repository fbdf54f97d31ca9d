"""What a user says of windows: how long they are, what the time of a record is, how totals are made."""

import re
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from zoneinfo import ZoneInfo

import msgspec

from streamworker.core.policies import Errors
from streamworker.core.rules import check_values, kind_of
from streamworker.core.time.windows import DAY_MS, Days, Grid, Lengths, Months, Windows
from streamworker.core.units import Duration, duration_ms, moment, time_ms
from streamworker.declaring.callables import Looked, look, refused
from streamworker.declaring.functions import check_into
from streamworker.declaring.options import Start
from streamworker.declaring.stream import Stream, specs_of
from streamworker.declaring.timed.folding import OpenSession, Window
from streamworker.errors import ConfigurationError, did_you_mean
from streamworker.records.statetables import TableForm
from streamworker.records.types import label, read_hint

if TYPE_CHECKING:
    import pyarrow as pa

Emit = Literal["final", "changes"]
Idle = Literal["clock", "never"]
CHOICES = {"emit": kind_of(Emit), "idle": kind_of(Idle)}
STEPS_MAX = 60
"""Windows that one record may be in: each is a value that it changes."""
LONGEST_MS = 731 * DAY_MS
"""Two years: any time then has windows that the calendar holds."""
AHEAD_MAX_MS = 60_000
"""How far ahead of its arrival a record moves event time at most, if nothing else is said."""


class WindowOptions(TypedDict, total=False):
    """Further arguments of ``App.window`` and ``App.session``, as those of ``App.processor``."""

    name: str | None
    batch: int | None
    within: Duration
    batch_bytes: int
    errors: Errors | None
    start: Start
    ahead: Duration
    idle: Idle


class WindowForm(TableForm):
    """The totals of windows by the stream's key, start and end; a key may leave out the end."""

    def __init__(self, table: str, names: tuple[str, ...], value: Any, windows: Windows) -> None:
        super().__init__(table, names, value)
        self._windows = windows
        self.part_types = dict.fromkeys(names[-2:], datetime)

    def field(self, key: Any) -> bytes:
        """Return a key's field, with the end that the windows have now if the key has none."""
        return super().field(self._whole(key))

    def key_in(self, texts: Sequence[str]) -> Any:
        """Return the key that some words of a command line name."""
        given = len(self.names) - len(texts)
        key = super().key_in([*texts, ""] if given == 1 else texts)
        times = [_time_in(self.table, text) for text in key[-2 : len(texts)]]
        return self._whole((*key[:-2], *times))

    def _whole(self, key: Any) -> Any:
        if isinstance(key, tuple) and len(key) == len(self.names) - 1 and isinstance(key[-1], datetime):
            return (*key, moment(self._windows.ends_ms(time_ms(key[-1], "start"))))
        return key


class SessionForm(TableForm):
    """The open sessions of each key; Spark has columns for a class that names the type of the total."""

    def __init__(self, table: str, key: type | tuple[str, ...], total: Any) -> None:
        super().__init__(table, key, list[OpenSession[total]])
        fields = [("start", datetime), ("end", datetime), ("total", total)]
        its = msgspec.defstruct("OpenSession", fields)
        self._shown = TableForm(table, key, list[its])  # type: ignore[valid-type]

    def field(self, key: Any) -> bytes:
        """Return a key's field; the key that a function of the stream makes stands alone, too."""
        return super().field((key,) if len(self.names) == 1 and not isinstance(key, tuple) else key)

    def schema(self, key: Mapping[str, Any]) -> "pa.Schema":
        """Return the columns for Spark."""
        return self._shown.schema(key)


def _time_in(table: str, text: str) -> datetime:
    with suppress(ValueError):
        if (at := datetime.fromisoformat(text)).tzinfo is not None:
            return at
    raise ConfigurationError(
        f"{text!r} is no start or end of a window of {table!r}.",
        remedy="Write a time with a zone, such as 2026-11-28T10:00Z.",
    )


def windows_of(every: Duration, step: Duration | None, tz: str | None) -> Windows:
    """Return the windows that a user has described."""
    size, unit = _size(every, "every")
    each, its_unit = (size, unit) if step is None else _size(step, "step")
    if step is not None and {unit, its_unit} == {"ms", "days"} and tz is None:
        size, each, unit = duration_ms(every, "every"), duration_ms(step, "step"), "ms"  # As long in UTC.
    elif unit != its_unit:
        raise ConfigurationError(
            f"every={every!r} is in {unit}, and step={step!r} in {its_unit}.",
            remedy="Days of a zone step by days and weeks, months by months and years.",
        )
    if size % each:
        raise ConfigurationError(
            f"every={every!r} is no multiple of step={step!r}.",
            remedy='Write every="10 minutes", step="1 minute": each window is some steps long.',
        )
    if size // each > STEPS_MAX:
        raise ConfigurationError(
            f"every={every!r} is {size // each} times step={step!r}: each record is in that many windows.",
            remedy=f"Use at most {STEPS_MAX}: a longer step, or a table by step that readers add up.",
        )
    if tz is not None and unit == "ms":
        raise ConfigurationError(
            f"tz={tz!r} is for days, weeks and months, and every={every!r}.",
            remedy="Leave tz out: shorter windows are counted in UTC.",
        )
    try:
        zone = ZoneInfo(tz or "UTC")
    except (ValueError, OSError, LookupError):
        raise ConfigurationError(
            f"tz={tz!r} is no time zone.", remedy="Write one such as Europe/Paris."
        ) from None
    grid: Grid = Lengths(each) if unit == "ms" else (Days if unit == "days" else Months)(each, zone)
    return Windows(grid, size // each)


def _size(value: Duration, what: str) -> tuple[int, Literal["ms", "days", "months"]]:
    """Return how long a window is, in the unit by which it is counted."""
    months = ms = 0
    if isinstance(value, str) and (found := _MONTHS.fullmatch(value)):
        months = int(found[1]) * (12 if found[2] == "year" else 1)
    else:
        ms = duration_ms(value, what, least_ms=1)
    if months > 24 or ms > LONGEST_MS:
        raise ConfigurationError(f"{what}={value!r} is too long.", remedy="Use at most 2 years.")
    if months:
        return months, "months"
    return (ms // DAY_MS, "days") if ms % DAY_MS == 0 else (ms, "ms")


_MONTHS = re.compile(r"\s*([1-9]\d{0,3})\s*(month|year)s?\s*")


def read_fold(function: Any, stream: Stream[Any], options: WindowOptions) -> tuple[Looked, Any]:
    """Return the function of some windows, and the type of its totals."""
    looked = look(function, "Function", options.get("name"))
    names, hints = list(looked.signature.parameters), looked.hints
    if looked.is_async or len(names) != 3:
        raise refused(
            looked.whose,
            "makes no total.",
            f"Write `def {looked.name}(total: Total | None, record: {stream.spec.record.name}, "
            "window: Window) -> Total`, not async.",
        )
    total = hints.get("return")
    if total in (None, type(None)) or type(None) in typing.get_args(total):
        what = "does not say what it returns" if total in (None, type(None)) else "may return None"
        raise refused(looked.whose, f"{what}.", "Annotate the type of its totals: there is always one.")
    wanted = (total | None, stream.spec.record.python_type, Window)
    for name, right in zip(names, wanted, strict=True):
        if hints.get(name, right) not in (right, Any):
            raise refused(
                looked.whose,
                f"takes `{name}: {label(hints[name])}`.",
                "Annotate them as "
                f"`{label(total)} | None, {stream.spec.record.name}, Window`: total so far, record, window.",
            )
    return looked, total


def key_names(looked: Looked, stream: Stream[Any]) -> tuple[str, ...]:
    """Return the names of the parts of a stream's key; ConfigurationError if it has none."""
    names = stream.spec.key_fields
    if names == ():
        raise refused(
            looked.whose,
            f"has windows, and stream {stream.name!r} has no key.",
            "Give the stream a key: a window is of one key. For one over all records, send them to one key.",
        )
    return ("key",) if names is None else (names,) if isinstance(names, str) else names


def common(
    looked: Looked,
    stream: Stream[Any],
    by: object,
    late: Duration,
    late_into: Stream[Any] | None,
    emit: Emit,
    options: WindowOptions,
) -> dict[str, Any]:
    """Return what all foldings are given."""
    whose, record = looked.whose, stream.spec.record
    for name in options.keys() - WindowOptions.__annotations__.keys():
        meant = did_you_mean(
            name, [*WindowOptions.__annotations__, "into", "emit", "step", "tz", "late_into"]
        )
        raise refused(
            whose, f"has no option {name!r}.", f"{meant}`help(streamworker.App.window)` lists them."
        )
    check_values({"emit": emit, "idle": options.get("idle", "clock")}, CHOICES, whose)
    if isinstance(by, str):
        hint = read_hint(record.hints[by]).base if by in record.fields else None
        if hint is not datetime:
            what = f"is {label(hint)}" if hint else f"is no field of {record.name}"
            raise refused(
                whose,
                f"has by={by!r}, which {what}.",
                "Name a field that is a datetime, or give a function: by=lambda record: record.meta.at.",
            )
    elif not callable(by):
        raise refused(whose, f"has by={by!r}.", "Name a field, or give a function of the record.")
    late_ms = duration_ms(late, "late")
    if late_into is not None:
        if late_into.spec == stream.spec:
            raise refused(whose, f"has late_into={stream.name!r}, which it reads.", "Name another stream.")
        if late_into.spec.record != record:
            raise refused(
                whose,
                f"has late_into={late_into.name!r}, which holds {late_into.spec.record.name}.",
                f"Name a stream of {record.name}: late records go there as they came.",
            )
        check_into(whose, stream.spec, specs_of(late_into), record.python_type, None, False)
    return {
        "name": looked.name,
        "stream": stream.spec,
        "fold": looked.function,
        "at": record.key_function(by),
        "late_ms": late_ms,
        # No further than `late`: others, whose clocks are right, would be late.
        "ahead_ms": duration_ms(options.get("ahead", min(late_ms, AHEAD_MAX_MS) / 1000), "ahead"),
        "late_into": None if late_into is None else late_into.spec,
        "emits_changes": emit == "changes",
    }
