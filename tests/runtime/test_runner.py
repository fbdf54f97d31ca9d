"""A runner handles a partition in order, commits as it goes, and stops cleanly."""

import anyio
import pytest

from streamworker.runtime.runner import StopReason
from tests.runtime.bench import Order, Priced, Records, bench

pytestmark = pytest.mark.anyio


async def test_a_batch_processor_sees_all_records_in_order_and_forwards_rows(redis_url: str) -> None:
    """What was sent is handled in order, and what was returned is in the acked log in order."""
    seen: list[int] = []

    async def price(batch: list[Order]) -> list[Priced]:
        seen.extend(order.number for order in batch)
        return [Priced(order.number, order.number * 2.0) for order in batch]

    async with bench(redis_url) as desk:
        await desk.send(range(2_500))
        running = await desk.start(desk.spec(price, batch=400))
        await desk.until_committed(2_500)
        assert seen == list(range(2_500))
        assert [row["number"] for row in await desk.rows()] == list(range(2_500))
        assert (await running.drained()).reason is StopReason.DRAINED


async def test_a_record_processor_commits_what_is_done_in_groups(redis_url: str) -> None:
    """Fast records share commits; every one of them is committed in order."""
    seen: list[int] = []

    async def price(order: Order) -> Priced:
        seen.append(order.number)
        return Priced(order.number, 1.0)

    async with bench(redis_url) as desk:
        await desk.send(range(2_000))
        await desk.start(desk.spec(price))
        await desk.until_committed(2_000)
        assert seen == list(range(2_000))
        assert [row["number"] for row in await desk.rows()] == list(range(2_000))
        assert len(await desk.acked_entries()) < 200


async def test_a_stream_processor_acks_a_record_when_it_asks_for_the_next(redis_url: str) -> None:
    """While the loop body works on a record, that record is not acked, and the one before is."""
    release = anyio.Event()
    at_third = anyio.Event()

    async def price(records: Records[Order]) -> None:
        async for order in records:
            if order.number == 2:
                at_third.set()
                await release.wait()

    async with bench(redis_url) as desk:
        await desk.send(range(5))
        running = await desk.start(desk.spec(price))
        await at_third.wait()
        await desk.until_committed(2)
        assert await desk.committed() == 2
        release.set()
        await desk.until_committed(5)
        assert (await running.drained()).reason is StopReason.DRAINED
