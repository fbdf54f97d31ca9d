"""Gives a stream a new generation of partitions (``core/data/placement.py``).

The hash of the stream has the map, ``8``, and while it changes the map that follows, ``8+12``, in the field
``growing``. A change has these steps. Each may be repeated, by anybody at the same time, and none is taken
back, so whoever finds a change that has stopped goes on with it:

1. **prepare**: the map that follows is written down, before anything else is done for it.
2. Each group of an old partition is registered in the new ones: else a fast group would trim there what a
   slower one has not read.
3. **seal**: the old partitions take nothing more. A group that came since step 2 is registered, too.
4. **open**: the map that follows is the map. Producers wait for this, and groups are told.

A server that fails over may lose a step. The note of a seal has the map that follows, so that the map can be
prepared again by :func:`heal`, which also seals again what has lost its seal.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from streamworker.core.control import StreamGrown
from streamworker.core.data.placement import Placement
from streamworker.core.text import storable
from streamworker.core.words import counted, ranges
from streamworker.errors import BackendUnavailable, ConfigurationError, StreamworkerError
from streamworker.redisio.data import retention, streams
from streamworker.redisio.data.retention import Retentions
from streamworker.redisio.group.control import post
from streamworker.redisio.keys import PARTITIONS_MAX, GroupKeys, StreamKeys, is_name, map_in, number
from streamworker.redisio.scripts import SEAL, SET_FIELD, Call, Script, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import Durability, Undurable
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import pairs_of

NUMBERS_MAX = 16_384
"""Maximum partitions of a stream with all of its generations: each keeps some keys for ever."""
_TOP = b"18446744073709551615-18446744073709551615"


class Maps(NamedTuple):
    """Which partitions a stream has, and which it gets."""

    now: Placement
    next: Placement
    """The same map if no change is under way."""
    opened_ms: tuple[int | None, ...]
    """When each generation was opened, by the server's clock; None for the first."""
    noted: str
    """The field ``growing`` as it was read."""

    @property
    def is_changing(self) -> bool:
        """Whether a change was prepared that is not through."""
        return self.next.counts != self.now.counts


async def read_maps(backend: Backend, keys: StreamKeys) -> Maps:
    """Return the map of a stream, and the one that follows."""
    fields = pairs_of(await backend.execute("HGETALL", keys.meta))
    if b"partitions" not in fields:
        raise ConfigurationError(
            f"Stream {keys.stream!r} of app {keys.app!r} does not exist in Redis.",
            remedy="Send a record or start a worker first; or declare it with the number that you want.",
        )
    now, noted = map_in(fields[b"partitions"]), fields.get(b"growing", b"")
    after = map_in(noted or fields[b"partitions"])
    if after[: len(now)] != now:
        raise ConfigurationError(
            f"Stream {keys.stream!r} has the map {Placement(*now)}, and {Placement(*after)} is to follow, "
            "which does not continue it.",
            remedy="Another program wrote to the key that ends with }:stream. Write to its field `growing` "
            "what its field `partitions` holds.",
        )
    placement = Placement(*now)
    opened = [fields.get(f"opened:{its[0]}".encode()) for its in placement.generations]
    return Maps(placement, Placement(*after), tuple(number(each) or None for each in opened), noted.decode())


async def plan(backend: Backend, keys: StreamKeys, count: int) -> Maps:
    """Return the map of a stream, and the one with ``count`` new partitions.

    It refuses fewer partitions than there are, another change that is under way, and numbers at which
    something is left of an earlier stream. A change to ``count`` that is under way is returned as it is.
    """
    maps = await read_maps(backend, keys)
    if maps.is_changing:
        if maps.next.live == count:
            return maps
        raise StreamworkerError(
            f"Stream {keys.stream!r} is growing from {maps.now} to {maps.next}.",
            remedy=f"Let it finish: `streamworker partitions MODULE:{keys.stream} {maps.next.live}`.",
        )
    after = Placement(*maps.now.counts, count)
    if not maps.now.live < count <= PARTITIONS_MAX or after.total > NUMBERS_MAX:
        raise ConfigurationError(
            f"Stream {keys.stream!r} has {counted(maps.now.live, 'partition')} and cannot get {count:,}: a "
            "stream only grows.",
            remedy=f"Take more than {maps.now.live:,} and at most {PARTITIONS_MAX:,}; all generations have "
            f"at most {NUMBERS_MAX:,} together.",
        )
    found = all_answered(await backend.pipeline([("EXISTS", keys.events(p)) for p in after.active]))
    if left := [p for p, there in zip(after.active, found, strict=True) if there]:
        raise StreamworkerError(
            f"Partitions {ranges(left)} of stream {keys.stream!r} hold entries of an earlier stream.",
            remedy="Nothing was changed. Look at their keys, and move them away (docs: redis-keys).",
        )
    return maps._replace(next=after)


async def prepare(backend: Backend, keys: StreamKeys, count: int, durability: Durability) -> None:
    """Write down that ``count`` new partitions follow; it refuses what :func:`plan` refuses."""
    done = False
    while not done:  # Somebody else may be faster.
        maps = await plan(backend, keys, count)
        done = await _set(backend, keys, "growing", maps.noted, str(maps.next), durability)


