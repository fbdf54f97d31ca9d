"""State by key, for more keys than a worker can hold.

One processor writes a table. Redis keeps it beside the partitions of the processor's stream. `get_many`
reads the keys of a batch in one round trip. What `set_many` writes is committed together with the batch, or
dropped with a failed attempt. Any program that has the app reads what is committed.
"""
# prints: ann spent 60 in 2 orders, 3 customers in all

import anyio
import msgspec

from streamworker import App
from streamworker.testing import MemoryServer, local_worker, quiet_logs

app = App("shop")


class Order(msgspec.Struct):
    customer: str
    amount: int


class Total(msgspec.Struct):
    orders: int = 0
    spent: int = 0


orders = app.stream("orders", Order, key="customer", partitions=4)
totals = app.table("totals", Total, ttl="400 days")


@app.processor(orders, batch=500, tables=[totals])
async def sum_up(batch: list[Order]) -> None:
    known = await totals.get_many({order.customer for order in batch})
    for order in batch:
        total = known.setdefault(order.customer, Total())
        total.orders += 1
        total.spent += order.amount
    totals.set_many(known)


async def main() -> None:
    with MemoryServer() as server:
        async with local_worker(app, url=server.url) as worker:
            await orders.send_many([Order("ann", 10), Order("bob", 20), Order("ann", 50), Order("eve", 5)])
            await worker.until_drained()
            ann = await totals.get("ann")
            assert ann is not None
            print(f"ann spent {ann.spent} in {ann.orders} orders, {await totals.count()} customers in all")


if __name__ == "__main__":
    quiet_logs()
    anyio.run(main)
