"""A stream holds records; a processor is a function that gets them.

Everything in this folder uses what an application uses: ``App``, the decorators, and
``streamworker.testing.local_worker``, which runs a worker in the test's own process.
"""

import anyio
import msgspec
import pytest

from streamworker import App
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    customer: str
    amount: float


async def test_each_record_that_is_sent_reaches_the_function(redis_url: str) -> None:
    """An `async def` function runs on the event loop of the worker."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=4)
    seen: list[Order] = []

    @app.processor(orders)
    async def audit(order: Order) -> None:
        seen.append(order)

    async with local_worker(app, url=redis_url) as worker:
        await orders.send(Order("ann", 5.0))
        await orders.send_many([Order("bob", 7.0), Order("cid", 9.0)])
        await worker.until_drained()

    assert sorted(order.customer for order in seen) == ["ann", "bob", "cid"]


async def test_two_processors_of_one_stream_each_get_every_record(redis_url: str) -> None:
    """Each processor is a group of its own, with its own checkpoint. A `def` function has a thread, and may
    block: records of other partitions go on meanwhile.
    """
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=2)
    amounts: list[float] = []
    customers: list[str] = []

    @app.processor(orders)
    async def sum_up(order: Order) -> None:
        amounts.append(order.amount)

    @app.processor(orders)
    def greet(order: Order) -> None:
        anyio.from_thread.run(anyio.sleep, 0.01)
        customers.append(order.customer)

    async with local_worker(app, url=redis_url) as worker:
        await orders.send_many([Order("ann", 5.0), Order("bob", 7.0)])
        await worker.until_drained()

    assert sorted(amounts) == [5.0, 7.0]
    assert sorted(customers) == ["ann", "bob"]


async def test_a_worker_that_starts_later_begins_where_the_last_one_ended(redis_url: str) -> None:
    """The checkpoint is in Redis. A new group begins with the first entry that is there."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    seen: list[float] = []

    @app.processor(orders)
    async def audit(order: Order) -> None:
        seen.append(order.amount)

    await orders.send(Order("ann", 1.0))
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
    await orders.send(Order("ann", 2.0))
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()

    assert seen == [1.0, 2.0]
