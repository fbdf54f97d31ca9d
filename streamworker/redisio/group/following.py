"""How a group goes on to the partitions that follow, when its stream has grown.

The partitions that the stream had are *parents* of those that follow, and take nothing more. A group handles
records of a partition only when it is done with its parents, so that each key keeps its order. The locks say
both: ``from`` in that of a partition whose parents the group may not be done with, and ``done`` in that of a
parent.

While a reset moves checkpoints of several generations, ``from`` also has the partition's own number, so that
nobody opens it. Then the reset removes that number.
"""

from collections.abc import Collection, Mapping

from streamworker.core.data.placement import Placement
from streamworker.core.events import StartRunner
from streamworker.core.time.lifetimes import Lifetimes
from streamworker.redisio.group.locks import answered, numbered, numbers
from streamworker.redisio.keys import GroupKeys, map_in, number
from streamworker.redisio.scripts import FINISH, OPEN, REMOVE, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY, Durability, Undurable
from streamworker.redisio.wire.failures import all_answered


async def finish_many(
    backend: Backend, keys: GroupKeys, starts: Mapping[int, StartRunner], durability: Durability
) -> set[int]:
    """Note that the group is done with some partitions, of which this worker is the owner.

    The result is those of which it is noted. The others may have records or messages left, may not be sealed,
    or have another owner by now. The call may be repeated.
    """
    found = set(starts)
    for step, waited in (("look", durability), ("done", MEMORY)):
        asked = sorted(found)
        calls = [
            FINISH.at(keys, p, owner=starts[p].owner, epoch=starts[p].lock.epoch, step=step) for p in asked
        ]
        replies = await backend.run_many(FINISH, calls, durability=waited)
        known = [reply.error() if isinstance(reply, Undurable) else reply for reply in replies]
        found = {p for p, reply in answered(asked, known) if reply[0] == b"OK"}
    return found


async def unfinished(backend: Backend, keys: GroupKeys, partitions: Collection[int]) -> set[int]:
    """Return those of some partitions with which the group is not done."""
    replies = all_answered(await backend.pipeline([("HMGET", keys.lock(p), "done") for p in partitions]))
    return {p for p, (done,) in zip(partitions, replies, strict=True) if done is None}


async def parents_in(backend: Backend, keys: GroupKeys, partition: int) -> tuple[int, ...]:
    """Return the partitions with which the group must be done first, by the lock of a partition."""
    (parents,) = await backend.execute("HMGET", keys.lock(partition), "from")
    return numbered(parents or b"")


async def open_partition(
    backend: Backend, keys: GroupKeys, start: StartRunner, durability: Durability
) -> bool:
    """Let the owner handle records of a partition; return False if it must acquire the lock again.

    The call may be repeated. It covers what was copied before.
    """
    named = {"owner": start.owner, "epoch": start.lock.epoch, "parents": numbers(start.lock.waits_for)}
    call = OPEN.at(keys, start.partition, **named)
    (reply,) = await backend.run_many(OPEN, [call], durability=durability)
    if isinstance(reply, Undurable):
        raise reply.error()
    return bool(checked(reply)[0] == b"OK")


async def read_first(backend: Backend, keys: GroupKeys, placement: Placement) -> int:
    """Return the first partition of the oldest generation with which the group is not done."""
    left = await unfinished(backend, keys, range(placement.base)) if placement.base else set()
    return first_of(placement, left)


def first_of(placement: Placement, left: Collection[int]) -> int:
    """Return the first partition of the oldest generation that has one of those which are ``left``.

    >>> first_of(Placement(2, 3, 4), {3}), first_of(Placement(2, 3, 4), ())
    (2, 5)
    """
    old = placement.generations[:-1]
    return next((each.start for each in old if not set(each).isdisjoint(left)), placement.base)


async def read_maps(backend: Backend, keys: GroupKeys) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the stream's map, and the one that follows while it grows; both empty if there is no stream."""
    now, after = await backend.execute("HMGET", keys.meta, "partitions", "growing")
    maps = [() if each is None else map_in(each) for each in (now, after)]
    return maps[0], max(maps, key=len)


async def read_opened(backend: Backend, keys: GroupKeys, placement: Placement) -> dict[int, int]:
    """Return by old partition when those that follow it were opened, in ms by the server's clock."""
    old = placement.generations[:-1]
    found = await backend.execute("HMGET", keys.meta, *(f"opened:{its.stop}" for its in old))
    return {p: number(at) for its, at in zip(old, found, strict=True) if at for p in its}


async def moved(backend: Backend, keys: GroupKeys, partitions: Collection[int]) -> set[int]:
    """Return those of some partitions that have their tables and keyed state no more."""
    replies = all_answered(await backend.pipeline([("HMGET", keys.lock(p), "moved") for p in partitions]))
    return {p for p, (is_moved,) in zip(partitions, replies, strict=True) if is_moved}


async def not_open(backend: Backend, keys: GroupKeys, partitions: Collection[int]) -> set[int]:
    """Return those of some partitions that have not taken over yet what they follow."""
    asked = [("HMGET", keys.lock(p), "checkpoint", "from") for p in partitions]
    replies = all_answered(await backend.pipeline(asked))
    return {p for p, (there, parents) in zip(partitions, replies, strict=True) if parents or not there}


async def done_at(backend: Backend, keys: GroupKeys, partitions: Collection[int]) -> dict[int, bytes]:
    """Return the epochs of those of some partitions with which the group is done."""
    replies = all_answered(
        await backend.pipeline([("HMGET", keys.lock(p), "done", "epoch") for p in partitions])
    )
    return {p: epoch for p, (done, epoch) in zip(partitions, replies, strict=True) if done and epoch}


async def remove_moved(
    backend: Backend, keys: GroupKeys, epochs: Mapping[int, bytes], tables: Lifetimes
) -> set[int]:
    """Remove tables and keyed state of old partitions; all that follow have their own. It may be repeated.

    The result are those of which it is removed. The others have been reset since they had these epochs.
    """
    calls = [REMOVE.at(keys, p, epoch=e, tables=keys.tables(p, tables)) for p, e in epochs.items()]
    replies = all_answered(await backend.run_many(REMOVE, calls))
    return {p for p, reply in zip(epochs, replies, strict=True) if checked(reply)[0] == b"OK"}
