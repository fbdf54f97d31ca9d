"""A program that sends, as a user would write it: ``python -m streamworker.dev.bench.sender``."""

import asyncio
import time
from itertools import islice

from streamworker.app import App
from streamworker.dev.bench.record import Event, events
from streamworker.dev.bench.task import Pace, Sent, Task, task_of_this_process, tell


async def send(task: Task) -> None:
    """Send records with ``send_many``, a batch in each, or one by one at a pace."""
    app = App(task.app)
    stream = app.stream(task.stream, Event, key="key", partitions=task.partitions)
    async with app:
        if task.per_s:
            pace = Pace(task.per_s)
            for event in events(task.records):
                await asyncio.sleep(pace.pause_s())
                event.sent_ns = time.monotonic_ns()
                await stream.send(event)
            return
        records = events(task.records + task.batch)
        begun_s = 0.0
        while chunk := list(islice(records, task.batch)):
            await stream.send_many(chunk)
            begun_s = begun_s or time.monotonic()  # The first chunk makes the connection.
        tell(task.begun_path, Sent(task.records / (time.monotonic() - begun_s)))


if __name__ == "__main__":
    asyncio.run(send(task_of_this_process()))
