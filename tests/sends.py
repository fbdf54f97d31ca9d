"""What each call that sends raises: the table of docs/sending.md, and how its test provokes each row."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from streamworker import (
    App,
    AuthenticationFailed,
    BackendRefused,
    ConfigurationError,
    Processor,
    ProducerError,
    RecordError,
    Sent,
    Stream,
    StreamFull,
    StreamworkerError,
)
from streamworker.core.data.entries import EntryId


class Order(msgspec.Struct):
    customer: str


class Shop(NamedTuple):
    """A program that sends."""

    app: App
    orders: Stream[Order]
    price: Processor[..., Any]

    @classmethod
    def of(cls, url: str, partitions: int = 1, **settings: Any) -> "Shop":
        """Declare it; a partition holds two records."""
        app = App("shop", redis_url=url, **settings)
        orders = app.stream("orders", Order, key="customer", partitions=partitions, max_records=2)

        @app.processor(orders)
        async def price(order: Order) -> None: ...

        return cls(app, orders, price)


Call = Callable[[Shop, Any], Awaitable[object]]
"""Makes a call, with a record or with what stands for one."""
TIMEOUT = 0.2
CALLS: dict[str, Call] = {
    "send": lambda shop, order: shop.orders.send(order, on_full="raise", timeout=TIMEOUT),
    "send(id=)": lambda shop, order: shop.orders.send(order, id="7", on_full="raise", timeout=TIMEOUT),
    "send_many": lambda shop, order: shop.orders.send_many([order], on_full="raise", timeout=TIMEOUT),
    "schedule": lambda shop, order: shop.orders.schedule(order, id="8", after=60, timeout=TIMEOUT),
    "cancel": lambda shop, order: shop.orders.cancel(order and "8", key="ann", timeout=TIMEOUT),
    "committed": lambda shop, order: shop.price.committed(
        Sent(0, EntryId(1, 0)), timeout=TIMEOUT if order else "soon"
    ),
}
ALL = tuple(CALLS)
SENDS = ("send", "send(id=)", "send_many", "schedule")


class Row(NamedTuple):
    """One error: from where it comes, and what a program does about it."""

    error: type[StreamworkerError]
    calls: tuple[str, ...]
    when: str
    written: str
    status: str
    remedy: str


WAYS = (
    Row(
        RecordError,
        (*SENDS, "cancel"),
        "the record, its key, id or headers cannot be stored, or it is too large",
        "no",
        "422",
        "correct the record",
    ),
    Row(
        StreamFull,
        SENDS,
        'the partition is full, with `on_full="raise"` or after `timeout=`',
        "no",
        "503",
        "start workers: a processor lags",
    ),
    Row(
        ProducerError,
        (*SENDS, "cancel"),
        "Redis did not answer within `timeout=` or for an hour, or not at first and then refused",
        "maybe; the message says so",
        "503",
        "repeat it with the same `id=`",
    ),
    Row(
        BackendRefused,
        ALL,
        "Redis is out of memory or a replica, or the user lacks a right",
        "no",
        "503",
        "see the message",
    ),
    Row(
        AuthenticationFailed,
        ALL,
        "the user or password is wrong",
        "no",
        "503",
        "correct the URL",
    ),
    Row(
        ConfigurationError,
        ALL,
        "an argument is wrong, or the stream has other partitions or another codec",
        "no",
        "500",
        "correct the program",
    ),
)


def table() -> str:
    """Return the rows as a table of Markdown."""
    rows = [f"| `{row.error.__name__}` | {' | '.join(row[2:])} |" for row in WAYS]
    return "\n".join(
        ["| error | when | was it written? | answer | what to do |", "|---|---|---|---|---|", *rows]
    )
