"""A shop whose orders are archived, trimmed to nothing, and read again by groups that were declared late."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec

from streamworker import App, Archive, Context
from streamworker.archive.chain import Chain
from streamworker.archive.store import store_at
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.redisio.keys import GroupKeys
from streamworker.testing import LocalWorker, local_worker
from tests.helpers import wait_for_async
from tests.raw import opened

KEYS = GroupKeys("shop", "orders", "archive")
QUICK: dict[str, Any] = {"every": "200ms", "after": "0 seconds"}


class Order(msgspec.Struct):
    customer: str
    n: int


class Seen(msgspec.Struct):
    n: int
    partition: int
    id: str
    headers: dict[str, str] = {}


class Shop:
    """One declaration of the app, as of one release of its code."""

    def __init__(self, url: str, lake: str, partitions: int = 4, *, name: str = "shop", **more: Any) -> None:
        self.url, self.partitions = url, partitions
        self.app = App(name, redis_url=url, trim_interval_ms=50, **more.pop("app", {}))
        stream = {"key": "customer", "partitions": partitions, **more}
        archive = Archive(lake, **{**QUICK, **stream.pop("archive", {})})
        self.orders = self.app.stream("orders", stream.pop("record", Order), archive=archive, **stream)

    def late(self, name: str = "late", **options: Any) -> Any:
        """Declare a group that tells what it sees; return its function."""

        async def late(order: Any, ctx: Context) -> Seen:
            (given,) = ctx.headers
            return Seen(order.n, ctx.partition, str(ctx.entry_id), given)

        return self.app.processor(self.orders, name=name, **options)(late)

    @asynccontextmanager
    async def works(self, **options: Any) -> AsyncIterator[LocalWorker]:
        async with local_worker(self.app, url=self.url, **options) as worker:
            yield worker

    async def send(self, numbers: range, customers: int = 40) -> None:
        await self.orders.send_many([Order(f"c{n % customers}", n) for n in numbers])


@contextmanager
def exact(url: str) -> Iterator[Any]:
    """Let Redis trim each entry, and not nodes of a hundred."""
    with opened(url) as raw:
        raw.config_set("stream-node-max-entries", 1)
        yield raw
        raw.config_set("stream-node-max-entries", 100)


def ends(raw: Any, partitions: int, group: str = "archive", live: range | None = None) -> Callable[[], bool]:
    """Tell whether a group has come to the end of all partitions; those that are not live have grown."""
    keys = GroupKeys("shop", "orders", group)

    def is_so() -> bool:
        return all(
            raw.hget(keys.lock(p), "checkpoint") == raw.xinfo_stream(keys.events(p))["last-generated-id"]
            for p in live or range(partitions)
        )

    return is_so


def left(raw: Any, partitions: int) -> int:
    """Return how many entries Redis has."""
    return sum(raw.xlen(KEYS.events(p)) for p in range(partitions))


async def all_archived(raw: Any, partitions: int, live: range | None = None) -> None:
    await wait_for_async(ends(raw, partitions, live=live), "all is archived")


async def all_trimmed(raw: Any, partitions: int, live: range | None = None) -> None:
    await all_archived(raw, partitions, live)
    await wait_for_async(lambda: left(raw, partitions) == 0, "all is trimmed")


async def archive_all(raw: Any, shop: Shop, numbers: range, **options: Any) -> None:
    """Archive some orders, and trim them to nothing."""
    async with shop.works(**options):
        await shop.send(numbers)
        await all_trimmed(raw, shop.partitions)


def ids_in(lake: str, partitions: int) -> list[EntryId]:
    """Return the ids of all archived records, partition by partition."""
    found: list[EntryId] = []
    for p in range(partitions):
        for part in Chain(store_at(lake), p).read(ZERO):
            ms, seqs = part.table["_time"].cast("int64").to_pylist(), part.table["_seq"].to_pylist()
            found += itertools.starmap(EntryId, zip(ms, seqs, strict=True))
    return found
