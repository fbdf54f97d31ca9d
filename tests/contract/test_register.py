"""How a group gets its place in a stream."""

import msgspec
import pytest

from streamworker import App
from streamworker.core.data.entries import ZERO
from streamworker.core.data.placement import Placement
from streamworker.core.events import AcquireLocks
from streamworker.core.ownership.locks import Acquired
from streamworker.errors import BackendRefused, ConfigurationError
from streamworker.log import get_logger
from streamworker.records.entries import Entries
from streamworker.redisio.data import maps, streams
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.data.trimming import trim_many
from streamworker.redisio.group import locks
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.provisioning import provision
from tests.contract.support import GROUP, OTHER_GROUP, STREAM, Group, Raw, request

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    number: int


async def test_a_new_group_begins_before_the_first_entry_or_behind_the_last(group: Group, raw: Raw) -> None:
    """``earliest`` on every partition; with ``latest`` stock tools see no lag."""
    entries = await group.send(3)
    assert await streams.register(group.backend, GROUP, Placement(2), "earliest") == {0: ZERO, 1: ZERO}
    assert (await group.lock()).entries == 0
    assert await streams.register(group.backend, OTHER_GROUP, Placement(1), "latest") == {0: entries[-1].id}
    lags = {info["name"]: info["lag"] for info in raw.xinfo_groups(STREAM.events(0))}
    assert lags == {b"price": 3, b"audit": 0}


async def test_registering_again_changes_nothing(group: Group) -> None:
    """A worker that starts finds the checkpoint of the one before it."""
    entries = await group.send(2)
    await group.register()
    lock = await group.own()
    await group.commit(request(lock, entries))
    before = await group.lock()
    again = await streams.register(group.backend, GROUP, Placement(1), "latest")
    assert again == {0: entries[-1].id}
    assert await group.lock() == before


async def test_a_group_counts_what_was_trimmed_before_it_came_as_done(group: Group, raw: Raw) -> None:
    """The lag of a new group is what there is to read, not what ever was."""
    await group.send(10)
    raw.xtrim(STREAM.events(0), maxlen=4, approximate=False)
    await group.register()
    (info,) = raw.xinfo_groups(STREAM.events(0))
    assert info["lag"] == 4
    assert (await group.lock()).entries == 6


async def test_a_lost_lock_resumes_where_its_group_stood(group: Group, raw: Raw) -> None:
    """Without the lock hash the consumer group still knows the checkpoint of the last trim."""
    entries = await group.send(4)
    await group.register()
    old = await group.own()
    await group.commit(request(old, entries[:3], rows=3))
    await trim_many(group.backend, GROUP, {0: 0})
    raw.delete(GROUP.lock(0))

    new = await group.acquire()
    assert isinstance(new, Acquired)
    assert (new.checkpoint, new.entries, new.rows) == (entries[2].id, 3, 3)
    assert new.log != old.log  # Readers are told that something happened.
    assert new.epoch >= old.epoch


async def test_a_lock_that_somebody_wrote_to_is_named(group: Group, raw: Raw) -> None:
    """Whoever starts a worker or looks at the group learns which it is, and what to do."""
    await group.register(2)
    raw.hset(GROUP.lock(1), "checkpoint", "x")
    with pytest.raises(
        BackendRefused, match=r"lock of partition 1 .*'x' is not an entry id.* correct the field"
    ):
        await group.register(2)
    with pytest.raises(BackendRefused, match="lock of partition 1"):
        await locks.read_lock(group.backend, GROUP, 1)
    assert set(await locks.read_locks(group.backend, GROUP, [0, 1])) == {0}


@pytest.mark.parametrize(
    "partitions, codec, message",
    [
        (4, "json", "has partitions=8 in Redis and 4 in the app"),
        (8, "msgpack", "written as 'json' in Redis and as 'msgpack' in the app"),
    ],
)
async def test_a_stream_that_was_declared_otherwise_is_refused(
    backend: Backend, partitions: int, codec: str, message: str
) -> None:
    """Another number of partitions would route keys elsewhere; another codec reads nothing.

    Every worker and every producer declares the stream, so to do it again is no error.
    """
    for _ in range(2):
        await streams.provision(backend, STREAM, 8, "json")
    assert await backend.execute("HGET", STREAM.meta, "partitions") == b"8"
    with pytest.raises(ConfigurationError, match=message):
        await streams.provision(backend, STREAM, partitions, codec)


