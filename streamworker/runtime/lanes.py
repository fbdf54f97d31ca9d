"""What a producer has to send, one lane a partition, and the appends that bring it to Redis.

One append of a lane is under way at a time; what is sent meanwhile gathers and goes with the next
one, so that order holds and a busy program needs few round trips without having asked for any
batching.

An append without an answer may have been done. It is sent again, unchanged and with the same
number; Redis remembers the last number of each producer and partition and writes nothing twice.
A partition that is at its limit refuses an append as a whole; then senders wait or are told,
as they chose. Nothing unread is dropped.

An append that is done and not as safe as the settings ask is sent again in the same way, and no
sender is told before it is. What a sender was told and Redis has lost since is noticed at the next
append, and reported by its ids; see ``ledger``.
"""

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from streamworker.core.entries import EntryId
from streamworker.errors import (
    BackendError,
    BackendUnavailable,
    InternalError,
    ProducerError,
    StreamFull,
    StreamworkerError,
)
from streamworker.log import get_logger
from streamworker.processors import StreamSpec
from streamworker.redisio import streams
from streamworker.redisio.client import Backend, retrying
from streamworker.redisio.durability import NotDurable
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.streams import Append, AppendCode, AppendReply
from streamworker.runtime.durability import check_durability, durability_of, pipelines_of
from streamworker.runtime.ledger import Ledger, LostSends
from streamworker.runtime.pauses import Pauses
from streamworker.settings import Settings

OnFull = Literal["wait", "raise"]
"""What a send does at a full partition."""

Encoded = bytes | tuple[bytes | Mapping[bytes, bytes], Mapping[bytes, bytes] | None]
"""The payload of an entry; or payload or fields, and headers."""

LOSSES_KEPT = 1_000
APPEND_ENTRIES_MAX = 1_000
"""Entries of one append: one run of a script, 1.4 ms in which Redis serves nobody else (measured)."""
APPEND_BYTES_MAX = 1024 * 1024
PIPELINE_BYTES_MAX = 4 * 1024 * 1024

_log = get_logger("streamworker.producer")


@dataclass(slots=True, eq=False)
class Part:
    """Entries of one send for one partition."""

    entries: Sequence[Encoded]
    size: int
    on_full: OnFull
    done: "asyncio.Future[EntryId]"

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.done.done()


@dataclass(slots=True)
class Lane:
    """What waits for one partition."""

    partition: int
    place: str = ""
    """Which node of a Cluster has the partition; empty for one server, and while it is not known."""
    parts: deque[Part] = field(default_factory=deque)
    under_way: bool = False
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

    def take(self) -> "Batch":
        """Take what goes into the next append."""
        batch = Batch(self)
        count = size = 0
        while self.parts:
            part = self.parts[0]
            if part.given_up:
                self.parts.popleft()
                continue
            fits = min(len(part.entries), self.room - count)
            if fits <= 0 or (count and size + part.size > APPEND_BYTES_MAX):
                break
            batch.parts.append((part, fits))
            count += fits
            size += part.size
            if fits < len(part.entries):
                break
            self.parts.popleft()
        batch.size = size
        return batch


@dataclass(slots=True)
class Batch:
    """One append: entries of some parts, the last of which may go on in the next append."""

    lane: Lane
    parts: list[tuple[Part, int]] = field(default_factory=list)
    size: int = 0
    unanswered: bool = False
    """Whether a try had no answer: it may be there, or still be on its way."""

    @property
    def count(self) -> int:
        """How many entries it has."""
        return sum(count for _, count in self.parts)

    def append(self, producer: str, limit: int) -> Append:
        """Return what Redis is to do."""
        (first, count), *others = self.parts
        if others or count < len(first.entries):
            entries: Sequence[Encoded] = [each for part, n in self.parts for each in part.entries[:n]]
        else:
            entries = first.entries
        return Append(self.lane.partition, producer, self.lane.number, limit, entries)


