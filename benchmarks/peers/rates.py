"""What the programs of brokers that are no Redis share: they find their rates themselves."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice

import msgspec

from benchmarks.measuring.task import SentRecords, Task, events, run_task, task_of_this_process, tell

POLL_S = 0.01


class Rate:
    """The rate of a handler from its first call, whose records are not counted."""

    def __init__(self, task: Task) -> None:
        self._path = task.begun_path
        self._first = 0
        self._begun_s = 0.0
        self.count = 0

    def add(self, records: int) -> None:
        """Count the records of one call."""
        if not self.count:
            self._begun_s, self._first = time.monotonic(), records
        self.count += records

    async def tell_once(self, acknowledged: Callable[[], Awaitable[bool]]) -> None:
        """Report the rate, once the broker has the last acknowledgement."""
        while not await acknowledged():  # noqa: ASYNC110 - only the broker knows
            await asyncio.sleep(POLL_S)
        tell(self._path, SentRecords((self.count - self._first) / (time.monotonic() - self._begun_s)))


async def send_all(task: Task, send_many: Callable[[list[bytes]], Awaitable[None]]) -> None:
    """Send records, one batch in each call that returns after the last acknowledgement; report the rate."""
    encode = msgspec.json.Encoder().encode
    records = events(task.records)
    spent_s: list[float] = []
    while chunk := list(islice(records, task.batch)):
        begun_s = time.monotonic()
        await send_many([encode(event) for event in chunk])
        spent_s.append(time.monotonic() - begun_s)
    # The first makes the connection.
    tell(task.begun_path, SentRecords((task.records - task.batch) / sum(spent_s[1:])))


def run(modes: Mapping[str, Callable[[Task], Awaitable[None]]]) -> None:
    """Do the task of this process in its mode."""
    run_task(modes[task_of_this_process().mode])
