"""Records that are done one by one share commits, and no commit that something waits for is kept waiting."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from streamworker import App
from streamworker.redisio.data.commit import CommitReply, commit_many
from streamworker.runtime.run import committer
from streamworker.runtime.run.runner import StopReason
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.runtime.workbench import OVERLAPPING, Bench, Context, Order, Priced, Running, bench, handler, start

pytestmark = pytest.mark.anyio

MODES = ["record", "thread", "stream", OVERLAPPING]


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commits in each round trip; the moment that begins with the first never ends."""
    made: list[int] = []

    async def counted(*given: Any) -> list[CommitReply]:
        made.append(len(given[2]))
        return await commit_many(*given)

    monkeypatch.setattr(committer, "commit_many", counted)
    monkeypatch.setattr(committer, "GATHER_MS", 3_600_000)
    return made


async def _until(seen: list[int], count: int) -> None:
    await wait_for_async(lambda: len(seen) >= count, f"{count} records are handled")


@asynccontextmanager
async def handled(url: str, mode: str, count: int, *, batch: int = 0) -> AsyncIterator[tuple[Bench, Running]]:
    """Let a function handle so many records, each sent once the one before is done."""
    seen: list[int] = []

    def price(order: Order, ctx: Context) -> Priced:
        seen.append(order.number)
        return Priced(order.number, 1.0)

    async with bench(url) as desk:
        options = {"output": Priced, "forward": True} if mode == "stream" else {}
        options |= {"concurrency": 4} if mode == OVERLAPPING else {}
        spec = desk.spec(handler(mode, price), **options)
        running = await desk.start(replace(spec, batch=batch or spec.batch))
        for number in range(count):
            await desk.send([number])
            await _until(seen, number + 1)
        yield desk, running


@pytest.mark.parametrize("mode", MODES)
async def test_records_gather_until_a_drain_which_waits_for_nothing(
    redis_url: str, round_trips: list[int], mode: str
) -> None:
    """The first commit begins at once. One has all others: at the end, since the moment never ends before."""
    async with handled(redis_url, mode, 6) as (desk, running):
        assert round_trips == [1] or mode == "stream"  # A stream has its own blocks.
        assert (await running.drained()).reason is StopReason.DRAINED
        assert await desk.committed() == 6
        assert {row["number"] for row in await desk.rows()} == set(range(6))
    assert round_trips == [1, 1] or mode == "stream"


@pytest.mark.parametrize("mode", ["record", "thread", OVERLAPPING])
async def test_a_whole_batch_gathers_no_longer(redis_url: str, round_trips: list[int], mode: str) -> None:
    """More than ``batch`` records are never done and in no commit."""
    async with handled(redis_url, mode, 9, batch=4) as (desk, _):
        await desk.until_committed(9)
    assert round_trips == [1, 1, 1]


async def test_partitions_that_gather_share_a_round_trip(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, round_trips: list[int]
) -> None:
    """One commit for each, however many records each has, and all are sent together."""
    seen: list[int] = []

    async def price(order: Order) -> None:
        seen.append(order.number)

    async with bench(redis_url, partitions=8) as desk:
        for partition in range(8):
            await desk.start(desk.spec(price), partition)
        monkeypatch.setattr(committer, "GATHER_MS", 3_600_000)
        for number in range(24):
            await desk.add_raw(b'{"number":%d,"customer":"ann"}' % number, number % 8)
            await _until(seen, number + 1)
        desk.committer.end_moment()
        for partition in range(8):
            await desk.until_committed(3, partition)
    assert round_trips == [1, 8]


@pytest.mark.usefixtures("round_trips")
async def test_only_what_comes_within_the_moment_waits_for_its_end(redis_url: str) -> None:
    """A record that comes alone is committed at once; so is the first one after a moment without any."""
    told: list[int] = []
    async with bench(redis_url) as desk:
        gather, turn = desk.committer.gather, partial(asyncio.sleep, 0)
        for number in (1, 2):
            gather(partial(told.append, number))
            await turn()
        assert told == [1]
        gather(partial(told.append, 3))
        desk.committer.end_moment()
        assert told == [1, 2, 3]
        gather(partial(told.append, 4))
        await turn()
        assert told == [1, 2, 3]
        desk.committer.end_moment()
        desk.committer.end_moment()
        gather(partial(told.append, 5))
        await turn()
        assert told == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("round_trips")
@pytest.mark.parametrize("fenced", [False, True])
async def test_what_gathers_when_a_worker_ends_is_handled_again_and_committed_once(
    redis_url: str, fenced: bool
) -> None:
    """Nothing of it was sent: the next owner begins at the checkpoint, and a fenced worker is refused."""
    async with handled(redis_url, "record", 4) as (desk, running):
        await desk.until_committed(1)  # The first commit begins at once.
        if not fenced:
            await running.cancelled()
        again: list[int] = []

        def price(order: Order, ctx: Context) -> Priced:
            again.append(order.number)
            return Priced(order.number, 2.0)

        second = await start(desk, "record", price, owner="w2")
        if fenced:
            assert (await running.drained()).reason is StopReason.FENCED
        await wait_for_async(lambda: again == [1, 2, 3], "all others are handled again")
        await second.drained()
        prices = [(row["number"], row["price"]) for row in await desk.rows()]
        assert prices == [(0, 1.0), (1, 2.0), (2, 2.0), (3, 2.0)]


@pytest.mark.usefixtures("round_trips")
async def test_what_goes_to_another_stream_does_not_gather(redis_url: str) -> None:
    """Each hop of a chain would add the moment to the time until the next call."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    prices = app.stream("prices", Priced, key="number", partitions=1)
    seen: list[int] = []

    @app.processor(orders, into=prices)
    async def price(order: Order) -> Priced:
        return Priced(order.number, 1.0)

    @app.processor(prices)
    async def collect(priced: Priced) -> None:
        seen.append(priced.number)

    async with local_worker(app, url=redis_url):
        await orders.send(Order(7, "ann"))
        await _until(seen, 1)
