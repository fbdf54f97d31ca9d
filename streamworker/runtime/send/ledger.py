"""A record of the appends that Redis confirmed to one producer, to detect that Redis has lost some.

A server that lost its last second, or a replica that took over without it, does not report what is lost.
But Redis stores the last number of each producer and partition (decision 0008), and loses it together with
the entries. The answer to each append contains the numbers before it. If the producer has confirmed others
between or above these, it knows which of its sends are lost.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamworker.core.data.entries import EntryId
from streamworker.log import get_logger
from streamworker.runtime.clock import monotonic_s

APPENDS_REMEMBERED = 512
"""How many appends of one partition the ledger keeps. A lane makes a few hundred a second at most, and a
server mostly loses the last second."""

LOSSES_KEPT = 1_000

REMEMBERED_FOR_S = 3_000.0
"""Redis forgets a number an hour after its last use (``append.lua``). If the last confirmation is older than
this, a number that Redis does not know is not taken for a loss."""

_log = get_logger("streamworker.producer")


@dataclass(frozen=True, slots=True)
class LostSends:
    """Sends of one producer to one partition that were confirmed, and are not in Redis any more."""

    stream: str
    partition: int
    records: int
    is_all: bool
    """Whether these are all: the ledger keeps a limited number of appends, so more may be lost."""
    first: EntryId
    last: EntryId
    """Id of the last lost record. All records of this producer from the first to this one are lost."""


class _Confirmed(NamedTuple):
    """One confirmed append. It is a plain tuple because the ledger makes one for each append."""

    number: int
    records: int
    last: EntryId


class Ledger:
    """The confirmed appends of one partition."""

    __slots__ = ("_appends", "_at_s", "_dropped")

    def __init__(self) -> None:
        self._appends: deque[_Confirmed] = deque()
        self._dropped = 0
        """Number of the last append that the ledger no longer keeps."""
        self._at_s = 0.0

    def confirm(self, number: int, entries: int, last: EntryId) -> None:
        """Record that Redis has confirmed an append."""
        self._appends.append(_Confirmed(number, entries, last))
        self._at_s = monotonic_s()
        if len(self._appends) > APPENDS_REMEMBERED:
            self._dropped = self._appends.popleft().number

    @property
    def confirmed(self) -> int:
        """Number of the last append that was confirmed; 0 for none."""
        return self._appends[-1].number if self._appends else 0

    @property
    def may_be_asked(self) -> bool:
        """Whether Redis should still know a number of this producer."""
        return bool(self._appends) and monotonic_s() - self._at_s < REMEMBERED_FOR_S

    def behind(self, stream: str, partition: int, numbers: Sequence[int]) -> LostSends | None:
        """Return and forget the appends that Redis does not know, by the numbers that it knows.

        These are in order, the newest first; at the end 0 says that Redis knows of none before.

        >>> ledger = Ledger()
        >>> ledger.confirm(1, 10, EntryId(5, 9))
        >>> ledger.confirm(2, 3, EntryId(6, 2))
        >>> ledger.behind("orders", 0, (2, 1))
        >>> lost = ledger.behind("orders", 0, (4, 1))
        >>> lost.records, str(lost.first), str(lost.last), lost.is_all
        (3, '6-0', '6-2', True)
        """
        if numbers[-1] == 0 and not self.may_be_asked:
            self._appends.clear()  # Redis has forgotten them.
        lost: list[_Confirmed] = []
        for append in reversed(self._appends):
            if append.number <= numbers[-1]:
                break
            if append.number not in numbers:
                lost.append(append)
        if not lost:
            return None
        for append in lost:
            self._appends.remove(append)
        records = sum(append.records for append in lost)
        # The entries of one append have one time and consecutive numbers.
        number, count, (ms, seq) = lost[-1]
        is_all = self._dropped <= next(each for each in numbers if each < number)
        return LostSends(stream, partition, records, is_all, EntryId(ms, seq - count + 1), lost[0].last)


class Losses:
    """The confirmed sends that Redis has lost, as far as the producer has noticed; each is logged once."""

    def __init__(self) -> None:
        self.noted: deque[LostSends] = deque(maxlen=LOSSES_KEPT)

    def note(self, *found: LostSends | None) -> list[LostSends]:
        """Keep and log the losses among what was found, and return them."""
        losses = [lost for lost in found if lost is not None]
        self.noted.extend(losses)
        for lost in losses:
            _log.error(
                "sends_lost",
                stream=lost.stream,
                partition=lost.partition,
                records=lost.records if lost.is_all else f"{lost.records} or more",
                first=str(lost.first),
                last=str(lost.last),
                remedy="Redis lost what it had confirmed. Send these again. `durability` lets it "
                "lose less (docs: durability).",
            )
        return losses
