"""An app with two processors on a stream that grows; its variables say the protocol."""

import os

import msgspec

from streamworker import App

FIRST = 8


class Order(msgspec.Struct):
    customer: str
    n: int


app = App(
    "shop", redis_url=os.environ.get("GROWN_URL"), coordination=os.environ.get("GROWN_BY", "membership")
)
orders = app.stream("orders", Order, key="customer", partitions=FIRST)


@app.processor(orders, batch=200)
async def price(batch: list[Order]) -> list[Order]:
    return batch


@app.processor(orders)
async def audit(order: Order) -> Order:
    return order
