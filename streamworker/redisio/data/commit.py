"""Commits: many partitions in one round trip, each commit atomic; see ``lua/data/commit.lua``.

The call of a timer is committed by ``lua/data/tick.lua``.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from streamworker.core.data.entries import EntryId
from streamworker.core.time.lifetimes import Lifetimes, Timed
from streamworker.errors import BackendError, ConfigurationError, RecordError
from streamworker.records.entries import StoredEntry
from streamworker.redisio.data.ackedlog import AckedBatch
from streamworker.redisio.data.outbox import OutboxWrite
from streamworker.redisio.keys import GroupKeys, number
from streamworker.redisio.scripts import ARGS_MAX, COMMIT, TICK, Call, log_ahead, wrong_type
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY, Durability, Undurable
from streamworker.redisio.wire.link import Argument


class CommitCode(Enum):
    """The result of a commit."""

    OK = "OK"
    """The batch was committed."""
    DUP = "DUP"
    """An earlier try, whose answer was lost, committed the batch."""
    FENCED = "FENCED"
    """Not committed: another member holds the lock, or this one at a later epoch. If an earlier try got
    no answer, this says nothing about that try."""
    GAP = "GAP"
    """Not committed: the batch does not begin at the checkpoint, or the stream holds other entries."""
    FULL = "FULL"
    """Not committed: the acked log is at its limit until its readers have read more of it."""
    OUTBOX = "OUTBOX"
    """Not committed: the outbox is at its limit until the target streams have taken more of it."""
    BADTYPE = "BADTYPE"
    """Not committed: another program wrote to a key; ``error`` names it."""
    AHEAD = "AHEAD"
    """Not committed: the last id of the acked log is higher than the lock's row count allows; ``error``
    names both."""
    UNKNOWN = "UNKNOWN"
    """Redis did not answer or refused temporarily, or the commit is less durable than requested;
    ``error`` says which. Commit again."""


@dataclass(frozen=True, slots=True)
class DeadEntry:
    """An entry that its processor gave up on, to be added to the dead letters of its partition."""

    entry_id: EntryId
    fields: Mapping[bytes, bytes]
    """The fields of the entry, unchanged."""
    error: str
    attempts: int
    traceback: str = ""
    """The end of the traceback of the last attempt; empty if there was none."""


@dataclass(slots=True)  # Not frozen: each batch makes one, and a frozen one takes three times as long.
class CommitRequest:
    """A finished batch of one partition.

    ``entries`` and all other fields are about the source records in ``(previous, new]``.
    """

    partition: int
    owner: str
    epoch: int
    previous: EntryId
    """The checkpoint after which the batch began."""
    new: EntryId
    """The last record of the batch, which becomes the checkpoint."""
    entries: int
    """How many records it has."""
    batch: AckedBatch | None = None
    """The forwarded rows; None adds nothing to the acked log."""
    reads: Sequence[tuple[EntryId, StoredEntry]] = ()
    """For each read that returned a part of this batch: the id after which it began, and the first
    entry that it returned. Within a read no entry can be missing."""
    last: StoredEntry | None = None
    """The entry that holds ``new``; None if that is its id, and its content is not compared."""
    is_archived: bool = False
    """Whether the records are in the archive, so that the stream need not hold ``new``."""
    timer: str = ""
    """For the call of a timer: the field of ``state`` that says up to which planned time the timer is done.
    Such a commit has results but no records, and ``new`` is ``previous``."""
    before: bytes = b""
    """What the field of the timer holds before the commit."""
    knows_end: bool = False
    """Whether the planned time is one that the partition still has though it is sealed."""
    ticked: tuple[str, bytes] = ("", b"")
    """The field of the timer whose call this owner committed last, and its value since; empty for none."""
    state: Mapping[str | tuple[str, bytes], bytes | None] = field(default_factory=dict)
    """Keyed state to set, by its name, or by a table and a key; a value of None deletes the field."""
    tables: Lifetimes = field(default_factory=dict)
    """The processor's tables."""
    dead: Sequence[DeadEntry] = ()
    outbox: OutboxWrite | None = None
    """Messages for other streams; None adds none."""
    trim: bool = False
    """Whether to drop source entries that every group has committed."""
    acked_limit: int = 0
    """Maximum entries in the acked log; 0 for no limit."""
    acked_trim_rows: int = 0
    """Rows that every reader of the acked log has read; 0 trims nothing."""