class Lanes:
    """All lanes of one producer.

    Parameters
    ----------
    backend
        Where to; stays open.
    spec
        The stream.
    settings
        How safe an append must be.
    rng
        For jitter.
    """

    def __init__(self, backend: Backend, spec: StreamSpec, settings: Settings, rng: random.Random) -> None:
        self._backend = backend
        self._spec = spec
        self._settings = settings
        self._durability = durability_of(settings)
        self._pipelines_max = pipelines_of(settings)
        self.lost: deque[LostSends] = deque(maxlen=LOSSES_KEPT)
        """What was confirmed and is gone, as far as it was noticed."""
        self._keys = StreamKeys(spec.app, spec.name)
        self._rng = rng
        self._id = secrets.token_hex(8)
        self._lanes: dict[int, Lane] = {}
        self._flushes: dict[asyncio.Task[None], str] = {}
        """Flushes under way, and to which node each goes. A node that hangs holds up no other."""
        self._map_version = backend.map_version
        self._declared = False
        self._closed = False

    async def aclose(self) -> None:
        """Send what waits, then take no more."""
        self._closed = True
        while self._flushes:
            await asyncio.wait(self._flushes)

    def queue(self, partition: int, entries: Sequence[Encoded], size: int, on_full: OnFull) -> Part:
        """Put entries behind what waits for their partition."""
        if self._closed:
            raise ProducerError(
                f"The producer of stream {self._spec.name!r} is closed.", remedy="Send before you close it."
            )
        lane = self._lanes.get(partition)
        if lane is None:
            place = self._backend.known_place_of(self._keys.events(partition))
            lane = self._lanes[partition] = Lane(partition, place)
        part = Part(entries, size, on_full, asyncio.get_running_loop().create_future())
        part.done.add_done_callback(_look_at_error)
        lane.parts.append(part)
        self._kick(lane)
        return part

    async def confirmed(self, part: Part, partition: int, timeout: float | None) -> EntryId:
        """Wait until Redis has some entries; returns the id of the last."""
        try:
            async with asyncio.timeout(timeout):
                return await part.done
        except TimeoutError:
            lane = self._lanes[partition]
            if part in lane.parts and not lane.under_way and lane.pauses is not None:
                raise self._full(lane) from None
            if part in lane.parts and not lane.under_way:
                raise ProducerError(
                    f"Stream {self._spec.name!r}: a send was not begun within {timeout} s.",
                    remedy="Is Redis running, and can this machine reach it?",
                ) from None
            if lane.undurable:
                raise ProducerError(
                    f"Stream {self._spec.name!r}: within {timeout} s a record was not as safe as durability="
                    f'"{self._durability.mode}" asks; it may be there, and may be lost. {lane.undurable}',
                    remedy="Mend what it waits for. A larger timeout lets the producer wait for it.",
                ) from None
            raise ProducerError(
                f"Stream {self._spec.name!r}: Redis gave no answer within {timeout} s; the record may or "
                "may not be there.",
                remedy="A larger timeout lets the producer find out without writing twice.",
            ) from None

    def _kick(self, lane: Lane) -> None:
        """Begin a flush to the node of a lane, if it has something to send and there may be one more."""
        if self._map_version != self._backend.map_version:
            self._map_version = self._backend.map_version
            for each in self._lanes.values():
                each.place = self._backend.known_place_of(self._keys.events(each.partition))
        if not self._ready(lane) or list(self._flushes.values()).count(lane.place) >= self._pipelines_max:
            return
        # Everything that is sent in this turn of the event loop comes along.
        task = asyncio.get_running_loop().create_task(self._flush(lane.place))
        self._flushes[task] = lane.place
        task.add_done_callback(self._flushed)

    @staticmethod
    def _ready(lane: Lane) -> bool:
        return bool(lane.parts) and not lane.under_way and not lane.resting

    def _flushed(self, task: "asyncio.Task[None]") -> None:
        del self._flushes[task]
        if not task.cancelled() and task.exception() is not None:
            _log.error("flush_failed", exc_info=task.exception())
        kicked: set[str] = set()
        for lane in self._lanes.values():
            if lane.place not in kicked and self._ready(lane):
                kicked.add(lane.place)
                self._kick(lane)

    async def _flush(self, place: str) -> None:
        batches: list[Batch] = []
        size = 0
        for lane in list(self._lanes.values()):
            if lane.place == place and self._ready(lane) and size < PIPELINE_BYTES_MAX:
                # To the end of the row, so that with much to send all get their turn.
                self._lanes[lane.partition] = self._lanes.pop(lane.partition)
                batch = lane.take()
                if batch.parts:
                    lane.under_way = True
                    lane.number += 1
                    batches.append(batch)
                    size += batch.size
        try:
            await self._append(batches)
        except StreamworkerError as error:
            for batch in batches:
                self._fail(batch, error)
        except Exception as error:
            # Whatever it is: nobody may wait for ever.
            for batch in batches:
                self._fail(batch, InternalError(f"An append failed: {error!r}."))
            raise
        finally:
            for batch in batches:
                batch.lane.under_way = False

    async def _append(self, batches: list[Batch]) -> None:
        """Append until there is an answer, or until nobody waits for one."""
        pauses = Pauses(self._rng, max_ms=self._backend.pause_max_ms)
        while batches and not all(part.given_up for batch in batches for part, _ in batch.parts):
            try:
                replies = await self._append_once(batches)
            except BackendUnavailable as error:
                for batch in batches:
                    batch.unanswered = True
                pause_ms = pauses.next_ms()
                _log.warning(
                    "send_unanswered", stream=self._spec.name, error=str(error), retry_in_ms=pause_ms
                )
                await asyncio.sleep(pause_ms / 1000)
                continue
            except BackendError as error:
                # Of all: a new connection was not let in, for instance.
                for batch in batches:
                    self._fail(batch, self._refused_later(error) if batch.unanswered else error)
                return
            again: list[Batch] = []
            for batch, reply in zip(batches, replies, strict=True):
                if reply.code is AppendCode.UNKNOWN:
                    batch.unanswered = True
                    self._not_confirmed(batch, reply)
                    again.append(batch)
                elif batch.unanswered and reply.code is AppendCode.FULL:
                    # The try without an answer may still reach the server. As long as it may, what
                    # has this number must stay the same, or a part of it could be written twice.
                    again.append(batch)
                elif batch.unanswered and reply.error is not None:
                    self._fail(batch, self._refused_later(reply.error))
                else:
                    self._settle(batch, reply)
            batches = again
            if batches:
                pause_ms = pauses.next_ms()
                troubles = {batch.lane.undurable for batch in batches if batch.lane.undurable}
                for trouble in troubles:
                    _log.warning(
                        "send_not_confirmed", stream=self._spec.name, error=trouble, retry_in_ms=pause_ms
                    )
                await asyncio.sleep(pause_ms / 1000)

    def _not_confirmed(self, batch: Batch, reply: AppendReply) -> None:
        if isinstance(reply.error, NotDurable):
            batch.lane.undurable = str(reply.error)
        self._compare(batch.lane, reply)

    async def _append_once(self, batches: list[Batch]) -> list[AppendReply]:
        if not self._declared:
            await check_durability(self._backend, self._settings)
            await streams.declare(self._backend, self._keys, self._spec.partitions, self._spec.codec)
            self._declared = True
        limit = self._spec.entries_max
        appends = [batch.append(self._id, limit) for batch in batches]
        return await streams.append_many(self._backend, self._keys, appends, self._durability)

    def _settle(self, batch: Batch, reply: AppendReply) -> None:
        """Tell the senders, or put back what found no room."""
        lane = batch.lane
        if reply.error is not None:
            self._fail(batch, reply.error)
            return
        if reply.last_id is None:
            self._refused_as_full(batch, reply.length)
            return
        self._compare(lane, reply)
        lane.ledger.confirm(lane.number, batch.count, reply.last_id)
        lane.room, lane.pauses, lane.undurable = APPEND_ENTRIES_MAX, None, ""
        # All entries of one append have the same time and consecutive numbers: Redis stops its
        # clock while a script runs.
        behind = batch.count
        for part, count in batch.parts:
            behind -= count
            if count < len(part.entries):
                part.entries = part.entries[count:]
            elif not part.given_up:
                part.done.set_result(EntryId(reply.last_id.ms, reply.last_id.seq - behind))

    def _compare(self, lane: Lane, reply: AppendReply) -> None:
        """Look whether Redis still knows of the append before the one that it answers."""
        if reply.last_id is not None:
            self._report(lane.ledger.behind(self._spec.name, lane.partition, reply.before))

    def _report(self, lost: LostSends | None) -> None:
        if lost is None:
            return
        self.lost.append(lost)
        _log.error(
            "sends_lost",
            stream=lost.stream,
            partition=lost.partition,
            entries=lost.entries if lost.is_all else f"{lost.entries} or more",
            first=str(lost.first),
            last=str(lost.last),
            remedy="Redis lost what it had confirmed. Send these again; docs/durability.md says how to lose "
            "less.",
        )

    async def verify(self) -> list[LostSends]:
        """Ask Redis for the last number of each lane, and compare."""
        known = {
            lane.partition: (lane, lane.number)
            for lane in self._lanes.values()
            if lane.ledger.may_be_asked and not lane.under_way
        }
        numbers = await retrying(
            lambda: streams.last_numbers(self._backend, self._keys, self._id, list(known)), rng=self._rng
        )
        # The answer says nothing of an append that was made since; its own answer does.
        found = [
            lane.ledger.behind(self._spec.name, partition, numbers[partition])
            for partition, (lane, number) in known.items()
            if lane.number == number and not lane.under_way
        ]
        for lost in found:
            self._report(lost)
        return [lost for lost in found if lost is not None]

    def _refused_as_full(self, batch: Batch, length: int) -> None:
        lane = batch.lane
        lane.number -= 1  # Nothing was written under it.
        lane.parts.extendleft(part for part, _ in reversed(batch.parts) if part not in lane.parts)
        lane.room = min(self._spec.entries_max - length, APPEND_ENTRIES_MAX)
        if lane.room > 0:
            return
        lane.room = APPEND_ENTRIES_MAX
        for part in [part for part in lane.parts if part.on_full == "raise"]:
            lane.parts.remove(part)
            if not part.given_up:
                part.done.set_exception(self._full(lane))
        if lane.parts:
            lane.resting = True
            lane.pauses = lane.pauses or Pauses(self._rng, first_ms=20, max_ms=500)
            asyncio.get_running_loop().call_later(lane.pauses.next_ms() / 1000, self._rested, lane)

    def _rested(self, lane: Lane) -> None:
        lane.resting = False
        self._kick(lane)

    def _fail(self, batch: Batch, error: StreamworkerError) -> None:
        for part, _ in batch.parts:
            if part in batch.lane.parts:
                batch.lane.parts.remove(part)
            if not part.given_up:
                part.done.set_exception(_copy(error))

    def _refused_later(self, error: BackendError) -> ProducerError:
        """Return what is known when Redis refuses what it had been asked before without an answer."""
        return ProducerError(
            f"Stream {self._spec.name!r}: Redis gave no answer, and then refused: {error.message} The record "
            "may or may not be there: the first request may still be on its way.",
            remedy=error.remedy,
        )

    def _full(self, lane: Lane) -> StreamFull:
        return StreamFull(
            f"Partition {lane.partition} of stream {self._spec.name!r} is at its limit of "
            f"{self._spec.entries_max} entries, and a group has not committed them yet.",
            remedy="Start or speed up the processor that is behind (streamworker lag), or raise "
            "partition_entries_max.",
        )


def _copy(error: StreamworkerError) -> StreamworkerError:
    """Return an error of its own for each sender: a shared one would gather all their tracebacks."""
    if isinstance(error, InternalError):
        return InternalError(error.message)
    return type(error)(error.message, remedy=error.remedy)


def _look_at_error(done: "asyncio.Future[EntryId]") -> None:
    """Keep asyncio from complaining of an error that nobody waits for any more."""
    if not done.cancelled():
        done.exception()
