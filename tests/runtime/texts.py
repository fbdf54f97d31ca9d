"""Kinds of text that others write. The tests run each on each way to Redis and to logs."""

from typing import Any


class Mute(str):
    """Text that cannot be read."""

    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__
    __getitem__ = __str__  # type: ignore[assignment]


HUGE = 10_000_000
TEXTS: dict[str, tuple[Any, str]] = {
    "half of a surrogate pair": ("caf\ud83d", r"caf\ud83d"),
    "NUL": ("a\0b", r"a\u0000b"),
    "other control characters": ("a\x1b[2J\r\nb", r"a\u001b[2J b"),
    "10 MB": ("x" * HUGE, "x" * 900),
    "an object whose `str()` raises": (Mute("mute"), "() of it raises an error, too"),
}
"""Each kind of text, and a part of what is stored in place of it."""
