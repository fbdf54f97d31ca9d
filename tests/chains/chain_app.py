"""A chain of three processors over three streams, with different keys and partition counts.

Item n of one customer has one sku, and one region: so the order by customer is kept through all streams.
"""

import os
from collections.abc import Mapping

import msgspec

from streamworker import App, Context

app = App("chain")
SKUS, REGIONS = 19, 5


class Item(msgspec.Struct):
    n: int
    customer: str


class Priced(msgspec.Struct):
    n: int
    customer: str
    sku: str


class Summed(msgspec.Struct):
    n: int
    customer: str
    region: str


class Noticed(msgspec.Struct):
    n: int


def item(n: int) -> Item:
    return Item(n, f"c{n % 97}")


KEPT = os.environ.get("RETENTION")
"""How long its streams keep what is committed, for a test that looks at them."""
items = app.stream("items", Item, key="customer", partitions=4, retention=KEPT)
priced = app.stream("priced", Priced, key="sku", partitions=7, codec="msgpack", retention=KEPT)
summed = app.stream("summed", Summed, key="region", partitions=3, retention=KEPT)
noticed = app.stream("noticed", Noticed, partitions=2, retention=KEPT)


@app.processor(items, into=priced, forward=False)
async def price(record: Item) -> Priced:
    return Priced(record.n, record.customer, f"s{int(record.customer[1:]) % SKUS}")


@app.processor(priced, batch=50, within=0.01, into={Summed: summed}, forward=False)
async def sum_up(batch: list[Priced], ctx: Context) -> list[Summed]:
    for each in batch:
        if each.n % 10 == 0:
            ctx.send(noticed, Noticed(each.n), headers={"customer": each.customer})
    return [Summed(each.n, each.customer, f"r{int(each.sku[1:]) % REGIONS}") for each in batch]


@app.processor(summed, concurrency=8)
async def report(record: Summed) -> Summed:
    return record


def make_app(environ: Mapping[str, str]) -> App:
    """Return the app, which goes by the variables of the process that imports it."""
    return app
