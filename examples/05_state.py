"""State that moves with its partition.

`ctx.state` is a mapping that belongs to the partition. The values that a call assigns are committed
together with its records, or dropped if the call fails. So a total never counts a record twice, and
the next owner of the partition, here a second worker, continues from the last commit.
"""
# prints: ann 60, bob 150

import anyio
import msgspec

from streamworker import App, Context
from streamworker.testing import MemoryServer, local_worker, quiet_logs

app = App("bank")


class Deposit(msgspec.Struct):
    account: str
    amount: int


class Balance(msgspec.Struct):
    account: str
    balance: int


deposits = app.stream("deposits", Deposit, key="account", partitions=4)


@app.processor(deposits)
async def balances(deposit: Deposit, ctx: Context) -> Balance:
    balance = ctx.state.get(deposit.account, 0) + deposit.amount
    ctx.state[deposit.account] = balance
    return Balance(deposit.account, balance)


async def main() -> None:
    latest: dict[str, int] = {}
    with MemoryServer() as server:
        for name, factor in (("monday", 1), ("tuesday", 2)):
            async with local_worker(app, url=server.url, name=name) as worker:
                await deposits.send_many(
                    [Deposit("ann", 10 * factor), Deposit("bob", 50 * factor), Deposit("ann", 10 * factor)]
                )
                await worker.until_drained()
                latest = {row["account"]: row["balance"] for row in await worker.rows(balances)}
                print(f"after {name}: {latest}")
    print(", ".join(f"{account} {balance}" for account, balance in sorted(latest.items())))


if __name__ == "__main__":
    quiet_logs()
    anyio.run(main)
