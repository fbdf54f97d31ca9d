"""An adopted stream that grows takes each entry once, in the order of its key, whoever reads meanwhile."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from streamworker import App, Stream
from streamworker.cli.data import partitions
from streamworker.core.data.placement import Placement
from streamworker.log import get_logger
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.runtime.send.adopting import Adopter
from streamworker.testing import local_worker
from tests.helpers import PATIENCE_S, wait_for_async
from tests.raw import opened
from tests.runtime.test_growth import KEYS, NAMES, open_next, repeated, seal

pytestmark = pytest.mark.anyio
PLAIN = "legacy"


class Entry(msgspec.Struct):
    customer: str
    n: int


def declared(url: str) -> tuple[App, Stream[Entry]]:
    app = App("shop", redis_url=url)
    return app, app.stream("orders", Entry, key="customer", partitions=8, codec="fields", source=PLAIN)


def adopting(url: str) -> Stream[Entry]:
    return declared(url)[1]


@asynccontextmanager
async def reader(
    backend: Backend, stream: Stream[Entry], owned: Callable[[], Collection[int]]
) -> AsyncIterator[None]:
    """A worker that owns some partitions reads the stream, as long as it is the one who does."""
    log = get_logger("test")
    adopter = Adopter(backend, stream.spec, MEMORY, random.random, log, lambda _: None)
    task = asyncio.create_task(adopter.run(owned))
    yield
    task.cancel()


def write(raw: Any, first: int, count: int) -> int:
    """Write some entries of each customer, as a program that knows nothing of us does."""
    pipe = raw.pipeline(transaction=False)
    for n in range(first, first + count):
        for name in NAMES:
            pipe.xadd(PLAIN, {"customer": name, "n": n})
    pipe.execute()
    return first + count


def taken(raw: Any) -> int:
    return sum(raw.xlen(KEYS.events(p)) for p in range(45))


def check(raw: Any, count: int, *counts: int) -> None:
    """Check that each entry is there once, where its key was or is, in the order of its key."""
    found, placement = defaultdict[bytes, list[int]](list), Placement(*counts)
    for p in placement.all:
        for _, fields in raw.xrange(KEYS.events(p)):
            assert p in placement.path_of(fields[b"customer"])
            found[fields[b"customer"]].append(int(fields[b"n"]))
    assert found == {name.encode(): list(range(count)) for name in NAMES}


@pytest.mark.parametrize("is_cut", [False, True])
async def test_entries_are_taken_once_while_the_stream_grows_twice(redis_url: str, is_cut: bool) -> None:
    """By readers with the old map and with the new one, with connections that are cut."""
    old, new = adopting(redis_url), adopting(redis_url)
    with opened(redis_url) as raw:
        raw.hset(KEYS.meta, mapping={"partitions": "8"})
        count = write(raw, 0, 30)
        async with asyncio.timeout(PATIENCE_S), Backend.open(redis_url, name="tool") as backend:
            async with (
                Backend.open(redis_url, name="old") as one,
                Backend.open(redis_url, name="new") as two,
                reader(one, old, lambda: range(45)),
                reader(two, new, lambda: range(45)),
            ):
                for more, counts in (12, (8, 12)), (25, (8, 12, 25)):
                    count = write(raw, count, 30)
                    if is_cut:
                        raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                    await repeated(seal, backend, more)
                    count = write(raw, count, 30)
                    await asyncio.sleep(0.05)
                    await repeated(open_next, backend, more)
                    new.spec.placement.become(*counts)
                    count = write(raw, count, 30)
                await wait_for_async(lambda: taken(raw) >= count * len(NAMES), "all are taken")
            assert old.spec.placement.counts == (8, 12, 25)
        check(raw, count, 8, 12, 25)


async def test_the_owner_of_the_first_partition_that_takes_records_is_the_one_who_reads(
    redis_url: str,
) -> None:
    """The owner of partition 0 gives that up when the stream has grown."""
    stream = adopting(redis_url)
    with opened(redis_url) as raw:
        raw.hset(KEYS.meta, mapping={"partitions": "8"})
        asked = Counter[int]()

        def owned() -> Collection[int]:
            asked[stream.spec.placement.base] += 1
            return range(8)

        async with Backend.open(redis_url, name="tool") as backend:
            async with reader(backend, stream, owned):
                count = write(raw, 0, 5)
                await wait_for_async(lambda: taken(raw) == count * len(NAMES), "all are taken")
                await seal(backend, 12)
                await open_next(backend, 12)
                count = write(raw, count, 5)
                await wait_for_async(lambda: asked[8] > 0, "the map is learned at the seal")
                assert taken(raw) == 5 * len(NAMES)
            async with reader(backend, stream, lambda: (8,)):
                await wait_for_async(lambda: taken(raw) == count * len(NAMES), "all are taken")
        check(raw, count, 8, 12)


async def test_a_partition_that_lost_all_reads_again_from_where_its_parents_stand(redis_url: str) -> None:
    """A failover has lost it; what its parents have is not taken again."""
    stream = adopting(redis_url)
    with opened(redis_url) as raw:
        raw.hset(KEYS.meta, mapping={"partitions": "8"})
        async with (
            Backend.open(redis_url, name="tool") as backend,
            reader(backend, stream, lambda: range(45)),
        ):
            count = write(raw, 0, 10)
            await wait_for_async(lambda: taken(raw) == count * len(NAMES), "all are taken")
            await seal(backend, 12)
            await open_next(backend, 12)
            count = write(raw, count, 10)
            await wait_for_async(lambda: taken(raw) == count * len(NAMES), "all are taken")
            lost = Placement(8, 12).partition_of(NAMES[0].encode())
            raw.delete(KEYS.events(lost), KEYS.taken(lost))
            count = write(raw, count, 10)
            await wait_for_async(lambda: taken(raw) == count * len(NAMES), "all are taken again")
        check(raw, count, 8, 12)


async def test_a_processor_gets_each_entry_once_while_the_command_lets_the_stream_grow(
    redis_url: str,
) -> None:
    """Its worker goes on with the partitions that follow, and reads the stream as their owner."""
    app, stream = declared(redis_url)
    seen = defaultdict[str, list[int]](list)

    @app.processor(stream)
    async def take(entry: Entry) -> None:
        seen[entry.customer].append(entry.n)

    with opened(redis_url) as raw:
        async with local_worker(app, url=redis_url), Backend.open(redis_url, name="tool") as backend:
            count = write(raw, 0, 10)
            await wait_for_async(lambda: seen[NAMES[0]], "it works")
            growing = asyncio.create_task(_grow(backend, stream))
            while not growing.done():
                count = write(raw, count, 1)
                await asyncio.sleep(0.01)
            await growing
            count = write(raw, count, 10)
            await wait_for_async(lambda: all(len(seen[name]) == count for name in NAMES), "all are handled")
        assert seen == {name: list(range(count)) for name in NAMES}
        assert sum(raw.xlen(KEYS.events(p)) for p in range(8, 20)) >= 10 * len(NAMES)


async def _grow(backend: Backend, stream: Stream[Entry]) -> None:
    await partitions._grow(backend, stream, 12, False, True)
