"""What a call reads from its tables while commits are under way, and when the cache is used."""

from typing import Any

import anyio
import pytest

from streamworker import App
from streamworker.declaring.specs import ProcessorSpec
from streamworker.declaring.table import Table
from streamworker.runtime.run.state import ITEM_BYTES, StateWithTables, TableCache
from tests.helpers import wait_for_async
from tests.runtime.workbench import Bench, Order, bench

pytestmark = pytest.mark.anyio


def counting(desk: Bench, seen: list[Any], *, size: int = 1) -> tuple[ProcessorSpec, Table[str, int]]:
    """Return a processor that counts the orders of a customer, and notes the counts that it read."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=desk.stream.placement.total)
    counts = app.table("counts", int)

    async def count(batch: list[Order]) -> None:
        known = await counts.get_many({order.customer for order in batch})
        seen.append(known.get("ann"))
        for order in batch:
            known[order.customer] = known.get(order.customer, 0) + 1
        counts.set_many(known)

    spec = app.processor(orders, name=desk.keys.group, batch=size, within=0, tables=[counts])(count).spec
    return spec, counts


async def test_a_read_sees_the_writes_of_commits_that_are_not_confirmed(emptied: str) -> None:
    """The commit of the first batch waits in the committer when the second batch reads."""
    async with bench(emptied, run=False) as desk:
        desk.tasks.start_soon(desk.fetcher.run)
        seen: list[Any] = []
        spec, _ = counting(desk, seen)
        await desk.send(range(2))
        await desk.start(spec)

        async def both() -> bool:
            return len(seen) == 2

        await wait_for_async(both, "both batches are handled")
        assert await desk.committed() == 0
        assert seen == [None, 1]
        desk.tasks.start_soon(desk.committer.run)
        await desk.until_committed(2)
        key = desk.keys.table(0, "counts")
        assert await desk.backend.execute("HGETALL", key) == [b"ann", b" \x02"]


async def test_what_was_written_is_read_from_redis_once(emptied: str) -> None:
    """Later calls of this owner take it from the cache; those of the next owner ask Redis."""
    async with bench(emptied) as desk:
        seen: list[Any] = []
        spec, _ = counting(desk, seen)
        first = await desk.start(spec)
        for number in range(3):
            await desk.send([number])
            await desk.until_committed(number + 1)
        # Nobody else may write there; so this shows where a value comes from.
        await desk.backend.execute("HSET", desk.keys.table(0, "counts"), "ann", b" \x64")
        await desk.send([3])
        await desk.until_committed(4)
        assert seen == [None, 1, 2, 3]
        await first.drained()
        await desk.backend.execute("HSET", desk.keys.table(0, "counts"), "ann", b" \x64")
        await desk.start(spec, owner="w2")
        await desk.send([4])
        await desk.until_committed(5)
        assert seen == [None, 1, 2, 3, 100]


async def test_a_read_that_comes_late_does_not_replace_a_newer_value_in_the_cache(
    emptied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that its call left behind asks for a key, and is answered after a later call has written it."""
    async with bench(emptied, run=False) as desk:
        spec, counts = counting(desk, [])
        state = StateWithTables(
            {},
            specs=spec.tables,
            partition=0,
            backend=desk.backend,
            keys=desk.keys,
            cache=TableCache(10_000),
            rng=desk.rng,
        )
        asked, late = anyio.Event(), anyio.Event()

        async def slow(*_: Any) -> tuple[list[bytes | None], int]:
            asked.set()
            await late.wait()
            return [b" old"], 1

        monkeypatch.setattr(state, "_ask", slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(state.read, counts.name, [b"ann"], {})
            await asked.wait()
            state.keep({(counts.name, b"ann"): b"new"})
            state.seal()
            state.confirmed(2)
            late.set()
        assert await state.read(counts.name, [b"ann"], {}) == [b"new"]


def test_the_cache_drops_what_was_used_longest_ago() -> None:
    """It is bounded in bytes, and what replaces a value does not count twice."""
    cache = TableCache(3 * (ITEM_BYTES + 2))
    for name in (b"a", b"b", b"c"):
        cache.put((0, "t", name), b"1")
    cache.put((0, "t", b"b"), b"2")
    assert cache.get((0, "t", b"a")) == b"1"
    cache.put((0, "t", b"d"), b"1")
    kept = {name: cache.get((0, "t", name)) for name in (b"a", b"b", b"c", b"d")}
    assert kept == {b"a": b"1", b"b": b"2", b"c": None, b"d": b"1"}
    cache.put((0, "t", b"b"), None)
    assert cache.get((0, "t", b"b")) is None
    cache.put((0, "t", b"large"), bytes(10_000))
    assert cache.get((0, "t", b"large")) is None