@dataclass(slots=True)  # Not frozen, for the same reason as the request.
class CommitReply:
    """The result of a commit, and the checkpoint of the partition."""

    code: CommitCode
    epoch: int
    """Epoch of the lock; 0 if it is not known."""
    checkpoint: EntryId | None
    rows: int
    error: BackendError | None = None
    at_ms: int = 0
    """The server's time of the commit, for a processor with tables; 0 if it is not known."""


async def commit_many(
    backend: Backend, keys: GroupKeys, requests: Sequence[CommitRequest], durability: Durability = MEMORY
) -> list[CommitReply]:
    """Commit batches and calls of timers in several partitions, in one round trip. It may be repeated.

    Without an answer each reply is ``UNKNOWN``: the whole batch is committed or nothing is. A temporary
    refusal such as out of memory is ``UNKNOWN`` with nothing written, and so is a commit that is less durable
    than requested. A dead letter with too many fields raises ``RecordError`` before anything is sent.
    """
    ticks = [request for request in requests if request.timer]
    if ticks and len(ticks) < len(requests):  # Two scripts take two round trips. Calls of timers are rare.
        batches = [request for request in requests if not request.timer]
        done = iter(await commit_many(backend, keys, batches, durability))
        ticked = iter(await commit_many(backend, keys, ticks, durability))
        return [next(ticked if request.timer else done) for request in requests]
    script, call_of = (TICK, tick_call) if ticks else (COMMIT, commit_call)
    try:
        calls = [call_of(keys, request) for request in requests]
        replies = await backend.run_many(script, calls, durability=durability)
    except BackendError as error:
        # A refusal is UNKNOWN, too: a server that has just taken over may not know this user yet.
        return [_unknown(error) for _ in requests]
    return [_reply(request, reply) for request, reply in zip(requests, replies, strict=True)]


def commit_call(keys: GroupKeys, request: CommitRequest) -> Call:
    """Return one call of ``commit.lua``."""
    previous, new = str(request.previous), str(request.new)
    texts = {request.previous: previous, request.new: new}  # Most commits name no other entries.
    reads = [
        part
        for after, (first, tag) in request.reads
        for part in (texts.get(after) or str(after), texts.get(first) or str(first), tag)
    ]
    last, tag = request.last or (request.new, "")
    held = "" if request.is_archived else texts.get(last) or str(last)
    letters: list[Argument] = []
    for letter in request.dead:
        flat = _letter_fields(letter)
        letters += (len(flat), *flat)
    rows: Sequence[Argument] = ()
    if (batch := request.batch) is not None:
        rows = batch.rows, str(batch.first), batch.schema, batch.crc, batch.codec, batch.size, batch.data
    return COMMIT.at(
        keys,
        request.partition,
        owner=request.owner,
        epoch=request.epoch,
        previous=previous,
        new=new,
        records=request.entries,
        group=keys.group,
        trim=int(request.trim),
        acked_limit=request.acked_limit,
        read_rows=request.acked_trim_rows,
        last=held,
        tag=tag,
        timer=request.ticked[0],
        ticked=request.ticked[1],
        reads=reads,
        batch=rows,
        letters=letters,
        **_results(keys, request),
    )


