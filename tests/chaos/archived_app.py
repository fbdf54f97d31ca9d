"""An app whose stream is archived by workers that end or stop by themselves beside a put.

Its variables say how often they do, and whether the group that was declared late is there.
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from streamworker import App, Archive
from streamworker.archive.store import FileStore, Store

PARTITIONS = 4
EVERY_MS, AFTER_MS = 1_000, 300


class Order(msgspec.Struct):
    customer: str
    n: int
    note: str = ""


class Seen(msgspec.Struct):
    customer: str
    n: int


_environ = os.environ.get
app = App("shop", redis_url=_environ("ARCHIVED_REDIS"), coordination=_environ("ARCHIVED_BY", "membership"))
orders = app.stream(
    "orders",
    Order,
    key="customer",
    partitions=PARTITIONS,
    retention="3 seconds",
    archive=Archive(
        _environ("ARCHIVED_AT", "lake"), every=f"{EVERY_MS} ms", after=f"{AFTER_MS} ms", size="4 MB"
    ),
)


async def see(batch: list[Order]) -> list[Seen]:
    return [Seen(order.customer, order.n) for order in batch]


app.processor(orders, name="live", batch=2_000)(see)
if "ARCHIVED_LATE" in os.environ:
    app.processor(orders, name="late", batch=2_000)(see)


# -- what hurts, beside a put ----------------------------------------------------------------

BEFORE, BETWEEN, STOPS = "dies before a put", "dies between put and commit", "stops before a put"
REFUSED = "has its put refused"


def _chance(name: str) -> bool:
    return random.random() < float(_environ(name, "0"))


def _end(what: str, number: signal.Signals) -> None:
    print(what, file=sys.stderr, flush=True)
    os.kill(os.getpid(), number)


def _hurt(put_new: Callable[..., bool]) -> Callable[..., bool]:
    def hurt(self: Any, name: str, body: bytes) -> bool:
        if not name.startswith("partition="):
            return put_new(self, name, body)
        if _chance("ARCHIVED_STOPS"):
            _end(STOPS, signal.SIGSTOP)
        if _chance("ARCHIVED_DIES_BEFORE"):
            _end(BEFORE, signal.SIGKILL)
        is_put = put_new(self, name, body)
        if not is_put:
            print(REFUSED, file=sys.stderr, flush=True)
        elif _chance("ARCHIVED_DIES_BETWEEN"):
            _end(BETWEEN, signal.SIGKILL)
        return is_put

    return hurt


FileStore.put_new = _hurt(FileStore.put_new)  # type: ignore[method-assign]
Store.put_new = _hurt(Store.put_new)  # type: ignore[method-assign]
