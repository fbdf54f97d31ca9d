"""An app with two processors on a stream that grows; its variables say the protocol."""

import os

import msgspec

from streamworker import App, Context

FIRST = 8


class Order(msgspec.Struct):
    customer: str
    n: int


app = App(
    "shop", redis_url=os.environ.get("GROWN_URL"), coordination=os.environ.get("GROWN_BY", "membership")
)
orders = app.stream("orders", Order, key="customer", partitions=FIRST)

counts = app.table("counts", int, ttl="1 day")


@app.processor(orders, batch=200)
async def price(batch: list[Order]) -> list[Order]:
    return batch


@app.processor(orders, tables=[counts])
async def audit(order: Order, ctx: Context) -> Order:
    before = await counts.get(order.customer) or 0, ctx.state.get(order.customer, 0)
    if before != (order.n - 1, order.n - 1):
        raise ValueError(f"{order} comes after {before}")
    counts.set(order.customer, order.n)
    ctx.state[order.customer] = order.n
    ctx.state["sum"] = ctx.state.get("sum", 0) + 1
    return order
