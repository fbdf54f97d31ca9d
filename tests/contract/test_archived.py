"""What counts as archived: what an archiver has, and not a processor that once had its name."""

import pytest

from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import Placement
from streamworker.core.events import AcquireLocks
from streamworker.core.ownership.locks import Acquired
from streamworker.redisio.data.streams import register
from streamworker.redisio.data.trimming import trim_many
from streamworker.redisio.group import locks
from streamworker.redisio.group.archiving import go_on_behind
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from tests.raw import opened

pytestmark = pytest.mark.anyio

PRICE, ARCHIVE = (GroupKeys("shop", "orders", name) for name in ("price", "archive"))


@pytest.mark.parametrize("is_archiver", [True, False], ids=["an archiver", "a processor of that name"])
async def test_only_what_an_archiver_has_is_trimmed_before_others_have_read_it(
    redis_url: str, is_archiver: bool
) -> None:
    """A release without archives let processors have the name; a program of this one may trim beside them."""
    with opened(redis_url) as raw:
        raw.config_set("stream-node-max-entries", 1)
        for n in range(1, 11):
            raw.xadd(PRICE.events(0), {"v": "1"}, id=f"{n}-0")
        async with Backend.open(redis_url, name="trim") as backend:
            for keys in (PRICE, ARCHIVE):
                assert await register(backend, keys, Placement(1), "earliest") == {0: EntryId(0, 0)}
            raw.hset(ARCHIVE.lock(0), mapping={"checkpoint": "7-0", "entries": "7"})
            if not is_archiver:
                raw.hdel(ARCHIVE.lock(0), "before")
            await trim_many(backend, PRICE, {0: 0})
        assert raw.xlen(PRICE.events(0)) == (3 if is_archiver else 10)
        raw.config_set("stream-node-max-entries", 100)


async def test_deaths_in_the_call_of_a_record_count_that_is_in_the_archive_alone(redis_url: str) -> None:
    """All was archived and trimmed, so nothing in Redis follows the checkpoint."""
    with opened(redis_url) as raw:
        async with Backend.open(redis_url, name="death") as backend:
            for keys in (PRICE, ARCHIVE):
                await register(backend, keys, Placement(1), "earliest")
            raw.hset(ARCHIVE.lock(0), mapping={"checkpoint": "9-0", "entries": "9"})
            access, deaths = Access(backend, PRICE, 0, lambda _: ()), []
            for generation, owner in enumerate(("w1", "w2", "w3"), 1):
                asked = AcquireLocks((0,), owner, generation, (owner,))
                acquired = (await locks.acquire(access, asked)).replies[0]
                assert isinstance(acquired, Acquired)
                deaths.append(acquired.deaths)
                raw.hset(PRICE.lock(0), "tries", "5-0 1 alone")
    assert deaths == [None, 1, 2]


async def test_what_was_erased_in_the_archive_counts_as_passed_and_not_as_deleted_in_redis(
    redis_url: str,
) -> None:
    """What others delete once a group has come back to Redis is told as ever."""
    with opened(redis_url) as raw:
        for n in range(1, 11):
            raw.xadd(PRICE.events(0), {"v": "1"}, id=f"{n}-0")
        async with Backend.open(redis_url, name="trim") as backend:
            for keys in (PRICE, ARCHIVE):
                await register(backend, keys, Placement(1), "earliest")
            raw.hset(ARCHIVE.lock(0), mapping={"checkpoint": "10-0", "entries": "10"})
            raw.xtrim(PRICE.events(0), maxlen=0, approximate=False)
            await trim_many(backend, PRICE, {0: 0})
            raw.hset(PRICE.lock(0), mapping={"checkpoint": "10-0", "entries": "6"})  # Four were erased.
            await trim_many(backend, PRICE, {0: 0})
            assert raw.hmget(PRICE.lock(0), "entries", "gone") == [b"10", None]
            for n in range(11, 14):
                raw.xadd(PRICE.events(0), {"v": "1"}, id=f"{n}-0")
            raw.xtrim(PRICE.events(0), maxlen=0, approximate=False)
            await trim_many(backend, PRICE, {0: 0})
        assert raw.hmget(PRICE.lock(0), "entries", "gone") == [b"13", b"3"]


async def test_a_redis_that_lost_all_goes_on_counting_where_the_archive_ends(redis_url: str) -> None:
    """Also if it has taken records before its archiver told it: none of them counts as deleted."""
    with opened(redis_url) as raw:
        async with Backend.open(redis_url, name="archive") as backend:
            for keys in (PRICE, ARCHIVE):
                await register(backend, keys, Placement(1), "earliest")
            for n in range(20, 23):
                raw.xadd(PRICE.events(0), {"v": "1"}, id=f"{n}-0")
            raw.hset(PRICE.lock(0), mapping={"checkpoint": "22-0", "entries": "3"})
            await go_on_behind(backend, PRICE, 0, EntryId(10, 0), total=100, before=0)
            await trim_many(backend, ARCHIVE, {0: 0})
            assert raw.hget(ARCHIVE.lock(0), "entries") == b"0", "its next commit counts them"
            raw.hset(ARCHIVE.lock(0), mapping={"checkpoint": "10-0", "entries": "100"})
            for keys in (PRICE, ARCHIVE):
                await trim_many(backend, keys, {0: 0})
            assert raw.xinfo_stream(PRICE.events(0))["entries-added"] == 103
            assert raw.hmget(PRICE.lock(0), "entries", "gone") == [b"103", None]
            assert raw.hmget(ARCHIVE.lock(0), "entries", "gone") == [b"100", None]
            raw.hset(ARCHIVE.lock(0), mapping={"checkpoint": "22-0", "entries": "500"})
            await trim_many(backend, ARCHIVE, {0: 0})
        assert raw.hget(ARCHIVE.lock(0), "entries") == b"500", "the files say so"
