"""Locks of partitions: acquire, release, mark, look. See ``core.locks`` for what they mean."""

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamworker.core.entries import EntryId
from streamworker.core.locks import Acquired, AcquireReply, Held, Stale
from streamworker.errors import BackendError, BackendRefused, ConfigurationError
from streamworker.redisio.client import Backend, ScriptCall
from streamworker.redisio.keys import GroupKeys, whole
from streamworker.redisio.scripts import ACQUIRE, MARK, MOVE_CHECKPOINT, RELEASE, checked


@dataclass(frozen=True, slots=True)
class LockView:
    """A partition's lock as it stands."""

    owner: str
    """Empty if nobody has it."""
    epoch: int
    generation: int
    checkpoint: EntryId
    entries: int
    """Source entries that the group has committed."""
    rows: int
    """Rows that the acked log has ever held."""
    log: str
    """Identity of the acked log."""
    since_ms: int
    """When it was acquired, by the server's clock."""
    state: str
    """``running``, ``draining``, ``halted``, or empty without an owner."""
    reason: str


async def acquire_many(
    backend: Backend,
    keys: GroupKeys,
    partitions: Sequence[int],
    *,
    owner: str,
    generation: int,
    live: Sequence[str],
    drain_deadline_ms: int,
) -> dict[int, AcquireReply]:
    """Ask for the locks of some partitions, in one round trip. May be repeated.

    Parameters
    ----------
    owner
        The member's id, with a nonce of its own for each joining.
    generation
        Of the membership that assigns the partitions to it.
    live
        Ids of all members of that generation: a lock of anybody else is free.
    drain_deadline_ms
        How long a live owner that does not release is waited for.

    Returns
    -------
    dict
        An answer for each partition. One that Redis refused is missing.

    Raises
    ------
    BackendError
        Without any answer; the first refusal, if all were refused.
    """
    calls: list[ScriptCall] = [
        (
            (keys.lock(p), keys.events(p), keys.acked(p)),
            (owner, generation, drain_deadline_ms, keys.group, new_nonce(), *live),
        )
        for p in partitions
    ]
    replies = await backend.run_many(ACQUIRE, calls)
    return dict(_answered(partitions, replies, _acquire_reply))


def _acquire_reply(reply: Any) -> AcquireReply:
    match reply:
        case [b"OK", epoch, checkpoint, entries, rows, log]:
            identity = log.decode("utf-8", "replace")
            return Acquired(int(epoch), EntryId.parse(checkpoint), int(entries), int(rows), identity)
        case [b"HELD", owner, waited_ms]:
            return Held(owner.decode("utf-8", "replace"), int(waited_ms))
        case _:
            return Stale(int(reply[1]))


async def release_many(
    backend: Backend, keys: GroupKeys, epochs: Mapping[int, int], owner: str
) -> dict[int, bool]:
    """Give locks back, in one round trip. May be repeated.

    Parameters
    ----------
    epochs
        Partition to the epoch at which it was acquired.

    Returns
    -------
    dict
        Whether each partition is released; False where somebody else has it by now. One that
        Redis refused is missing.

    Raises
    ------
    BackendError
        As :func:`acquire_many`.
    """
    partitions = list(epochs)
    replies = await backend.run_many(RELEASE, [((keys.lock(p),), (owner, epochs[p])) for p in partitions])
    return {p: reply[0] == b"OK" for p, reply in _answered(partitions, replies)}


async def mark_many(
    backend: Backend, keys: GroupKeys, owner: str, marks: Sequence[tuple[int, int, str, str]]
) -> None:
    """Say what the owner does with its partitions, for people who look.

    Parameters
    ----------
    marks
        Partition, epoch, state (``running``, ``draining`` or ``halted``) and reason. One whose
        lock is somebody else's by now changes nothing.

    Raises
    ------
    BackendError
        As :func:`acquire_many`.
    """
    calls = [((keys.lock(p),), (owner, epoch, state, reason)) for p, epoch, state, reason in marks]
    _answered([p for p, *_ in marks], await backend.run_many(MARK, calls))


async def read_lock(backend: Backend, keys: GroupKeys, partition: int) -> LockView | None:
    """Look at a lock; None if the group was never registered there.

    Raises
    ------
    BackendError
        Without an answer, or if the key is no hash.
    """
    return lock_view(await backend.execute("HGETALL", keys.lock(partition)), partition)


