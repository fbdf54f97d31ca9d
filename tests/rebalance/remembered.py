"""A stage with one sender that remembers what it was told, and a judge of what was lost meanwhile."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from streamworker import App
from streamworker.declaring.stream import Stream
from streamworker.errors import StreamworkerError
from streamworker.runtime.send.ledger import LostSends
from streamworker.runtime.send.producer import Sent
from tests.helpers import beside
from tests.judge import check_chain, check_rows, read_logs
from tests.raw import opened
from tests.rebalance.ledger_app import Item
from tests.rebalance.scene import KEYS, Scene

KEY_COUNT = 97
"""Fewer than the records under way at a time, so that some share a key."""
UNDER_WAY_MAX = 2_000
VERIFY_TRIES = 100


@dataclass
class Told:
    """What one producer sent, and what it was told."""

    confirmed: dict[int, Sent] = field(default_factory=dict)
    unknown: dict[int, str] = field(default_factory=dict)
    """Sends that failed, by what was said: these may be there or not."""
    lost: tuple[LostSends, ...] = ()
    """What the producer reported of its confirmed sends."""
    sent: int = 0
    slowest_s: float = 0.0

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
        began = time.monotonic()
        try:
            told.confirmed[n] = await stream.send(record(n), timeout=40)
        except StreamworkerError as error:
            told.unknown[n] = str(error)
        told.slowest_s = max(told.slowest_s, time.monotonic() - began)

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
        # Until there is an answer: it may be asked right after a failover.
        for _ in range(VERIFY_TRIES):
            try:
                await producer.verify()
                break
            except StreamworkerError:
                await asyncio.sleep(0.1)
        told.lost = tuple(producer.lost)


class RememberingScene(Scene):
    """Workers of the ledger app, and a sender that remembers."""

    durability = "memory"
    """Of the sender."""
    replicas = 1
    """That must have a send, where it waits for any."""

    @contextmanager
    def remembered_load(self, per_second: int = 400) -> Iterator[Told]:
        """Send records at a steady pace meanwhile, and in the end ask what of them was lost."""
        told = Told()
        with beside(lambda stop: self._remember(told, stop, per_second)):
            yield told

    async def _remember(self, told: Told, stop: threading.Event, per_second: int) -> None:
        app = App("ledger", redis_url=self.url, durability=self.durability, durability_replicas=self.replicas)
        items = app.stream("items", Item, key="key", partitions=self.partitions)
        await remember(app, items, lambda n: Item(f"k{n % KEY_COUNT}", n), told, stop, per_second)

    def judged(self, told: Told) -> tuple[set[int], dict[int, Sent]]:
        """Return what is in the logs, and what was confirmed and is gone; that must have been reported.

        Each log is a chain of commits, each of one owner at one epoch, and epochs only grow. Nothing is there
        twice, or that nobody sent; each key is in order.
        """
        with opened(self.url) as client:
            logs = read_logs(client, KEYS, self.partitions)
        for partition, entries in logs.items():
            check_chain(f"partition {partition}", ((entry.id, entry.fields) for entry in entries))
        there = check_rows([row for entry in entries for row in entry.rows] for entries in logs.values())
        assert there <= told.confirmed.keys() | told.unknown.keys()
        gone = {n: sent for n, sent in told.confirmed.items() if n not in there}
        silent = {n: sent for n, sent in gone.items() if not told.reported(sent)}
        assert not silent, f"lost without a word: {sorted(silent.items())[:20]} of {len(silent)}"
        return there, gone
