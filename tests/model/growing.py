"""Who lets a stream grow: the command, and whoever finds its work undone.

These are ``prepare``, ``go_on`` and ``heal`` of ``redisio/admin/growth.py``. Each returns False if a call had
no answer; then somebody repeats it.
"""

from collections.abc import Collection

from tests.model.net import Actor, Call
from tests.model.streams import Router, Stream, router


def grow(stream: Stream) -> Actor:
    """Do what the command does, from the first step to the last."""
    if (yield from prepare(stream)):
        yield from go_on(stream)


def prepare(stream: Stream) -> Actor:
    """Write down the map that follows."""
    while True:
        now, noted = stream.map, stream.growing
        if noted and noted != now:
            return True
        if len(now) == len(stream.shape):
            return False
        yield None
        answer = yield set_field(stream, "growing", noted, stream.shape[: len(now) + 1])
        if answer is None:
            return False
        if answer[0] == "OK":
            return True


def go_on(stream: Stream) -> Actor:
    """Take all steps of a change that is under way."""
    if not stream.is_changing:
        return True
    now, after = stream.map, router(stream.growing)
    # Whoever prepared it may not have waited until it was durable, and a failover may have lost it.
    answer = yield set_field(stream, "growing", after.counts, after.counts)
    if not answer or answer[0] != "OK":
        return False
    old = after.generations[-2]
    listed = {group for p in old for group in stream[p].groups}
    yield None
    if not (yield from register(stream, after, listed)):
        return False
    answers = yield [its.call(its.seal, after.counts, waits=True) for its in map(stream.__getitem__, old)]
    if None in answers:
        return False
    late = {group for answer in answers for group in answer[1]}
    if not (yield from register(stream, after, late - listed)):
        return False
    if not (yield stream.meta.call(stream.meta.store_opened, after.base, stream.clock, waits=True)):
        return False
    return bool((yield set_field(stream, "partitions", now, after.counts)))


def register(stream: Stream, after: Router, groups: Collection[str]) -> Actor:
    """Register groups in the new partitions; return False if a call had no answer."""
    answers = yield [
        stream[p].call(stream[p].register, group, "0", after.parents[p], waits=True)
        for group in sorted(groups)
        for p in after.active
    ]
    return None not in answers


def heal(stream: Stream, active: int) -> Actor:
    """Look at the old partitions and at one that takes records; mend and tell what a failover has lost."""
    now, noted, changes = router(stream.map), stream.growing, stream.is_changing
    yield None
    open_again = []
    for p in (*range(now.base), active):
        sealed = stream[p].sealed
        if p < now.base and not sealed:
            open_again.append(p)
        if p >= now.base and sealed and not changes:
            answer = yield set_field(stream, "growing", noted, sealed.map)
            if answer and answer[0] == "OK":
                stream.told.append(f"the map {sealed.map}")
            return
    if open_again:
        stream.told.append(f"the seal of {open_again}")
        yield [stream[p].call(stream[p].seal, after(now, p), waits=True) for p in open_again]


def after(now: Router, partition: int) -> tuple[int, ...]:
    """Return the map that follows the generation of an old partition."""
    generation = next(at for at, its in enumerate(now.generations) if partition in its)
    return now.counts[: generation + 2]


def restore(stream: Stream, known: tuple[int, ...]) -> Actor:
    """Prepare the map again that somebody knows and Redis has lost."""
    now = stream.map
    if stream.growing in ((), now) and known[: len(now)] == now != known:
        for seen in ((), now):
            yield stream.meta.call(stream.meta.set_field, "growing", seen, known[: len(now) + 1])


def set_field(stream: Stream, field: str, seen: tuple[int, ...], value: tuple[int, ...]) -> Call:
    return stream.meta.call(stream.meta.set_field, field, seen, value, waits=True)
