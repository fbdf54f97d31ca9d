"""Entry ids and entries as Redis stores them, before they are decoded.

Redis orders a stream by ``<ms>-<seq>``, two numbers. As text ``'10-1' < '9-1'``, so this project compares ids
as :class:`EntryId` tuples everywhere and uses the text only for output.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from streamworker.errors import ConfigurationError

SEQUENCE_MAX = 2**64 - 1
"""Both halves of an id are unsigned 64-bit integers."""

_ID = re.compile("([0-9]{1,20})(?:-([0-9]{1,20}))?")


class EntryId(NamedTuple):
    """The id of one entry in a Redis stream; ordered by time, then by sequence.

    Examples
    --------
    >>> EntryId.parse("10-1") > EntryId.parse("9-1")
    True
    >>> str(EntryId(5, 0).successor())
    '5-1'
    """

    ms: int
    """The server's time when it took the entry, in milliseconds since 1970."""
    seq: int
    """Numbers the entries of one millisecond."""

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Read an id as Redis prints it; ``"5"`` means ``"5-0"``.

        Parameters
        ----------
        text
            Such as ``"1732186412345-0"``.

        Raises
        ------
        ConfigurationError
            If it is no id.
        """
        if isinstance(text, bytes):
            text = text.decode("ascii", "replace")
        found = _ID.fullmatch(text)
        ms, seq = (int(found[1]), int(found[2] or 0)) if found else (-1, -1)
        if not (found and ms <= SEQUENCE_MAX and seq <= SEQUENCE_MAX):
            raise ConfigurationError(
                f"{text!r} is not an entry id.",
                remedy="An entry id is two whole numbers with a dash, such as 1732186412345-0.",
            )
        return cls(ms, seq)

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    def successor(self) -> "EntryId":
        """Return the smallest id after this one."""
        if self.seq == SEQUENCE_MAX:
            return EntryId(self.ms + 1, 0)
        return EntryId(self.ms, self.seq + 1)


ZERO = EntryId(0, 0)
"""Lower than the id of every entry: the checkpoint of a group that has committed nothing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a partition: an entry as Redis holds it, or one record of an entry of many."""

    id: EntryId
    fields: Mapping[bytes, bytes]
    size: int
    """Bytes of all field names and values, for byte budgets."""
    origin: Any = field(default=None, compare=False, repr=False)
    """What Redis holds: the entry's names and values in order, or the ``Pack`` of an entry of many."""