def tick_call(keys: GroupKeys, request: CommitRequest) -> Call:
    """Return one call of ``tick.lua``."""
    return TICK.at(
        keys,
        request.partition,
        owner=request.owner,
        epoch=request.epoch,
        checkpoint=str(request.new),
        timer=request.timer,
        before=request.before,
        after=request.state[request.timer],
        knows_end="1" if request.knows_end else "",
        last_timer=request.ticked[0],
        ticked=request.ticked[1],
        **_results(keys, request),
    )


def _results(keys: GroupKeys, request: CommitRequest) -> dict[str, Any]:
    """Return the results that a batch and the call of a timer may have: state, tables and messages."""
    sets: list[Argument] = []
    dels: list[Argument] = []
    tables: dict[str, tuple[list[Argument], ...]] = {name: ([], [], []) for name in request.tables}
    for name, value in request.state.items():
        if isinstance(name, tuple):
            table, key = name
            its_sets, its_timed, its_dels = tables[table]
            if value is None:
                its_dels.append(key)
            elif type(value) is Timed:
                its_timed += (key, b" " + value, value.until_ms)
            else:
                its_sets += (key, b" " + value)
        elif value is None:
            dels.append(name)
        else:
            sets += (name, value)
    changes: list[Argument] = []
    for name, (its_sets, its_timed, its_dels) in tables.items():
        its = request.tables[name]
        changes += (its.ttl_ms, int(its.is_called), len(its_sets) // 2, *its_sets)
        changes += (len(its_timed) // 3, *its_timed, len(its_dels), *its_dels)
    return {
        "tables": keys.tables(request.partition, request.tables) if tables else (),
        "sets": sets,
        "dels": dels,
        "changes": changes,
        **(_NO_MESSAGES if request.outbox is None else request.outbox.named()),
    }


_NO_MESSAGES: dict[str, Any] = {"outbox_limit": 0, "outbox_last": "", "sends": ()}


def _letter_fields(letter: DeadEntry) -> list[Argument]:
    flat: list[Argument] = ["id", str(letter.entry_id), "error", letter.error, "attempts", letter.attempts]
    flat += ("traceback", letter.traceback) if letter.traceback else ()
    for name, value in letter.fields.items():
        flat += (b"f." + name, value)
    if len(flat) > ARGS_MAX:
        raise RecordError(
            f"Entry {letter.entry_id} has {len(letter.fields)} fields, too many for a dead letter.",
            remedy=f"An entry may have {ARGS_MAX // 2 - 5} fields; let the processor skip it.",
        )
    return flat


_CODES = {code.value.encode(): code for code in CommitCode}
WRITTEN = (CommitCode.OK, CommitCode.DUP)
"""The batch is committed."""


def _reply(request: CommitRequest, reply: Any) -> CommitReply:
    if isinstance(reply, BackendError):
        return _unknown(reply)
    if isinstance(reply, Undurable):
        # A refused commit wrote nothing that could be lost.
        refused = _reply(request, reply.reply)
        return _unknown(reply.error()) if refused.code in WRITTEN else refused
    code = _CODES[reply[0]]
    if code is CommitCode.BADTYPE:
        return CommitReply(code, 0, None, 0, wrong_type(reply[1]))
    if code is CommitCode.AHEAD:
        return CommitReply(code, 0, None, 0, log_ahead(*(part.decode() for part in reply[1:])))
    _, epoch, checkpoint, rows, *at = reply
    if code in WRITTEN:
        # The checkpoint in the reply is `new`; parsing it would take a third of this function's time.
        return CommitReply(code, int(epoch), request.new, int(rows), at_ms=int(at[0]) if at else 0)
    known: EntryId | None = None
    with contextlib.suppress(ConfigurationError):  # Another program wrote to the lock; nothing was committed.
        known = EntryId.parse(checkpoint)
    return CommitReply(code, number(epoch), known, number(rows))


def _unknown(error: BackendError) -> CommitReply:
    return CommitReply(CommitCode.UNKNOWN, 0, None, 0, error)
