"""All lanes of a producer, one a partition, and the round trips that bring what waits in them to Redis.

Two appends of a lane are under way at most; what is sent meanwhile gathers and goes with the next
one, so that order holds and a busy program needs few round trips without having asked for any
batching. How the second is kept behind the first is in ``lane``.

An append without an answer may have been done. It is sent again, unchanged and with the same
number; Redis remembers the last two numbers of each producer and partition and writes nothing twice.
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
from collections.abc import Coroutine, Iterable, Sequence

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
from streamworker.redisio.failures import look_at_error
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.streams import AppendCode, AppendReply
from streamworker.runtime.durability import check_durability, durability_of, pipelines_of
from streamworker.runtime.lane import APPEND_ENTRIES_MAX, Batch, Encoded, Lane, OnFull, Outcome, Part
from streamworker.runtime.ledger import LostSends
from streamworker.runtime.pauses import Pauses
from streamworker.settings import Settings

LOSSES_KEPT = 1_000
PIPELINE_BYTES_MAX = 4 * 1024 * 1024
FULL_PAUSE_MS = (20, 500)
"""The first and the longest pause before a full partition is tried again."""
REPEATING = " "
"""In place of a node: of flushes that repeat what is not confirmed, or found no room after a try without an
answer. As long as that takes, others go on."""

_log = get_logger("streamworker.producer")


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
        part = lane.add(entries, size, on_full)
        part.done.add_done_callback(look_at_error)
        self._kick(lane)
        return part

    async def confirmed(self, part: Part, partition: int, timeout: float | None) -> EntryId:
        """Wait until Redis has some entries; returns the id of the last."""
        try:
            async with asyncio.timeout(timeout):
                return await part.done
        except TimeoutError:
            lane = self._lanes[partition]
            if part.waits and not lane.under_way and lane.pauses is not None:
                raise self._full(lane) from None
            if part.waits and not part.taken and not lane.under_way:
                raise ProducerError(
                    f"Stream {self._spec.name!r}: a send was not begun within {timeout} s.",
                    remedy="Is Redis running, and can this machine reach it?",
                ) from None
            if any(batch.found_no_room and batch.has(part) for batch in lane.under_way):
                raise self._refused_later(self._full(lane)) from None
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
        self._begin(self._flush(lane.place), lane.place)

    def _begin(self, flush: Coroutine[None, None, None], place: str) -> None:
        task = asyncio.get_running_loop().create_task(flush)
        self._flushes[task] = place
        task.add_done_callback(self._flushed)

    def _ready(self, lane: Lane) -> bool:
        # Where sends wait for a disk or a replica, what is confirmed and what is done are two things,
        # and a round trip takes so long that the encoding beside it is nothing.
        return lane.is_ready(ahead=self._declared and self._durability.mode == "memory")

    def _flushed(self, task: "asyncio.Task[None]") -> None:
        del self._flushes[task]
        if not task.cancelled() and task.exception() is not None:
            _log.error("flush_failed", exc_info=task.exception())
        self._kick_all()

    def _kick_all(self) -> None:
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
                if batch is not None:
                    batches.append(batch)
                    size += batch.size
        await self._send(batches)

    async def _send(self, batches: Sequence[Batch]) -> None:
        """Send appends until they have ended, or have an answer that has to wait for another.

        What has its answer is out of this task's charge: it may be repeated by another (``_end``) while
        this one still repeats the rest, and who has no charge of it must not end it.
        """
        charge = list(batches)
        try:
            await self._append(charge)
        except StreamworkerError as error:
            self._fail_all(charge, error)
        except Exception as error:
            # Whatever it is: nobody may wait for ever, and it may have come behind the sending.
            for batch in charge:
                batch.unanswered = True
            self._fail_all(charge, InternalError(f"An append failed: {error!r}."))
            raise
        finally:
            for batch in charge:
                if batch.outcome is None and batch.answer is None:
                    self._end(batch, Outcome.UNKNOWN)

    async def _append(self, batches: list[Batch]) -> None:
        """Append until there is an answer, or until nobody waits for one; what is through leaves the list."""
        pauses = Pauses(self._rng, max_ms=self._backend.pause_max_ms)
        while any(batch.is_wanted for batch in batches):
            try:
                replies = await self._append_once(batches)
            except BackendUnavailable as error:
                for batch in batches:
                    batch.unanswered |= self._declared
                pause_ms = pauses.next_ms()
                _log.warning(
                    "send_unanswered", stream=self._spec.name, error=str(error), retry_in_ms=pause_ms
                )
                await asyncio.sleep(pause_ms / 1000)
                continue
            except BackendError as error:
                # Of all: a new connection was not let in, for instance.
                self._fail_all(batches, error)
                return
            pairs = zip(batches, replies, strict=True)
            batches[:] = [batch for batch, reply in pairs if not self._is_through(batch, reply)]
            if batches:
                self._others_go_on()
                pause_ms = pauses.next_ms()
                troubles = {batch.lane.undurable for batch in batches if batch.lane.undurable}
                for trouble in troubles:
                    _log.warning(
                        "send_not_confirmed", stream=self._spec.name, error=trouble, retry_in_ms=pause_ms
                    )
                await asyncio.sleep(pause_ms / 1000)

    def _others_go_on(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._flushes[task] = REPEATING
        self._kick_all()

    def _is_through(self, batch: Batch, reply: AppendReply) -> bool:
        """Take in an answer; False if the append is to be sent again."""
        if reply.code is AppendCode.UNKNOWN:
            batch.unanswered = True
            self._not_confirmed(batch, reply)
            return False
        if batch.unanswered and reply.code is AppendCode.FULL:
            # The try without an answer may still reach the server. As long as it may, what
            # has this number must stay the same, or a part of it could be written twice.
            return self._found_no_room(batch, reply.length)
        if reply.code is AppendCode.EARLY and not batch.unanswered:
            # By a connection of its own it was faster than the one that it follows. It never will be
            # there: each try was answered, and its number is not used again.
            self._put_back(batch)
            return True
        if batch.is_behind:
            batch.answer = reply  # Senders are told in their order.
            return True
        if reply.code is AppendCode.EARLY:
            if batch.before is not None and batch.before.outcome is Outcome.NOT_WRITTEN:
                # Nor will it be, however late a try of it arrives: what it follows never is there.
                self._put_back(batch)
                return True
            # What it follows was lost again, or may come yet: it is waited for no longer. Should
            # it still come, it finds that its turn is past.
            batch.before = None
            return False
        if reply.error is not None:
            self._fail(batch, reply.error)
        elif reply.last_id is None:
            self._refused_as_full(batch, reply.length)
        else:
            self._settle(batch, reply, reply.last_id)
        return True

    def _put_back(self, batch: Batch) -> None:
        batch.lane.put_back(batch)
        self._end(batch, Outcome.NOT_WRITTEN)

    def _end(self, batch: Batch, outcome: Outcome) -> None:
        """Note what became of an append, and go on with the one behind it if that has its answer."""
        batch.end(outcome)
        for behind in tuple(batch.lane.under_way):
            reply, behind.answer = behind.answer, None
            if reply is None:
                continue
            # An answer from before a repeat of the first may be from before a failover, too.
            behind.unanswered |= batch.unanswered and reply.last_id is not None
            if behind.unanswered or not self._is_through(behind, reply):
                self._begin(self._send([behind]), REPEATING)

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

    def _settle(self, batch: Batch, reply: AppendReply, last_id: EntryId) -> None:
        """Tell the senders."""
        lane = batch.lane
        self._compare(lane, reply)
        lane.ledger.confirm(batch.number, batch.count, last_id)
        lane.room, lane.pauses, lane.undurable = APPEND_ENTRIES_MAX, None, ""
        # All entries of one append have the same time and consecutive numbers: Redis stops its
        # clock while a script runs.
        behind = batch.count
        for each in batch.slices:
            behind -= each.size
            if each.is_last and not each.part.given_up:
                each.part.done.set_result(EntryId(last_id.ms, last_id.seq - behind))
        self._end(batch, Outcome.WRITTEN)

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
        """Put back what found no room; those who do not want to wait are told."""
        lane = batch.lane
        self._put_back(batch)
        lane.room = min(self._spec.entries_max - length, APPEND_ENTRIES_MAX)
        if lane.room > 0:
            return
        lane.room = APPEND_ENTRIES_MAX
        self._tell(lane.parts, self._full(lane))
        if not all(part.given_up for part in lane.parts):
            lane.resting = True
            first_ms, max_ms = FULL_PAUSE_MS
            lane.pauses = lane.pauses or Pauses(self._rng, first_ms=first_ms, max_ms=max_ms)
            asyncio.get_running_loop().call_later(lane.pauses.next_ms() / 1000, self._rested, lane)

    def _found_no_room(self, batch: Batch, length: int) -> bool:
        """Tell those who do not want to wait; return whether that were all."""
        batch.found_no_room = True
        full = self._full(batch.lane)
        self._tell([each.part for each in batch.slices], self._refused_later(full))
        if length >= self._spec.entries_max:
            self._tell(batch.lane.parts, full)
        if batch.is_wanted:
            return False
        self._end(batch, Outcome.UNKNOWN)
        return True

    def _tell(self, parts: Iterable[Part], error: ProducerError) -> None:
        for part in parts:
            if part.on_full == "raise" and not part.given_up:
                part.done.set_exception(_copy(error))

    def _rested(self, lane: Lane) -> None:
        lane.resting = False
        self._kick(lane)

    def _fail_all(self, batches: Sequence[Batch], error: StreamworkerError) -> None:
        for batch in batches:
            if batch.outcome is None and batch.answer is None:
                self._fail(batch, error)

    def _fail(self, batch: Batch, error: StreamworkerError) -> None:
        """Tell the senders that Redis refused, or that nothing could be asked."""
        if batch.unanswered and not isinstance(error, InternalError):
            error = self._refused_later(error)
        for part, _, _ in batch.slices:
            if not part.given_up:
                part.done.set_exception(_copy(error))
        self._end(batch, Outcome.UNKNOWN if batch.unanswered else Outcome.NOT_WRITTEN)

    def _refused_later(self, error: StreamworkerError) -> ProducerError:
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
