"""Late groups of streams that have grown, with tables, state and timers, and on a Cluster."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streamworker import Context
from streamworker.core.data.entries import EntryId
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from tests.archive.shop import KEYS, Order, Seen, Shop, all_trimmed, archive_all, ends, exact
from tests.helpers import wait_for_async
from tests.runtime.test_grown_groups import grow

pytestmark = [pytest.mark.anyio, pytest.mark.full("starts workers, and waits for what they archive")]


def in_order(rows: list[dict[str, Any]], customers: int) -> bool:
    """Whether the orders of each customer come in order."""
    last = Counter[int]()
    for row in rows:
        if row["n"] < last[row["n"] % customers]:
            return False
        last[row["n"] % customers] = row["n"]
    return True


async def test_a_late_group_reads_the_parents_first_when_a_stream_has_grown(
    redis_url: str, tmp_path: Path
) -> None:
    """It counts each customer in a table and in its state, which go along."""
    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        async with Backend.open(redis_url, name="tool") as backend:
            early = Shop(redis_url, lake, 2)
            async with early.works():
                await early.send(range(1000))
                await grow(backend, 3)
                await early.send(range(1000, 2000))
                await all_trimmed(raw, 5, live=range(2, 5))
        shop = Shop(redis_url, lake, 2)
        counts = shop.app.table("counts", int)
        order: list[tuple[str, int]] = []

        @shop.app.processor(shop.orders, name="late", tables=[counts])
        async def late(order_: Order, ctx: Context) -> Seen:
            count = await counts.get(order_.customer) or 0
            assert count == order_.n // 40 == ctx.state.get(order_.customer, 0)
            counts.set(order_.customer, count + 1)
            ctx.state[order_.customer] = count + 1
            order.append((order_.customer, order_.n))
            return Seen(order_.n, ctx.partition, str(ctx.entry_id))

        async with shop.works():
            await wait_for_async(ends(raw, 5, "late", live=range(2, 5)), "all is read")
    assert sorted(n for _, n in order) == [*range(2000)]
    assert in_order([{"n": n} for _, n in order], 40)


async def test_a_timer_of_a_late_group_has_caught_up_with_the_archive_first(
    redis_url: str, tmp_path: Path
) -> None:
    """One that waits for that; the other runs beside the reads."""
    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        await archive_all(raw, Shop(redis_url, lake), range(2000))
        shop, first, ran = Shop(redis_url, lake), dict[int, int](), Counter[int]()

        @shop.app.processor(shop.orders, name="late")
        async def late(order: Order, ctx: Context) -> None:
            ctx.state["seen"] = ctx.state.get("seen", 0) + 1

        @late.timer(every="0.1 seconds", when="caught up")
        async def tell(ctx: Context) -> None:
            first.setdefault(ctx.partition, ctx.state.get("seen", 0))

        @late.timer(every="0.1 seconds")
        async def run(ctx: Context) -> None:
            ran[ctx.partition] += 1

        async with shop.works():
            await wait_for_async(lambda: len(first) == len(ran) == 4, "each timer has run in each partition")
    assert sum(first.values()) == 2000


@pytest.mark.full("workers on a Cluster")
async def test_a_cluster_is_archived_and_a_late_group_reads_it(cluster: Any, tmp_path: Path) -> None:
    """While more comes, is archived and trimmed."""
    lake = str(tmp_path / "lake")
    with exact(cluster.url) as raw:
        raw.flushall()
        await archive_all(raw, Shop(cluster.url, lake, 8), range(2000))
        shop = Shop(cluster.url, lake, 8)
        late = shop.late()
        async with shop.works() as worker:
            for n in range(2000, 3000, 100):
                await shop.send(range(n, n + 100))
            await wait_for_async(ends(raw, 8, "late"), "all is read")
            rows = await worker.rows(late)
        raw.flushall()
    assert sorted(row["n"] for row in rows) == [*range(3000)]
    assert in_order(rows, 40)


async def test_an_adopted_stream_is_archived_and_read_again(redis_url: str, tmp_path: Path) -> None:
    """Another program chose its ids, and deletes nothing."""
    lake, keys = str(tmp_path / "lake"), GroupKeys("shop", "orders", "late")
    with exact(redis_url) as raw:
        for n in range(500):
            raw.xadd("theirs", {"customer": f"c{n % 5}", "n": n}, id=f"{n // 10 + 1}-{n % 10 + 1}")

        def shop() -> Shop:
            return Shop(redis_url, lake, 1, source="theirs", codec="fields")

        async with shop().works():
            await wait_for_async(lambda: raw.hget(KEYS.lock(0), "entries") == b"500", "all is archived")
        late_shop = shop()
        late = late_shop.late()
        async with late_shop.works() as worker:
            await wait_for_async(lambda: raw.hget(keys.lock(0), "entries") == b"500", "all is read")
            rows = await worker.rows(late)
    assert [row["n"] for row in rows] == [*range(500)]
    ids = [EntryId.parse(row["id"]) for row in rows]
    assert ids == sorted(set(ids))
