"""Forwards the messages of all outboxes of one processor in one worker, many in one round trip.

Messages for one target partition go in order, and those for different ones do not wait for each other. A
message that was committed and is durable at its source is forwarded; once it is durable at its target, it is
deleted at the source. Whatever ends this worker in between, the next owner of the outbox forwards the rest
again, and the targets recognise what they have. So does this worker after a call without an answer. When a
server restarts or another takes over, it may lack some of what this worker remembers of an outbox or of a
target. So this worker forgets all of it, and reads anew what the outboxes hold.

If a target stands elsewhere than a message begins, one of the two servers has gone back after a failover.
What the source still has is forwarded again. What it has not is lost: it is told and kept on the record, and
forwarding goes on. If the target has records of a history that the source has lost, nothing says which of
the source's records are among them, so that target waits for a person.
"""

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio
import anyio.abc

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import Message, OutboxPosition, OutboxQueue, Standing, Target
from streamworker.core.pauses import Pauses
from streamworker.declaring.specs import StreamSpec
from streamworker.errors import BackendError
from streamworker.log import get_logger
from streamworker.redisio.data import outbox
from streamworker.redisio.data.outbox import OutboxWrite
from streamworker.redisio.data.streams import slowest_group
from streamworker.redisio.keys import OutboxKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.durability import durability_of
from streamworker.runtime.send.growth import follow_targets
from streamworker.runtime.send.lanes import full_pauses
from streamworker.runtime.signals import Signal
from streamworker.runtime.telling import CountLost, tell_lost, warn
from streamworker.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import Span

HELD_BYTES = 1024 * 1024
"""Bytes of messages of one outbox that a worker holds; it reads the others when these are through."""
ROUND_BYTES = 4 * 1024 * 1024
DIVERGED_PAUSE_MS = 5_000
"""The pause before a target is looked at again that waits for a person."""
SHOWN_PAUSE_MS = 100
"""A target that is full is shown once a pause is this long."""
SETTLE_MS = 500
"""How long an outbox that is given up is still forwarded, if nothing holds it up. The next owner does the
rest."""
DELETE_EVERY_MS = 20
CONNECTIONS = 2


def diverged(to: Target, stands: OutboxPosition, since: OutboxPosition) -> str:
    """Say why a target waits for a person."""
    return (
        f"{to.in_words} has records that this partition has lost: it stands at {stands}, and "
        f"this partition goes on from {since}; see `streamworker doctor`"
    )


