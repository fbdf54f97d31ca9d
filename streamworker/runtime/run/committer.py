"""Sends the commits of all partitions of one processor, many in one round trip.

While a pipeline of commits is in flight, new commits queue, and the next pipeline takes them all. So a
commit that is handed in never waits for others, and under load one round trip serves many partitions.

At a low rate each record would have a commit and a round trip of its own, which cost more than the record. So
a mode may let the committer ``gather``: it is told at once if nobody was told just before, and otherwise a
moment later, at the same time as all others. Then it hands in one commit of all that is done.

A commit without an answer may have been done. The committer retries it until Redis answers. This is safe:
the script compares checkpoints, and answers ``DUP`` if the first try succeeded. The committer also retries
a commit that is done but not yet as durable as the settings ask, and reports it only when it is; and one
that waits until somebody else has acted, for example until a reader has made room in the acked log.
"""

import asyncio
import itertools
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import anyio

from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.events import StartRunner
from streamworker.core.pauses import Pauses
from streamworker.errors import BackendError, BackendUnavailable
from streamworker.log import get_logger
from streamworker.records.entries import origin_at
from streamworker.redisio.data.commit import CommitCode, CommitReply, CommitRequest, commit_many
from streamworker.redisio.data.streams import range_entries
from streamworker.redisio.group import locks
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import NotDurable
from streamworker.runtime.durability import durability_of, pipelines_of
from streamworker.runtime.run import trail
from streamworker.runtime.telling import warn
from streamworker.settings import Settings

PIPELINE_BYTES_MAX = 8 * 1024 * 1024
"""A larger group of commits is split, so that one call stays well below its deadline on a slow network."""

GATHER_MS = 100
"""At most so often the commits begin that nothing waits for. Such a row is so much later, and a crash repeats
so much more. At 200 records a second over 8 partitions a commit has two or three records, and a round trip
eight commits."""

HELD_UP = frozenset({CommitCode.FULL, CommitCode.OUTBOX, CommitCode.BADTYPE, CommitCode.AHEAD})
"""The commit is not done, and is retried: this worker still holds the lock, and somebody else must act first.
Handling the batch again would not help, and would repeat the handler's side effects each time."""

_log = get_logger("streamworker.committer")


@dataclass(slots=True, eq=False)
class Ticket:
    """One commit on its way from a partition to Redis."""

    request: CommitRequest
    on_reply: Callable[[CommitReply], None]
    on_trouble: Callable[[CommitReply], None]
    renew: Callable[[], Awaitable[None]] | None = None
    """Called before a commit is sent again of which no try was done; it may change the request."""
    withdrawn: bool = False
    """Set by the partition when it ends. The commit may already be in flight, so its outcome is unknown."""
    tries: int = 0
    """How many tries since the last answer had none."""
    pauses: Pauses | None = None

    @property
    def size(self) -> int:
        """Bytes that the commit adds to the acked log and the outbox."""
        batch, outbox = self.request.batch, self.request.outbox
        size = 0 if batch is None else len(batch.data)
        return size + (sum(len(each.data) for each in outbox.messages) if outbox else 0)


