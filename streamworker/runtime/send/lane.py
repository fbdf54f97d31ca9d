"""One lane of a producer: the entries queued for a partition, in order, and its appends in flight.

Two appends of a lane may be in flight, so that a program encodes while Redis writes. The second names the
append that it follows, and Redis refuses it unless that one was the last that it did. So no entry overtakes
another, whatever happens to the first. Refused entries go back to their position in the lane. A number is
never used again: if a delayed append still arrives, its number is too low and Redis ignores it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Literal, cast

import msgspec

from streamworker.core.data.entries import EntryId
from streamworker.core.pauses import Pauses
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import ConfigurationError, StreamworkerError
from streamworker.records.lists import Run, joined
from streamworker.redisio.data.streams import Append, AppendReply, Packing
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.observing import Observer
from streamworker.runtime.send.ledger import Ledger

OnFull = Literal["wait", "raise"]
"""What a send does if the partition is full."""

Encoded = bytes | tuple[bytes | Mapping[bytes, bytes], Mapping[bytes, bytes] | None]
"""An entry: its payload alone, or its payload or fields together with its headers."""

Piece = tuple[int, Sequence[Encoded], int, int]
"""A partition, entries for it, their bytes, and how many records they hold."""

ROWS_PER_ENTRY_MAX = 10_000_000
APPEND_ENTRIES_MAX = 1_000
"""Maximum entries of one append. It is one script run of 1.4 ms, which blocks Redis (measured)."""
APPEND_BYTES_MAX = 1024 * 1024
AHEAD_ENTRIES = 100
"""A second append starts when this many entries or sends wait. With fewer, the fixed cost of an append is
higher than the gain of not waiting."""
UNDER_WAY_MAX = 2
"""Redis knows the last two (``append.lua``)."""


def bytes_of(fields: Mapping[bytes, bytes]) -> int:
    """Return the bytes of all names and values."""
    return sum(len(name) + len(value) for name, value in fields.items())


class AppendOutcome(Enum):
    """The outcome of an append that has ended."""

    WRITTEN = 1
    NOT_WRITTEN = 2
    """It is not written and never will be: every try was answered."""
    UNKNOWN = 3
    """A try without an answer may have been written, or may still arrive."""


class Part(msgspec.Struct, eq=False, gc=False):
    """Entries of one send for one partition.

    The garbage collector does not look at it: of thousands of concurrent sends it would look at each, again
    and again. No cycle leads through it once its send has ended. For the same reason one entry is held
    without a list.
    """

    entries: Sequence[Encoded]
    """Empty if there is only ``single``."""
    single: Encoded | None
    length: int
    """Number of entries."""
    size: int
    on_full: OnFull
    done: "asyncio.Future[EntryId]"
    order: int
    """Its number among all sends of the lane."""
    records: int
    """How many records its entries hold."""
    taken: int = 0
    """How many of its entries went into appends."""
    waits: bool = True
    """Whether it is in the lane's queue: some of its entries are in no append."""
    queued_s: float = 0.0
    """When it was queued, in an ``ObservedLane``."""

    @property
    def given_up(self) -> bool:
        """Whether the sender no longer waits for it."""
        return self.done.done()

    def refuse(self, error: StreamworkerError) -> None:
        """Report a copy of an error, unless the sender has given up: a shared one collects all tracebacks."""
        if not self.given_up:
            self.done.set_exception(copy(error))
            self.done.exception()  # Without it, asyncio logs the error of a sender that has given up.


class AppendSlice(msgspec.Struct, eq=False, gc=False):
    """The entries of a part that are in one append."""

    part: Part
    start: int
    size: int
    """Number of entries."""
    records: int
    """How many records they hold."""
    is_last: bool
    """Whether the part ends here."""

    @property
    def entries(self) -> Sequence[Encoded]:
        """The entries of the slice."""
        part = self.part
        if part.single is not None:
            return (part.single,)
        return part.entries if self.size == part.length else part.entries[self.start : self.start + self.size]


