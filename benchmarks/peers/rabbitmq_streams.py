"""RabbitMQ streams with rstream: ``python -m benchmarks.peers.rabbitmq_streams``."""

import asyncio
from typing import Any

import msgspec
from rstream import ConfirmationStatus, Consumer, MessageContext, Producer
from rstream.exceptions import OffsetNotFound

from benchmarks.measuring.task import BenchEvent, Task
from benchmarks.peers.rates import Rate, run, send_all


def _login(task: Task) -> dict[str, Any]:
    host, _, port = task.url.partition(":")
    return {"host": host, "port": int(port), "username": "guest", "password": "guest"}


async def send(task: Task) -> None:
    """Send batches with ``send_batch``, and wait for the confirm of each record."""

    async def send_many(records: list[bytes]) -> None:
        left, done = len(records), asyncio.Event()

        def confirmed(status: ConfirmationStatus) -> None:
            nonlocal left
            assert status.is_confirmed, status
            left -= 1
            if not left:
                done.set()

        await producer.send_batch(task.stream, records, on_publish_confirm=confirmed)
        await done.wait()

    async with Producer(**_login(task)) as producer:
        await producer.create_stream(task.stream)
        await send_all(task, send_many)


async def record(task: Task) -> None:
    """Handle record by record, and store the offset after each batch of them."""
    rate, done = Rate(task), asyncio.Event()

    async def handle(_: BenchEvent, context: MessageContext) -> None:
        rate.add(1)
        if rate.count % task.batch == 0 or rate.count == task.records:
            await consumer.store_offset(task.stream, task.group, context.offset)
        if rate.count == task.records:
            done.set()

    async def acknowledged() -> bool:
        try:
            stored = await consumer.query_offset(task.stream, task.group)
        except OffsetNotFound:
            return False
        return bool(stored == task.records - 1)

    async with Consumer(**_login(task)) as consumer:
        await consumer.subscribe(task.stream, handle, decoder=msgspec.json.Decoder(BenchEvent).decode)
        await done.wait()
        await rate.tell_once(acknowledged)


if __name__ == "__main__":
    run({"send": send, "record": record})