class _Queue(OutboxQueue):
    def __init__(self, source: "Source", to: Target) -> None:
        super().__init__(to)
        self.source = source
        self.pauses: Pauses | None = None
        self.reason = ""

    @property
    def is_forgotten(self) -> bool:
        """Whether its messages, and what targets have said of them, count no more."""
        return self.source.queues.get(self.to) is not self

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is forwarded any more."""
        return self.source.closed or self.is_forgotten

    def held_up(self, reason: str) -> None:
        """Show what holds it up; an empty reason shows that it goes on."""
        if self.reason != reason:
            self.reason = reason
            if not self.is_over:
                self.source.on_trouble(self.source.reason)


class Source:
    """One outbox, as its owner forwards it."""

    def __init__(
        self, keys: OutboxKeys, forwarder: "Forwarder", through: int, on_trouble: Callable[[str], None]
    ) -> None:
        self.keys = keys
        self._forwarder = forwarder
        self.on_trouble = on_trouble
        """Called with what holds it up, and with an empty reason when it goes on."""
        self.confirmed = through
        """Number of the last message that is durable at the source."""
        self.read_up_to = 0
        """Number of the last message that was put into a queue."""
        self.reading = self.closed = False
        self.queues: dict[Target, _Queue] = {}
        self.written_to = self.queues
        """The queues when the last messages were made for a commit."""
        self.emptied = Signal()
        self.sealed: Callable[[Target, Callable[[], bool]], Awaitable[tuple[str, int]]] | None = None
        """Moves what waits for a partition that takes no more, if it is wanted; returns what that waits for,
        and for how long."""
        self._held = ""
        self.spans: dict[int, Span] = {}
        """Spans of messages by their numbers, for traces; each ends when its target has the message."""

    def committed(self, write: OutboxWrite) -> None:
        """Forward the messages of a commit that is confirmed."""
        first, self.confirmed = write.messages[0].number, write.messages[-1].number
        is_known = self.written_to is self.queues and self.read_up_to == first - 1
        if is_known and self.held < HELD_BYTES and not self.reading:
            self.put(write.messages)
        else:
            self._forwarder.read(self)

    def put(self, messages: Sequence[Message]) -> None:
        """Put messages into the queues of their targets."""
        for message in messages:
            if (queue := self.queues.get(message.to)) is None:
                queue = self.queues[message.to] = _Queue(self, message.to)
            queue.put(message)
            self.read_up_to = message.number
            self._forwarder.start(queue)

    def look_again(self) -> None:
        """Forget all, and read what is in the outbox: it may hold what was deleted, and lack what was not."""
        reason, self.queues, self.read_up_to = self.reason, {}, 0
        if reason and not self.closed:
            self.on_trouble(self._held)
        self._forwarder.read(self)

    @property
    def held(self) -> int:
        """Bytes of the messages in queues."""
        return sum(queue.held for queue in self.queues.values())

    @property
    def is_idle(self) -> bool:
        """Whether all confirmed messages have been taken."""
        return self.read_up_to >= self.confirmed and not any(queue.messages for queue in self.queues.values())

    @property
    def reason(self) -> str:
        """What holds it up; empty if nothing does."""
        return self._held or next((queue.reason for queue in self.queues.values() if queue.reason), "")

    def hold(self, reason: str) -> None:
        """Show what holds up its commits; an empty reason shows that they go on."""
        if self._held != reason:
            self._held = reason
            if not self.closed:
                self.on_trouble(self.reason)

    async def settle(self) -> None:
        """Wait a moment until all is forwarded, unless something holds it up."""
        with anyio.move_on_after(SETTLE_MS / 1000):
            while not self.is_idle and not self.reason:
                await self.emptied.wait()

    def close(self) -> None:
        """Forward nothing more: another worker may own the outbox now."""
        self.closed = True


@dataclass(eq=False)
class Forwarder:
    """Forwards what the partitions of one processor have sent; ``run()`` must be running."""

    backend: Backend
    app: str
    settings: Settings
    rng: random.Random
    count_lost: CountLost | None = None

    def __post_init__(self) -> None:
        self._durability = durability_of(self.settings)
        self._log = get_logger("streamworker.forwarder")
        self._server = self.backend.apart(CONNECTIONS, self._forget)
        self._sources = WeakSet[Source]()
        self._taken: defaultdict[OutboxKeys, list[EntryId]] = defaultdict(list)
        """Messages to delete, also those of outboxes that were given up."""
        self._ready: defaultdict[str, dict[_Queue, None]] = defaultdict(dict)
        """Lanes with messages, in turn, by the node of their target."""
        self._rounds: set[str] = set()
        """Nodes to which a round trip is under way."""
        self._tasks: anyio.abc.TaskGroup | None = None
        self._to_delete = Signal()

    async def open(
        self, keys: OutboxKeys, on_trouble: Callable[[str], None], targets: Sequence[StreamSpec] = ()
    ) -> tuple[Source, outbox.Heads]:
        """Begin with an outbox that this worker owns now; raise BackendError if it cannot be read."""
        # An owner before may have moved what waited for partitions that this worker takes for active.
        await follow_targets(self.backend, targets)
        heads = await outbox.open_outbox(self._server, keys, self._durability)
        through = EntryId.parse(heads.last).ms if heads.last else 0
        source = Source(keys, self, through, on_trouble)
        self._sources.add(source)
        self.read(source)
        return source, heads

    async def run(self) -> None:
        """Forward until cancelled."""
        try:
            async with anyio.create_task_group() as self._tasks:
                try:
                    await self._delete()
                finally:
                    self._tasks = None
        finally:
            with anyio.CancelScope(shield=True):
                await self._server.aclose()

    def _forget(self) -> None:
        """Forget all that was true at a server that has restarted."""
        self._taken = defaultdict(list)
        for source in self._sources:
            source.look_again()

    # -- reading -----------------------------------------------------------------------------

    def read(self, source: Source) -> None:
        """Read messages that this worker does not hold: an earlier owner's, or those that waited."""
        if self._tasks is not None and not source.reading and self._wants_more(source):
            source.reading = True
            self._tasks.start_soon(self._read, source)

    @staticmethod
    def _wants_more(source: Source) -> bool:
        return not source.closed and source.read_up_to < source.confirmed and source.held < HELD_BYTES

    async def _read(self, source: Source) -> None:
        pauses = Pauses(self.rng.random, max_ms=self.backend.server.pause_max_ms)
        while self._wants_more(source):
            up_to, queues = source.confirmed, source.queues
            try:
                found = await outbox.read_messages(
                    self._server, source.keys, source.read_up_to, up_to, outbox.READ_COUNT
                )
            except BackendError as error:
                self._log.warning("outbox_unreadable", source=source.keys.source, error=str(error))
                await anyio.sleep(pauses.next_ms() / 1000)
                continue
            if queues is not source.queues:
                continue
            source.put(found)
            if len(found) < outbox.READ_COUNT:
                source.read_up_to = up_to
        source.reading = False
        source.emptied.fire()

    # -- forwarding --------------------------------------------------------------------------

    def start(self, queue: _Queue) -> None:
        """Forward the messages of a queue, if it has any and nothing is under way for it."""
        if self._tasks is None or queue.is_busy or not queue.messages or queue.is_over:
            return
        events = StreamKeys(self.app, queue.to.stream).events(queue.to.partition)
        address = self.backend.server.known_address_of(events)
        self._ready[address][queue] = None
        if address not in self._rounds:
            self._rounds.add(address)
            self._tasks.start_soon(self._round, address)

    async def _round(self, address: str) -> None:
        try:
            # Without tasks it ends, and this round is cancelled in a moment.
            while (tasks := self._tasks) is not None and (work := self._gather(address)):
                await self._forward(work, tasks)
        finally:
            self._rounds.discard(address)

    def _gather(self, address: str) -> list[tuple[_Queue, list[Message]]]:
        work, size, ready = [], 0, self._ready[address]
        while ready and size < ROUND_BYTES:
            queue = next(iter(ready))
            del ready[queue]
            # A target that did not take its last message is asked with one, not with all that waits.
            most = 1 if queue.pauses else ROUND_BYTES - size
            # A queue waits at two nodes if its target has moved meanwhile; only one of them begins it.
            if not queue.is_over and (its := queue.begin(most)):
                size += sum(len(message.data) for message in its)
                work.append((queue, its))
        return work

    async def _forward(self, work: list[tuple[_Queue, list[Message]]], tasks: anyio.abc.TaskGroup) -> None:
        messages = [(queue.source.keys.source, message) for queue, its in work for message in its]
        try:
            replies = await outbox.forward_many(self._server, self.app, messages, self._durability)
        except BackendError as error:
            replies = [AppendReply(AppendCode.UNKNOWN, error=error)] * len(messages)
        at = 0
        for queue, its in work:
            answers, at = replies[at : at + len(its)], at + len(its)
            if queue.is_forgotten:
                continue
            taken, stopped = queue.answered(answers)
            self._took(queue, taken)
            if stopped is None:
                queue.pauses = None
                queue.held_up("")
                self._go_on(queue)
            else:
                tasks.start_soon(self._again, queue, stopped)

    def _go_on(self, queue: _Queue) -> None:
        queue.is_busy = False
        if not queue.messages:
            queue.held_up("")
        self.start(queue)
        self.read(queue.source)
        if queue.source.is_idle:
            queue.source.emptied.fire()

    async def _again(self, queue: _Queue, reply: AppendReply) -> None:
        queue.pauses = queue.pauses or full_pauses(self.rng.random)
        pause_ms = queue.pauses.next_ms()
        try:
            if reply.code is AppendCode.OTHER:
                pause_ms = await self._compare(queue, reply)
            elif reply.code is AppendCode.SEALED:
                pause_ms = max(pause_ms, await self._sealed(queue, pause_ms))
            elif reply.code is not AppendCode.FULL:
                self._unanswered(queue, reply.error)
            elif pause_ms >= SHOWN_PAUSE_MS:
                target = StreamKeys(self.app, queue.to.stream)
                group = await slowest_group(self.backend, target, queue.to.partition)
                why = f"because {group} lags" if group else "and no processor reads it"
                queue.held_up(f"{queue.to.in_words} is full {why}")
        except BackendError as error:
            self._unanswered(queue, error)
        await anyio.sleep(pause_ms / 1000)
        self._go_on(queue)

    async def _sealed(self, queue: _Queue, pause_ms: int) -> int:
        """Let what waits for a partition that takes no more move; return how long the queue rests."""
        if queue.source.sealed is None:
            return pause_ms  # The outbox was opened just now.
        reason, rest_ms = await queue.source.sealed(queue.to, lambda: not queue.is_over)
        if reason and pause_ms >= SHOWN_PAUSE_MS:
            if queue.reason != reason:
                source = queue.source.keys.source
                self._log.warning("forward_sealed", source=source, to=str(queue.to), reason=reason)
            queue.held_up(reason)
        return rest_ms

    def _unanswered(self, queue: _Queue, error: BackendError | None) -> None:
        """Tell why a target does not take what it is sent, once for each reason."""
        reason = f"{queue.to.in_words} does not take what it is sent: {error}"
        if queue.reason != reason and error is not None:
            source = queue.source.keys.source
            warn(self._log, "forward_unanswered", error, source=source, to=str(queue.to))
        queue.held_up(reason)

    async def _compare(self, queue: _Queue, stopped: AppendReply) -> int:
        """Compare where a target stands with all that the source still has for it.

        Take what follows into the queue, and return how long the queue rests.
        """
        source, through, stands = queue.source, queue.source.read_up_to, OutboxPosition.parse(stopped.value)
        log = self._log.bind(source=source.keys.source, to=str(queue.to), stands=str(stands))
        # Also what was committed since: another worker may own the outbox by now.
        (heads,) = await outbox.read_heads(self._server, [source.keys])
        if queue.to in heads.moved:  # Some of what it lacks was moved, and that is no loss.
            return await self._sealed(queue, SHOWN_PAUSE_MS)
        chain = (await outbox.read_chains(self._server, source.keys, queue.to)).get(queue.to, [])
        taken, why = queue.compared(stands, chain, heads.positions.get(queue.to), through)
        self._took(queue, taken)
        now = await outbox.read_stands(self._server, self.app, source.keys.source, queue.to)
        if why is Standing.GOES_ON or stands != now or queue.is_forgotten:
            return 0  # If it has moved since it answered, it may have taken what is deleted by now.
        since = queue.messages[0].since
        if why is Standing.DIVERGED:
            reason = diverged(queue.to, stands, since)
            if queue.reason != reason:  # It may have been held up by something else before.
                tell_lost(log, "outbox_diverged", self.count_lost, 0, since=str(since))
            queue.held_up(reason)
            return DIVERGED_PAUSE_MS
        lost = since.records - stands.records
        reason = "the target confirmed them and lost them"
        tell_lost(log, "forwarded_records_lost", self.count_lost, lost, records=lost, reason=reason)
        await outbox.note_lost(self._server, source.keys, queue.to, stands, since)
        queue.accept(stands)
        return 0

    # -- deleting ----------------------------------------------------------------------------

    def _took(self, queue: _Queue, taken: list[EntryId]) -> None:
        if taken and not queue.is_forgotten:
            self._taken[queue.source.keys] += taken
            if spans := queue.source.spans:
                for message in taken:
                    if span := spans.pop(message.ms, None):
                        span.end()
            self._to_delete.fire()

    async def _delete(self) -> None:
        """Delete at the sources what the targets have taken, a few times a second at most."""
        pauses = Pauses(self.rng.random, max_ms=self.backend.server.pause_max_ms)
        while True:
            if not self._taken:
                await self._to_delete.wait()
            newer: defaultdict[OutboxKeys, list[EntryId]] = defaultdict(list)
            taken, self._taken = self._taken, newer
            try:
                left = await outbox.delete_messages(self._server, taken)
            except BackendError as error:
                left = dict.fromkeys(taken, error)
            if not left:
                if pauses.failures:
                    pauses.reset()
                await anyio.sleep(DELETE_EVERY_MS / 1000)
                continue
            for keys in left if self._taken is newer else ():
                newer[keys] += taken[keys]
            self._log.warning("outbox_not_trimmed", error=str(next(iter(left.values()))))
            await anyio.sleep(pauses.next_ms() / 1000)