async def test_a_stream_that_has_grown_is_declared_by_its_first_or_newest_number(
    backend: Backend,
) -> None:
    """By another number somebody would go through some of the partitions as if these were all."""
    await streams.provision(backend, STREAM, 8, "json")
    await backend.execute("HSET", STREAM.meta, "partitions", "8+12")
    for declared in (8, 12):
        assert await maps.check_made(backend, STREAM, declared) == (8, 12)
        placement = Placement(declared)
        await maps.follow_maps(backend, [(STREAM, placement)])
        assert placement.counts == (8, 12)
    with pytest.raises(ConfigurationError, match=r"partitions=8\+12 in Redis and 20 in the app"):
        await maps.check_made(backend, STREAM, 20)
    other = Placement(20)
    await maps.follow_maps(backend, [(STREAM, other)])
    assert other.counts == (20,)


async def test_two_apps_cannot_share_keys_by_a_dot_in_their_names(backend: Backend) -> None:
    """App ``a`` with stream ``b.c`` and app ``a.b`` with stream ``c`` would have the same keys."""
    await streams.provision(backend, StreamKeys("a", "b.c"), 1, "json")
    with pytest.raises(ConfigurationError, match=r"would share its keys with stream 'b\.c' of app 'a'"):
        await streams.provision(backend, StreamKeys("a.b", "c"), 1, "json")


@pytest.mark.parametrize("pack", ["", "json"], ids=["one by one", "packed"])
async def test_a_worker_starts_and_drains_where_memory_is_full(
    group: Group, full_memory: Raw, pack: streams.Packing
) -> None:
    """Also if its group has never run: otherwise nobody ever makes room."""
    app = App("shop")
    orders, priced = (app.stream(name, Order, partitions=1) for name in ("orders", "priced"))

    @app.processor(orders, into=priced, log_retention="1 hour")
    async def price(order: Order) -> Order:
        return order

    append = streams.Append(0, "p", 1, 0, [(b'{"number": %d}' % n, None) for n in range(500)], pack=pack)
    await streams.append_many(group.backend, STREAM, [append])
    full_memory.config_set("maxmemory", 1)
    for owner in ("w1", "w2"):  # The second finds what the first has stored.
        await provision(group.backend, app.registry.processors["price"], get_logger("test"))
        lock = await group.own(owner)
    held = full_memory.xlen(STREAM.events(0))
    entries = (await streams.read_each(group.backend, STREAM, {0: lock.checkpoint}, 500))[0]
    assert isinstance(entries, Entries)
    done = request(lock, list(entries), owner="w2", trim=True, reads=[])
    assert (await group.commit(done)).code is CommitCode.OK
    assert full_memory.xlen(STREAM.events(0)) < held


GROWN = Placement(2, 3)
"""Partition 3 has two parents, 2 and 4 have one."""


async def test_a_group_that_is_there_begins_new_partitions_at_their_first_entry(group: Group) -> None:
    """However it is declared: it must have all that follows; and each waits for those before it."""
    (before,) = await group.send(1)
    await streams.register(group.backend, GROUP, Placement(2), "latest")
    await group.send(2, partition=3)
    at = await streams.register(group.backend, GROUP, GROWN, "latest")
    assert at == {0: before.id, **dict.fromkeys((1, 2, 3, 4), ZERO)}
    found = await locks.read_locks(group.backend, GROUP, GROWN.all)
    waits_for = [lock.waits_for for lock in found.values() if isinstance(lock, locks.LockView)]
    assert waits_for == [(), (), (0,), (0, 1), (1,)]


async def test_a_new_group_begins_a_grown_stream_where_it_says(group: Group) -> None:
    """Also if the call that registers it is cut short, and repeated."""
    (last,) = await group.send(1, partition=3)
    assert (await streams.register(group.backend, GROUP, GROWN, "latest", [3]))[3] == last.id
    at = await streams.register(group.backend, GROUP, GROWN, "latest")
    assert (at[0], at[3]) == (ZERO, last.id)
    (later,) = await group.send(1, partition=4)
    other = await streams.register(group.backend, OTHER_GROUP, GROWN, "latest")
    assert (other[3], other[4]) == (last.id, later.id)


async def test_a_lock_that_was_lost_waits_again_when_it_is_acquired(group: Group, raw: Raw) -> None:
    """Its owner says which partitions come before it, as far as it knows."""
    access = Access(group.backend, GROUP, 1_000, GROWN.parents_of)
    ask = AcquireLocks((1, 3), "w1", 1, ("w1",))
    for _ in range(2):
        replies = (await locks.acquire(access, ask)).replies
        waits = [each.waits_for for each in replies.values() if isinstance(each, Acquired)]
        assert waits == [(), (0, 1)]
        raw.delete(GROUP.lock(3))
