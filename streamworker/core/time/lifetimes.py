"""How long a value of a table lives, and what becomes of it then."""

from collections.abc import Mapping
from typing import NamedTuple, Self

from streamworker.core.units import MOMENT_MAX_MS, MOMENT_MIN_MS


class Lifetime(NamedTuple):
    """What a table says about the end of its values."""

    ttl_ms: int = 0
    """How long a value lives after it was written; 0 for ever."""
    is_called: bool = False
    """Whether a function is called at the end of a value, which stays until then."""
    is_event_time: bool = False
    """Whether ends are in the time that records tell, and not in the server's."""


def end_ms(score: bytes) -> int:
    """Return an end by its score in an index, into which another program may have written any.

    >>> end_ms(b"1795383533683"), end_ms(b"1.5"), end_ms(b"-inf")
    (1795383533683, 1, -62135596800000)
    """
    return int(min(max(float(score), MOMENT_MIN_MS), MOMENT_MAX_MS))


Lifetimes = Mapping[str, Lifetime]
"""The tables of a processor, by name."""
NO_TABLES: Lifetimes = {}


class Timed(bytes):
    """A stored value that ends at a time of its own.

    >>> value = Timed.at(b"x", 1_000)
    >>> value, value.until_ms
    (b'x', 1000)
    """

    until_ms: int
    """In ms since 1970."""

    @classmethod
    def at(cls, body: bytes, until_ms: int) -> Self:
        """Return a value with its end."""
        made = cls(body)
        made.until_ms = until_ms
        return made

    def __repr__(self) -> str:
        return repr(bytes(self))
