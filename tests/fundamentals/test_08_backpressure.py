"""A stream that is not read fills up to its limit; then senders wait or are told."""

import anyio
import msgspec
import pytest

from streamworker import App, StreamFull
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Item(msgspec.Struct):
    number: int


def declare(redis_url: str) -> tuple[App, list[int]]:
    """Return an app whose partition holds ten entries, and what was handled."""
    app = App("shop", redis_url=redis_url)
    items = app.stream("items", Item, partitions=1, max_records=10)
    handled: list[int] = []

    @app.processor(items)
    async def take(item: Item) -> None:
        handled.append(item.number)

    return app, handled


async def test_a_full_partition_raises_where_the_sender_asked_for_it(redis_url: str) -> None:
    """Nothing was written, and nothing that is unread was dropped to make room."""
    app, handled = declare(redis_url)
    items = app.registry.streams["items"]
    async with app:
        for number in range(10):
            await items.send(Item(number), on_full="raise")
        with pytest.raises(StreamFull, match="10 records"):
            await items.send(Item(10), on_full="raise")
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
    assert handled == list(range(10))


async def test_a_sender_that_waits_goes_on_when_a_worker_has_made_room(redis_url: str) -> None:
    """The default. An endless source can be sent at the pace of the workers."""
    app, handled = declare(redis_url)
    items = app.registry.streams["items"]
    async with local_worker(app, url=redis_url) as worker:
        with anyio.fail_after(30):
            await items.send_many(Item(number) for number in range(100))
        await worker.until_drained()
    assert handled == list(range(100))
