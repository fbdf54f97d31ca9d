"""What becomes of a record that cannot be handled: halt, dead letter, skip."""

import msgspec
import pytest

from streamworker import App, Context, Halt, Retry, Skip, StreamworkerError
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Payment(msgspec.Struct):
    """A record; negative amounts cannot be booked."""

    account: str
    amount: int


def must_be_positive(batch: list[Payment]) -> None:
    """Fail as a function of a user would."""
    for payment in batch:
        if payment.amount < 0:
            raise ValueError(f"{payment.account} has a negative amount")


async def test_by_default_one_partition_halts_and_says_why_while_others_go_on(redis_url: str) -> None:
    """What came before the record is committed; the record and what follows wait."""
    app = App("bank", redis_url=redis_url)
    payments = app.stream("payments", Payment, key="account", partitions=8)
    booked: list[str] = []

    @app.processor(payments, errors=Retry(attempts=2, backoff=0.01))
    async def book(payment: Payment) -> Payment:
        must_be_positive([payment])
        booked.append(payment.account)
        return payment

    async with local_worker(app, url=redis_url) as worker:
        bad = await payments.send(Payment("ann", -1))
        await payments.send(Payment("ann", 5))
        await payments.send_many(Payment(f"other-{n}", 5) for n in range(50))
        with pytest.raises(StreamworkerError, match="ann has a negative amount"):
            await worker.until_drained()
        snapshot = (
            await worker.until(
                lambda now: all(v.lag == 0 for v in now.processors["book"].partitions if v.state != "halted")
            )
        ).processors["book"]

    (halted,) = [view for view in snapshot.partitions if view.state == "halted"]
    assert halted.partition == bad.partition
    assert str(bad.entry_id) in halted.reason
    assert "after 2 attempts" in halted.reason
    assert "ann" not in booked


async def test_a_halted_partition_goes_on_when_the_function_was_put_right(redis_url: str) -> None:
    """The next worker begins with the record at which the last one stopped."""
    app = App("bank", redis_url=redis_url)
    payments = app.stream("payments", Payment, partitions=1)
    fixed = False

    @app.processor(payments, errors=Halt())
    async def book(payment: Payment) -> Payment:
        if not fixed:
            must_be_positive([payment])
        return payment

    await payments.send_many([Payment("ann", 1), Payment("ann", -2), Payment("ann", 3)])
    async with local_worker(app, url=redis_url) as worker:
        await worker.until(lambda now: now.processors["book"].partitions[0].state == "halted")
        assert [row["amount"] for row in await worker.rows(book)] == [1]
    fixed = True
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
        assert [row["amount"] for row in await worker.rows(book)] == [1, -2, 3]


async def test_skip_passes_over_and_retry_is_the_chance_before(redis_url: str) -> None:
    """A record that fails for a moment is not lost to `skip`: it has all its attempts."""
    app = App("bank", redis_url=redis_url)
    payments = app.stream("payments", Payment, partitions=1)

    @app.processor(payments, errors=Retry(attempts=3, backoff=0.01, then=Skip()))
    async def book(payment: Payment, ctx: Context) -> Payment:
        if payment.account == "moody" and ctx.attempt < 3:
            raise ConnectionError("try again")
        must_be_positive([payment])
        return payment

    await payments.send_many([Payment("moody", 1), Payment("bad", -1), Payment("good", 2)])
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
        rows, letters = await worker.rows(book), await worker.dead_letters(book)

    assert [row["account"] for row in rows] == ["moody", "good"]
    assert letters == []