async def go_on(
    backend: Backend,
    keys: StreamKeys,
    durability: Durability,
    who: str,
    told: Callable[[str, int, int], None] = lambda *_: None,
) -> Maps:
    """Take all steps of a change that is under way; return the maps, which are one map then.

    ``told`` gets the name of a step, how many partitions are through it, and how many there are.
    """
    maps = await read_maps(backend, keys)
    if not maps.is_changing:
        return maps
    # Whoever prepared it may not have waited until it was durable, and a failover may have lost it since.
    if not await _set(backend, keys, "growing", str(maps.next), str(maps.next), durability):
        return await go_on(backend, keys, durability, who, told)
    # Else a sender might trim there what retention keeps.
    whole = GroupKeys(keys.app, keys.stream, keys.stream)
    await retention.provision(backend, whole, maps.next.total, Retentions(None, None), again=True)
    old = maps.now.active
    listed = all_answered(await backend.pipeline([("HKEYS", keys.groups(p)) for p in old]))
    named = {name for names in listed for name in names}
    known = await _register(backend, keys, maps.next, named, set(), durability)
    told("sealed", 0, len(old))
    calls = [SEAL.at(keys, p, map=str(maps.next)) for p in old]
    sealed = [checked(reply) for reply in await _durably(backend, SEAL, calls, durability)]
    told("sealed", len(sealed), len(old))
    named = {name for _, _, names, _ in sealed for name in names}
    groups = await _register(backend, keys, maps.next, named, known, durability)
    # Timers of an old partition ran until its seal, by the clock of its node.
    now_ms = max(await backend.time_ms(keys.meta), *(at_ms for _, _, _, at_ms in sealed))
    opened, noted = f"opened:{maps.next.base}", ""
    while not await _set(backend, keys, opened, noted, noted or str(now_ms), durability):
        (known_ms,) = await backend.execute("HMGET", keys.meta, opened)
        noted = (known_ms or b"").decode()
    await _set(backend, keys, "partitions", str(maps.now), str(maps.next), durability)
    message = StreamGrown(str(maps.next), storable(who)).fields()
    for group in groups:
        await post(backend, GroupKeys(keys.app, keys.stream, group), [message])
    return await read_maps(backend, keys)


async def heal(backend: Backend, keys: StreamKeys, partitions: Sequence[int], durability: Durability) -> str:
    """Look whether a failover has lost a step in some partitions, and mend that; return what was lost.

    It seals an old partition again that has no seal, and prepares the map again that the seal of a partition
    that should take records has noted; :func:`go_on` does the rest.
    """
    maps = await read_maps(backend, keys)
    asked = [("XINFO", "STREAM", keys.events(p)) for p in partitions]
    open_again: list[int] = []
    for partition, info in zip(partitions, await backend.pipeline(asked), strict=True):
        if isinstance(info, BackendUnavailable):
            continue
        # A stream that another program has deleted is refused here, and is made anew.
        is_sealed = isinstance(info, list) and pairs_of(info)[b"last-generated-id"] == _TOP
        if partition < maps.now.base and not is_sealed:
            open_again.append(partition)
        if partition >= maps.now.base and is_sealed and not maps.is_changing:
            (note,) = await backend.execute("HMGET", keys.counts(partition), "sealed")
            after = (note or b"").partition(b" ")[2].decode()
            is_lost = await _set(backend, keys, "growing", maps.noted, after, durability)
            return f"the map {after}" if is_lost else ""
    if open_again:
        calls = [SEAL.at(keys, p, map=_after(maps.now, p)) for p in open_again]
        for reply in await _durably(backend, SEAL, calls, durability):
            checked(reply)
        return f"the seal of {ranges(open_again)}"
    return ""


def _after(placement: Placement, partition: int) -> str:
    """Return the map that follows the generation of an old partition."""
    generation = next(at for at, its in enumerate(placement.generations) if partition in its)
    return str(Placement(*placement.counts[: generation + 2]))


async def _register(
    backend: Backend,
    keys: StreamKeys,
    after: Placement,
    names: set[bytes],
    known: set[str],
    durability: Durability,
) -> set[str]:
    """Register groups in the new partitions, besides those that are known; return all of them.

    A failover must not lose that before a record comes: another group would let it be trimmed.

    A name that another program has listed has no lock anywhere, and is no group.
    """
    groups = {name.decode() for name in names if is_name(name.decode("utf-8", "replace"))} - known
    old = after.generations[-2]
    for group in sorted(groups):
        its = GroupKeys(keys.app, keys.stream, group)
        if any(all_answered(await backend.pipeline([("EXISTS", its.lock(p)) for p in old]))):
            await streams.register(backend, its, after, "earliest", after.active, durability)
            known.add(group)
    return known


async def _set(
    backend: Backend, keys: StreamKeys, field: str, seen: str, value: str, durability: Durability
) -> bool:
    call = SET_FIELD.call(hash=keys.meta, field=field, seen=seen, value=value)
    (reply,) = await _durably(backend, SET_FIELD, [call], durability)
    return bool(checked(reply)[0] == b"OK")


async def _durably(
    backend: Backend, script: Script, calls: Sequence[Call], durability: Durability
) -> Sequence[Any]:
    """Run calls of a script; raise an error if one may be lost in a failure. A repeat writes again."""
    replies = await backend.run_many(script, calls, durability=durability)
    for reply in replies:
        if isinstance(reply, Undurable):
            raise reply.error()
    return all_answered(replies)
