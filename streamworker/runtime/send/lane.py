"""One lane of a producer: the entries queued for a partition, in order, and its appends in flight.

Two appends of a lane may be in flight, so that a program encodes while Redis writes; ``core/data/channel.py``
says what their answers mean. Entries that are not written go back to their position in the lane.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Literal, cast

import msgspec

from streamworker.core.data.channel import IN_FLIGHT_MAX, Channel, InFlight, Ledger
from streamworker.core.data.entries import EntryId
from streamworker.core.pauses import Pauses
from streamworker.errors import ConfigurationError, StreamworkerError
from streamworker.records.lists import Run, joined
from streamworker.redisio.data.streams import Append, Packing
from streamworker.runtime.clock import monotonic_s

OnFull = Literal["wait", "raise"]
"""What a send does if the partition is full."""

Encoded = bytes | tuple[bytes | Mapping[bytes, bytes], Mapping[bytes, bytes] | None]
"""An entry: its payload alone, or its payload or fields together with its headers."""

Piece = tuple[int, Sequence[Encoded], int, int]
"""A partition, entries for it, their bytes, and how many records they hold."""

Sent = Callable[[float, int, int], None]
"""Takes of records that are confirmed: the seconds since the oldest was queued, their number, and how many
have waited for room."""

ROWS_PER_ENTRY_MAX = 10_000_000
APPEND_ENTRIES_MAX = 1_000
"""Maximum entries of one append. It is one script run of 1.4 ms, which blocks Redis (measured)."""
APPEND_BYTES_MAX = 1024 * 1024
AHEAD_ENTRIES = 100
"""A second append starts when this many entries or sends wait. With fewer, the fixed cost of an append is
higher than the gain of not waiting."""


def bytes_of(fields: Mapping[bytes, bytes]) -> int:
    """Return the bytes of all names and values."""
    return sum(len(name) + len(value) for name, value in fields.items())


class Part(msgspec.Struct, eq=False, gc=False):
    """Entries of one send for one partition, or some of them.

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
    records: int
    """How many records its entries hold."""
    is_last: bool = True
    """Whether the send ends here."""
    partition: int = 0
    """For which partition it is; another one once it was moved there."""
    queued_s: float = 0.0
    """When it was queued, if the lane has an observer."""

    @property
    def given_up(self) -> bool:
        """Whether the sender no longer waits for it."""
        return self.done.done()

    def refuse(self, error: StreamworkerError) -> None:
        """Report a copy of an error, unless the sender has given up: a shared one collects all tracebacks."""
        if not self.given_up:
            self.done.set_exception(copy(error))
            self.done.exception()  # Without it, asyncio logs the error of a sender that has given up.

    def split(self, count: int) -> "tuple[Part, Part]":
        """Return the first entries, and the others, of a part in which each entry is one record."""
        head = msgspec.structs.replace(
            self, entries=self.entries[:count], length=count, records=count, is_last=False
        )
        rest = self.length - count
        return head, msgspec.structs.replace(self, entries=self.entries[count:], length=rest, records=rest)


def shared(parts: Sequence[Part], by: Mapping[int, list[Encoded]]) -> Sequence[Part]:
    """Return the parts of one send as parts for some partitions; the send is done when all of these are."""
    if len(by) == 1:
        for part in parts:
            (part.partition,) = by
        return parts
    whole, left = parts[-1], len(by)
    size, length = sum(part.size for part in parts), sum(part.length for part in parts)

    def ended(its: "asyncio.Future[EntryId]") -> None:
        nonlocal left
        left -= 1
        if whole.given_up or its.cancelled():
            return
        if (error := its.exception()) is not None:
            whole.done.set_exception(error)
            whole.done.exception()
        elif not left:
            whole.done.set_result(its.result())

    shares = [
        msgspec.structs.replace(
            whole, entries=its, single=None, length=len(its), records=len(its), partition=partition,
            size=size * len(its) // length, done=asyncio.get_running_loop().create_future(),
        )
        for partition, its in by.items()
    ]  # fmt: skip
    for share in shares:
        share.done.add_done_callback(ended)
    whole.done.add_done_callback(lambda _: [share.done.cancel() for share in shares])
    return shares


def check_on_full(value: str) -> None:
    """Raise ConfigurationError if a value is neither: a misspelt ``raise`` would wait without limit."""
    if value not in ("wait", "raise"):
        raise ConfigurationError(f"on_full={value!r} is unknown.", remedy="Use one of: wait, raise.")


