"""Commits: many partitions in one round trip, each commit atomic; see ``lua/data/commit.lua``."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from streamworker.core.data.entries import EntryId
from streamworker.errors import BackendError, ConfigurationError, RecordError
from streamworker.records.entries import StoredEntry
from streamworker.redisio.data.ackedlog import AckedBatch
from streamworker.redisio.data.outbox import OutboxWrite
from streamworker.redisio.keys import GroupKeys, whole
from streamworker.redisio.scripts import ARGS_MAX, COMMIT, log_ahead, wrong_type
from streamworker.redisio.wire.client import Backend, ScriptCall
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
    """How many records it has. 0 for the commit of a timer: ``new`` is ``previous``, and the first field of
    ``state`` is the timer's."""
    batch: AckedBatch | None = None
    """The forwarded rows; None adds nothing to the acked log."""
    reads: Sequence[tuple[EntryId, StoredEntry]] = ()
    """For each read that returned a part of this batch: the id after which it began, and the first
    entry that it returned. Within a read no entry can be missing."""
    last: StoredEntry | None = None
    """The entry that holds ``new``; None if that is its id, and its content is not compared."""
    before: bytes = b""
    """For the commit of a timer the value that the first field of ``state`` has before it."""
    state: Mapping[str | tuple[str, bytes], bytes | None] = field(default_factory=dict)
    """Keyed state to set, by its name, or by a table and a key; a value of None deletes the field."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """The processor's tables, and how many ms each keeps a value; 0 for ever."""
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
    """Commit batches of several partitions, in one round trip. The call may be repeated.

    Without an answer each reply is ``UNKNOWN``: the whole batch is committed or nothing is. A temporary
    refusal such as out of memory is ``UNKNOWN`` with nothing written, and so is a commit that is less durable
    than requested. A dead letter with too many fields raises ``RecordError`` before anything is sent.
    """
    try:
        calls = [commit_call(keys, request) for request in requests]
        replies = await backend.run_many(COMMIT, calls, durability=durability)
    except BackendError as error:
        # A refusal is UNKNOWN, too: a server that has just taken over may not know this user yet.
        return [_unknown(error) for _ in requests]
    return [_reply(request, reply) for request, reply in zip(requests, replies, strict=True)]


def commit_call(keys: GroupKeys, request: CommitRequest) -> ScriptCall:
    """Return keys and arguments of ``commit.lua`` for a request."""
    previous, new = str(request.previous), str(request.new)
    texts = {request.previous: previous, request.new: new}  # Most commits name no other entries.
    reads = [
        part
        for after, (first, tag) in request.reads
        for part in (texts.get(after) or str(after), texts.get(first) or str(first), tag)
    ]
    last, tag = request.last or (request.new, request.before)
    # A timer's commit covers no entry, so none has to be there.
    last_text = "" if new == previous else texts.get(last) or str(last)
    sets: list[Argument] = []
    dels: list[Argument] = []
    tables: dict[str, tuple[list[Argument], list[Argument]]] = {name: ([], []) for name in request.tables}
    for name, value in request.state.items():
        if isinstance(name, tuple):
            table, key = name
            its_sets, its_dels = tables[table]
            if value is None:
                its_dels.append(key)
            else:
                its_sets += (key, b" " + value)
        elif value is None:
            dels.append(name)
        else:
            sets += (name, value)
    args: list[Argument] = [
        request.owner,
        request.epoch,
        previous,
        new,
        request.entries,
        keys.group,
        request.acked_limit,
        int(request.trim),
        request.acked_trim_rows,
        len(request.reads),
        *reads,
        last_text,
        tag,
        len(sets) // 2,
        *sets,
        len(dels),
        *dels,
        len(request.dead),
    ]
    for letter in request.dead:
        flat = _letter_fields(letter)
        args += (len(flat), *flat)
    batch = request.batch
    if batch is None:
        args.append(0)
    else:
        args += (batch.rows, str(batch.first), batch.schema, batch.crc, batch.codec, batch.size, batch.data)
    names = _names(keys, request.partition, *tables)
    if request.outbox is not None:
        outbox = keys.outbox(request.partition)
        names = (*names[:BESIDES], outbox.messages, outbox.heads, *names[BESIDES:])
        args += request.outbox.args()
    for name, (its_sets, its_dels) in tables.items():
        args += (request.tables[name], len(its_sets) // 2, *its_sets, len(its_dels), *its_dels)
    return names, args


BESIDES = 6
"""Keys of each commit; those of the outbox and of tables follow."""


@cache
def _names(keys: GroupKeys, p: int, *tables: str) -> tuple[str, ...]:
    """Return the keys of a partition for the script; there are thousands of commits a second."""
    named = keys.lock(p), keys.acked(p), keys.events(p), keys.state(p), keys.dead(p), keys.counts(p)
    return *named, *keys.tables(p, tables)


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
    return CommitReply(code, whole(epoch) or 0, known, whole(rows) or 0)


def _unknown(error: BackendError) -> CommitReply:
    return CommitReply(CommitCode.UNKNOWN, 0, None, 0, error)
