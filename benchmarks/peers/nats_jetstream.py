"""NATS JetStream with nats-py: ``python -m benchmarks.peers.nats_jetstream``."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import nats
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.measuring.task import BenchEvent, Task
from benchmarks.peers.rates import Rate, run, send_all

decode = msgspec.json.Decoder(BenchEvent).decode


async def send(task: Task) -> None:
    """Send batches with ``publish_async``, and wait for the PubAck of each record."""

    async def send_many(records: list[bytes]) -> None:
        await asyncio.gather(*[await stream.publish_async(task.stream, each) for each in records])

    async with await nats.connect(task.url) as client:
        stream = client.jetstream()
        await stream.add_stream(name=task.stream, subjects=[task.stream])
        await send_all(task, send_many)


async def _consume(task: Task, rate: Rate, handle: Callable[[list[Msg]], Awaitable[None]]) -> None:
    """Fetch batches, and acknowledge the last record of each, which acknowledges all before it."""

    async def acknowledged() -> bool:
        floor = (await pull.consumer_info()).ack_floor
        return bool(floor.stream_seq >= task.records)

    async with await nats.connect(task.url) as client:
        pull = await client.jetstream().pull_subscribe(
            task.stream,
            durable=task.group,
            stream=task.stream,
            config=ConsumerConfig(ack_policy=AckPolicy.ALL),
        )
        while rate.count < task.records:
            messages = await pull.fetch(task.batch)
            await handle(messages)
            await messages[-1].ack()
        await rate.tell_once(acknowledged)


async def batch(task: Task) -> None:
    """Handle lists of records."""
    rate = Rate(task)

    async def handle(events: list[BenchEvent]) -> None:
        rate.add(len(events))

    await _consume(task, rate, lambda messages: handle([decode(each.data) for each in messages]))


async def record(task: Task) -> None:
    """Handle record by record."""
    rate = Rate(task)

    async def handle(_: BenchEvent) -> None:
        rate.add(1)

    async def handle_each(messages: list[Msg]) -> None:
        for each in messages:
            await handle(decode(each.data))

    await _consume(task, rate, handle_each)


if __name__ == "__main__":
    run({"send": send, "batch": batch, "record": record})
