"""A handler that waits for others, and calls that overlap.

Each call asks a payment service and waits 10 ms for its answer: in order, one partition would get
through 100 a second. With `concurrency=32` so many calls run at a time. Orders of one customer
still never overlap and come in the order in which they were sent, the log is in the order of the
stream, and the checkpoint moves only over what is done without a gap.
"""
# prints: 600 payments, 32 at a time, 0 customers out of order, the log in order

import time
from collections import defaultdict

import anyio
import msgspec

from streamworker import App
from streamworker.dev.server import EmbeddedServer
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
    with EmbeddedServer() as server:
        async with local_worker(app, redis_url=server.url) as worker:
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
