"""What one producer was told is in Redis, kept to notice that Redis has gone back behind it.

A server that lost its last second, or a replica that took over without it, says nothing of what is
gone. But it remembers the last number of each producer and partition (decision 0008), and that goes
back with the rest. So the answer to each append tells which number came before it, and a producer whose
numbers go further knows which of its sends are lost.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from streamworker.core.entries import EntryId

APPENDS_REMEMBERED = 512
"""Appends of one partition whose ids can be told. A lane makes some hundred a second at most, and what
a server loses is mostly the last second."""

REMEMBERED_FOR_S = 3_000.0
"""Redis forgets a number an hour after it was used last (``append.lua``). What is older than this is not
taken for lost because it is not remembered."""


@dataclass(frozen=True, slots=True)
class LostSends:
    """Sends of one producer to one partition that were confirmed, and are not in Redis any more."""

    stream: str
    partition: int
    entries: int
    """How many."""
    is_all: bool
    """Whether these are all: only so many appends are remembered, and there may have been more."""
    first: EntryId
    """Id that the first of them had."""
    last: EntryId
    """Id that the last of them had. All that this producer sent in between is lost."""


class _Confirmed(NamedTuple):
    """One append that was confirmed. One is made for each, so it is nothing more than a tuple."""

    number: int
    entries: int
    last: EntryId

    @property
    def first(self) -> EntryId:
        """Id of its first entry: one append is one time, and numbers that follow each other."""
        return EntryId(self.last.ms, self.last.seq - self.entries + 1)


class Ledger:
    """What was confirmed in one partition."""

    __slots__ = ("_appends", "_at_s", "_dropped")

    def __init__(self) -> None:
        self._appends: deque[_Confirmed] = deque()
        self._dropped = 0
        """Number of the last append that is not remembered any more."""
        self._at_s = 0.0

    def confirm(self, number: int, entries: int, last: EntryId) -> None:
        """Note that an append is in Redis."""
        self._appends.append(_Confirmed(number, entries, last))
        self._at_s = time.monotonic()
        if len(self._appends) > APPENDS_REMEMBERED:
            self._dropped = self._appends.popleft().number

    @property
    def may_be_asked(self) -> bool:
        """Whether Redis should remember something of this."""
        return bool(self._appends) and time.monotonic() - self._at_s < REMEMBERED_FOR_S

    def behind(self, stream: str, partition: int, known: int | None) -> LostSends | None:
        """Compare with the last number that Redis knows, None if it knows none; forget what is lost.

        Examples
        --------
        >>> ledger = Ledger()
        >>> ledger.confirm(1, 10, EntryId(5, 9))
        >>> ledger.confirm(2, 3, EntryId(6, 2))
        >>> ledger.behind("orders", 0, 2)
        >>> lost = ledger.behind("orders", 0, 1)
        >>> lost.entries, str(lost.first), str(lost.last), lost.is_all
        (3, '6-0', '6-2', True)
        """
        if not self._appends or self._appends[-1].number <= (known or 0):
            return None
        if known is None and not self.may_be_asked:
            return None
        lost: list[_Confirmed] = []
        while self._appends and self._appends[-1].number > (known or 0):
            lost.append(self._appends.pop())
        first, last = lost[-1], lost[0]
        entries = sum(append.entries for append in lost)
        is_all = bool(self._appends) or self._dropped <= (known or 0)
        return LostSends(stream, partition, entries, is_all, first.first, last.last)
