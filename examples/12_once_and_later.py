"""A request that comes twice, and a record that is sent later.

Run it by `python examples/12_once_and_later.py`.
"""
# prints: took 3 orders, asked about [2, 3]

import asyncio

import msgspec

from streamworker import App
from streamworker.testing import local_worker, quiet_logs

app = App("shop")


class Order(msgspec.Struct):
    customer: str
    number: int


orders = app.stream("orders", Order, key="customer", partitions=2, id_window="1 hour")
questions = app.stream("questions", Order, key="customer", partitions=2)
taken: list[int] = []
asked: list[int] = []
all_asked = asyncio.Event()


@app.processor(orders)
async def take(order: Order) -> None:
    taken.append(order.number)


@app.processor(questions)
async def ask(question: Order) -> None:
    asked.append(question.number)
    if len(asked) == 2:
        all_asked.set()


def request(number: int) -> None:  # in a thread, as in a web service without an event loop
    sent = orders.sync.send(Order("ann", number), id=f"request-{number}")
    if not sent.duplicate:
        questions.sync.schedule(Order("ann", number), id=f"ask-{number}", after="3 seconds")


async def main() -> None:
    async with local_worker(app) as worker:
        for number in (1, 2, 2, 3):
            await asyncio.to_thread(request, number)
        await questions.cancel("ask-1", key="ann")
        await all_asked.wait()
        await worker.until_drained()
    print(f"took {len(taken)} orders, asked about {sorted(asked)}")


if __name__ == "__main__":
    quiet_logs()
    asyncio.run(main())
