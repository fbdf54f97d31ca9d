"""A sender that remembers what it was told."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamworker import App
from streamworker.declaring.stream import Stream
from streamworker.errors import StreamworkerError
from streamworker.runtime.send.ledger import LostSends
from streamworker.runtime.send.producer import Sent
from tests.helpers import wait_for_async

UNDER_WAY_MAX = 2_000


@dataclass
class Told:
    """What one producer sent, and what it was told."""

    confirmed: dict[int, Sent] = field(default_factory=dict)
    unknown: dict[int, str] = field(default_factory=dict)
    """Sends that failed, by what was said: these may be there or not."""
    lost: tuple[LostSends, ...] = ()
    """What the producer reported of its confirmed sends."""
    sent: int = 0

    def reported(self, sent: Sent) -> bool:
        """Whether a send is among what was reported as lost."""
        return any(
            each.partition == sent.partition and each.first <= sent.entry_id <= each.last
            for each in self.lost
        )

    @property
    def entries_reported(self) -> int:
        return sum(each.records for each in self.lost)


async def remember(
    app: App,
    stream: Stream[Any],
    record: Callable[[int], Any],
    told: Told,
    stop: threading.Event,
    per_second: int,
    first: int = 0,
) -> None:
    """Send records, by number, at a steady pace until told to stop, and ask what of them was lost."""

    async def send(n: int) -> None:
        try:
            told.confirmed[n] = await stream.send(record(n), timeout=40)
        except StreamworkerError as error:
            told.unknown[n] = str(error)

    async with app:
        producer = app.producer(stream)
        under_way: set[asyncio.Task[None]] = set()
        began = time.monotonic()
        while not stop.is_set():
            due = int((time.monotonic() - began) * per_second)
            while told.sent < due and len(under_way) < UNDER_WAY_MAX:
                task = asyncio.create_task(send(first + told.sent))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                told.sent += 1
            await asyncio.sleep(0.01)
        while under_way:
            await asyncio.wait(under_way)

        async def is_verified() -> bool:
            try:
                await producer.verify()
            except StreamworkerError:
                return False
            return True

        await wait_for_async(is_verified, "somebody tells what is lost, as after a failover")
        told.lost = tuple(producer.lost)
