"""A stage for rebalance tests: real workers, a steady producer, and what an observer can see."""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from streamworker import App
from streamworker.core.snapshot import GroupSnapshot, PartitionView
from streamworker.errors import StreamworkerError
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.send.producer import Sent
from tests.chaos.forked import Forge, Forked
from tests.chaos.rows_app import PROCESSOR, STREAM, Item
from tests.helpers import PATIENCE_S, beside, wait_for, whole_lines
from tests.judge import check_chain, check_rows, read_logs
from tests.raw import opened
from tests.rebalance.remembered import Told, remember

KEY_COUNT = 97
"""Fewer than the records under way at a time, so that some share a key."""
ROOT = Path(__file__).parents[2]
APP = "tests.chaos.rows_app:app"
KEYS = GroupKeys("ledger", STREAM, PROCESSOR)
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
    """Workers of one group, whose logs are as people read them."""

    log_format = "console"
    durability = "memory"
    """Of the sender."""
    replicas = 1
    """That must have a send, where it waits for any."""

    def __init__(self, url: str, forge: Forge, folder: Path, partitions: int) -> None:
        self.url = url
        self.partitions = partitions
        self.folder, self.ledger = folder, folder / "ledger"
        self.ledger.mkdir()
        self.workers: list[Forked] = []
        self._forge = forge
        self._read_up_to: dict[Path, int] = {}
        self._ran_at: dict[int, float] = {}
        """When each partition began its last batch."""

    @property
    def environ(self) -> dict[str, str]:
        """What the app goes by."""
        return {
            "ROWS_APP": KEYS.app,
            "ROWS_LEDGER": str(self.ledger),
            "ROWS_PARTITIONS": str(self.partitions),
            "STREAMWORKER_REDIS_URL": self.url,
            "WORKER_LOG_FORMAT": self.log_format,
        }

    def worker(self, name: str, **environ: str) -> Forked:
        log_path = self.folder / f"{name}-{len(self.workers)}.log"
        self.workers.append(self._forge.fork(name, {**self.environ, **environ}, log_path))
        return self.workers[-1]

    def _start_again(self) -> None:
        """Start whoever did not reach the server when it began, as a supervisor would."""
        for worker in self.workers:
            if worker.was_unreached:
                self._forge.again(worker)

    # -- sending -------------------------------------------------------------------------------

    @contextmanager
    def remembered_load(self, per_second: int = 400) -> Iterator[Told]:
        """Send records at a steady pace meanwhile, and in the end ask what of them was lost."""
        told = Told()
        with beside(lambda stop: self._remember(told, stop, per_second)):
            yield told

    async def _remember(self, told: Told, stop: threading.Event, per_second: int) -> None:
        app = App(KEYS.app, redis_url=self.url, durability=self.durability, durability_replicas=self.replicas)
        items = app.stream(STREAM, Item, key="key", partitions=self.partitions)
        await remember(app, items, lambda n: Item(f"k{n % KEY_COUNT}", n), told, stop, per_second)

    # -- looking -------------------------------------------------------------------------------

    def snapshot(self) -> GroupSnapshot:
        async def look() -> GroupSnapshot:
            async with Backend.open(self.url, name="observer", call_timeout_ms=10_000) as backend:
                return await take_snapshot(backend, KEYS.app, STREAM, PROCESSOR)

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

    def wait_until_drained(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all nodes tell that no record waits; of one that is away nobody knows."""

        def is_drained() -> bool:
            try:
                snapshot = self.snapshot()
            except StreamworkerError:
                return False
            # A partition whose node gave no answer is shown as halted, without lag.
            return snapshot.lag == 0 and all(view.state != "halted" for view in snapshot.partitions)

        wait_for(is_drained, "there is no lag", timeout_s)

    def every_partition_ran_since(self, moment: float) -> bool:
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

    # -- judging -------------------------------------------------------------------------------

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


def slack_for_this_machine() -> float:
    return 0.5 if (os.cpu_count() or 1) < 4 else 0.2
