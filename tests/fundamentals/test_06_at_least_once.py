"""A function may be called again with the same records; what is committed is committed once."""

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
