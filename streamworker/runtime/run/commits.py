"""The commits of one partition: one in flight at a time, each from the checkpoint of the one before.

While the commit of batch k is in flight, the mode handles batch k+1. The commit of batch k+1 is submitted
when the reply to k has arrived. So a partition does not wait for Redis as long as its handler takes longer
than a round trip, and at most two batches are handled and not known to be committed.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pyarrow as pa
from structlog.stdlib import BoundLogger

from streamworker.core.data.entries import Entry, EntryId
from streamworker.core.events import StartRunner
from streamworker.core.ownership.locks import Acquired
from streamworker.declaring.specs import ProcessorSpec
from streamworker.records.entries import as_stored, id_at, origin_at, sizes_of
from streamworker.records.rows import first_id, records_in
from streamworker.redisio.data.ackedlog import AckedBatch, encode_batch
from streamworker.redisio.data.commit import WRITTEN, CommitCode, CommitReply, CommitRequest, DeadEntry
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.forward.moving import OwnedOutbox
from streamworker.runtime.forward.routing import Routed
from streamworker.runtime.observing import Observer
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.run.activity import Activity
from streamworker.runtime.run.committer import Committer, Ticket
from streamworker.runtime.run.state import Changes, PartitionState
from streamworker.runtime.run.trims import Trims
from streamworker.runtime.signals import Signal
from streamworker.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from streamworker.runtime.tracing.spans import PartitionSpans

ENCODE_IN_THREAD_BYTES = 512 * 1024
"""Record batches above this size are encoded in a thread, where compression releases the GIL. Encoding
takes 2 to 4 ms a MB, and switching to a thread and back 0.1 ms (measured). Smaller batches are encoded
faster on the event loop, and block it for a millisecond or two at most."""

HANDOVER_YIELDS = 4
"""Turns of the event loop from the start of a commit until its bytes are on the socket. The next handler
may compute without awaiting, so the commit should be sent before it starts. If no entries wait, no
handler starts before then, and the partition does not yield."""


@dataclass(slots=True)
class Work:
    """Entries that are done, in order, and the results that their commit writes."""

    entries: Sequence[Entry] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    """Rows to forward that are not converted to Arrow yet."""
    rows: pa.RecordBatch | None = None
    packed: AckedBatch | None = None
    """``rows`` in encoded form, if the commit can use it as it is."""
    dead: list[DeadEntry] = field(default_factory=list)
    sends: Routed = field(default_factory=dict)
    """Rows for other streams, encoded."""
    timer: str = ""
    before: bytes = b""
    knows_end: bool = False
    """For the call of a timer the field that names it, its value before, and more; see ``CommitRequest``."""
    state: Changes = field(default_factory=dict)
    archived: tuple[EntryId, int] | None = None
    """In place of entries: up to which record they are archived, and how many these are."""
    holds_rows: bool = False
    """Whether the entries are those of a stream of columns."""

    @property
    def first(self) -> EntryId:
        """Id of the first record."""
        return first_id(self.entries[0]) if self.holds_rows else id_at(self.entries, 0)

    @property
    def last(self) -> EntryId:
        """Id of the last entry: the checkpoint after the commit."""
        return id_at(self.entries, -1)

    @property
    def records(self) -> int:
        """How many records the entries count for."""
        return sum(map(records_in, self.entries)) if self.holds_rows else len(self.entries)

    @property
    def size(self) -> int:
        """Bytes of the entries."""
        return sum(sizes_of(self.entries)) if self.entries else 0


@dataclass(kw_only=True, eq=False)
class Commits:
    """The commits of one partition while one runner has it."""

    spec: ProcessorSpec
    start: StartRunner
    buffer: PartitionBuffer
    committer: Committer
    settings: Settings
    activity: Activity
    """Is told what holds a commit up."""
    refused: Callable[[CommitCode, str], None]
    """Stops the partition at once: a commit was refused, for the reason that it is given."""
    on_full: Callable[[], None]
    """Called each time that the acked log has no room for a commit."""
    log: BoundLogger
    state: PartitionState
    """Is told of each confirmed commit."""
    outbox: OwnedOutbox | None = None
    """Where messages for other streams go, if the function can send any."""
    observer: Observer | None = None
    spans: "PartitionSpans | None" = None
    """Makes spans of calls and commits, if the app asks for traces."""

    def __post_init__(self) -> None:
        lock = self.start.lock
        self.epoch = lock.epoch
        self.records_done = 0
        """Records committed by this runner."""
        self.is_committing = False
        """Whether a commit is in flight."""
        self.is_submitting = False
        """Whether one waits to be in flight."""
        self.store_tries = partial(self.committer.store_tries, self.start)
        self.trims = Trims(self.settings.trim_interval_ms, self.settings.acked_entries_max)
        self.is_full = False
        """Whether a commit waits for room in the acked log. Nothing of it was written."""
        self._previous = lock.checkpoint
        self._committed = (lock.checkpoint, lock.rows)
        """Checkpoint and rows after the last confirmed commit."""
        self.landed = Signal()
        """Fires when a commit is confirmed."""
        self._ticked: tuple[str, bytes] = ("", b"")
        """The field and value of the last commit of a timer."""
        self._began_s = 0.0
        """When the last commit was handed in, for an observer."""
        self._span: Span | None = None
        """The span of the commit in flight, if one of its calls was sampled."""
        self._ticket: Ticket | None = None
        """The last commit that was handed in."""

    @property
    def committed(self) -> Acquired:
        """The partition's lock with the checkpoint and counts of the last confirmed commit."""
        lock, (checkpoint, rows) = self.start.lock, self._committed
        return replace(lock, checkpoint=checkpoint, entries=lock.entries + self.records_done, rows=rows)

    async def submit(self, work: Work) -> None:
        """Start a commit after the previous one is done; without entries it is that of a timer."""
        self.is_submitting = True
        batch, rows = work.packed, work.rows
        if batch is None and rows is not None:
            if rows.nbytes < ENCODE_IN_THREAD_BYTES:
                batch = encode_batch(rows, work.first)
            else:
                batch = await anyio.to_thread.run_sync(encode_batch, rows, work.first)
        await self.flush()
        if work.sends and self.outbox:
            await self.outbox.ready(work.sends)
        entries = work.entries
        last, records = work.archived or (work.last if entries else self._previous, work.records)
        request = CommitRequest(
            partition=self.start.partition,
            owner=self.start.owner,
            epoch=self.epoch,
            previous=self._previous,
            new=last,
            entries=records,
            batch=batch,
            reads=self.buffer.reads_up_to(last) if entries else (),
            last=as_stored(*origin_at(entries, -1)) if entries else None,
            is_archived=work.archived is not None,
            timer=work.timer,
            before=work.before,
            knows_end=work.knows_end,
            ticked=self._ticked,
            state=work.state,
            dead=work.dead,
            outbox=self.outbox.write(work.sends) if work.sends and self.outbox else None,
            trim=bool(entries) and self.trims.with_commit(),
            acked_limit=self.trims.acked_limit,
            acked_trim_rows=self.trims.acked_rows,
            tables=self.state.lifetimes,
        )
        self._previous = last
        if work.timer:
            self._ticked = work.timer, work.state[work.timer] or b""
        if self.spans is not None:
            self._span = self.spans.commit(last, request.entries)
        self.is_committing, self.is_submitting = True, False
        if self.observer is not None:
            self._began_s = monotonic_s()
        answered, held_up = partial(self._answered, request, work), partial(self._held_up, request)
        renew = partial(self._renew, request, work) if request.outbox is not None else None
        self._ticket = self.committer.hand_in(request, answered, held_up, renew)
        if self.buffer.waiting:
            for _ in range(HANDOVER_YIELDS):
                await asyncio.sleep(0)

    async def flush(self) -> None:
        """Wait until no commit is in flight."""
        while self.is_committing:
            await self.landed.wait()

    def withdraw(self) -> None:
        """Hear no more of the commit in flight: its outcome is unknown."""
        if self._ticket is not None:
            self._ticket.withdrawn = True
        self._end_span("withdrawn")

    def _answered(self, request: CommitRequest, work: Work, reply: CommitReply) -> None:
        if reply.code not in WRITTEN:
            detail = _refusal(request, reply)
            if self.observer is not None:
                self.observer.refused(self.spec)
            self._end_span(f"{reply.code.name}: {detail}")
            self.log.warning("commit_refused", code=reply.code.name, detail=detail)
            self.refused(reply.code, detail)
            return
        self._committed = (request.new, reply.rows)
        self.state.confirmed(reply.at_ms)
        if request.outbox is not None and self.outbox is not None:
            if self.spans is not None and self._span is not None:
                self.outbox.source.spans |= self.spans.forwards(self._span, request.outbox.messages)
            self.outbox.committed(request.outbox)
        self._end_span()
        count, size = len(work.entries), work.size
        self.buffer.release(count, size)
        self.records_done += request.entries
        self.trims.committed(count or request.entries, size)  # An archiver has no entries.
        if self.observer is not None:
            oldest = work.first if count else None
            seconds, dead = monotonic_s() - self._began_s, len(work.dead)
            self.observer.committed(self.spec, seconds, request.entries, size, oldest, dead)
        self.is_committing = self.is_full = False
        self.landed.fire()
        if self.activity.is_commit_held_up:
            self.activity.hinder("commit", "")

    def _end_span(self, error: str = "") -> None:
        if self._span is not None:
            if error:
                self._span.set_attribute("error.type", error.partition(":")[0])
            self._span.end()
            self._span = None

    async def _renew(self, request: CommitRequest, work: Work) -> None:
        """Let a commit that was not done follow what has been moved in its outbox meanwhile."""
        if request.outbox is not None and self.outbox is not None:
            await self.outbox.ready(work.sends)
            request.outbox = self.outbox.again(request.outbox, work.sends)

    def _held_up(self, request: CommitRequest, reply: CommitReply) -> None:
        """Show why a commit will be sent again; the committer logs those that have no answer."""
        if reply.code is not CommitCode.UNKNOWN and self.outbox is not None:
            self.outbox.release()
        reason, event = str(reply.error), "commit_held_up"
        if reply.code is CommitCode.UNKNOWN:
            reason = f"commit not confirmed, trying again: {reason}"
        elif reply.code is CommitCode.FULL:
            event = "acked_log_full"
            reason = (
                f"acked log full ({request.acked_limit} entries that a reader has not read): "
                "start its pipeline or forget the reader"
            )
            # The readers may have moved, or gone; the commit is sent again with what is known then.
            request.acked_limit, request.acked_trim_rows = self.trims.acked_limit, self.trims.acked_rows
        elif reply.code is CommitCode.OUTBOX and self.outbox is not None:
            event, why = "outbox_full", self.outbox.source.reason
            reason = f"outbox full: {why or 'the streams that this partition sends to are behind'}"
        if reply.code is not CommitCode.UNKNOWN and not self.activity.is_commit_held_up:
            self.log.warning(event, reason=reason)
        if self._span is not None:
            self._span.add_event("held up", {"reason": reason})
        self.activity.hinder("commit", reason)
        self.is_full = reply.code is CommitCode.FULL
        if self.is_full:
            self.on_full()


