"""A sending program as a user would write it: ``python -m benchmarks.measuring.sender``."""

import asyncio
import time
from itertools import islice

from benchmarks.measuring.task import BenchEvent, Pace, SentRecords, Task, events, run_task, tell
from streamworker.app import App


async def send(task: Task) -> None:
    """Send records with ``send_many``, one batch in each call, or one by one at a steady rate."""
    app = App(task.app)
    stream = app.stream(task.stream, BenchEvent, key="key", partitions=task.partitions)
    async with app:
        if task.per_s:
            pace = Pace(task.per_s)
            for event in events(task.records):
                await asyncio.sleep(pace.pause_s())
                event.sent_ns = time.monotonic_ns()
                await stream.send(event)
            return
        records = events(task.records + task.batch)
        spent_s: list[float] = []
        while chunk := list(islice(records, task.batch)):
            begun_s = time.monotonic()
            await stream.send_many(chunk)
            spent_s.append(time.monotonic() - begun_s)
        # The first call makes the connections.
        tell(task.begun_path, SentRecords(task.records / sum(spent_s[1:])))


if __name__ == "__main__":
    run_task(send)