def check_on_full(value: str) -> None:
    """Raise ConfigurationError if a value is neither: a misspelt ``raise`` would wait without limit."""
    if value not in ("wait", "raise"):
        raise ConfigurationError(f"on_full={value!r} is unknown.", remedy="Use one of: wait, raise.")


@dataclass(slots=True, eq=False)
class Batch:
    """One append: entries of some parts, the last of which may continue in the next append."""

    lane: "Lane"
    number: int = 0
    before: "Batch | None" = None
    """The append that it follows, which was in flight when this one was made. None if there was none, or
    if it does not matter any more."""
    slices: list[AppendSlice] = field(default_factory=list)
    count: int = 0
    """How many records it has."""
    size: int = 0
    unanswered: bool = False
    """Whether a try had no answer: it may have been written, or may still arrive."""
    found_no_room: bool = False
    """Whether a later try was refused because the partition is full."""
    outcome: AppendOutcome | None = None
    """None while it is in flight."""
    answer: AppendReply | None = None
    """Its answer, kept while the outcome of the append that it follows is unknown."""

    @property
    def is_wide(self) -> bool:
        """Whether an entry has several records. If there is no room, each is tried alone, and fits then."""
        return self.count > sum(each.size for each in self.slices)

    @property
    def is_wanted(self) -> bool:
        """Whether a sender still waits for it."""
        return not all(each.part.given_up for each in self.slices)

    def append(self, producer: str, limit: int, pack: Packing = "") -> Append:
        """Return the append command for Redis."""
        first, *others = pieces = [each.entries for each in self.slices]
        if others and all(isinstance(each, Run) for each in pieces):
            first = joined(cast(list[Run], pieces))
        elif others:
            first = [entry for each in pieces for entry in each]
        follows = 0 if self.before is None else self.before.number
        confirmed = self.lane.ledger.confirmed
        return Append(self.lane.partition, producer, self.number, limit, first, follows, pack, confirmed)

    def confirm(self, last_id: EntryId) -> None:
        """Report the ids to the senders: the entries of one append have one time and consecutive numbers."""
        behind = self.count
        for each in self.slices:
            behind -= each.records
            if each.is_last and not (done := each.part.done).done():
                done.set_result(EntryId(last_id.ms, last_id.seq - behind))

    def end(self, outcome: AppendOutcome) -> None:
        """Set the outcome; call it once."""
        self.outcome = outcome
        self.before = self.answer = None  # Otherwise it would keep all earlier appends in memory.
        lane = self.lane
        lane.under_way.remove(self)
        lane.held = bool(lane.under_way) and (lane.held or outcome is not AppendOutcome.WRITTEN)


