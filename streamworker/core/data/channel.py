"""The appends of one producer to one partition that are in flight, and what their answers mean.

Rules of this file: numbers and answers in, verdicts out. The code touches no record, clock or task.

The theory
----------
A producer numbers its appends to a partition, and never uses a number again. Each append names the number
that it follows. The partition keeps the number at which it *stands*, that of the last append that it wrote,
and takes an append only if it stands where that append follows. So these hold, whatever the network does:

1. No append overtakes another: the second of two in flight follows the first.
2. An append that is repeated unchanged is written once. Without an answer it may have been written, or may
   still arrive, so its entries stay together under its number. Only an append of which each try was answered
   is put back and cut anew.
3. If an append is not written and never will be, what follows it never will be either: it is put back, too.
4. A partition that stands behind what it had confirmed has lost that. It says where it stands, and the
   append that was refused goes on from there.
5. What a partition may have forgotten is not sent again as it was. An append that has had no answer for too
   long asks, by following itself: the partition has it, or refuses it. If the partition knows nothing of the
   producer any more, nobody can tell whether it was written, and the append ends.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from streamworker.core.data.entries import EntryId
from streamworker.errors import BackendError

IN_FLIGHT_MAX = 2
"""A partition knows the last two appends of a producer (``append.lua``)."""

APPENDS_REMEMBERED = 512
"""How many appends of one partition the ledger keeps. A lane makes a few hundred a second at most, and a
server mostly loses the last second."""

REMEMBERED_FOR_S = 3_000.0
"""Redis forgets a number an hour after its last use (``append.lua``). If the last confirmation is older than
this, a number that Redis does not know is not taken for a loss. If a try without an answer is older, Redis
may have taken it and forgotten it."""


class AppendCode(Enum):
    """The result of an append."""

    OK = "OK"
    DUP = "DUP"
    """An earlier try wrote the entries."""
    FULL = "FULL"
    """Nothing was written: the partition is at its limit, and a group still needs all of it."""
    OTHER = "OTHER"
    """Nothing was written: the partition stands elsewhere than the append follows. For a record with an id:
    another one of that id is there."""
    SEALED = "SEALED"
    """Nothing was written: the append follows all that the partition took, which takes nothing any more."""
    REFUSED = "REFUSED"
    """Nothing was written: Redis refused, and ``error`` says why."""
    UNKNOWN = "UNKNOWN"
    """The entries may or may not be written, or may still be lost; ``error`` says why. Send the append
    again, unchanged."""


@dataclass(frozen=True, slots=True)
class AppendReply:
    """The reply to whatever is appended once: a producer's append, a message, a record with an id."""

    code: AppendCode
    value: bytes = b""
    """Id of the last entry; with ``OTHER`` where the partition stands. For a record with an id, the id of the
    entry that is there."""
    length: int = 0
    """Records in the partition now that count against the limit."""
    error: BackendError | None = None

    @property
    def is_there(self) -> bool:
        """Whether it was written, by this try or an earlier one."""
        return self.code in (AppendCode.OK, AppendCode.DUP)

    @property
    def is_refused(self) -> bool:
        """Whether its source is told why, in ``error``."""
        return self.code in (AppendCode.REFUSED, AppendCode.SEALED)

    @property
    def last_id(self) -> EntryId | None:
        """Id of the last entry of an append; None if nothing was written."""
        return EntryId.parse(self.value) if self.is_there else None


class AppendVerdict(Enum):
    """What an answer means for an append."""

    WRITTEN = "written"
    NOT_WRITTEN = "not written"
    """It is not written and never will be: every try was answered."""
    SEALED = "sealed"
    """It is not written and never will be: the partition takes no more, and an earlier try never came."""
    REFUSED = "refused"
    """Redis refused it. An earlier try without an answer may still be written."""
    REPEAT = "repeat"
    """Send it again, unchanged."""
    FORGOTTEN = "forgotten"
    """It may have been written, and never will be now: the partition has forgotten the producer."""
    KEPT = "kept"
    """Its answer waits until the append before it has ended: senders get their answers in order."""


class InFlight:
    """An append that has not ended."""

    __slots__ = ("answer", "follows", "has_ended", "is_early", "number", "tried_s", "unanswered")

    def __init__(self) -> None:
        self.number = 0
        self.follows = 0
        self.unanswered = False
        """Whether a try had no answer: it may have been written, or may still arrive."""
        self.tried_s: float | None = None
        """When its first try began, of those since the partition was last known to remember the producer."""
        self.answer: AppendReply | None = None
        """Its answer, while that is kept."""
        self.is_early = False
        """Whether the try under way was begun before the append that it follows had ended."""
        self.has_ended = False


A = TypeVar("A", bound=InFlight)


