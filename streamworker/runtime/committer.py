"""Commits of all partitions of one processor, many in one round trip.

While a pipeline of commits is on its way, the commits that become ready gather, and the next
pipeline takes them all: no waiting for company, and yet one round trip for many partitions
when there is much to do. At most two pipelines are under way, so that the server always has one
to work at; some more where each waits for a disk or for replicas.

A commit without an answer may have been done. It is sent again until there is an answer, which
is safe: the script compares checkpoints, and says ``DUP`` where the first try had worked. The same
becomes of a commit that is done and not yet as safe as the settings ask: nobody is told of it before.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import anyio

from streamworker.errors import BackendError, BackendUnavailable
from streamworker.log import get_logger
from streamworker.redisio import locks
from streamworker.redisio.client import Backend
from streamworker.redisio.commit import CommitCode, CommitReply, CommitRequest, commit_many
from streamworker.redisio.durability import NotDurable
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime import trail
from streamworker.runtime.durability import durability_of, pipelines_of
from streamworker.runtime.pauses import Pauses
from streamworker.settings import Settings

PIPELINE_BYTES_MAX = 8 * 1024 * 1024
"""Above this a group is split, so that one call stays well below its deadline on a slow line."""

OnReply = Callable[[CommitReply], None]
OnTrouble = Callable[[str], None]

_log = get_logger("streamworker.committer")


@dataclass(slots=True, eq=False)
class Ticket:
    """One commit that was handed in."""

    request: CommitRequest
    on_reply: OnReply
    on_trouble: OnTrouble
    withdrawn: bool = False
    tries: int = 0
    pauses: Pauses | None = None

    def withdraw(self) -> None:
        """Ask for no reply any more. The commit may be on its way, so its outcome is unknown."""
        self.withdrawn = True

    @property
    def size(self) -> int:
        """Bytes that it adds to the acked log."""
        return 0 if self.request.batch is None else len(self.request.batch.data)


class Committer:
    """Sends the commits of one processor.

    ``run()`` does the work; ``hand_in()`` takes one commit and calls back with its reply. A runner
    has at most one commit under way, which keeps each partition's commits in order.

    A commit is no task of its own: with a thousand partitions there are thousands a second, and a
    task with what it waits for costs more than the commit.
    """

    def __init__(
        self, backend: Backend, group_keys: GroupKeys, settings: Settings, rng: random.Random
    ) -> None:
        self._backend = backend
        self._keys = group_keys
        self._durability = durability_of(settings)
        self._pipelines_max = pipelines_of(settings)
        self._rng = rng
        self._ready: list[Ticket] = []
        self._tasks: anyio.abc.TaskGroup | None = None
        self._starting = False
        self._under_way: Counter[str] = Counter()
        """Pipelines by the node that they go to: one that hangs holds up no other."""
        self._places: dict[int, str] = {}
        self._map_version = -1
        self.pipelines = 0
        """Pipelines sent so far."""

    def hand_in(
        self, request: CommitRequest, on_reply: OnReply, on_trouble: OnTrouble = lambda _: None
    ) -> Ticket:
        """Commit; tried again until Redis says yes or no.

        Parameters
        ----------
        request
            The commit.
        on_reply
            Called with what became of it, unless the ticket was withdrawn. ``OK`` and ``DUP`` mean
            that it is done. ``FENCED``, ``GAP`` and ``BADTYPE`` mean that it is not, and ``FULL``
            that it may be sent again later. ``UNKNOWN`` means that the partition was lost while
            the outcome of an earlier try was open, and that somebody has committed past it since:
            it may be there or have been done anew.
        on_trouble
            Called with a reason each time Redis gave no answer or refused, or did not confirm that
            the commit is safe, and it will be sent again.
        """
        ticket = Ticket(request, on_reply, on_trouble)
        self._ready.append(ticket)
        self._start_soon()
        return ticket

    async def submit(self, request: CommitRequest, *, on_trouble: OnTrouble = lambda _: None) -> CommitReply:
        """As :meth:`hand_in`, and wait for the reply. After a cancel the outcome is unknown."""
        answered: asyncio.Future[CommitReply] = asyncio.get_running_loop().create_future()

        def answer(reply: CommitReply) -> None:
            if not answered.done():  # It is once it was cancelled, before its task has run.
                answered.set_result(reply)

        ticket = self.hand_in(request, answer, on_trouble)
        try:
            return await answered
        finally:
            ticket.withdraw()

    async def run(self) -> None:
        """Send commits until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self._start_soon()
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    def _start_soon(self) -> None:
        """Send what is ready once the event loop comes round: others of this turn go with it."""
        if not self._starting:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        if self._tasks is None:
            return
        for place in self._ready_places():
            while self._under_way[place] < self._pipelines_max:
                group = self._next_group(place)
                if not group:
                    break
                self._under_way[place] += 1
                self.pipelines += 1
                self._tasks.start_soon(self._send, group, place, self._tasks)

    def _ready_places(self) -> Collection[str]:
        """Return the nodes to which something is to be sent; of one server there is one, without a name."""
        if not self._backend.is_cluster:
            return ("",) if self._ready else ()
        if self._map_version != self._backend.map_version:
            self._map_version = self._backend.map_version
            self._places.clear()
        return {self._place(ticket) for ticket in self._ready}

    def _place(self, ticket: Ticket) -> str:
        partition = ticket.request.partition
        place = self._places.get(partition)
        if place is None:
            place = self._places[partition] = self._backend.known_place_of(self._keys.lock(partition))
        return place

    def _next_group(self, place: str) -> list[Ticket]:
        ready = [ticket for ticket in self._ready if not ticket.withdrawn]
        others: list[Ticket] = []
        if self._backend.is_cluster:
            others = [ticket for ticket in ready if self._place(ticket) != place]
            ready = [ticket for ticket in ready if self._place(ticket) == place]
        count = size = 0
        for ticket in ready:
            size += ticket.size
            if count and size > PIPELINE_BYTES_MAX:
                break
            count += 1
        self._ready = others + ready[count:]
        return ready[:count]

    async def _send(self, group: list[Ticket], place: str, tasks: anyio.abc.TaskGroup) -> None:
        trail.commits_sent(group)
        try:
            requests = [ticket.request for ticket in group]
            replies = await commit_many(self._backend, self._keys, requests, self._durability)
        finally:
            self._under_way[place] -= 1
            self._start_soon()
        trail.commits_answered(group, replies)
        for ticket, reply in zip(group, replies, strict=True):
            if reply.code is CommitCode.UNKNOWN:
                tasks.start_soon(self._again, ticket, reply.error)
            elif ticket.tries and reply.code is CommitCode.FENCED:
                tasks.start_soon(self._look, ticket, reply)
            else:
                self._finish(ticket, reply)

    async def _again(self, ticket: Ticket, error: BackendError | None) -> None:
        if ticket.withdrawn:
            return
        reason = str(error)
        ticket.tries += 1
        if ticket.pauses is None:
            ticket.pauses = Pauses(self._rng, max_ms=self._backend.pause_max_ms)
        pause_ms = ticket.pauses.next_ms()
        _log.warning(
            "commit_not_durable" if isinstance(error, NotDurable) else "commit_unanswered",
            partition=ticket.request.partition,
            reason=reason,
            tries=ticket.tries,
            retry_in_ms=pause_ms,
        )
        ticket.on_trouble(f"commit not confirmed, trying again: {reason}")
        await anyio.sleep(pause_ms / 1000)
        self._ready.append(ticket)
        self._start_soon()

    async def _look(self, ticket: Ticket, fenced: CommitReply) -> None:
        """Find out what became of the first try of a commit whose second try was fenced."""
        request = ticket.request
        pauses = Pauses(self._rng)
        while not ticket.withdrawn:
            try:
                lock = await locks.read_lock(self._backend, self._keys, request.partition)
            except BackendUnavailable:
                await anyio.sleep(pauses.next_ms() / 1000)
                continue
            except BackendError:
                break
            # The checkpoint never goes back, and one that is below ours was not set by us.
            absent = lock is None or lock.checkpoint < request.new
            code = CommitCode.FENCED if absent else CommitCode.UNKNOWN
            self._finish(
                ticket,
                CommitReply(code=code, epoch=fenced.epoch, checkpoint=fenced.checkpoint, rows=fenced.rows),
            )
            return
        self._finish(ticket, fenced)

    @staticmethod
    def _finish(ticket: Ticket, reply: CommitReply) -> None:
        if not ticket.withdrawn:
            ticket.on_reply(reply)