@dataclass(eq=False)
class Committer:
    """Sends the commits of one processor.

    A commit has no task of its own: with a thousand partitions there are thousands of commits a second, and
    a task and its waits cost more than the commit.
    """

    backend: Backend
    keys: GroupKeys
    settings: Settings
    rng: random.Random

    def __post_init__(self) -> None:
        self._durability = durability_of(self.settings)
        self._pipelines_max = pipelines_of(self.settings)
        self._queues: dict[str, list[Ticket]] = {}
        """Commits to be sent, by node; one server is one node with an empty name."""
        self._tasks: anyio.abc.TaskGroup | None = None
        self._sends: set[asyncio.Task[None]] = set()
        """The pipelines in flight. A task of a task group costs a tenth of what a worker does for a batch."""
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the error of a pipeline that failed in a way that nobody expects."""
        self._starting = False
        self._under_way: Counter[str] = Counter()
        """Pipelines in flight by node, so that one node that hangs does not delay the others."""
        self._addresses: dict[int, str] = {}
        self._map_version = -1
        self._gathering: list[Callable[[], None]] = []
        """Whom to tell when the moment is over in which commits gather."""
        self._moment: asyncio.Handle | None = None
        """Ends the moment; None if nothing has gathered in the last one."""

    def hand_in(
        self,
        request: CommitRequest,
        on_reply: Callable[[CommitReply], None],
        on_trouble: Callable[[CommitReply], None],
        renew: Callable[[], Awaitable[None]] | None = None,
    ) -> Ticket:
        """Queue a commit; the committer retries it until it is done or cannot be done any more.

        ``on_reply`` is called with the result, unless the ticket was withdrawn. ``OK`` and ``DUP`` mean that
        the commit is done, ``FENCED`` and ``GAP`` that it is not. ``UNKNOWN`` means that the partition was
        lost while the outcome of an earlier try was open, and that the checkpoint is now at or after the
        commit's last entry: the try was done, or the next owner has committed those entries.

        ``on_trouble`` is called with each reply after which the commit will be sent again: ``UNKNOWN`` if
        Redis gave no answer, refused, or did not confirm that the commit is durable, or one of ``HELD_UP``.
        After one of these ``renew`` may change the request.
        """
        ticket = Ticket(request, on_reply, on_trouble, renew)
        self._queue(ticket)
        return ticket

    def gather(self, ready: Callable[[], None]) -> None:
        """Call ``ready`` at once, or ``GATHER_MS`` after the last such calls, together with all others."""
        self._gathering.append(ready)
        if self._moment is None:
            self._moment = asyncio.get_running_loop().call_soon(self.end_moment)

    def end_moment(self) -> None:
        """Let all commits that gather begin; if there are any, the next moment begins."""
        if self._moment is not None:
            self._moment.cancel()
        gathering, self._gathering = self._gathering, []
        loop = asyncio.get_running_loop()
        self._moment = loop.call_later(GATHER_MS / 1000, self.end_moment) if gathering else None
        for ready in gathering:
            ready()

    async def holds(self, partition: int, entries: Sequence[Entry]) -> bool:
        """Return whether a partition's stream still has these entries; True if Redis does not answer."""
        key, last = self.keys.events(partition), origin_at(entries, -1)[0]
        try:
            found = await range_entries(self.backend, key, entries[0].id, last, len(entries))
            return [each for each in found if entries[0].id <= each.id <= entries[-1].id] == list(entries)
        except BackendError:
            return True

    async def store_tries(self, start: StartRunner, tries: Mapping[EntryId, int], *, alone: bool) -> None:
        """Store attempts at records in the lock; ``alone`` if the one record is called while nothing else is.

        If Redis does not take them, they do not count.
        """
        try:
            await locks.store_tries(self.backend, self.keys, start, tries, alone=alone)
        except BackendError as error:
            _log.warning("attempts_not_stored", partition=start.partition, reason=str(error))

    async def run(self) -> None:
        """Send commits until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self._start_soon()
            try:
                await self._failed
            finally:
                self._tasks = None
                for task in self._sends:
                    task.cancel()
                with anyio.CancelScope(shield=True):
                    while self._sends:
                        await asyncio.wait(self._sends)

    def _queue(self, ticket: Ticket) -> None:
        partition = ticket.request.partition
        if (address := self._addresses.get(partition)) is None:
            address = self._addresses[partition] = self.backend.server.known_address_of(
                self.keys.lock(partition)
            )
        self._queues.setdefault(address, []).append(ticket)
        self._start_soon()

    def _start_soon(self) -> None:
        """Send the queue in the next turn of the event loop, with other commits of this turn."""
        if not self._starting:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        if self._tasks is None:
            return
        if self._map_version != self.backend.server.map_version:
            self._map_version = self.backend.server.map_version
            queues, self._queues = self._queues, {}
            self._addresses.clear()
            for ticket in itertools.chain(*queues.values()):
                self._queue(ticket)
        for address in self._queues:
            while self._under_way[address] < self._pipelines_max and (group := self._next_group(address)):
                self._under_way[address] += 1
                send = asyncio.get_running_loop().create_task(self._send(group, address, self._tasks))
                self._sends.add(send)
                send.add_done_callback(self._sent)

    def _next_group(self, address: str) -> list[Ticket]:
        ready = [ticket for ticket in self._queues[address] if not ticket.withdrawn]
        count = size = 0
        for ticket in ready:
            size += ticket.size
            if count and size > PIPELINE_BYTES_MAX:
                break
            count += 1
        self._queues[address] = ready[count:]
        return ready[:count]

    async def _send(self, group: list[Ticket], address: str, tasks: anyio.abc.TaskGroup) -> None:
        is_told = trail.asked.isEnabledFor(logging.DEBUG)
        for ticket in group if is_told else ():
            trail.commit("commit_sent", ticket.request, tries=ticket.tries)
        try:
            requests = [ticket.request for ticket in group]
            replies = await commit_many(self.backend, self.keys, requests, self._durability)
        finally:
            self._under_way[address] -= 1
            self._start_soon()
        for ticket, reply in zip(group, replies, strict=True):
            if is_told:
                trail.commit("commit_answered", ticket.request, tries=ticket.tries, code=reply.code.value)
            if reply.code is CommitCode.UNKNOWN or reply.code in HELD_UP:
                tasks.start_soon(self._again, ticket, reply)
            elif ticket.tries and reply.code is CommitCode.FENCED:
                tasks.start_soon(self._look, ticket, reply)
            else:
                self._finish(ticket, reply)

    def _sent(self, send: asyncio.Task[None]) -> None:
        self._sends.discard(send)
        error = None if send.cancelled() else send.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _again(self, ticket: Ticket, reply: CommitReply) -> None:
        if ticket.withdrawn:
            return
        if ticket.pauses is None:
            ticket.pauses = Pauses(self.rng.random, max_ms=self.backend.server.pause_max_ms)
        pause_ms = ticket.pauses.next_ms()
        if reply.code is CommitCode.UNKNOWN and reply.error is not None:
            ticket.tries += 1
            event = "commit_not_durable" if isinstance(reply.error, NotDurable) else "commit_unanswered"
            partition, tries = ticket.request.partition, ticket.tries
            warn(_log, event, reply.error, partition=partition, tries=tries, retry_in_ms=pause_ms)
        else:
            ticket.tries = 0  # Redis has answered that no try was done.
        ticket.on_trouble(reply)
        await anyio.sleep(pause_ms / 1000)
        if not ticket.tries and ticket.renew is not None:
            await ticket.renew()
        self._queue(ticket)

    async def _look(self, ticket: Ticket, fenced: CommitReply) -> None:
        """Find out whether the first try of a commit was done whose retry was fenced."""
        request = ticket.request
        pauses = Pauses(self.rng.random)
        while not ticket.withdrawn:
            try:
                lock = await locks.read_lock(self.backend, self.keys, request.partition)
            except BackendUnavailable:
                await anyio.sleep(pauses.next_ms() / 1000)
                continue
            except BackendError:
                break
            # The checkpoint never goes back, so a lower one shows that this commit was not done.
            if lock is not None and lock.checkpoint >= request.new:
                fenced = replace(fenced, code=CommitCode.UNKNOWN)
            break
        self._finish(ticket, fenced)

    @staticmethod
    def _finish(ticket: Ticket, reply: CommitReply) -> None:
        if not ticket.withdrawn:
            ticket.on_reply(reply)
