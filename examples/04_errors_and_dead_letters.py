"""A record that cannot be handled.

A worker calls a function that fails again, for ever, with exponential backoff: what heals goes on by itself.
`errors=` says otherwise, for all errors or by their type. `DeadLetter` sets the failing record aside: the
worker finds it by halving the batch, stores it as a dead letter in the same commit, and goes on; the other
records keep their order. An entry that is not a record of the stream goes to the dead letters, too.
"""
# prints: 9 payments booked, 1 dead letter

import anyio
import msgspec

from streamworker import App, DeadLetter, Retry
from streamworker.testing import local_worker, quiet_logs

app = App("bank")


class Payment(msgspec.Struct):
    number: int
    amount: int


payments = app.stream("payments", Payment, partitions=1)


@app.processor(
    payments,
    batch=10,
    within="200 milliseconds",
    errors={
        ConnectionError: Retry(),  # for ever: what comes after it waits
        ValueError: Retry(attempts=2, backoff="10 milliseconds", then=DeadLetter()),
    },
)
async def book(batch: list[Payment]) -> list[Payment]:
    print(f"asked to book {[payment.number for payment in batch]}")
    for payment in batch:
        if payment.amount < 0:
            raise ValueError(f"payment {payment.number} is negative")
    return batch


async def main() -> None:
    async with local_worker(app) as worker:
        await payments.send_many(Payment(n, -5 if n == 6 else 5) for n in range(10))
        await worker.until_drained()
        rows, letters = await worker.rows(book), await worker.dead_letters(book)
    for letter in letters:
        print(f"dead after {letter.attempts} attempts: {letter.fields[b'v'].decode()}: {letter.error}")
    print(f"{len(rows)} payments booked, {len(letters)} dead letter")


if __name__ == "__main__":
    quiet_logs("critical")
    anyio.run(main)
