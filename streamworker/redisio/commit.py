"""Commits: many partitions in one round trip, each all or nothing; see ``lua/commit.lua``."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

from streamworker.core.entries import EntryId
from streamworker.errors import BackendError, ConfigurationError, RecordError
from streamworker.redisio.ackedlog import AckedBatch
from streamworker.redisio.client import Backend, ScriptCall
from streamworker.redisio.durability import MEMORY, Durability, Undurable
from streamworker.redisio.keys import GroupKeys, whole
from streamworker.redisio.link import Argument
from streamworker.redisio.scripts import ARGS_MAX, COMMIT, wrong_type


class CommitCode(Enum):
    """What became of a commit."""

    OK = "OK"
    """Done."""
    DUP = "DUP"
    """Done by an earlier try whose answer was lost."""
    FENCED = "FENCED"
    """Not done: the lock is somebody else's, or ours at a later epoch. After an earlier try
    without an answer this tells nothing about that one."""
    GAP = "GAP"
    """Not done: the checkpoint is not where the batch began, or the batch is not what the stream holds."""
    FULL = "FULL"
    """Not done: the acked log is at its limit until its readers have moved on."""
    BADTYPE = "BADTYPE"
    """Not done: another program wrote to a key; ``error`` names it."""
    UNKNOWN = "UNKNOWN"
    """No answer, or Redis refused for the time being, or it is done and not as safe as was asked for;
    ``error`` says which. Commit it again."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry that was given up, on its way to the dead letters of its partition."""

    entry_id: EntryId
    fields: Mapping[bytes, bytes]
    """The entry as it was."""
    error: str
    attempts: int


@dataclass(slots=True)  # Not frozen: one is made a batch, and that would take three times as long.
class CommitRequest:
    """A batch of one partition, finished.

    ``entries`` and everything else belong to the source entries in ``(previous, new]``.
    """

    partition: int
    owner: str
    epoch: int
    previous: EntryId
    """The checkpoint that the batch began after."""
    new: EntryId
    """The last entry of the batch: the checkpoint to be."""
    entries: int
    batch: AckedBatch | None = None
    """What is forwarded; None to add nothing to the acked log."""
    reads: Sequence[tuple[EntryId, EntryId]] = ()
    """Of each read that brought a part of this: after which entry it began, and the first that it
    brought. Within a read nothing can be missing."""
    state: Mapping[str, bytes | None] = field(default_factory=dict)
    """Keyed state to set, or to delete where the value is None."""
    dead: Sequence[DeadLetter] = ()
    trim: bool = False
    """Drop source entries that every group is past."""
    acked_limit: int = 0
    """Entries that the acked log may hold; 0 for no limit."""
    acked_trim_rows: int = 0
    """Rows that every reader of the acked log is past; 0 trims nothing."""


@dataclass(slots=True)  # Not frozen, as the request.
class CommitReply:
    """What became of a commit, and where the partition stands."""

    code: CommitCode
    epoch: int
    """Of the lock; 0 where it is not known."""
    checkpoint: EntryId | None
    rows: int
    error: BackendError | None = None


async def commit_many(
    backend: Backend, keys: GroupKeys, requests: Sequence[CommitRequest], durability: Durability = MEMORY
) -> list[CommitReply]:
    """Commit batches of several partitions, in one round trip. May be repeated.

    Parameters
    ----------
    requests
        The commits.
    durability
        How safe one must be to be answered with ``OK`` or ``DUP``.

    Returns
    -------
    list[CommitReply]
        In the order of the requests. Without an answer from Redis each is ``UNKNOWN``: it is
        there or not, never half. Out of memory and the like are ``UNKNOWN`` too, with nothing
        done; and so is a commit that is done and not as safe as was asked for.

    Raises
    ------
    RecordError
        For a dead letter with more fields than a script can pass on; nothing was sent.
    """
    try:
        calls = [commit_call(keys, request) for request in requests]
        replies = await backend.run_many(COMMIT, calls, durability=durability)
    except BackendError as error:
        # One that is refused as well: a server that took over may not know this user yet.
        return [_unknown(error) for _ in requests]
    return [_reply(request, reply) for request, reply in zip(requests, replies, strict=True)]


def commit_call(keys: GroupKeys, request: CommitRequest) -> ScriptCall:
    """Return keys and arguments of ``commit.lua`` for a request."""
    p = request.partition
    previous, new = str(request.previous), str(request.new)
    texts = {request.previous: previous, request.new: new}  # Most commits name no other entry.
    sets: list[Argument] = []
    dels: list[Argument] = []
    for name, value in request.state.items():
        if value is None:
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
        *[texts.get(each) or str(each) for read in request.reads for each in read],
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
        args += (
            batch.rows,
            str(batch.first),
            batch.schema,
            batch.crc,
            batch.codec,
            batch.size,
            batch.data,
        )
    return _names(keys)[p], args


class _Names(dict[int, tuple[str, ...]]):
    """Keys of a group's partitions, as the script wants them: there are thousands of commits a second."""

    def __init__(self, keys: GroupKeys) -> None:
        super().__init__()
        self._keys = keys

    def __missing__(self, p: int) -> tuple[str, ...]:
        keys = self._keys
        names = self[p] = (keys.lock(p), keys.acked(p), keys.events(p), keys.state(p), keys.dead(p))
        return names


@lru_cache(maxsize=64)
def _names(keys: GroupKeys) -> _Names:
    return _Names(keys)


def _letter_fields(letter: DeadLetter) -> list[Argument]:
    flat: list[Argument] = [
        "id",
        str(letter.entry_id),
        "error",
        letter.error,
        "attempts",
        letter.attempts,
    ]
    for name, value in letter.fields.items():
        flat += (b"f." + name, value)
    if len(flat) > ARGS_MAX:
        raise RecordError(
            f"Entry {letter.entry_id} has {len(letter.fields)} fields, too many for a dead letter.",
            remedy=f"An entry may have {ARGS_MAX // 2 - 4} fields; skip it with on_error='skip'.",
        )
    return flat


_CODES = {code.value.encode(): code for code in CommitCode}
_WRITTEN = (CommitCode.OK, CommitCode.DUP)


def _reply(request: CommitRequest, reply: Any) -> CommitReply:
    if isinstance(reply, BackendError):
        return _unknown(reply)
    if isinstance(reply, Undurable):
        # What was refused wrote nothing that could be lost.
        refused = _reply(request, reply.reply)
        return _unknown(reply.error()) if refused.code in _WRITTEN else refused
    code = _CODES[reply[0]]
    if code is CommitCode.BADTYPE:
        return CommitReply(code, 0, None, 0, wrong_type(reply[1]))
    _, epoch, checkpoint, rows = reply
    if code in _WRITTEN:
        # It is what they say; to read it is a third of all this.
        return CommitReply(code, int(epoch), request.new, int(rows))
    at: EntryId | None = None
    with contextlib.suppress(ConfigurationError):  # Somebody wrote to the lock, and nothing was done.
        at = EntryId.parse(checkpoint)
    return CommitReply(code, whole(epoch) or 0, at, whole(rows) or 0)


def _unknown(error: BackendError) -> CommitReply:
    return CommitReply(CommitCode.UNKNOWN, 0, None, 0, error)