@dataclass(slots=True)
class Lane:
    """The queue of one partition, and its appends in flight."""

    partition: int
    address: str = ""
    """The Cluster node that has the partition; empty for a single server, and while it is unknown."""
    parts: deque[Part] = field(default_factory=deque)
    under_way: list[Batch] = field(default_factory=list)
    held: bool = False
    """Whether no append may start until those in flight have ended: entries that precede them go back
    into the lane."""
    sends: int = 0
    number: int = 0
    """Number of the last append."""
    room: int = APPEND_ENTRIES_MAX
    """How many entries the next append may have."""
    pauses: Pauses | None = None
    """Backoff between tries while the partition is full; None while it is not."""
    resting: bool = False
    """Whether the partition is full and the lane waits for its backoff."""
    undurable: str = ""
    """Why an append in flight is written but not confirmed."""
    ledger: Ledger = field(default_factory=Ledger)
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the senders. Until Python 3.12 to ask for it is a system call, a tenth of a send."""

    def add(self, entries: Sequence[Encoded], size: int, on_full: OnFull, records: int) -> Part:
        """Append entries to the queue."""
        while self.parts and self.parts[-1].given_up and not self.parts[-1].taken:
            self.parts.pop()  # Otherwise abandoned sends would pile up while nothing can be sent.
        self.sends += 1
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
        length = len(entries)
        single = entries[0] if length == 1 and not isinstance(entries, Run) else None
        held = entries if single is None else ()
        part = Part(held, single, length, size, on_full, self.loop.create_future(), self.sends, records)
        self.parts.append(part)
        return part

    def is_ready(self, *, ahead: bool) -> bool:
        """Whether an append may start now; ``ahead`` allows a second one beside the one in flight."""
        if not self.parts or self.resting:
            return False
        if not self.under_way:
            return True
        if not ahead or self.held or self.pauses is not None:
            return False
        if len(self.under_way) >= UNDER_WAY_MAX or self.under_way[-1].unanswered:
            return False
        first = self.parts[0]
        return len(self.parts) >= AHEAD_ENTRIES or first.length - first.taken >= AHEAD_ENTRIES

    def take(self) -> Batch | None:
        """Make the next append from the queue; None if no sender waits any more."""
        batch = Batch(self, before=self.under_way[-1] if self.under_way else None)
        count = 0
        while self.parts:
            part = self.parts[0]
            left = 0 if part.given_up else part.length - part.taken
            fits = min(left, self.room - count)
            if left and (fits <= 0 or (count and batch.size + part.size > APPEND_BYTES_MAX)):
                break
            if count and fits < left <= self.room and isinstance(part.entries, Run):
                break  # The next append has room for all of it, and a split run is encoded for nothing.
            if left:
                # Where an entry has several records, a part has one entry.
                records = part.records if part.length == 1 else fits
                batch.slices.append(AppendSlice(part, part.taken, fits, records, fits == left))
                batch.count += records
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

    def confirm(self, batch: Batch, last_id: EntryId) -> None:
        """Note that an append is written, and report it to its senders."""
        self.ledger.confirm(batch.number, batch.count, last_id)
        batch.confirm(last_id)

    def found_room(self, room: int) -> None:
        """Note that an append was refused, and for how many entries the partition has room."""
        self.room = min(room, APPEND_ENTRIES_MAX)

    def put_back(self, batch: Batch) -> None:
        """Put the entries of an append that was not written back into the queue, in their order."""
        back = [each.part for each in batch.slices if not each.part.waits]
        for each in batch.slices:
            each.part.taken = min(each.part.taken, each.start)
            each.part.waits = True
        waiting = (part for part in (*back, *self.parts) if not part.given_up)
        self.parts = deque(sorted(waiting, key=lambda part: part.order))


@dataclass(slots=True)
class ObservedLane(Lane):
    """A lane that tells an observer when its records are confirmed."""

    sent: Callable[[float, int, int], None] = lambda *_: None
    """Takes the seconds since the oldest was queued, their number, and how many have waited for room."""
    refused_s: float = 0.0
    """When an append last found no room."""

    def add(self, entries: Sequence[Encoded], size: int, on_full: OnFull, records: int) -> Part:
        """Append entries to the queue."""
        part = Lane.add(self, entries, size, on_full, records)
        part.queued_s = monotonic_s()
        return part

    def confirm(self, batch: Batch, last_id: EntryId) -> None:
        """Note that an append is written, and report it to its senders and the observer."""
        Lane.confirm(self, batch, last_id)
        waited = sum(
            each.records
            for each in batch.slices
            if batch.found_no_room or each.part.queued_s <= self.refused_s
        )
        self.sent(monotonic_s() - batch.slices[0].part.queued_s, batch.count, waited)

    def found_room(self, room: int) -> None:
        """Note that an append was refused, and for how many entries the partition has room."""
        Lane.found_room(self, room)
        self.refused_s = monotonic_s()


def lane_maker(spec: StreamSpec, observer: Observer | None) -> Callable[[int, str], Lane]:
    """Return what makes the lane of a partition, and its address."""
    return Lane if observer is None else partial(ObservedLane, sent=partial(observer.sent, spec))
