"""Ways to take records, and what becomes of what a call changes later, in place, or without saying so.

docs/errors.md prints :func:`table`. ``test_changes.py`` runs every cell of it.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from streamworker import App, ConfigurationError, Context, DeadLetter, Records, Stream
from tests.callables import merged


class Order(msgspec.Struct):
    """What the stream holds."""

    customer: str
    amount: int


class Total(msgspec.Struct):
    """What is forwarded and stored."""

    customer: str
    total: int = 0
    seen: list[int] = msgspec.field(default_factory=list)


Body = Callable[[Order, Context], Any]
Way = Literal["async def", "def", "concurrency=", "a list", "a list, def", "a record of columns", "Records"]
WAYS: tuple[Way, ...] = Way.__args__  # type: ignore[attr-defined]


def declare(app: App, way: Way, body: Body, returned: Any, **options: Any) -> Any:
    """Declare a processor that calls ``body`` with each record in one way."""
    codec: Any = "arrow" if "columns" in way else "json"
    orders: Stream[Order] = app.stream("orders", Order, key="customer", partitions=1, codec=codec)

    async def record(order: Order, ctx: Context) -> Any:
        return await _result(body(order, ctx))

    def plain(order: Order, ctx: Context) -> Any:
        return body(order, ctx)

    async def batch(batch: list[Order], ctx: Context) -> Any:
        result = await _result(body(batch[0], ctx))
        return None if result is None else [result]

    def plain_batch(batch: list[Order], ctx: Context) -> Any:
        result = body(batch[0], ctx)
        return None if result is None else [result]

    async def records(records: Records[Order], ctx: Context) -> Any:
        async for order in records:
            if (row := await _result(body(order, ctx))) is not None:
                ctx.forward(row)

    functions = {"def": plain, "a list": batch, "a list, def": plain_batch, "Records": records}
    function: Any = functions.get(way, record)
    function.__annotations__["return"] = list[returned] if returned and "list" in way else returned
    options |= {"batch": 1} if "list" in way else {"concurrency": 4} if way == "concurrency=" else {}
    return app.processor(orders, name="it", errors=DeadLetter(), **options)(function)


async def _result(result: Any) -> Any:
    return await result if hasattr(result, "__await__") else result


def in_state(way: Way) -> str:
    """Return what becomes of a change of ctx.state in place."""
    return "halts" if way == "concurrency=" else "kept"


def in_table(way: Way) -> str:
    """Declare a processor with a table; return what becomes of a value that is changed and not set."""
    app = App("shop", redis_url="redis://localhost:1/0")
    try:
        declare(app, way, lambda order, ctx: None, None, tables=[app.table("totals", Total)])
    except ConfigurationError:
        return "refused"
    return "fails"


def table() -> str:
    """Return the ways and what becomes of changes as a table."""
    head = (
        "",
        "a row changed later",
        "`ctx.state[key]` changed in place",
        "a table's value changed, and not set",
    )
    return merged(head, {f"`{way}`": ("as it was", in_state(way), in_table(way)) for way in WAYS})
