"""A chain: what one processor returns is the next one's stream, each record once.

`into=` names the stream. Its key routes what the function returns, here by product instead of by customer.
The rows are committed together with the checkpoint and forwarded from there, so a worker that dies sends
nothing twice.
"""
# prints: 300 orders, 270 of them priced; 3 alerts, the first about tea

import anyio
import msgspec

from streamworker import App, Context
from streamworker.testing import local_worker, quiet_logs

app = App("shop")
PRODUCTS = ("tea", "milk", "bread")


class Order(msgspec.Struct):
    order_id: int
    customer: str
    product: str


class Priced(msgspec.Struct):
    product: str
    cents: int


orders = app.stream("orders", Order, key="customer", partitions=4)
priced = app.stream("priced", Priced, key="product", partitions=6)
alerts = app.stream("alerts", Priced)


@app.processor(orders, into=priced)
async def price(order: Order) -> Priced | None:
    return Priced(order.product, 150) if order.order_id % 10 else None  # None sends nothing


@app.processor(priced)
async def sum_up(row: Priced, ctx: Context) -> None:
    ctx.state[row.product] = spent = ctx.state.get(row.product, 0) + row.cents
    if spent == 9_000:
        ctx.send(alerts, Priced(row.product, spent), headers={"from": ctx.processor})


async def main() -> None:
    async with local_worker(app) as worker:
        sent = await orders.send_many(Order(n, f"customer-{n % 20}", PRODUCTS[n % 3]) for n in range(300))
        await worker.until_drained()
        told = sorted(alert.product for alert in await worker.sent(alerts))
        rows = len(await worker.sent(priced))
    print(f"{sent} orders, {rows} of them priced; {len(told)} alerts, the first about {told[-1]}")


if __name__ == "__main__":
    quiet_logs()
    anyio.run(main)