class Channel(Generic[A]):
    """The appends of one producer to one partition.

    >>> channel, first, second = Channel[InFlight](), InFlight(), InFlight()
    >>> channel.begin(first), channel.begin(second)
    (None, None)
    >>> done = AppendReply(AppendCode.OK)
    >>> channel.answered(second, done), channel.answered(first, done)
    (<AppendVerdict.KEPT: 'kept'>, <AppendVerdict.WRITTEN: 'written'>)
    >>> channel.end(first) == (second, done)
    True
    """

    def __init__(self) -> None:
        self.number = 0
        """Number of the last append."""
        self.stands = 0
        """Where the partition stands, as far as its answers tell."""
        self.in_flight: list[A] = []

    def begin(self, append: A) -> None:
        """Number the next append; it follows the last one."""
        append.follows = self.in_flight[-1].number if self.in_flight else self.stands
        self.number += 1
        append.number = self.number
        self.in_flight.append(append)

    def tries(self, append: A, now_s: float) -> None:
        """Note that a try begins, the first or a further one."""
        if append.tried_s is None:
            append.tried_s = now_s
        elif append.unanswered and now_s - append.tried_s >= REMEMBERED_FOR_S:
            append.follows = append.number  # It asks whether it is there.

    def answered(self, append: A, reply: AppendReply) -> AppendVerdict:
        """Take in the answer to an append that has not ended.

        The caller then calls ``end`` for one that was written or is given up, and ``put_back`` for one that
        was not written, or is sealed.
        """
        is_early, append.is_early = append.is_early, False
        if reply.code is AppendCode.UNKNOWN:
            append.unanswered = True
            return AppendVerdict.REPEAT
        if reply.code is AppendCode.FULL and append.unanswered:
            return AppendVerdict.REPEAT  # The try without an answer may still arrive.
        if append is not self.in_flight[0]:
            append.answer = reply
            return AppendVerdict.KEPT
        if reply.code is AppendCode.OTHER:
            stands = int(reply.value)
            if append.follows == append.number:
                if not stands:
                    return AppendVerdict.FORGOTTEN
                append.tried_s = None
            if not is_early:
                self.stands = append.follows = stands
            return AppendVerdict.REPEAT
        if reply.is_refused:
            is_sealed = reply.code is AppendCode.SEALED
            return AppendVerdict.SEALED if is_sealed else AppendVerdict.REFUSED
        if reply.code is AppendCode.FULL:
            return AppendVerdict.NOT_WRITTEN
        self.stands = append.number
        return AppendVerdict.WRITTEN

    def end(self, append: A) -> tuple[A, AppendReply | None] | None:
        """End an append that was written, or that nobody waits for any more.

        Return the append behind it if its answer was kept, and the answer; None if that says nothing any
        more, and the append must be sent again.
        """
        self._end(append)
        if not self.in_flight:
            return None
        behind = self.in_flight[0]
        reply, behind.answer = behind.answer, None
        if reply is None:
            behind.is_early = True
            return None
        if reply.code is AppendCode.OTHER:
            return behind, None  # It overtook the append that it follows.
        if append.unanswered and reply.is_there:
            # The append before it was repeated, so this earlier answer may be from before a failover.
            behind.unanswered = True
            return behind, None
        return behind, reply

    def put_back(self, append: A) -> list[A]:
        """End an append that is not written and never will be, and all behind it; return them in order."""
        back = self.in_flight[self.in_flight.index(append) :]
        for each in back:
            self._end(each)
        return back

    def _end(self, append: A) -> None:
        append.has_ended = True
        self.in_flight.remove(append)


# -- what is lost --------------------------------------------------------------------------------


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
    """The confirmed appends of one partition, by which a producer knows what Redis has lost.

    A server that lost its last second, or a replica that took over without it, does not report what is lost.
    But Redis keeps the last number of each producer and partition (decision 0008), and loses it together with
    the entries.
    """

    __slots__ = ("_appends", "_at_s", "_dropped")

    def __init__(self) -> None:
        self._appends: deque[_Confirmed] = deque()
        self._dropped = 0
        """Number of the last append that the ledger no longer keeps."""
        self._at_s = 0.0

    def confirm(self, number: int, records: int, last: EntryId, now_s: float) -> None:
        """Record that Redis has confirmed an append."""
        self._appends.append(_Confirmed(number, records, last))
        self._at_s = now_s
        if len(self._appends) > APPENDS_REMEMBERED:
            self._dropped = self._appends.popleft().number

    def may_be_asked(self, now_s: float) -> bool:
        """Whether Redis should still know a number of this producer."""
        return bool(self._appends) and now_s - self._at_s < REMEMBERED_FOR_S

    def behind(self, stream: str, partition: int, stands: int, now_s: float) -> LostSends | None:
        """Return and forget the appends after the number at which a partition stands.

        >>> ledger = Ledger()
        >>> ledger.confirm(1, 10, EntryId(5, 9), now_s=0)
        >>> ledger.confirm(2, 3, EntryId(6, 2), now_s=0)
        >>> ledger.behind("orders", 0, 2, now_s=1)
        >>> lost = ledger.behind("orders", 0, 1, now_s=1)
        >>> lost.records, str(lost.first), str(lost.last), lost.is_all
        (3, '6-0', '6-2', True)
        """
        if stands == 0 and not self.may_be_asked(now_s):
            self._appends.clear()  # Redis has forgotten them.
        lost: list[_Confirmed] = []
        while self._appends and self._appends[-1].number > stands:
            lost.append(self._appends.pop())
        if not lost:
            return None
        records = sum(append.records for append in lost)
        # The entries of one append have one time and consecutive numbers.
        _, count, (ms, seq) = lost[-1]
        is_all = self._dropped <= stands
        return LostSends(stream, partition, records, is_all, EntryId(ms, seq - count + 1), lost[0].last)
