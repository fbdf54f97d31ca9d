"""All lanes of a producer, one for each partition, and the round trips that send their appends to Redis.

At most two appends of a lane are in flight; see ``core/data/channel.py``. Records that are sent meanwhile
queue and go with the next append. So a busy program needs few round trips without batching records itself.

An append without an answer may have been done, so the producer sends it again, unchanged and with the same
number. It also sends an append again that is done but not as durable as the settings ask, and reports it to
no sender before it is. A partition that is at its limit refuses an append as a whole. Then senders wait or
get an error, as they chose. Nothing unread is dropped.
"""

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from streamworker.core.data.channel import AppendCode, AppendReply, AppendVerdict, LostSends
from streamworker.core.data.entries import EntryId
from streamworker.core.pauses import Pauses
from streamworker.core.text import in_words
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import (
    BackendError,
    BackendUnavailable,
    InternalError,
    ProducerError,
    StreamworkerError,
)
from streamworker.log import get_logger
from streamworker.redisio.data import streams
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend, retrying
from streamworker.redisio.wire.durability import NotDurable
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.durability import check_durability, durability_of, pipelines_of
from streamworker.runtime.observing import Observer
from streamworker.runtime.send.growth import StreamGrowth
from streamworker.runtime.send.lane import (
    APPEND_ENTRIES_MAX,
    Batch,
    Lane,
    OnFull,
    Part,
    Piece,
    check_on_full,
)
from streamworker.runtime.send.refusals import forgotten, full, not_begun, not_in_time, refused_later, tell
from streamworker.runtime.telling import tell_lost, warn
from streamworker.settings import Settings

PIPELINE_BYTES_MAX = 4 * 1024 * 1024
full_pauses = partial(Pauses, first_ms=20, max_ms=500)
"""The pauses before a full partition is tried again."""
FULL_ANSWER_MS = 1_000
"""How long a send whose timeout ends waits for a try at a full partition that is under way."""
REPEATING = " "
"""Used instead of a node's name for flushes that repeat appends that are not confirmed, or that found no
room after a try without an answer. Meanwhile other flushes to the node continue."""

LOSSES_KEPT = 1_000

_log = get_logger("streamworker.producer")


@dataclass
class Declaration:
    """The declaration of a stream by a producer: before it is made no record is sent."""

    backend: Backend
    spec: StreamSpec
    settings: Settings
    observer: Observer | None = None
    is_made: bool = False
    trouble: BackendUnavailable | None = None
    """Why it is not made yet."""

    async def make(self) -> bool:
        """Check that the server supports the durability, and provision the stream, unless that was done.

        Returns whether it was not.
        """
        if self.is_made:
            return False
        try:
            await check_durability(self.backend, self.settings)
            keys = StreamKeys(self.spec.app, self.spec.name)
            declared = self.spec.declared_partitions
            counts = await streams.provision(self.backend, keys, declared, self.spec.codec_name)
            if counts != self.spec.placement.counts:
                self.spec.placement.become(*counts)
        except BackendUnavailable as error:
            self.trouble = error
            raise
        self.is_made = True
        return True


