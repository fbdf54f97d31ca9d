"""What becomes of a record that cannot be handled: halt, dead letter, skip."""

from typing import Any

import msgspec
import pytest

from streamworker import App, Context, DeadLetter, Halt, Retry, Skip, StreamworkerError
from streamworker.testing import Snapshot, local_worker

pytestmark = pytest.mark.anyio


class Payment(msgspec.Struct):
    """A record; negative amounts cannot be booked."""

    account: str
    amount: int


async def test_one_partition_halts_and_says_why_while_others_go_on(redis_url: str) -> None:
    """What came before the record is committed; the record and what follows wait."""
    app = App("bank", redis_url=redis_url)
    payments = app.stream("payments", Payment, key="account", partitions=8)
    booked: list[str] = []

    @app.processor(payments, errors=Retry(attempts=2, backoff=0.01))
    async def book(payment: Payment) -> None:
        if payment.amount < 0:
            raise ValueError(f"{payment.account} has a negative amount")
        booked.append(payment.account)

    def others_are_done(now: Snapshot) -> bool:
        return all(view.lag == 0 for view in now.processors["book"].partitions if view.state != "halted")

    async with local_worker(app, url=redis_url) as worker:
        bad = await payments.send(Payment("ann", -1))
        await payments.send(Payment("ann", 5))
        await payments.send_many(Payment(f"other-{n}", 5) for n in range(50))
        with pytest.raises(StreamworkerError, match="ann has a negative amount"):
            await worker.until_drained()
        snapshot = await worker.until(others_are_done)

    (halted,) = [view for view in snapshot.processors["book"].partitions if view.state == "halted"]
    assert halted.partition == bad.partition
    assert str(bad.entry_id) in halted.reason
    assert "after 2 attempts" in halted.reason
    assert "ann" not in booked


POLICIES: dict[str, tuple[Any, list[str], list[str]]] = {
    "halt": (Halt(), [], []),
    "retry": (Retry(attempts=3, backoff=0.01), ["moody"], []),
    "retry-then-skip": (Retry(attempts=3, backoff=0.01, then=Skip()), ["moody", "good"], []),
    "retry-then-letter": (
        Retry(attempts=3, backoff=0.01, then=DeadLetter()),
        ["moody", "good"],
        ["ValueError"],
    ),
    "skip": (Skip(), ["good"], []),
    "letter": (DeadLetter(), ["good"], ["ConnectionError", "ValueError"]),
    "by-error": (
        {ConnectionError: Retry(backoff=0.01), ValueError: DeadLetter()},
        ["moody", "good"],
        ["ValueError"],
    ),
}
"""What each policy leaves of three payments, and its dead letters: the moody one fails twice for a moment,
the bad one at each attempt, and the good one never."""


async def test_what_a_policy_leaves_of_records_that_fail_and_where_the_next_worker_goes_on(
    redis_url: str,
) -> None:
    """One that is halted goes on, at the record at which it stopped, when its function was put right."""
    app = App("bank", redis_url=redis_url)
    payments = app.stream("payments", Payment, partitions=1)
    is_put_right = False

    async def book(payment: Payment, ctx: Context) -> Payment:
        if payment.account == "moody" and ctx.attempt < 3 and not is_put_right:
            raise ConnectionError("try again")
        if payment.account == "bad" and not is_put_right:
            raise ValueError("a negative amount")
        return payment

    for name, (policy, _, _) in POLICIES.items():
        app.processor(payments, name=name, errors=policy)(book)

    def halted(now: Snapshot) -> set[str]:
        return {name for name, group in now.processors.items() if group.partitions[0].state == "halted"}

    def all_is_done(now: Snapshot) -> bool:
        return all(group.lag == 0 or name in halted(now) for name, group in now.processors.items())

    await payments.send_many([Payment("moody", 1), Payment("bad", -1), Payment("good", 2)])
    async with local_worker(app, url=redis_url) as worker:
        assert halted(await worker.until(all_is_done)) == {"halt", "retry"}
        for name, (_, rows, letters) in POLICIES.items():
            assert (name, [row["account"] for row in await worker.rows(name)]) == (name, rows)
            found = [letter.error.partition(":")[0] for letter in await worker.dead_letters(name)]
            assert (name, found) == (name, letters)
    is_put_right = True
    async with local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
        for name in ("halt", "retry"):
            assert [row["account"] for row in await worker.rows(name)] == ["moody", "bad", "good"]
