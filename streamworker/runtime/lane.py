"""One lane of a producer: what waits for a partition, in order, and the appends under way to it.

Two appends of a lane may be under way, so that a program encodes while Redis writes. The second says
which one it follows, and Redis refuses it unless that one was the last that it did; so whatever
becomes of the first, no entry overtakes another. What Redis refused goes back to its place in the
lane. A number is never used again: an append that is still on its way somewhere finds its turn past.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from streamworker.core.entries import EntryId
from streamworker.redisio.streams import Append, AppendReply
from streamworker.runtime.ledger import Ledger
from streamworker.runtime.pauses import Pauses

OnFull = Literal["wait", "raise"]
"""What a send does at a full partition."""

Encoded = bytes | tuple[bytes | Mapping[bytes, bytes], Mapping[bytes, bytes] | None]
"""The payload of an entry; or payload or fields, and headers."""

APPEND_ENTRIES_MAX = 1_000
"""Entries of one append: one run of a script, 1.4 ms in which Redis serves nobody else (measured)."""
APPEND_BYTES_MAX = 1024 * 1024
AHEAD_ENTRIES = 100
"""A second append is made of this many entries that wait, or so many sends. With fewer, what each append
costs by itself is more than what is won by not waiting."""
UNDER_WAY_MAX = 2
"""Redis knows the last two (``append.lua``)."""


class Outcome(Enum):
    """What became of an append that has ended."""

    WRITTEN = 1
    NOT_WRITTEN = 2
    """And it never will be: every try was answered."""
    UNKNOWN = 3
    """A try without an answer may be there, or still be on its way."""


@dataclass(slots=True, eq=False)
class Part:
    """Entries of one send for one partition."""

    entries: Sequence[Encoded]
    size: int
    on_full: OnFull
    done: "asyncio.Future[EntryId]"
    order: int
    """Its place among all sends of the lane."""
    taken: int = 0
    """How many of its entries went into appends."""
    waits: bool = True
    """Whether it stands in the lane: some of it is in no append."""

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.done.done()


class Slice(NamedTuple):
    """The entries of a part that are in one append."""

    part: Part
    start: int
    size: int
    """In entries."""

    @property
    def is_last(self) -> bool:
        """Whether the part ends here."""
        return self.start + self.size == len(self.part.entries)

    @property
    def entries(self) -> Sequence[Encoded]:
        """The entries."""
        if self.size == len(self.part.entries):
            return self.part.entries
        return self.part.entries[self.start : self.start + self.size]


@dataclass(slots=True, eq=False)
class Batch:
    """One append: entries of some parts, the last of which may go on in the next append."""

    lane: "Lane"
    number: int = 0
    before: "Batch | None" = None
    """The append that it follows, which was under way when it was made; None if none was, or if it
    does not matter any more."""
    slices: list[Slice] = field(default_factory=list)
    size: int = 0
    unanswered: bool = False
    """Whether a try had no answer: it may be there, or still be on its way."""
    found_no_room: bool = False
    """Whether a later try was refused since the partition is full."""
    outcome: Outcome | None = None
    """None while it is under way."""
    answer: AppendReply | None = None
    """What came of it, as long as nobody knows what came of the append that it follows."""

    @property
    def count(self) -> int:
        """How many entries it has."""
        return sum(each.size for each in self.slices)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits for it."""
        return not all(each.part.given_up for each in self.slices)

    def has(self, part: Part) -> bool:
        """Whether some of a part is in it."""
        return any(each.part is part for each in self.slices)

    def append(self, producer: str, limit: int) -> Append:
        """Return what Redis is to do."""
        first, *others = self.slices
        entries = [entry for each in self.slices for entry in each.entries] if others else first.entries
        follows = 0 if self.before is None else self.before.number
        return Append(self.lane.partition, producer, self.number, limit, entries, follows)

    @property
    def is_behind(self) -> bool:
        """Whether the append that it follows has not ended."""
        return self.before is not None and self.before.outcome is None

    def end(self, outcome: Outcome) -> None:
        """Note what became of it; once."""
        self.outcome = outcome
        self.before = self.answer = None  # Or all that ever was would hang on it.
        lane = self.lane
        lane.under_way.remove(self)
        lane.held = bool(lane.under_way) and (lane.held or outcome is not Outcome.WRITTEN)


@dataclass(slots=True)
class Lane:
    """What waits for one partition, and what is under way to it."""

    partition: int
    place: str = ""
    """Which node of a Cluster has the partition; empty for one server, and while it is not known."""
    parts: deque[Part] = field(default_factory=deque)
    under_way: list[Batch] = field(default_factory=list)
    held: bool = False
    """Whether nothing more may go until what is under way has ended: some of what was before it goes
    back into the lane."""
    sends: int = 0
    """How many there were."""
    number: int = 0
    """Of the last append."""
    room: int = APPEND_ENTRIES_MAX
    """Entries that the next append may have."""
    pauses: Pauses | None = None
    """Between tries while the partition is full; None while it is not."""
    resting: bool = False
    """Full, and to be tried again after a pause."""
    undurable: str = ""
    """Why what is under way is not confirmed, though it is there."""
    ledger: Ledger = field(default_factory=Ledger)

    def add(self, entries: Sequence[Encoded], size: int, on_full: OnFull) -> Part:
        """Put entries behind what waits."""
        while self.parts and self.parts[-1].given_up and not self.parts[-1].taken:
            self.parts.pop()  # While nothing can be sent, or they would gather.
        self.sends += 1
        part = Part(entries, size, on_full, asyncio.get_running_loop().create_future(), self.sends)
        self.parts.append(part)
        return part

    def is_ready(self, *, ahead: bool) -> bool:
        """Whether an append may be made now; ``ahead`` if it may be one beside another."""
        if not self.parts or self.resting:
            return False
        if not self.under_way:
            return True
        if not ahead or self.held or self.pauses is not None:
            return False
        if len(self.under_way) >= UNDER_WAY_MAX or self.under_way[-1].unanswered:
            return False
        first = self.parts[0]
        return len(self.parts) >= AHEAD_ENTRIES or len(first.entries) - first.taken >= AHEAD_ENTRIES

    def take(self) -> Batch | None:
        """Make the next append of what waits; None if nobody waits for it any more."""
        batch = Batch(self, before=self.under_way[-1] if self.under_way else None)
        count = 0
        while self.parts:
            part = self.parts[0]
            left = 0 if part.given_up else len(part.entries) - part.taken
            fits = min(left, self.room - count)
            if left and (fits <= 0 or (count and batch.size + part.size > APPEND_BYTES_MAX)):
                break
            if left:
                batch.slices.append(Slice(part, part.taken, fits))
                part.taken += fits
                count += fits
                batch.size += part.size
            if fits < left:
                break
            part.waits = False
            self.parts.popleft()
        if not batch.slices:
            return None
        self.number += 1
        batch.number = self.number
        self.under_way.append(batch)
        return batch

    def put_back(self, batch: Batch) -> None:
        """Let what is in an append that was not written wait again, in its place."""
        back: list[Part] = []
        for part, start, _ in batch.slices:
            part.taken = min(part.taken, start)
            if not part.waits:
                part.waits = True
                back.append(part)
        waiting = (part for part in (*back, *self.parts) if not part.given_up)
        self.parts = deque(sorted(waiting, key=lambda part: part.order))