class Lanes:
    """All lanes of one producer."""

    def __init__(self, declaration: Declaration, rng: random.Random) -> None:
        self._backend, self._spec = declaration.backend, declaration.spec
        spec, settings = declaration.spec, declaration.settings
        self._durability = durability_of(settings)
        self._packing = spec.packing
        self._pauses = partial(Pauses, rng.random, max_ms=self._backend.server.pause_max_ms)
        self._keys = StreamKeys(spec.app, spec.name)
        self._id = secrets.token_hex(8)
        """Redis remembers this producer's numbers under this id."""
        self.declaration = declaration
        self._pipelines_max = pipelines_of(settings)
        self.losses: deque[LostSends] = deque(maxlen=LOSSES_KEPT)
        """The confirmed sends that Redis has lost, as far as the producer has noticed."""
        self._rng = rng
        self._lanes: dict[int, Lane] = {}
        self._growth = StreamGrowth(declaration.backend, spec, self._lanes, self._lane_of, rng)
        self._sent = None if (its := declaration.observer) is None else partial(its.sent, spec)
        self._count_lost = None if its is None else partial(its.sends_lost, spec)
        self._flushes: dict[asyncio.Task[None], str] = {}
        """Running flushes and their nodes, so that one node that hangs does not delay the others."""
        self._coming: set[str] = set()
        """Nodes whose next flush has not begun: it takes all lanes of its node that can send."""
        self._map_version = self._backend.server.map_version
        self._closed = False

    async def aclose(self) -> None:
        """Send all queued entries and accept no more."""
        self._closed = True
        while self._flushes:
            await asyncio.wait(self._flushes)

    def queue(self, piece: Piece, on_full: OnFull) -> Part:
        """Append entries to the queue of their partition."""
        partition, entries, size, records = piece
        check_on_full(on_full)
        if self._closed:
            raise ProducerError(
                f"The producer of stream {self._spec.name!r} is closed.", remedy="Send before you close it."
            )
        lane = self._lane_of(partition)
        part = lane.add(entries, size, on_full, records)
        if partition < self._spec.placement.base:
            self._growth.late(lane.parts.pop())
            self._kick_all()
        self._kick(lane)
        return part

    def _lane_of(self, partition: int) -> Lane:
        if (lane := self._lanes.get(partition)) is None:
            lane = self._lanes[partition] = Lane(partition, self._address_of(partition), self._sent)
        return lane

    async def confirmed(self, part: Part, timeout: float | None) -> EntryId:
        """Wait until Redis has the entries of a part; return the id of the last."""
        if timeout is None:
            return await part.done
        try:
            if not (await asyncio.wait((part.done,), timeout=timeout))[0]:
                await _answer_of_full(self._lanes[part.partition])
            if part.done.done():
                return part.done.result()
        finally:
            part.done.cancel()
        if not self.declaration.is_made:
            raise not_begun(self._spec, timeout, self.declaration.trouble)
        raise not_in_time(self._spec, self._lanes[part.partition], part, timeout, self._durability)

    def _address_of(self, partition: int) -> str:
        return self._backend.server.known_address_of(self._keys.events(partition))

    def _kick(self, lane: Lane) -> None:
        """Start a flush to a lane's node, if the lane can send and the node allows one more flush."""
        if lane.address in self._coming:
            return
        if self._map_version != self._backend.server.map_version:
            self._map_version = self._backend.server.map_version
            for each in self._lanes.values():
                each.address = self._address_of(each.partition)
        if not self._ready(lane) or list(self._flushes.values()).count(lane.address) >= self._pipelines_max:
            return
        # The flush takes all sends of this turn of the event loop.
        self._coming.add(lane.address)
        self._begin(self._flush(lane.address), lane.address)

    def _begin(self, flush: Coroutine[None, None, None], address: str) -> None:
        task = asyncio.get_running_loop().create_task(flush)
        self._flushes[task] = address
        task.add_done_callback(self._flushed)

    def _ready(self, lane: Lane) -> bool:
        if self._spec.placement.base and self._growth.holds(lane):
            return False
        # With durability "aof" or "replicas" an append that is done may still be unconfirmed. A round trip
        # then takes so long that encoding in parallel saves nothing.
        return lane.is_ready(ahead=self.declaration.is_made and self._durability.mode == "memory")

    def _flushed(self, task: "asyncio.Task[None]") -> None:
        self._coming.discard(self._flushes.pop(task))  # It has not begun if it was cancelled.
        if not task.cancelled() and task.exception() is not None:
            _log.error("flush_failed", exc_info=task.exception())
        self._kick_all()

    def _kick_all(self) -> None:
        if self._spec.placement.base:
            self._growth.settle()
        for lane in self._lanes.values():
            self._kick(lane)

    async def _flush(self, address: str) -> None:
        self._coming.discard(address)
        batches: list[Batch] = []
        size = 0
        for lane in list(self._lanes.values()):
            if lane.address == address and self._ready(lane) and size < PIPELINE_BYTES_MAX:
                # Move the lane to the end, so that under load all lanes get their turn.
                self._lanes[lane.partition] = self._lanes.pop(lane.partition)
                if (batch := lane.take()) is not None:
                    batches.append(batch)
                    size += batch.size
        if size >= PIPELINE_BYTES_MAX:
            self._kick_all()
        await self._send(batches)

    async def _send(self, batches: Sequence[Batch]) -> None:
        """Send appends until they have ended, or have an answer that must wait for another append's.

        This task stops being responsible for an append that has its answer, or that was put back. Another
        task may send it again while this one still repeats the rest, and only the responsible task may end
        it.
        """
        charge = list(batches)
        try:
            await self._append(charge)
        except StreamworkerError as error:
            self._fail_all(charge, error)
        except Exception as error:
            # For any error: no sender may wait for ever, and the append may already have been sent.
            for batch in charge:
                batch.unanswered = True
            self._fail_all(charge, InternalError(f"An append failed: {in_words(error)}."))
            raise
        finally:
            for batch in charge:
                if not batch.has_ended and batch.answer is None:
                    self._end(batch)

    async def _append(self, batches: list[Batch]) -> None:
        """Append until Redis answers or no sender waits; settled appends are removed from the list."""
        pauses: Pauses | None = None
        while any(batch.is_wanted for batch in batches):
            batches[:] = [batch for batch in batches if not batch.has_ended]
            try:
                is_new = await self.declaration.make()
                if is_new and any(part.given_up for batch in batches for part in batch.parts):
                    # Who has given up was told that nothing was written. The others are sent anew.
                    for batch in batches:
                        batch.lane.put_back(batch)
                    return
                now_s = monotonic_s()
                for batch in batches:
                    batch.lane.tries(batch, now_s)
                appends = [batch.append(self._id, self._spec.records_max, self._packing) for batch in batches]
                replies = await streams.append_many(self._backend, self._keys, appends, self._durability)
            except BackendUnavailable as error:
                for batch in batches:
                    batch.unanswered |= self.declaration.is_made
                pause_ms = (pauses := pauses or self._pauses()).next_ms()
                warn(_log, "send_unanswered", error, stream=self._spec.name, retry_in_ms=pause_ms)
                await asyncio.sleep(pause_ms / 1000)
                continue
            except BackendError as error:
                # The error applies to all appends, for example if a new connection was refused.
                self._fail_all(batches, error)
                return
            pairs = zip(batches, replies, strict=True)
            batches[:] = [batch for batch, reply in pairs if not self._is_through(batch, reply)]
            if batches:
                self._others_go_on()
                pause_ms = (pauses := pauses or self._pauses()).next_ms()
                for trouble in {batch.lane.undurable for batch in batches if batch.lane.undurable}:
                    told = {"stream": self._spec.name, "error": trouble, "retry_in_ms": pause_ms}
                    _log.warning("send_not_confirmed", **told)
                await asyncio.sleep(pause_ms / 1000)

    def _others_go_on(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._flushes[task] = REPEATING
        self._kick_all()

    def _is_through(self, batch: Batch, reply: AppendReply) -> bool:
        """Process an answer; return False if the append must be sent again."""
        lane = batch.lane
        if batch.has_ended:  # It was put back with the append that it follows.
            return True
        match lane.answered(batch, reply):
            case AppendVerdict.WRITTEN:
                assert reply.last_id is not None
                lane.confirm(batch, reply.last_id)
                self._end(batch)
            case AppendVerdict.NOT_WRITTEN:
                self._found_no_room_now(batch, reply)
            case AppendVerdict.SEALED:
                if self._growth.sealed(batch):
                    self._begin(self._growth.look(), REPEATING)
            case AppendVerdict.REFUSED:
                assert reply.error is not None
                self._fail(batch, reply.error)
            case AppendVerdict.FORGOTTEN:
                self._fail(batch, forgotten(self._spec))
            case AppendVerdict.REPEAT:
                if isinstance(reply.error, NotDurable):
                    lane.undurable = reply.error.message
                if reply.code is AppendCode.OTHER:
                    self._compare(lane, lane.stands)
                    self._begin(self._send([batch]), REPEATING)
                    return True
                return reply.code is AppendCode.FULL and self._found_no_room(batch, reply.length)
        return True

    def _end(self, batch: Batch) -> None:
        """End an append, and process the answer of the one that follows it."""
        if (released := batch.lane.end(batch)) is not None:
            behind, reply = released
            if reply is None or not self._is_through(behind, reply):
                self._begin(self._send([behind]), REPEATING)

    def _compare(self, lane: Lane, stands: int) -> list[LostSends]:
        """Tell of the confirmed sends that a partition lacks, by where it stands; each is told once."""
        lost = lane.ledger.behind(self._spec.name, lane.partition, stands, monotonic_s())
        if lost is None:
            return []
        self.losses.append(lost)
        _tell(lost, self._count_lost)
        return [lost]

    async def verify(self) -> list[LostSends]:
        """Ask Redis for the last numbers of each lane, and compare them with the ledger."""
        known = {
            lane.partition: (lane, lane.number)
            for lane in self._lanes.values()
            if lane.ledger.may_be_asked(monotonic_s()) and not lane.in_flight
        }
        ask = partial(streams.last_numbers, self._backend, self._keys, self._id, list(known))
        stands = await retrying(ask, rng=self._rng)
        # This answer does not cover an append that was made since; the answer to that append does.
        return [
            lost
            for partition, (lane, number) in known.items()
            if lane.number == number and not lane.in_flight
            for lost in self._compare(lane, stands[partition])
        ]

    def _found_no_room_now(self, batch: Batch, reply: AppendReply) -> None:
        """Put back an append that found no room; report it to senders that do not wait."""
        lane = batch.lane
        lane.put_back(batch)
        lane.found_room(self._spec.records_max - reply.length)
        if lane.room > 0 and not batch.is_wide:
            return
        lane.room = 1 if batch.is_wide else APPEND_ENTRIES_MAX
        tell(lane.parts, full(self._spec, lane.partition))
        if not all(part.given_up for part in lane.parts):
            lane.resting = True
            lane.pauses = lane.pauses or full_pauses(self._rng.random)
            asyncio.get_running_loop().call_later(lane.pauses.next_ms() / 1000, self._rested, lane)

    def _found_no_room(self, batch: Batch, length: int) -> bool:
        """Report a full partition to senders that do not wait; return whether no sender remains."""
        batch.found_no_room = True
        error = full(self._spec, batch.lane.partition)
        tell(batch.parts, refused_later(self._spec, error))
        if length >= self._spec.records_max:
            tell(batch.lane.parts, error)
        if batch.is_wanted:
            return False
        self._end(batch)
        return True

    def _rested(self, lane: Lane) -> None:
        lane.resting = False
        self._kick_all() if self._spec.placement.base else self._kick(lane)

    def _fail_all(self, batches: Sequence[Batch], error: StreamworkerError) -> None:
        for batch in batches:
            if not batch.has_ended and batch.answer is None:
                self._fail(batch, error)

    def _fail(self, batch: Batch, error: StreamworkerError) -> None:
        if batch.unanswered and isinstance(error, BackendError):
            error = refused_later(self._spec, error)
        for part in batch.parts:
            part.refuse(error)
        if batch.unanswered:
            self._end(batch)
        else:
            batch.lane.put_back(batch)


def _tell(lost: LostSends, count: Callable[[str, int], None] | None) -> None:
    tell_lost(
        _log,
        "sends_lost",
        count,
        lost.records,
        stream=lost.stream,
        partition=lost.partition,
        records=lost.records if lost.is_all else f"{lost.records} or more",
        first=str(lost.first),
        last=str(lost.last),
        remedy="Redis lost what it had confirmed. Send these again. `durability` lets it lose less "
        "(docs: durability).",
    )


async def _answer_of_full(lane: Lane) -> None:
    """Let a try at a full partition end: its answer tells whether the record was written."""
    clock = asyncio.get_running_loop().time
    until_s = clock() + FULL_ANSWER_MS / 1000
    while lane.pauses is not None and lane.in_flight and clock() < until_s:
        if lane.in_flight[0].unanswered:
            return
        await asyncio.sleep(0.01)
