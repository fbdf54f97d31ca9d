"""Commits of all partitions of one processor, many in one round trip.

While a pipeline of commits is on its way, the commits that become ready gather, and the next
pipeline takes them all: no waiting for company, and yet one round trip for many partitions
when there is much to do. At most two pipelines are under way, so that the server always has one
to work at.

A commit without an answer may have been done. It is sent again until there is an answer, which
is safe: the script compares checkpoints, and says ``DUP`` where the first try had worked.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from streamworker.errors import BackendError, BackendUnavailable
from streamworker.log import get_logger
from streamworker.redisio import locks
from streamworker.redisio.client import Backend
from streamworker.redisio.commit import CommitCode, CommitReply, CommitRequest, commit_many
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.pauses import Pauses
from streamworker.runtime.signals import Signal
from streamworker.settings import Settings

PIPELINES_MAX = 2
"""One at the server, one on its way there. More would only split the groups."""

PIPELINE_BYTES_MAX = 8 * 1024 * 1024
"""Above this a group is split, so that one call stays well below its deadline on a slow line."""

OnTrouble = Callable[[str], None]

_log = get_logger("streamworker.committer")


@dataclass(slots=True)
class _Ticket:
    request: CommitRequest
    on_trouble: OnTrouble
    done: anyio.Event = field(default_factory=anyio.Event)
    reply: CommitReply | None = None
    tries: int = 0
    pauses: Pauses | None = None

    @property
    def size(self) -> int:
        return 0 if self.request.batch is None else len(self.request.batch.data)


class Committer:
    """Sends the commits of one processor.

    ``run()`` does the work; ``submit()`` hands in one commit and waits for its reply. A runner
    has at most one commit under way, which keeps each partition's commits in order.
    """

    def __init__(
        self, backend: Backend, group_keys: GroupKeys, settings: Settings, rng: random.Random
    ) -> None:
        self._backend = backend
        self._keys = group_keys
        self._settings = settings
        self._rng = rng
        self._ready: list[_Ticket] = []
        self._changed = Signal()
        self._under_way = 0
        self.pipelines = 0
        """Pipelines sent so far."""

    async def submit(self, request: CommitRequest, *, on_trouble: OnTrouble = lambda _: None) -> CommitReply:
        """Commit; tried again until Redis says yes or no.

        Parameters
        ----------
        request
            The commit.
        on_trouble
            Called with a reason each time Redis gave no answer or refused, and the commit will
            be sent again.

        Returns
        -------
        CommitReply
            ``OK`` and ``DUP`` mean that it is done. ``FENCED``, ``GAP`` and ``BADTYPE`` mean
            that it is not, and ``FULL`` that it may be sent again later. ``UNKNOWN`` means that
            the partition was lost while the outcome of an earlier try was open, and that
            somebody has committed past it since: it may be there or have been done anew.

        After a cancel the outcome is unknown: the commit may be on its way.
        """
        ticket = _Ticket(request, on_trouble)
        self._ready.append(ticket)
        self._changed.fire()
        try:
            await ticket.done.wait()
        except BaseException:
            if ticket in self._ready:
                self._ready.remove(ticket)
            ticket.pauses = None
            ticket.done.set()  # A retry that is pausing sees it and gives up.
            raise
        assert ticket.reply is not None
        return ticket.reply

    async def run(self) -> None:
        """Send commits until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                while not self._ready or self._under_way >= PIPELINES_MAX:
                    await self._changed.wait()
                self._under_way += 1
                self.pipelines += 1
                tasks.start_soon(self._send, self._next_group(), tasks)

    def _next_group(self) -> list[_Ticket]:
        count = size = 0
        for ticket in self._ready:
            size += ticket.size
            if count and size > PIPELINE_BYTES_MAX:
                break
            count += 1
        group, self._ready = self._ready[:count], self._ready[count:]
        return group

    async def _send(self, group: list[_Ticket], tasks: anyio.abc.TaskGroup) -> None:
        try:
            replies = await commit_many(self._backend, self._keys, [ticket.request for ticket in group])
        finally:
            self._under_way -= 1
            self._changed.fire()
        for ticket, reply in zip(group, replies, strict=True):
            if reply.code is CommitCode.UNKNOWN:
                tasks.start_soon(self._again, ticket, str(reply.error))
            elif ticket.tries and reply.code is CommitCode.FENCED:
                tasks.start_soon(self._look, ticket, reply)
            else:
                self._finish(ticket, reply)

    async def _again(self, ticket: _Ticket, reason: str) -> None:
        ticket.tries += 1
        if ticket.pauses is None:
            ticket.pauses = Pauses(self._rng)
        pause_ms = ticket.pauses.next_ms()
        _log.warning(
            "commit_unanswered",
            partition=ticket.request.partition,
            reason=reason,
            tries=ticket.tries,
            retry_in_ms=pause_ms,
        )
        ticket.on_trouble(f"commit not confirmed, trying again: {reason}")
        with anyio.move_on_after(pause_ms / 1000):
            await ticket.done.wait()
        if not ticket.done.is_set():
            self._ready.append(ticket)
            self._changed.fire()

    async def _look(self, ticket: _Ticket, fenced: CommitReply) -> None:
        """Find out what became of the first try of a commit whose second try was fenced."""
        request = ticket.request
        pauses = Pauses(self._rng)
        while not ticket.done.is_set():
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
    def _finish(ticket: _Ticket, reply: CommitReply) -> None:
        ticket.reply = reply
        ticket.done.set()
