"""Concurrent calls of a handler that waits.

Each call asks a payment service and waits 10 ms for its answer: in order, one partition would handle
100 records a second. With `concurrency=32` up to 32 calls run at a time. Payments of one customer
never overlap and are handled in the order in which they were sent. The log keeps the order of the
stream, and the checkpoint does not pass a record that is not done.
"""
# prints: 600 payments, 32 at a time, 0 customers out of order, the log in order

import time
from collections import defaultdict

import anyio
import msgspec

from streamworker import App
from streamworker.testing import local_worker, quiet_logs

app = App("till")


class Payment(msgspec.Struct):
    customer: str
    number: int


payments = app.stream("payments", Payment, key="customer", partitions=1)
under_way: set[str] = set()
seen: dict[str, list[int]] = defaultdict(list)
widths: list[int] = []


@app.processor(payments, concurrency=32, ordered_by="key")
async def charge(payment: Payment) -> Payment:
    assert payment.customer not in under_way
    under_way.add(payment.customer)
    widths.append(len(under_way))
    await anyio.sleep(0.01)
    under_way.remove(payment.customer)
    seen[payment.customer].append(payment.number)
    return payment


async def main() -> None:
    async with local_worker(app) as worker:
        began = time.monotonic()
        await payments.send_many(Payment(f"customer-{n % 60}", n) for n in range(600))
        await worker.until_drained()
        took, rows = time.monotonic() - began, await worker.rows(charge)
    print(f"{600 / took:.0f} a second, where one after the other would be 100")
    wrong = sum(numbers != sorted(numbers) for numbers in seen.values())
    log = "in order" if [row["number"] for row in rows] == list(range(600)) else "out of order"
    print(f"{len(rows)} payments, {max(widths)} at a time, {wrong} customers out of order, the log {log}")


if __name__ == "__main__":
    quiet_logs()
    anyio.run(main)
