"""A stage for rebalance tests: real workers, a steady producer, and what an observer can see."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from streamworker.core.snapshot import GroupSnapshot, PartitionView
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from tests.conftest import SpawnWorker
from tests.helpers import PATIENCE_S, WorkerProcess, beside, wait_for, whole_lines
from tests.judge import check_rows, read_logs
from tests.raw import opened
from tests.rebalance.ledger_app import Item

HERE = Path(__file__).parent
KEYS = GroupKeys("ledger", "items", "record")
UNREACHED = 4
"""Exit code of a worker that did not reach the server when it began."""
FAST = {
    "STREAMWORKER_HEARTBEAT_INTERVAL_MS": "200",
    "STREAMWORKER_CALL_TIMEOUT_MS": "500",
    "STREAMWORKER_DEAD_AFTER_MS": "600",
    "STREAMWORKER_SESSION_TIMEOUT_MS": "1500",
    "STREAMWORKER_SLOW_AFTER_MS": "2000",
    "STREAMWORKER_GRACE_PERIOD_MS": "2000",
    "STREAMWORKER_DRAIN_DEADLINE_MS": "3000",
}
"""Times short enough for tests that wait for them; the relations are those of the defaults."""
STEADY = {name: str(3 * int(value)) for name, value in FAST.items()}
"""Three times as long, for tests in which nobody may be thought dead who lives, on a machine that may be busy
with other work: where a process stands still for half a second, nobody answers in half a second."""
CLAIM = {
    **FAST,
    "COORDINATION": "claim",
    "STREAMWORKER_CLAIM_CYCLE_MS": "200",
    "STREAMWORKER_CLAIM_EXPIRY_MS": "1500",
}
LEASE = {
    **FAST,
    "COORDINATION": "lease",
    "STREAMWORKER_LEASE_NORMAL_MS": "1500",
    "STREAMWORKER_LEASE_MAX_MS": "5000",
    "STREAMWORKER_LEASE_MAX_SHUTDOWN_MS": "2000",
    "STREAMWORKER_LEASE_MIN_GRAB_MS": "1000",
}


@dataclass(frozen=True)
class Call:
    """One call of the handler, as a worker wrote it down."""

    pid: int
    partition: int
    epoch: int
    n: tuple[int, ...]
    start: float
    end: float


class Scene:
    def __init__(self, url: str, spawn: SpawnWorker, folder: Path, partitions: int) -> None:
        self.url = url
        self.partitions = partitions
        self.ledger = folder / "ledger"
        self.ledger.mkdir()
        self.sent = 0
        self._spawn = spawn
        self._started: list[tuple[WorkerProcess, Callable[[], WorkerProcess]]] = []
        """All workers, and what starts each again."""

    def worker(self, name: str, *arguments: str, **environ: str) -> WorkerProcess:
        variables = {"LEDGER": str(self.ledger), "PARTITIONS": str(self.partitions), **environ}
        command = ("run", "ledger_app:app", "--name", name, *arguments)
        start = partial(self._spawn, *command, cwd=HERE, environ=variables)
        self._started.append((start(), start))
        return self._started[-1][0]

    def _start_again(self) -> None:
        """Start whoever did not reach the server when it began, as a supervisor would."""
        for worker, start in self._started:
            if worker.process.poll() == UNREACHED and "worker_started" not in worker.log():
                again = start()
                worker.process, worker.log_path = again.process, again.log_path

    def bystander(self) -> None:
        """Start a process that loads what a worker loads, and takes no part."""
        self._spawn("doctor", "--help", cwd=HERE)

    # -- sending -------------------------------------------------------------------------------

    def send(self, count: int) -> None:
        asyncio.run(self._send(count))

    async def _send(self, count: int) -> None:
        from streamworker import App

        app = App("ledger", redis_url=self.url)
        items = app.stream("items", Item, key="key", partitions=self.partitions)
        first = self.sent
        async with app:
            await items.send_many(Item(f"k{n % 97}", n) for n in range(first, first + count))
        self.sent += count

    @contextmanager
    def steady_load(self, per_second: int = 400) -> Iterator[None]:
        async def produce(stop: threading.Event) -> None:
            while not stop.is_set():
                await self._send(per_second // 20)
                await asyncio.sleep(0.05)

        with beside(produce):
            yield

    # -- looking -------------------------------------------------------------------------------

    def snapshot(self) -> GroupSnapshot:
        async def look() -> GroupSnapshot:
            async with Backend.open(self.url, name="observer", call_timeout_ms=10_000) as backend:
                return await take_snapshot(backend, "ledger", "items", "record")

        return asyncio.run(look())

    def owners(self) -> dict[str, int]:
        """Return how many partitions each worker's locks hold, by name."""
        self._start_again()  # Who waits for workers looks here again and again.
        snapshot = self.snapshot()
        names = {member.id: member.name for member in snapshot.members}
        held: dict[str, int] = {}
        for view in snapshot.partitions:
            if view.owner:
                name = names.get(view.owner, "?")
                held[name] = held.get(name, 0) + 1
        return held

    def held_by(self, name: str) -> tuple[PartitionView, ...]:
        snapshot = self.snapshot()
        ids = {member.id for member in snapshot.members if member.name == name}
        return tuple(view for view in snapshot.partitions if view.owner in ids)

    def wait_for_owners(self, expected: dict[str, int], timeout_s: float = PATIENCE_S) -> None:
        wait_for(lambda: self.owners() == expected, f"the owners are {expected}", timeout_s)

    def wait_until_even(self, *names: str) -> None:
        """Wait until these workers hold all partitions, none of them two more than another."""

        def is_even() -> bool:
            owners, sizes = self.owners(), self.owners().values()
            return (
                set(owners) == set(names) and sum(sizes) == self.partitions and max(sizes) - min(sizes) <= 1
            )

        wait_for(is_even, f"{names} share the partitions")

    def wait_until_drained(self, timeout_s: float = PATIENCE_S) -> None:
        wait_for(lambda: self.snapshot().lag == 0, "there is no lag", timeout_s)

    def wait_until_busy(self, worker: WorkerProcess) -> None:
        wait_for((self.ledger / f"{worker.pid}.started").exists, "the handler was called")

    def calls(self) -> list[Call]:
        found = []
        for path in self.ledger.glob("*.jsonl"):
            for line in whole_lines(path):
                fields = json.loads(line)
                fields["n"] = tuple(fields["n"])
                found.append(Call(int(path.stem), **fields))
        return sorted(found, key=lambda call: call.start)

    def executed(self) -> list[int]:
        return [n for call in self.calls() for n in call.n]

    def acked(self) -> dict[int, list[dict[str, Any]]]:
        with opened(self.url) as client:
            logs = read_logs(client, KEYS, self.partitions)
        return {p: [row for entry in entries for row in entry.rows] for p, entries in logs.items()}

    def check_acked_log(self) -> None:
        """Nothing lost, nothing twice, and each key in the order in which it was sent."""
        assert check_rows(self.acked().values()) == set(range(self.sent))


def slack_for_this_machine() -> float:
    return 0.5 if (os.cpu_count() or 1) < 4 else 0.2
