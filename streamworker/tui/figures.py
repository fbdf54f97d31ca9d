"""Formats numbers and times as short text, for tables and the live view."""

from contextlib import suppress
from datetime import tzinfo

from streamworker.core.snapshot import PartitionView, ReaderView
from streamworker.core.units import MOMENT_MAX_MS, MOMENT_MIN_MS, moment
from streamworker.core.words import counted

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_BARS = " ▁▂▃▄▅▆▇█"


def compact(number: float | None) -> str:
    """Format a number in at most four characters; None as a dash.

    >>> [compact(n) for n in (None, 0, 7, 999, 1_200, 33_677, 999_999, 4_200_000)]
    ['-', '0', '7', '999', '1.2k', '34k', '1.0M', '4.2M']
    """
    if number is None:
        return "-"
    if 0 < number < 0.5:
        return "<1"
    for size, unit in _UNITS:
        # 999,600 would round to 1000k, which has five characters, so it uses the next unit.
        if number >= size * 0.9995:
            scaled = number / size
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return str(round(number))


def tight(number: float | None) -> str:
    """Format a number in at most three characters, for narrow columns.

    >>> [tight(n) for n in (None, 999, 1_200, 99_400, 99_600, 449_000, 4_200_000, 42_000_000)]
    ['-', '999', '1k', '99k', '.1M', '.4M', '4M', '42M']
    """
    text = compact(number)
    if len(text) <= 3 or number is None:
        return text
    for size, unit in _UNITS:
        if number >= size * 99.5 / 1000:
            scaled = number / size
            return f"{scaled:.0f}{unit}" if scaled >= 0.95 else f".{max(1, round(scaled * 10))}{unit}"
    return text


def per_second(rate: float | None) -> str:
    """Format a rate, such as ``1.2k/s``."""
    return f"{compact(rate)}/s"


def end_of(name: str, width: int) -> str:
    """Return a name in at most so many characters; a longer one by its end, which tells workers apart.

    >>> end_of("worker-1", 9), end_of("price-6d4f-worker-1", 9)
    ('worker-1', '…worker-1')
    """
    return name if len(name) <= width else f"…{name[1 - width :]}"


def duration(ms: int | None) -> str:
    """Format a duration with two units at most.

    >>> [duration(ms) for ms in (None, 38, 1_250, 61_000, 7_260_000, 200_000_000)]
    ['-', '38 ms', '1.2 s', '1 m 01 s', '2 h 01 m', '2 d 07 h']
    """
    if ms is None:
        return "-"
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms // 100 / 10:.1f} s"
    seconds = ms // 1_000
    if seconds < 3_600:
        return f"{seconds // 60} m {seconds % 60:02d} s"
    if seconds < 86_400:
        return f"{seconds // 3_600} h {seconds % 3_600 // 60:02d} m"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3_600:02d} h"


def local_time(ms: int, timespec: str = "seconds", zone: tzinfo | None = None) -> str:
    """Write a time of the server in a time zone, by default this machine's; beyond the year 9999 in ms."""
    with suppress(OverflowError):  # Just before the end of the last year, to the east of Greenwich.
        if MOMENT_MIN_MS <= ms <= MOMENT_MAX_MS:
            return moment(ms).astimezone(zone).isoformat(sep=" ", timespec=timespec)
    return f"{ms} ms since 1970"


def state_of(view: PartitionView) -> str:
    """Say the state of a partition: that nobody owns it matters more than who did."""
    return "no worker" if view.state == "unowned" else view.state


def held_up(view: PartitionView, now_ms: int, zone: tzinfo | None = None) -> str:
    """Say what holds a partition up: a pause, a failing record, or the reason in its lock; mostly nothing."""
    if view.pause is None and view.retry is not None:
        since = local_time(view.retry.since_ms, zone=zone)
        next_in = duration(max(0, view.retry.next_ms - now_ms))
        return f"since {since} (attempt {view.retry.attempt}, next in {next_in}): {view.reason}"
    if view.pause is None:
        return view.reason
    why = f' "{view.pause.why}"' if view.pause.why else ""
    state = "pausing" if view.state == "pausing" else "paused"
    return f"{state} by {view.pause.by} at {local_time(view.pause.at_ms, zone=zone)}{why}"


def failure(view: ReaderView, now_ms: int) -> str:
    """Say when a reader's query failed, and why; nothing if it has read since."""
    return f"FAILED {duration(max(0, now_ms - view.failed_ms))} ago: {view.failed}" if view.failed else ""


def memory(size: float | None) -> str:
    """Format a number of bytes; None as a dash.

    >>> memory(900), memory(6_100_000), memory(None)
    ('900 B', '6.1 MB', '-')
    """
    if size is None:
        return "-"
    figure = compact(size)
    return f"{figure} B" if figure[-1].isdigit() else f"{figure[:-1]} {figure[-1]}B"


def bar(value: float | None, largest: float) -> str:
    """Return a bar character whose height shows ``value`` relative to ``largest``."""
    if not value or largest <= 0:
        return _BARS[0]
    return _BARS[max(1, min(8, round(8 * value / largest)))]


def dropped(view: ReaderView) -> str:
    """Say how many rows a reader's query dropped as late; nothing if none."""
    if not view.dropped_rows:
        return ""
    return f"dropped {counted(view.dropped_rows, 'row')} that came after its watermark"
