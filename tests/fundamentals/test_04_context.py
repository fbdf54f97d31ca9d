"""What a function may know beside its records: where they come from, their headers, the attempt."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from streamworker import App, ConfigurationError, Context
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    customer: str
    number: int = 0


async def test_a_context_knows_key_place_time_and_headers_of_its_record(redis_url: str) -> None:
    """Send said the same place: the entry id is a good idempotency key. Headers are beside the payload."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key=("customer", "number"), partitions=8)
    found: list[tuple[str | None, int, str, tuple[str | None, ...]]] = []

    @app.processor(orders)
    async def locate(order: Order, ctx: Context) -> None:
        assert (ctx.app, ctx.processor, ctx.attempt, ctx.count) == ("shop", "locate", 1, 1)
        assert abs(datetime.now(UTC) - ctx.timestamp) < timedelta(minutes=5)
        headers = ctx.header("trace"), ctx.header("absent"), ctx.header("absent", "x")
        found.append((ctx.key, ctx.partition, str(ctx.entry_id), headers))

    async with local_worker(app, url=redis_url) as worker:
        ann = await orders.send(Order("ann", 7), headers={"trace": "4bf92f"})
        await worker.until_drained()
        bob = await orders.send(Order("bob", 8))
        await worker.until_drained()

    assert found == [
        ("3:ann1:7", ann.partition, str(ann.entry_id), ("4bf92f", None, "x")),
        ("3:bob1:8", bob.partition, str(bob.entry_id), (None, None, "x")),
    ]


async def test_a_context_of_a_batch_knows_each_entry_and_refuses_to_name_one(redis_url: str) -> None:
    """The message says what to use instead; the time is that of the last."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    found: list[tuple[list[str], list[dict[str, str]]]] = []

    @app.processor(orders, batch=2, within=1)
    async def locate(batch: list[Order], ctx: Context) -> None:
        with pytest.raises(ConfigurationError, match=r"ctx\.entry_ids"):
            _ = ctx.entry_id
        assert ctx.count == len(batch)
        assert ctx.timestamp == datetime.fromtimestamp(ctx.entry_ids[-1].ms / 1000, UTC)
        found.append(([str(each) for each in ctx.entry_ids], list(ctx.headers)))

    sent = [await orders.send(Order("ann"), headers={"trace": "4bf92f"}), await orders.send(Order("bob"))]
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()

    assert found == [([str(each.entry_id) for each in sent], [{"trace": "4bf92f"}, {}])]


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

    assert 0 < tokens[0][0] < tokens[1][0]
    assert tokens[0][1] != tokens[1][1]
