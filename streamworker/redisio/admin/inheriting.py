"""Copies a group's tables and keyed state to a partition that follows, when its stream has grown.

The partitions before it change no more once the group is done with them. So the owner of the new one copies
before it opens it, in as many steps as it likes, and its next owner begins anew. ``growth/fill.lua`` refuses
a copy that comes late. What was copied stays where it was until all partitions that follow are open.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce

from streamworker.core.data.inheriting import beside, inherited
from streamworker.core.data.placement import Placement, leading_key
from streamworker.core.events import StartRunner
from streamworker.core.time.eventtime import EventTime
from streamworker.core.time.lifetimes import Lifetime, end_ms
from streamworker.redisio.data.state import RUN, TIMERS, scan_hash
from streamworker.redisio.group.following import unfinished
from streamworker.redisio.group.locks import numbers
from streamworker.redisio.keys import EVENT_TIME, TICK, GroupKeys
from streamworker.redisio.scripts import FILL, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import Durability, Undurable
from streamworker.redisio.wire.failures import all_answered

FILL_WORDS = 2_000
"""Keys and values that one call copies. It takes the server some milliseconds."""


async def waits_for(backend: Backend, keys: GroupKeys, placement: Placement, start: StartRunner) -> set[int]:
    """Return the partitions with which the group must be done before a new one takes over from its parents.

    With keyed state these are also the neighbours of its parents (``core/data/inheriting.py``).
    """
    parents = start.lock.waits_for
    left = await unfinished(backend, keys, parents)
    if not left:
        found = all_answered(await backend.pipeline([("EXISTS", keys.state(p)) for p in parents]))
        left = await unfinished(backend, keys, beside(placement, start.partition)) if any(found) else left
    return left


async def take_over(
    backend: Backend,
    keys: GroupKeys,
    placement: Placement,
    start: StartRunner,
    tables: Mapping[str, tuple[Lifetime, int]],
    goes_on: Callable[[str], bool],
    durability: Durability,
) -> bool:
    """Copy what a new partition takes over; return False if that is not all. It may be repeated.

    Each call waits until it is durable: a failover could lose it, and leave the lock by which the partition
    is opened.

    ``tables`` has by name how a table's values end, and how many parts of its key are the stream's key.
    ``goes_on`` gets what was copied in words, and says whether to copy more. If it does and the result is
    False, the partition must be acquired again.
    """
    partition, parents, copied = start.partition, start.lock.waits_for, 0
    said = " and ".join(map(str, parents))
    # Those that follow it, if the stream has grown again, take over from it by themselves.
    generation = next(n for n, its in enumerate(placement.generations) if partition in its)
    placement = Placement(*placement.counts[: generation + 1])

    async def fill(
        values: str, index: Sequence[str], pairs: Mapping[bytes, bytes], *, is_called: bool = False
    ) -> bool:
        flat = [part for pair in pairs.items() for part in pair]
        for at in range(0, len(flat), FILL_WORDS):
            call = FILL.call(
                lock=keys.lock(partition),
                values=values,
                index=index,
                owner=start.owner,
                epoch=start.lock.epoch,
                parents=numbers(parents),
                is_called=int(is_called),
                pairs=flat[at : at + FILL_WORDS],
            )
            (reply,) = all_answered(await backend.run_many(FILL, [call], durability=durability))
            if isinstance(reply, Undurable):
                raise reply.error()
            if checked(reply)[0] != b"OK":
                return False
        return True

    states: dict[int, dict[bytes, bytes]] = {p: {} for p in {partition, *beside(placement, partition)}}
    for p, its in states.items():
        async for page in scan_hash(backend, keys.state(p)):
            its.update(page)
    own = {
        p: {field: value for field, value in its.items() if not field.startswith(TIMERS.encode())}
        for p, its in states.items()
    }
    state = inherited(placement, partition, own) | dict(
        _of_timers([states[p] for p in (partition, *parents)])
    )
    if not await fill(keys.state(partition), (), state):
        return False
    for table, (lifetime, leading) in tables.items():
        values, index = keys.tables(partition, {table: lifetime})
        for parent in parents:
            async for page in scan_hash(backend, keys.table(parent, table)):
                mine = {
                    field: value
                    for field, value in page.items()
                    if placement.partition_of(leading_key(field, leading) or b"") == partition
                }
                if lifetime.is_called and mine:
                    mine = await _with_ends(backend, keys.due(parent, table), mine)
                if not await fill(values, [index], mine, is_called=lifetime.is_called):
                    return False
                copied += len(mine)
                if not goes_on(f"has taken over {copied:,} keys of {table} from {said}"):
                    return False
    return True


async def _with_ends(backend: Backend, due: str, values: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return values behind their ends, which an index tells."""
    ends = all_answered(await backend.pipeline([("ZSCORE", due, field) for field in values]))
    return {
        field: value if end is None else b"%d%s" % (max(end_ms(end), 0), value)
        for (field, value), end in zip(values.items(), ends, strict=True)
    }


def _of_timers(states: Sequence[Mapping[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Return which planned times of timers are done, and the calls that somebody has asked for."""
    for field in {field for state in states for field in state}:
        found = [state[field] for state in states if field in state]
        if field.startswith(TICK.encode()):
            # The parents have made all calls up to the same time. After a reset this one may be further.
            yield field, max((value.partition(b"/")[0] for value in found), key=int)
        elif field.startswith(RUN.encode()):
            yield field, found[0]
        elif field == EVENT_TIME.encode():
            yield field, reduce(EventTime.joined, map(EventTime.decode, found)).encode()
