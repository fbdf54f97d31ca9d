"""Records stay for an hour after all have read them, so that a processor of a later deploy finds them.

Run it by `python examples/14_history.py`. The clock is virtual: two minutes pass in a moment.
"""
# prints: billed [1, 2, 3]; fraud, which came later, saw [1, 2, 3, 4]

import asyncio

import msgspec

from streamworker import App
from streamworker.testing import local_worker, quiet_logs

app = App("shop")


class Order(msgspec.Struct):
    customer: str
    number: int


orders = app.stream("orders", Order, key="customer", partitions=1, retention="1 hour")
billed: list[int] = []
seen: list[int] = []


@app.processor(orders)
async def bill(order: Order) -> None:
    billed.append(order.number)


async def main() -> None:
    async with local_worker(app, clock="virtual") as worker:
        await orders.send_many([Order("ann", number) for number in (1, 2, 3)])
        await worker.advance("1 minute")  # without retention, they would be gone now
        before = list(billed)

        @app.processor(orders)  # the next version of the program has one more
        async def fraud(order: Order) -> None:
            seen.append(order.number)

        async with local_worker(app, clock="virtual", name="new") as new:
            await orders.send(Order("eve", 4))
            await new.until_drained()
    print(f"billed {before}; fraud, which came later, saw {seen}")


if __name__ == "__main__":
    quiet_logs()
    asyncio.run(main())