class Batch(InFlight):
    """One append."""

    __slots__ = ("count", "found_no_room", "lane", "parts", "size")

    def __init__(self, lane: "Lane") -> None:
        super().__init__()
        self.lane = lane
        self.parts: list[Part] = []
        self.count = 0
        """How many records it has."""
        self.size = 0
        self.found_no_room = False
        """Whether a try after one without an answer was refused because the partition is full."""

    @property
    def is_wide(self) -> bool:
        """Whether an entry has several records. If there is no room, each is tried alone, and fits then."""
        return self.count > sum(part.length for part in self.parts)

    @property
    def is_wanted(self) -> bool:
        """Whether a sender still waits for it."""
        return not self.has_ended and not all(part.given_up for part in self.parts)

    def append(self, producer: str, limit: int, pack: Packing = "") -> Append:
        """Return the append command for Redis."""
        pieces = [part.entries if part.single is None else (part.single,) for part in self.parts]
        first, *others = pieces
        if others and all(isinstance(each, Run) for each in pieces):
            first = joined(cast(list[Run], pieces))
        elif others:
            first = [entry for each in pieces for entry in each]
        return Append(self.lane.partition, producer, self.number, limit, first, self.follows, pack)

    def confirm(self, last_id: EntryId) -> None:
        """Report the ids to the senders: the entries of one append have one time and consecutive numbers."""
        behind = self.count
        for part in self.parts:
            behind -= part.records
            if part.is_last and not (done := part.done).done():
                done.set_result(EntryId(last_id.ms, last_id.seq - behind))


class Lane(Channel[Batch]):
    """The queue of one partition, and its appends in flight."""

    def __init__(self, partition: int, address: str = "", sent: Sent | None = None) -> None:
        super().__init__()
        self.partition = partition
        self.address = address
        """The Cluster node that has the partition; empty for a single server, and while it is unknown."""
        self.parts: deque[Part] = deque()
        self.room = APPEND_ENTRIES_MAX
        """How many entries the next append may have."""
        self.pauses: Pauses | None = None
        """Backoff between tries while the partition is full; None while it is not."""
        self.is_sealed = False
        """Whether the partition takes no more, so that what is queued waits for the stream's map."""
        self.resting = False
        """Whether the partition is full and the lane waits for its backoff."""
        self.undurable = ""
        """Why an append in flight is written but not confirmed."""
        self.ledger = Ledger()
        self._sent = sent
        self._refused_s = 0.0
        """When an append last found no room."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """That of the senders. Until Python 3.12 to ask for it is a system call, a tenth of a send."""

    def add(self, entries: Sequence[Encoded], size: int, on_full: OnFull, records: int) -> Part:
        """Append entries to the queue."""
        while self.parts and self.parts[-1].given_up:
            self.parts.pop()  # Otherwise abandoned sends would pile up while nothing can be sent.
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        length = len(entries)
        single = entries[0] if length == 1 and not isinstance(entries, Run) else None
        held = entries if single is None else ()
        part = Part(held, single, length, size, on_full, self._loop.create_future(), records)
        part.partition = self.partition
        if self._sent is not None:
            part.queued_s = monotonic_s()
        self.parts.append(part)
        return part

    def is_ready(self, *, ahead: bool) -> bool:
        """Whether an append may start now; ``ahead`` allows a second one beside the one in flight."""
        if not self.parts or self.resting or self.is_sealed:
            return False
        if not self.in_flight:
            return True
        if not ahead or self.pauses is not None:
            return False
        if len(self.in_flight) >= IN_FLIGHT_MAX or self.in_flight[-1].unanswered:
            return False
        return len(self.parts) >= AHEAD_ENTRIES or self.parts[0].length >= AHEAD_ENTRIES

    def take(self) -> Batch | None:
        """Make the next append from the queue; None if no sender waits any more."""
        batch, room = Batch(self), self.room
        while self.parts:
            part = self.parts[0]
            if part.given_up:
                self.parts.popleft()
                continue
            if batch.parts and batch.size + part.size > APPEND_BYTES_MAX:
                break
            if part.length <= room:
                self.parts.popleft()
            elif not room or (batch.parts and isinstance(part.entries, Run) and part.length <= self.room):
                break  # The next append has room for all of it, and a split run is encoded for nothing.
            else:
                part, self.parts[0] = part.split(room)
            batch.parts.append(part)
            batch.count += part.records
            batch.size += part.size
            room -= part.length
        if not batch.parts:
            return None
        self.begin(batch)
        return batch

    def confirm(self, batch: Batch, last_id: EntryId) -> None:
        """Note that an append is written, and report it to its senders and the observer."""
        now_s = monotonic_s()
        self.ledger.confirm(batch.number, batch.count, last_id, now_s)
        self.room, self.pauses, self.undurable = APPEND_ENTRIES_MAX, None, ""
        batch.confirm(last_id)
        if self._sent is not None:
            waited = sum(
                part.records
                for part in batch.parts
                if batch.found_no_room or part.queued_s <= self._refused_s
            )
            self._sent(now_s - batch.parts[0].queued_s, batch.count, waited)

    def found_room(self, room: int) -> None:
        """Note that an append was refused, and for how many entries the partition has room."""
        self.room = min(room, APPEND_ENTRIES_MAX)
        self._refused_s = monotonic_s()

    def put_back(self, append: Batch) -> list[Batch]:
        """Put back an append that is not written and all behind it, and their entries to where they were."""
        back = super().put_back(append)
        waiting = [part for each in back for part in each.parts if not part.given_up]
        self.parts.extendleft(reversed(waiting))
        return back
