"""State of a partition that is committed together with the records it comes from."""

import msgspec
import pytest

from streamworker import App, Context, RecordError, Retry
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Deposit(msgspec.Struct):
    account: str
    amount: int


class Balance(msgspec.Struct):
    account: str
    balance: int


async def test_totals_count_each_record_once_though_calls_fail(redis_url: str) -> None:
    """An assignment of a call that fails is forgotten with the call."""
    app = App("bank", redis_url=redis_url)
    deposits = app.stream("deposits", Deposit, key="account", partitions=2)
    calls = 0

    @app.processor(deposits, errors=Retry(attempts=5, backoff=0.001))
    async def balances(deposit: Deposit, ctx: Context) -> Balance:
        nonlocal calls
        calls += 1
        total = ctx.state.get(deposit.account, 0) + deposit.amount
        ctx.state[deposit.account] = total
        if calls % 3 == 0:
            raise ConnectionError("after the assignment")
        return Balance(deposit.account, total)

    async with local_worker(app, url=redis_url) as worker:
        await deposits.send_many(Deposit(account, 10) for _ in range(10) for account in ("ann", "bob"))
        await worker.until_drained()
        rows = await worker.rows(balances)

    assert calls > 20
    assert {row["account"]: row["balance"] for row in rows} == {"ann": 100, "bob": 100}


async def test_a_value_is_stored_by_assigning_it_or_changing_it_in_place(redis_url: str) -> None:
    """Plain values: what is changed in place, or cannot be stored, is not a silent surprise."""
    app = App("bank", redis_url=redis_url)
    deposits = app.stream("deposits", Deposit, key="account", partitions=1)
    seen: list[object] = []

    @app.processor(deposits)
    async def note(deposit: Deposit, ctx: Context) -> None:
        history = ctx.state.get("history", [])
        seen.append(list(history))
        history.append(deposit.amount)
        if deposit.amount != 2:
            ctx.state["history"] = history
        try:
            ctx.state["socket"] = object()
        except RecordError as error:
            seen.append(error.remedy)

    async with local_worker(app, url=redis_url) as worker:
        await deposits.send_many(Deposit("ann", n) for n in (1, 2, 3))
        await worker.until_drained()

    histories = [value for value in seen if isinstance(value, list)]
    assert histories == [[], [1], [1, 2]]
    assert "plain values" in str(seen[1])
