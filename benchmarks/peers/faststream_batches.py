"""FastStream, batches of a Redis stream: ``python -m benchmarks.peers.faststream_batches``."""

import logging

import redis
from fast_depends.msgspec import MsgSpecSerializer
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

from benchmarks.measuring.task import BenchEvent, Tally, Task, run_task


async def main(task: Task) -> None:
    """Handle batches until the process is stopped."""
    # The fastest of FastStream's serializers, which streamworker uses too.
    broker = RedisBroker(task.url, logger=None, serializer=MsgSpecSerializer())
    tally = Tally(task.begun_path)
    # A group that FastStream itself makes for new entries begins with the next one.
    with redis.Redis.from_url(task.url) as client:
        for key in task.keys:
            client.xgroup_create(key, task.group, "0")
    for key in task.keys:
        subscribed = broker.subscriber(
            stream=StreamSub(
                key, group=task.group, consumer="bench", batch=True, max_records=task.batch, last_id=">"
            )
        )

        @subscribed
        async def handle(batch: list[BenchEvent]) -> None:
            tally.add(len(batch))

    await FastStream(broker, logger=None).run(log_level=logging.ERROR)


if __name__ == "__main__":
    run_task(main)
