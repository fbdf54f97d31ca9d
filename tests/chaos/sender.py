"""A sender of numbered records that remembers what it was told of each."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from streamworker import App
from streamworker.core.data.channel import LostSends
from streamworker.declaring.stream import Stream
from streamworker.errors import BackendError, BackendRefused, ProducerError, StreamworkerError
from streamworker.runtime.send.producer import Sent
from tests.helpers import wait_for_async

UNDER_WAY_MAX = 2_000
SEND_TIMEOUT_S = 40.0
"""So long a send is repeated, for instance while no server takes it."""


@dataclass
class Sends:
    """What one sender was told of its records, by their numbers."""

    confirmed: dict[int, Sent] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    """Those that may be there or not."""
    lost: tuple[LostSends, ...] = ()
    """What the producer reported of its confirmed sends when it was asked last."""

    def reported(self, sent: Sent) -> bool:
        """Whether a send is among what was reported as lost."""
        return any(
            each.partition == sent.partition and each.first <= sent.entry_id <= each.last
            for each in self.lost
        )

    @property
    def reported_lost(self) -> int:
        return sum(each.records for each in self.lost)


class Sender:
    """Sends the records that ``record`` makes of numbers, through an app that is open meanwhile."""

    def __init__(
        self, app: App, stream: Stream[Any], record: Callable[[int], Any], told: Sends, first: int = 0
    ) -> None:
        self.told, self.issued = told, first
        """``issued`` is the number of the next record."""
        self._app, self._stream, self._record = app, stream, record

    async def send(self, count: int) -> None:
        """Send the next records at once, and wait until something is known of each."""
        await asyncio.gather(*(self._send(self.next_number()) for _ in range(count)))

    def next_number(self) -> int:
        self.issued += 1
        return self.issued - 1

    async def _send(self, n: int) -> None:
        try:
            self.told.confirmed[n] = await self._stream.send(self._record(n), timeout=SEND_TIMEOUT_S)
        except BackendRefused:
            self.told.refused.add(n)
        except (BackendError, ProducerError):
            self.told.unknown.add(n)

    @asynccontextmanager
    async def load(self, per_second: float) -> AsyncIterator[None]:
        """Send records at a steady pace meanwhile, whatever becomes of those under way."""
        stop = asyncio.Event()
        under_way: set[asyncio.Task[None]] = set()

        async def produce() -> None:
            due = time.monotonic()
            while not stop.is_set():
                for _ in range(max(1, round(per_second / 20))):
                    if len(under_way) < UNDER_WAY_MAX:
                        task = asyncio.create_task(self._send(self.next_number()))
                        under_way.add(task)
                        task.add_done_callback(under_way.discard)
                # Behind on a busy machine, it does not rush to catch up.
                due = max(due + 0.05, time.monotonic() - 0.5)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), max(0.001, due - time.monotonic()))

        producing = asyncio.create_task(produce())
        try:
            yield
        finally:
            stop.set()
            await producing
            await asyncio.gather(*under_way)

    async def ask_what_is_lost(self) -> None:
        """Ask what of the confirmed sends is lost, until somebody answers, as after a failover."""
        producer = self._app.producer(self._stream)

        async def is_verified() -> bool:
            try:
                await producer.verify()
            except StreamworkerError:
                return False
            return True

        await wait_for_async(is_verified, "somebody tells what is lost")
        self.told.lost = tuple(producer.lost)
