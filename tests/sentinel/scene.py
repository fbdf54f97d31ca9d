"""A stage for failovers: real workers, a producer that remembers what it was told, and a judge."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from streamworker import App
from streamworker.core.entries import EntryId
from streamworker.errors import StreamworkerError
from streamworker.redisio.ackedlog import decode_entry, deserialize_schema
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.ledger import LostSends
from streamworker.runtime.producer import Producer, Sent
from streamworker.settings import Settings
from tests.conftest import SpawnWorker
from tests.helpers import WorkerProcess, wait_for
from tests.rebalance.ledger_app import Item
from tests.rebalance.scene import Scene
from tests.sentinel.trio import Trio

KEYS = 97
"""Fewer than the records under way at a time, so that some share a key."""
UNDER_WAY_MAX = 2_000
REPLICAS = 2
"""All of them must have what is to survive: sentinels may take any, and not the one that had the most."""


@dataclass
class Flow:
    """What one producer sent, and what it was told."""

    confirmed: dict[int, Sent] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
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


@dataclass(frozen=True)
class Verdict:
    """What came of a run."""

    confirmed: int
    lost: int
    """Confirmed, and not in the log."""
    executed_again: int
    """Calls of the handler for records that had been handled: at least once."""

    def __str__(self) -> str:
        lost = f"{self.lost} of them lost by Redis, all reported by their ids" if self.lost else "none lost"
        return f"{self.confirmed} sends confirmed, {lost}; {self.executed_again} records handled again"


class FailoverScene(Scene):
    """Workers and a producer behind sentinels."""

    def __init__(self, trio: Trio, spawn: SpawnWorker, folder: Path, partitions: int) -> None:
        super().__init__(trio.url, spawn, folder, partitions)
        self.trio = trio
        self.workers: list[WorkerProcess] = []
        self._read_up_to: dict[Path, int] = {}
        self._ran_at: dict[int, float] = {}
        """When each partition began its last batch."""
        self.durability = "memory"
        """Of workers and of the producer."""
        self.keys = GroupKeys("ledger", "items", "record")

    def worker(self, name: str, *arguments: str, **environ: str) -> WorkerProcess:
        """Start one worker."""
        ours = {
            "STREAMWORKER_REDIS_URL": self.url,
            "STREAMWORKER_DURABILITY": self.durability,
            "STREAMWORKER_DURABILITY_REPLICAS": str(REPLICAS),
        }
        process = super().worker(name, *arguments, **ours, **environ)
        self.workers.append(process)
        return process

    def reports(self, event: str) -> list[str]:
        """Return the lines that workers have logged of an event."""
        return [line for worker in self.workers for line in worker.log().splitlines() if event in line]

    @contextmanager
    def flow(self, per_second: int = 400) -> Iterator[Flow]:
        """Send records at a steady pace meanwhile, and in the end ask what of them was lost."""
        flow, stop, failed = Flow(), threading.Event(), []

        def run() -> None:
            try:
                asyncio.run(self._produce(flow, stop, per_second))
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield flow
        finally:
            stop.set()
            thread.join(60)
        assert not thread.is_alive(), "the producer waits for something"
        assert not failed, failed

    async def _produce(self, flow: Flow, stop: threading.Event, per_second: int) -> None:
        app = App("ledger", redis_url=self.url)
        items = app.stream("items", Item, key="key", partitions=self.partitions)
        async with Backend.open(self.url, name="flow") as backend:
            settings = Settings(redis_url=self.url, durability=self.durability, durability_replicas=REPLICAS)
            producer = Producer(backend, items.spec, settings)
            under_way: set[asyncio.Task[None]] = set()
            began = time.monotonic()
            while not stop.is_set():
                due = int((time.monotonic() - began) * per_second)
                while flow.sent < due and len(under_way) < UNDER_WAY_MAX:
                    task = asyncio.create_task(self._send_one(producer, flow, flow.sent))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                    flow.sent += 1
                await asyncio.sleep(0.01)
            while under_way:
                await asyncio.wait(under_way)
            # Until there is an answer: it is asked right after a failover.
            for _ in range(100):
                try:
                    await producer.verify()
                    break
                except StreamworkerError:
                    await asyncio.sleep(0.1)
            flow.lost = tuple(producer.lost)

    @staticmethod
    async def _send_one(producer: Producer, flow: Flow, n: int) -> None:
        try:
            flow.confirmed[n] = await producer.send(Item(f"k{n % KEYS}", n), timeout=40)
        except StreamworkerError as error:
            flow.refused[n] = str(error)

    # -- looking -------------------------------------------------------------------------------

    def every_partition_ran_since(self, moment: float) -> bool:
        """Whether each partition began a batch after a moment."""
        # Only what is new is read: the long runs have a million lines.
        for path in self.ledger.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read_up_to.get(path, 0))
                lines = file.read().rpartition(b"\n")[0]
            self._read_up_to[path] = self._read_up_to.get(path, 0) + (len(lines) + 1 if lines else 0)
            for line in lines.splitlines():
                call = json.loads(line)
                partition, start = call["partition"], call["start"]
                self._ran_at[partition] = max(start, self._ran_at.get(partition, 0.0))
        return sum(start > moment for start in self._ran_at.values()) == self.partitions

    def log(self) -> dict[int, list[tuple[EntryId, dict[bytes, bytes], list[dict[str, Any]]]]]:
        """Return the entries of each acked log: id, fields, rows."""
        with self.primary_client() as client:
            stored = client.hgetall(self.keys.schemas)
            schemas = {
                name.decode(): deserialize_schema(value)
                for name, value in stored.items()
                if name != b"current"
            }
            return {
                partition: [
                    (EntryId.parse(entry_id), fields, decode_entry(entry_id, fields, schemas).to_pylist())
                    for entry_id, fields in client.xrange(self.keys.acked(partition))
                ]
                for partition in range(self.partitions)
            }

    def primary_client(self) -> redis.Redis:
        """Return a client of the primary, whose replies are bytes."""
        server = self.trio.primary
        return redis.Redis(port=server.port, password=server.password, protocol=2)

    # -- judging -------------------------------------------------------------------------------

    def judge(self, flow: Flow) -> Verdict:
        """See that what is left is right, and that what is lost was reported.

        Nothing is in the log twice; each key is in order; each partition's log is a chain of commits,
        each of one owner at one epoch, and epochs only grow; each send that was confirmed is in the log
        or among what the producer reported.
        """
        log = self.log()
        rows = [row for entries in log.values() for _, _, found in entries for row in found]
        numbers = [row["n"] for row in rows]
        there = set(numbers)
        assert len(numbers) == len(there), f"twice: {sorted(_twice(numbers))[:20]}"
        assert there <= set(flow.confirmed) | set(flow.refused)
        last: dict[str, int] = {}
        for partition, entries in log.items():
            self._check_chain(partition, entries)
            for _, _, found in entries:
                for row in found:
                    assert row["n"] > last.get(row["key"], -1), f"key {row['key']} went back to {row['n']}"
                    last[row["key"]] = row["n"]
        missing = {n: sent for n, sent in flow.confirmed.items() if n not in there}
        silent = {n: sent for n, sent in missing.items() if not flow.reported(sent)}
        assert not silent, f"lost without a word: {sorted(silent.items())[:20]} of {len(silent)}"
        reported = sum(each.entries for each in flow.lost)
        assert reported == len(missing), f"{reported} were reported, and {len(missing)} are missing"
        executed = self.executed()
        return Verdict(len(flow.confirmed), len(missing), len(executed) - len(set(executed)))

    @staticmethod
    def _check_chain(partition: int, entries: list[tuple[EntryId, dict[bytes, bytes], Any]]) -> None:
        owners: dict[int, bytes] = {}
        epoch, last = 0, EntryId(0, 0)
        for entry_id, fields, _ in entries:
            where = f"partition {partition}, entry {entry_id}"
            assert int(fields[b"epoch"]) >= epoch, f"{where}: the epoch went back"
            epoch = int(fields[b"epoch"])
            assert owners.setdefault(epoch, fields[b"owner"]) == fields[b"owner"], f"{where}: two owners"
            assert EntryId.parse(fields[b"prev"]) >= last, f"{where}: does not follow the one before"
            assert EntryId.parse(fields[b"first"]) > EntryId.parse(fields[b"prev"]), where
            last = EntryId.parse(fields[b"last"])

    def wait_until_all_is_committed(self, timeout_s: float = 40.0) -> None:
        """Wait until no entry waits, as the primary sees it."""

        def drained() -> bool:
            try:
                return self.snapshot().lag == 0
            except StreamworkerError:
                return False

        wait_for(drained, "there is no lag", timeout_s)


def _twice(numbers: list[int]) -> set[int]:
    seen: set[int] = set()
    return {n for n in numbers if n in seen or seen.add(n)}  # type: ignore[func-returns-value]
