"""What happens by the clock: in each partition with its state, and once in the whole application.

Run it by `python examples/13_timers.py`. The clock is virtual: four minutes pass in a moment.
"""
# prints: 4 orders of 30 in all, and a report in each of 4 minutes

import asyncio
from datetime import datetime

import msgspec

from streamworker import App, Context
from streamworker.testing import local_worker, quiet_logs

app = App("shop")


class Order(msgspec.Struct):
    customer: str
    amount: int


class Report(msgspec.Struct):
    at: datetime


orders = app.stream("orders", Order, key="customer", partitions=2)
reports = app.stream("reports", Report, partitions=1)
sums: list[tuple[int, int]] = []


@app.processor(orders)
async def count(order: Order, ctx: Context) -> None:
    ctx.state["orders"] = ctx.state.get("orders", 0) + 1
    ctx.state["sum"] = ctx.state.get("sum", 0) + order.amount


@count.timer(every="2 minutes")  # between two calls, by the owner of the partition
async def flush(ctx: Context) -> None:
    sums.append((ctx.state.pop("orders", 0), ctx.state.pop("sum", 0)))


@app.cron("* * * * *", tz="Europe/Paris", into=reports)  # by one worker of all that run
async def report(at: datetime) -> list[Report]:
    return [Report(at)]


async def main() -> None:
    async with local_worker(app, clock="virtual") as worker:
        await orders.send_many([Order("ann", 7), Order("bob", 8), Order("ann", 9), Order("eve", 6)])
        await worker.advance("4 minutes")
        sent = await worker.sent(reports)
    number, amount = (sum(each) for each in zip(*sums, strict=True))
    print(f"{number} orders of {amount} in all, and a report in each of {len(sent)} minutes")


if __name__ == "__main__":
    quiet_logs()
    asyncio.run(main())
