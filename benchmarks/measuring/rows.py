"""A program that sends and handles rows, as records or as columns: ``python -m benchmarks.measuring.rows``.

Its producer and its worker share one event loop, and so one core.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

import pyarrow as pa

from benchmarks.measuring.task import KEYS, BenchEvent, RowRates, Task, events, run_task, tell
from benchmarks.measuring.worker import WITHIN_S
from streamworker.app import App
from streamworker.testing import local_worker, quiet_logs


class Rows:
    """One way, the task's mode ``columns`` or ``records``, to send and handle rows on a stream of its own."""

    def __init__(self, task: Task, stream: str) -> None:
        self.app = App(task.app, redis_url=task.url)
        codec: Literal["arrow", "json"] = "arrow" if task.mode == "columns" else "json"
        self._stream = into = self.app.stream(
            stream, BenchEvent, key="key", partitions=task.partitions, codec=codec
        )
        self.begun_s = 0.0
        # Rows and records are prepared in the form in which a user would have them.
        self._send: Callable[[], Awaitable[object]]
        if codec == "arrow":
            self.app.processor(into, name=task.group, within=WITHIN_S, forward=True)(self._columns)
            self._send = partial(into.send_table, _table(task.records))
        else:
            self.app.processor(into, name=task.group, within=WITHIN_S, batch=task.batch)(self._records)
            self._send = partial(into.send_many, list(events(task.records)))

    async def _columns(self, rows: pa.RecordBatch) -> None:  # noqa: ARG002 - the worker forwards them unchanged
        self.begun_s = self.begun_s or time.monotonic()

    async def _records(self, events: list[BenchEvent]) -> list[BenchEvent]:
        self.begun_s = self.begun_s or time.monotonic()
        return events

    async def send(self) -> float:
        """Send all rows; return the seconds that this took."""
        await self._stream.send(next(events(1)))  # Opens the connection.
        begun_s = time.monotonic()
        await self._send()
        return time.monotonic() - begun_s


def _table(rows: int) -> pa.Table:
    """Make the records of ``events`` as columns."""
    names = pa.array([f"customer-{key}" for key in range(KEYS)])
    keys = pa.array(range(KEYS), pa.int32())
    places = pa.chunked_array([keys] * -(-rows // KEYS), pa.int32()).slice(0, rows).combine_chunks()
    numbers = pa.array(range(rows), pa.int64())
    amounts = pa.array((n * 0.25 for n in range(rows)), pa.float64())
    return pa.table({"number": numbers, "key": names.take(places), "amount": amounts})


async def measure(task: Task) -> None:
    """Send all rows, then handle them; then do both at once, on another stream."""
    apart, together = Rows(task, f"{task.stream}-apart"), Rows(task, f"{task.stream}-together")
    send_s = await apart.send()
    await apart.app.aclose()
    async with local_worker(apart.app, url=task.url) as worker:
        await worker.until_drained(timeout=120)
        handle_s = time.monotonic() - apart.begun_s
    async with local_worker(together.app, url=task.url) as worker:
        begun_s = time.monotonic()
        await together.send()
        await worker.until_drained(timeout=120)
        both_s = time.monotonic() - begun_s
    tell(task.begun_path, RowRates(*(task.records / each for each in (send_s, handle_s, both_s))))


if __name__ == "__main__":
    quiet_logs()
    run_task(measure)
