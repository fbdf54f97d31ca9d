"""A worker in this process leaves alone what its app has under way elsewhere."""

from collections.abc import AsyncIterator

import anyio
import pytest

from streamworker import App
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import ConfigurationError
from streamworker.testing import local_worker
from tests.runtime.workbench import Order

pytestmark = pytest.mark.anyio


async def test_a_send_that_is_under_way_outlives_a_worker_elsewhere_that_comes_and_goes(
    redis_url: str, own_server: EmbeddedServer
) -> None:
    """It goes on at the server where it began; what is sent in the block goes where the worker is."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, partitions=1)

    @app.processor(orders, forward=True)
    async def keep(order: Order) -> Order:
        return order

    begun, over = anyio.Event(), anyio.Event()
    sent: list[int] = []

    async def slowly() -> AsyncIterator[Order]:
        for n in range(4_000):  # as many as two chunks: the first leaves before the source goes on
            if n == 3_000:
                begun.set()
                await over.wait()
            yield Order(n)

    async def send() -> None:
        sent.append(await orders.send_many(slowly()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        await begun.wait()
        async with local_worker(app, url=own_server.url) as worker:
            await orders.send(Order(-1))
            await worker.until_drained()
            inside = [row["number"] for row in await worker.rows(keep)]
        over.set()
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
        rows = [row["number"] for row in await worker.rows(keep)]
    await app.aclose()
    assert sent == [4_000]
    assert inside == [-1]
    assert rows == list(range(4_000))


async def test_an_app_is_as_it_was_when_its_worker_cannot_be_made(redis_url: str) -> None:
    """Its settings and its producers."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, partitions=1)
    await orders.send(Order(1))
    before, producer = app.settings, app.producer(orders)
    with pytest.raises(ConfigurationError):
        async with local_worker(app, url="redis://localhost:1", processors=["none"]):
            raise AssertionError
    assert app.settings == before
    assert app.producer(orders) is producer
    await app.aclose()
