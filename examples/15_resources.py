"""A client that all calls share, and what happens around each call.

Run it by `python examples/15_resources.py`.
"""
# prints: 5 attempts at 3 orders; client open: False

import asyncio
from collections.abc import AsyncIterator

import msgspec

from streamworker import App, Context
from streamworker.testing import local_worker, quiet_logs

app = App("shop")


class Order(msgspec.Struct):
    customer: str


class Client:
    is_open = True

    async def charge(self, customer: str) -> None:
        if len(attempts) < 3:
            raise ConnectionError(f"nobody charges {customer} now")


orders = app.stream("orders", Order, key="customer", partitions=1)
shared, attempts = Client(), list[str]()


@app.resource  # made once in each worker, closed after it has drained
async def client() -> AsyncIterator[Client]:
    yield shared
    shared.is_open = False


@app.middleware  # around each attempt; it loses no result, and hides no error
async def count_attempts(ctx: Context) -> AsyncIterator[None]:
    attempts.append(ctx.processor)
    yield


@app.processor(orders)  # the type of an argument says which resource it gets
async def bill(order: Order, client: Client) -> None:
    await client.charge(order.customer)


async def main() -> None:
    async with local_worker(app, clock="virtual") as worker:  # the pauses pass in a moment
        await orders.send_many(map(Order, ("ann", "bob", "ann")))
        await worker.until_drained()
    print(f"{len(attempts)} attempts at 3 orders; client open: {shared.is_open}")


if __name__ == "__main__":
    quiet_logs()
    asyncio.run(main())
