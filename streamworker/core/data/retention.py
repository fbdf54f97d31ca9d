"""Retention: how long entries stay after all groups and readers have passed them.

A user writes it as a duration, a size, a number of records, or several of them, of which the one that is
reached first counts. It never drops what somebody has not read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from streamworker.core.units import Duration, Size, duration_ms, duration_text, size_bytes, size_text
from streamworker.errors import ConfigurationError

RetentionLike: TypeAlias = Duration | Size | Sequence[Duration | Size]
"""``"7 days"``, a ``timedelta``, ``"10 GB"``, ``"1_000_000 records"``, or a list of such limits."""

_RECORDS = re.compile(r"\s*(\d[\d_]*)\s*records?\s*")


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits of one stream or acked log, over all of its partitions; None for no limit of that kind.

    >>> str(Retention.of(["7 days", "10 GB"], "retention"))
    '7 days, 10 GB'
    """

    ms: int | None = None
    size: int | None = None
    """Bytes of Redis memory."""
    records: int | None = None

    @classmethod
    def of(cls, value: RetentionLike, what: str) -> "Retention":
        """Return what a user wrote for the argument ``what``.

        Raise ConfigurationError if a limit is no duration, size or number of records, or if there are two of
        one kind.
        """
        several = value if isinstance(value, (list, tuple)) else [value]
        limits = [_limit(each, what) for each in several]
        names = [name for name, _ in limits]
        if not names or len(names) != len(set(names)):
            raise ConfigurationError(
                f"{what}={value!r} does not hold one limit of each kind.",
                remedy='Write one duration, one size, one number of records, or a list such as ["7 days", '
                '"10 GB"].',
            )
        return cls(**dict(limits))

    @classmethod
    def parse(cls, text: str) -> "Retention":
        """Return the value of ``str(retention)``, as Redis stores it."""
        return cls.of(text.split(", "), "retention")

    def __str__(self) -> str:
        texts = (
            self.ms is not None and duration_text(self.ms),
            self.size is not None and size_text(self.size),
            self.records is not None and f"{self.records} records",
        )
        return ", ".join(text for text in texts if text)

    @property
    def keeps_nothing(self) -> bool:
        """Whether entries go as soon as all have passed them, as without any retention."""
        return self.ms == 0

    @property
    def is_of_size(self) -> bool:
        """Whether it limits how much is held, besides how old it gets."""
        return self.size is not None or self.records is not None

    def excess(self, *, size: int, records: int) -> float:
        """Return which part of a stream's entries is above the limits by size and by number, 0 to 1.

        Each partition drops this part of its entries, the oldest first. So partitions with the same
        rate keep the same time, whatever their sizes are.

        >>> Retention(records=75).excess(size=0, records=100)
        0.25
        """
        held = ((self.size, size), (self.records, records))
        parts = [1 - limit / now for limit, now in held if limit is not None and now > limit]
        return max(parts, default=0.0)


def _limit(value: object, what: str) -> tuple[str, int]:
    if isinstance(value, str):
        if found := _RECORDS.fullmatch(value):
            return "records", int(found[1])
        try:
            return "size", size_bytes(value, what)
        except ConfigurationError:
            pass
    if isinstance(value, (str, timedelta)):
        try:
            return "ms", duration_ms(value, what)
        except ConfigurationError:
            pass
    raise ConfigurationError(
        f"{what}={value!r} is neither a duration, nor a size, nor a number of records.",
        remedy='Write "7 days", "10 GB", "1_000_000 records", a timedelta, or a list of these. A bare number '
        "is refused: it could be seconds or bytes.",
    )
