"""A sender can wait until a processor has committed what it sent."""

import anyio
import msgspec
import pytest

from streamworker import App, ConfigurationError, Skip
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    customer: str
    amount: float


async def test_a_sender_waits_for_the_commit_of_its_record(redis_url: str) -> None:
    """True once the checkpoint is there; false if it is not there in time, and that may still come."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=4)
    may_go_on = anyio.Event()

    @app.processor(orders)
    async def price(order: Order) -> None:
        if order.amount > 100:
            await may_go_on.wait()
        if order.amount < 0:
            raise Skip("no price")

    @app.processor(orders, name="never", start="latest")
    async def never(order: Order) -> None: ...

    async with app:
        early = await orders.send(Order("ann", 1.0))
        assert not await price.committed(early, timeout=0), "no worker has ever run"
    async with local_worker(app, url=redis_url, processors=["price"]):
        small = await orders.send(Order("ann", 5.0))
        assert await price.committed(early)
        assert await price.committed(small, timeout="30 seconds")
        large = await orders.send(Order("ann", 500.0))
        assert not await price.committed(large, timeout="20 ms")
        may_go_on.set()
        assert await price.committed(large, timeout="30 seconds")
        assert await price.committed(small, timeout=0), "what came before it is committed, too"
        given_up = await orders.send(Order("ann", -1.0))
        assert await price.committed(given_up, timeout="30 seconds"), "nobody handles it any more"
        assert not await never.committed(large, timeout=0.02)
        with pytest.raises(ConfigurationError, match="timeout='soon' is no duration"):
            await price.committed(large, timeout="soon")
