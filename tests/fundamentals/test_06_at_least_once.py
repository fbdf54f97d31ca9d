"""A function may be called again with the same records; what is committed is committed once."""

import anyio
import anyio.lowlevel
import msgspec
import pytest

from streamworker import App, Context, Retry
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Payment(msgspec.Struct):
    number: int


async def test_a_call_that_fails_is_made_again_and_its_result_is_there_once(redis_url: str) -> None:
    """What it forwarded and stored before it failed is forgotten."""
    app = App("bank", redis_url=redis_url)
    payments = app.stream("payments", Payment, partitions=1)
    attempts: list[int] = []

    @app.processor(payments, batch=10, within=0.2, errors=Retry(attempts=3, backoff=0.01))
    async def book(batch: list[Payment], ctx: Context) -> list[Payment]:
        attempts.append(ctx.attempt)
        ctx.state["calls"] = ctx.state.get("calls", 0) + 1
        ctx.forward(Payment(-1))
        if ctx.attempt < 3:
            raise ConnectionError("the ledger is away")
        assert ctx.state["calls"] == 1
        return batch

    await payments.send_many(Payment(n) for n in range(5))
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
        rows = await worker.rows(book)

    assert attempts == [1, 2, 3]
    assert [row["number"] for row in rows] == [-1, 0, 1, 2, 3, 4]


async def test_a_worker_that_breaks_off_leaves_its_batch_to_the_next_one(redis_url: str) -> None:
    """The function had run; the commit had not. It runs again, and the log has its rows once."""
    app = App(
        "bank",
        redis_url=redis_url,
        heartbeat_interval_ms=100,
        call_timeout_ms=300,
        dead_after_ms=300,
        session_timeout_ms=1_000,
    )
    payments = app.stream("payments", Payment, partitions=1)
    executed: list[int] = []
    may_end = anyio.Event()
    in_hand = anyio.Event()

    @app.processor(payments, batch=10, within=0.05)
    async def book(batch: list[Payment]) -> list[Payment]:
        executed.extend(payment.number for payment in batch)
        in_hand.set()
        await may_end.wait()
        return batch

    await payments.send_many(Payment(n) for n in range(3))
    with anyio.CancelScope() as plug:
        async with local_worker(app, url=redis_url, name="first"):
            await in_hand.wait()
            plug.cancel()
            await anyio.lowlevel.checkpoint()
    may_end.set()
    async with local_worker(app, url=redis_url, name="second") as worker:
        await worker.until_drained()
        rows = await worker.rows(book)

    assert executed == [0, 1, 2, 0, 1, 2]
    assert [row["number"] for row in rows] == [0, 1, 2]


async def test_a_worker_that_is_asked_to_stop_finishes_what_it_has_in_hand(redis_url: str) -> None:
    """So an orderly handover runs nothing twice."""
    app = App("bank", redis_url=redis_url)
    payments = app.stream("payments", Payment, partitions=1)
    executed: list[int] = []
    in_hand = anyio.Event()

    @app.processor(payments, batch=2, within=0.05)
    async def book(batch: list[Payment]) -> list[Payment]:
        in_hand.set()
        await anyio.sleep(0.1)
        executed.extend(payment.number for payment in batch)
        return batch

    await payments.send_many(Payment(n) for n in range(6))
    async with local_worker(app, url=redis_url, name="first"):
        await in_hand.wait()
    assert len(executed) < 6
    async with local_worker(app, url=redis_url, name="second") as worker:
        await worker.until_drained()

    assert executed == [0, 1, 2, 3, 4, 5]
