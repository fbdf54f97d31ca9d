"""Durations and sizes as users write them: one parser for each, for all arguments, settings and commands.

A duration is a number of seconds, a ``timedelta``, or text such as ``"10 seconds"``. A size is a number of
bytes, or text such as ``"10 GB"``. ``"10 m"`` and ``"1 month"`` are refused: the first may be a minute or a
month, and the second has no fixed length. A year has 365 days.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from streamworker.core.rules import NUMBER_MAX
from streamworker.errors import ConfigurationError

Duration: TypeAlias = float | timedelta | str
"""A number of seconds, a ``timedelta``, or text such as ``"200 milliseconds"`` or ``"7 days"``."""
Size: TypeAlias = int | str
"""A number of bytes, or text such as ``"64 KiB"`` or ``"10 GB"``."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENT_MIN_MS = -62_135_596_800_000
MOMENT_MAX_MS = 253_402_300_799_999
"""The first and the last time in ms that a datetime in UTC can hold."""

_TEXT = re.compile(r"\s*(\d[\d_]*(?:\.\d+)?)\s*([a-zA-Z]+)\s*")
_MS = {
    name: ms
    for ms, names in (
        (1, "ms millisecond milliseconds"),
        (1_000, "s second seconds"),
        (60_000, "min minute minutes"),
        (3_600_000, "h hour hours"),
        (86_400_000, "d day days"),
        (604_800_000, "w week weeks"),
        (31_536_000_000, "year years"),
    )
    for name in names.split()
}
_BYTES = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def duration_ms(value: Duration, what: str, *, least_ms: int = 0) -> int:
    """Return in milliseconds a duration that a user wrote for the argument ``what``.

    Raise ConfigurationError if it is no duration, is negative, or is less than ``least_ms``.

    >>> duration_ms("10 seconds", "within"), duration_ms(0.5, "within"), duration_ms("7 days", "retention")
    (10000, 500, 604800000)
    """
    ms: float | None = None
    if isinstance(value, timedelta):
        ms = value.total_seconds() * 1000
    elif isinstance(value, str):
        ms = _number(value, _MS)
    elif type(value) in (int, float) and math.isfinite(value):
        ms = value * 1000
    if ms is None or ms < 0:
        raise ConfigurationError(
            f"{what}={value!r} is no duration.",
            remedy='Write "10 seconds" or "7 days"; in Python also a number of seconds or a timedelta.',
        )
    if not least_ms <= ms <= NUMBER_MAX:
        too = "short" if ms < least_ms else "long"
        raise ConfigurationError(f"{what}={value!r} is too {too}.", remedy=f"Use {least_ms} to 10**12 ms.")
    return round(ms)


def time_ms(at: object, what: str) -> int:
    """Return a time that a user gave for the argument ``what``, in milliseconds since 1970.

    Raise ConfigurationError if it has no zone: it would mean another moment on another machine. Raise it also
    for one that :func:`moment` could not give back.

    >>> from datetime import UTC
    >>> time_ms(datetime(1970, 1, 2, tzinfo=UTC), "at")
    86400000
    """
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise ConfigurationError(
            f"{what}={str(at)!r} has no zone.", remedy="Write datetime(..., tzinfo=ZoneInfo(...)), or UTC."
        )
    ms = round(at.timestamp() * 1000)
    if ms > MOMENT_MAX_MS:
        raise ConfigurationError(
            f"{what}={str(at)!r} is too late.",
            remedy="Use a time before 9999-12-31 23:59:59.999 UTC.",
        )
    return ms


def moment(ms: int) -> datetime:
    """Return a time in UTC; of one that no datetime can hold, the nearest that it can.

    Another program may give an entry any id, such as one in microseconds. So nothing else turns the time of
    an id, or of another number in Redis, into a datetime.

    >>> str(moment(86_400_250)), str(moment(1_795_876_651_099_000))
    ('1970-01-02 00:00:00.250000+00:00', '9999-12-31 23:59:59.999000+00:00')
    """
    return EPOCH + timedelta(milliseconds=max(MOMENT_MIN_MS, min(ms, MOMENT_MAX_MS)))


def size_bytes(value: Size, what: str) -> int:
    """Return in bytes a size that a user wrote for the argument ``what``.

    Raise ConfigurationError if it is no size, or is less than one byte.

    >>> size_bytes("10 GB", "retention"), size_bytes("64 KiB", "cache"), size_bytes(4096, "cache")
    (10000000000, 65536, 4096)
    """
    size = _number(value, _BYTES) if isinstance(value, str) else value if type(value) is int else None
    if size is None or not 1 <= size < math.inf:
        raise ConfigurationError(
            f"{what}={value!r} is no size.",
            remedy='Write a number of bytes, or text such as "64 KiB", "500 MB" or "10 GB".',
        )
    return round(size)


def _number(text: str, units: dict[str, int]) -> float | None:
    found = _TEXT.fullmatch(text)
    if found is None or found[2] not in units:
        return None
    return float(found[1].replace("_", "")) * units[found[2]]


def duration_text(ms: int) -> str:
    """Return a duration as `duration_ms` reads it, in the largest unit that gives a whole number.

    >>> duration_text(604_800_000), duration_text(90_000), duration_text(86_400_000)
    ('7 days', '90 seconds', '1 day')
    """
    units = (
        (31_536_000_000, "year"),
        (86_400_000, "day"),
        (3_600_000, "hour"),
        (60_000, "minute"),
        (1_000, "second"),
        (1, "ms"),
    )
    each, name = next((unit for unit in units if ms and ms % unit[0] == 0), (1_000, "second"))
    return f"{ms // each} {name}{'' if name == 'ms' or ms == each else 's'}"


def lateness_text(ms: int) -> str:
    """Return how late something is, as people say it.

    >>> lateness_text(0), lateness_text(33_600), lateness_text(3_000_000), lateness_text(180_000_000)
    ('0 ms', '33.6 s', '50 minutes', '2.1 days')
    """
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 120_000:
        return f"{ms / 1_000:.1f} s"
    if ms < 7_200_000:
        return f"{ms / 60_000:.0f} minutes"
    return f"{ms / 3_600_000:.1f} hours" if ms < 172_800_000 else f"{ms / 86_400_000:.1f} days"


def size_text(size: int) -> str:
    """Return a size as `size_bytes` reads it, in the largest unit that gives a whole number.

    >>> size_text(10_000_000_000), size_text(65_536), size_text(1_001)
    ('10 GB', '64 KiB', '1001 B')
    """
    whole = [(each, name) for name, each in _BYTES.items() if size % each == 0 and name != "KB"]
    each, name = max(whole)
    return f"{size // each} {name}"
