"""FastStream, batches of a Redis stream: ``python -m streamworker.dev.bench.peers.faststream_batches``."""

import asyncio
import logging

from fast_depends.msgspec import MsgSpecSerializer
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

from streamworker.dev.bench.record import Event
from streamworker.dev.bench.task import Tally, Task, task_of_this_process


async def main(task: Task) -> None:
    """Handle batches until the process is stopped."""
    # The fastest of FastStream's serializers, which streamworker uses too.
    broker = RedisBroker(task.url, logger=None, serializer=MsgSpecSerializer())
    tally = Tally(task.begun_path)
    for key in task.keys:
        subscribed = broker.subscriber(
            stream=StreamSub(
                key, group=task.group, consumer="bench", batch=True, max_records=task.batch, last_id=">"
            )
        )

        @subscribed
        async def handle(batch: list[Event]) -> None:
            tally.add(len(batch))

    await FastStream(broker, logger=None).run(log_level=logging.ERROR)


if __name__ == "__main__":
    asyncio.run(main(task_of_this_process()))