async def read_locks(
    backend: Backend, keys: GroupKeys, partitions: Sequence[int]
) -> dict[int, LockView | BackendError | None]:
    """Look at some locks in one round trip. One that is damaged is missing.

    Returns
    -------
    dict
        The error for one that Redis refused, and on a Cluster for one whose node gave no answer.

    Raises
    ------
    BackendError
        Without any answer.
    """
    found: dict[int, LockView | BackendError | None] = {}
    replies = await backend.pipeline([("HGETALL", keys.lock(p)) for p in partitions])
    for partition, flat in zip(partitions, replies, strict=True):
        if isinstance(flat, BackendError):
            found[partition] = flat
            continue
        with contextlib.suppress(BackendRefused):
            found[partition] = lock_view(flat, partition)
    return found


def lock_view(flat: Sequence[bytes], partition: int) -> LockView | None:
    """Read the reply to ``HGETALL`` of a partition's lock.

    Raises
    ------
    BackendRefused
        If its checkpoint is no entry id: another program wrote to it.
    """
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if b"checkpoint" not in fields:
        return None
    try:
        checkpoint = EntryId.parse(fields[b"checkpoint"])
    except ConfigurationError as error:
        raise foreign_lock(partition, error) from None

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode("utf-8", "replace")

    def number(name: bytes) -> int:
        return whole(fields.get(name, b"")) or 0

    return LockView(
        owner=text(b"owner"),
        epoch=number(b"epoch"),
        generation=number(b"generation"),
        checkpoint=checkpoint,
        entries=number(b"entries"),
        rows=number(b"rows"),
        log=text(b"log"),
        since_ms=number(b"since"),
        state=text(b"state"),
        reason=text(b"reason"),
    )


async def move_checkpoint(
    backend: Backend, keys: GroupKeys, partition: int, to: EntryId, *, entries: int, owner: str = ""
) -> EntryId | Held | None:
    """Move a group's checkpoint by hand, while nobody works on the partition.

    The epoch is raised, so that an owner which was thought dead commits nothing any more.

    Parameters
    ----------
    entries
        Source entries up to ``to``; :func:`streams.entries_up_to` counts them.
    owner
        A dead owner whose name may still be in the lock.

    Returns
    -------
    EntryId | Held | None
        The checkpoint before; ``Held`` if somebody has the lock, and nothing was moved; None if
        the group was never registered there.

    Raises
    ------
    BackendError
        Without an answer: it may have been done, and may be repeated.
    """
    reply = checked(
        await backend.run(
            MOVE_CHECKPOINT,
            (keys.lock(partition), keys.events(partition)),
            (keys.group, str(to), entries, owner),
        )
    )
    match reply:
        case [b"OK", before]:
            return EntryId.parse(before)
        case [b"HELD", holder]:
            return Held(holder.decode("utf-8", "replace"), 0)
        case _:
            return None


def new_nonce() -> str:
    """Return a few random letters that make a name unique."""
    return secrets.token_hex(6)


def _answered(
    partitions: Sequence[int], replies: Sequence[Any], read: Callable[[Any], Any] = lambda reply: reply
) -> list[tuple[int, Any]]:
    """Return the answers; raise the first refusal if there is nothing else.

    One partition whose key was broken by another program must not stop all others.
    """
    answers: list[tuple[int, Any]] = []
    refusal: BackendError | None = None
    for partition, reply in zip(partitions, replies, strict=True):
        try:
            if isinstance(reply, BackendError):
                raise reply
            answers.append((partition, read(checked(reply))))
        except BackendError as error:
            refusal = refusal or error
        except (ConfigurationError, ValueError, TypeError, AttributeError) as error:
            refusal = refusal or foreign_lock(partition, error)
    if refusal is not None and not answers:
        raise refusal
    return answers


def foreign_lock(partition: int, error: Exception) -> BackendRefused:
    """Return the error for a lock with fields that another program wrote."""
    why = error.message if isinstance(error, ConfigurationError) else f"{error}."
    return BackendRefused(
        f"The lock of partition {partition} holds what streamworker does not write: {why}",
        remedy="Another program wrote to it. Stop the group's workers, correct or delete the key.",
    )