def _refusal(request: CommitRequest, reply: CommitReply) -> str:
    match reply.code:
        case CommitCode.FENCED:
            return f"epoch {request.epoch} was overtaken by {reply.epoch}; the commit was not done"
        case CommitCode.UNKNOWN:
            return (
                f"epoch {request.epoch} was overtaken while a commit had no answer; "
                f"entries up to {request.new} are committed, by us or by the next owner"
            )
        case CommitCode.GAP:
            if reply.checkpoint == request.previous:
                return f"the server has lost entries up to {request.new}, or what a timer has written"
            return f"the checkpoint is {reply.checkpoint}, and we had committed up to {request.previous}"
        case _:
            return f"the commit was refused: {reply.code.name}"


def span(entries: Sequence[Entry]) -> str:
    """Name entries by their ids, for messages."""
    return f"{'entry' if len(entries) == 1 else 'entries'} {ids_of(entries)}"


def ids_of(entries: Sequence[Entry]) -> str:
    """Return the id of an entry, or the first and the last id of several; empty if there are none."""
    if not entries:
        return ""
    first, last = id_at(entries, 0), id_at(entries, -1)
    return str(first) if first == last else f"{first} to {last}"


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Join record batches of one schema; None if there are no rows."""
    batches = [batch for batch in batches if batch.num_rows]
    if len(batches) < 2:
        return batches[0] if batches else None
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
