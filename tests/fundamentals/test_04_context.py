"""What a function may know beside its records: where they come from, their headers, the attempt."""

import msgspec
import pytest

from streamworker import App, ConfigurationError, Context
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    customer: str


async def test_headers_travel_beside_the_record(redis_url: str) -> None:
    """They are text at the receiver, and not part of the payload."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    found: list[tuple[str | None, ...]] = []
    of_batches: list[dict[str, str]] = []

    @app.processor(orders)
    async def trace(order: Order, ctx: Context) -> None:
        found.append((ctx.header("trace"), ctx.header("absent"), ctx.header("absent", "x")))

    @app.processor(orders)
    async def trace_many(batch: list[Order], ctx: Context) -> None:
        of_batches.extend(ctx.headers)

    async with local_worker(app, url=redis_url) as worker:
        await orders.send(Order("ann"), headers={"trace": "4bf92f"})
        await orders.send(Order("bob"))
        await worker.until_drained()

    assert found == [("4bf92f", None, "x"), (None, None, "x")]
    assert of_batches == [{"trace": "4bf92f"}, {}]


async def test_a_context_says_where_the_record_is_and_send_said_the_same(redis_url: str) -> None:
    """The entry id is a good idempotency key for what the function does elsewhere."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=8)
    places: list[tuple[int, str]] = []

    @app.processor(orders)
    async def locate(order: Order, ctx: Context) -> None:
        assert (ctx.app, ctx.processor, ctx.attempt) == ("shop", "locate", 1)
        assert ctx.epoch > 0
        places.append((ctx.partition, str(ctx.entry_id)))

    async with local_worker(app, url=redis_url) as worker:
        sent = await orders.send(Order("ann"))
        await worker.until_drained()

    assert places == [(sent.partition, str(sent.entry_id))]


async def test_the_epoch_grows_from_owner_to_owner(redis_url: str) -> None:
    """So it can fence writes to another system, together with the owner, as it fences commits here."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    tokens: list[tuple[int, str]] = []

    @app.processor(orders)
    async def note(order: Order, ctx: Context) -> None:
        tokens.append((ctx.epoch, ctx.owner))

    for _ in range(2):
        async with local_worker(app, url=redis_url) as worker:
            await orders.send(Order("ann"))
            await worker.until_drained()

    assert tokens[0][0] < tokens[1][0]
    assert tokens[0][1] != tokens[1][1]


async def test_a_batch_has_many_entry_ids_and_refuses_to_name_one(redis_url: str) -> None:
    """The message says what to use instead."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    messages: list[str] = []

    @app.processor(orders, batch=2, within=1)
    async def locate(batch: list[Order], ctx: Context) -> None:
        try:
            _ = ctx.entry_id
        except ConfigurationError as error:
            messages.append(str(error))

    await orders.send_many([Order("ann"), Order("bob")])
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()

    assert len(messages) == 1
    assert "ctx.entry_ids" in messages[0]
