"""Workers share the partitions of a processor, and take over from each other."""

from collections.abc import Callable

import msgspec
import pytest

from streamworker import App, Context
from streamworker.testing import Snapshot, local_worker

pytestmark = pytest.mark.anyio


class Item(msgspec.Struct):
    key: str
    number: int


async def test_two_workers_share_the_partitions_and_one_that_leaves_gives_its_share_back(
    redis_url: str,
) -> None:
    """Each owns one contiguous run; nothing is handled twice or left out on the way."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, key="key", partitions=6)
    handled: list[tuple[str, int]] = []

    @app.processor(items)
    async def take(item: Item, ctx: Context) -> None:
        handled.append((item.key, item.number))

    def owned(counts: dict[str, int]) -> Callable[[Snapshot], bool]:
        return lambda now: {m.name: len(m.partitions) for m in now.processors["take"].members} == counts

    async with local_worker(app, url=redis_url, name="w1") as first:
        await first.until(owned({"w1": 6}))
        async with local_worker(app, url=redis_url, name="w2") as second:
            await second.until(owned({"w1": 3, "w2": 3}))
            await items.send_many(Item(f"k{n % 20}", n) for n in range(200))
        snapshot = (await first.until(owned({"w1": 6}))).processors["take"]
        await items.send_many(Item(f"k{n % 20}", n) for n in range(200, 300))
        await first.until_drained()

    assert sorted(number for _, number in handled) == list(range(300))
    for key in {key for key, _ in handled}:
        numbers = [number for other, number in handled if other == key]
        assert numbers == sorted(numbers)
    assert [change.cause for change in snapshot.rebalances] == ["join", "join", "leave", "left"]
    assert snapshot.rebalances[1].moved == (3, 4, 5)
