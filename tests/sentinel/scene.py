"""A stage for failovers behind sentinels, and a judge of what they leave."""

import json
from dataclasses import dataclass
from pathlib import Path

from streamworker.errors import StreamworkerError
from tests.chaos.forked import Forge
from tests.helpers import PATIENCE_S, wait_for
from tests.rebalance.remembered import Told
from tests.rebalance.scene import Scene
from tests.sentinel.trio import Trio

REPLICAS = 2
"""All of them must have what is to survive: sentinels may take any, and not the one that had the most."""


@dataclass(frozen=True)
class Verdict:
    confirmed: int
    lost: int
    """Confirmed, and not in the log."""
    executed_again: int
    """Calls of the handler for records that had been handled: at least once."""

    def __str__(self) -> str:
        lost = f"{self.lost} of them lost by Redis, all reported by their ids" if self.lost else "none lost"
        return f"{self.confirmed} sends confirmed, {lost}; {self.executed_again} records handled again"


class FailoverScene(Scene):
    def __init__(self, trio: Trio, forge: Forge, folder: Path, partitions: int) -> None:
        super().__init__(trio.url, forge, folder, partitions)
        self.trio, self.replicas = trio, REPLICAS
        self.flow = Told()
        """What the sender was told so far."""
        self._read_up_to: dict[Path, int] = {}
        self._ran_at: dict[int, float] = {}
        """When each partition began its last batch."""

    @property
    def environ(self) -> dict[str, str]:
        durability = {"": self.durability, "_REPLICAS": str(REPLICAS)}
        return super().environ | {f"STREAMWORKER_DURABILITY{name}": each for name, each in durability.items()}

    def reports(self, event: str) -> list[str]:
        return [line for worker in self.workers for line in worker.log().splitlines() if event in line]

    # -- looking -------------------------------------------------------------------------------

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

    def was_confirmed_since(self, moment_ms: float) -> bool:
        """Whether a send was confirmed that was written after a moment."""
        return any(sent.entry_id.ms > moment_ms for sent in list(self.flow.confirmed.values()))

    # -- judging -------------------------------------------------------------------------------

    def judge(self, flow: Told) -> Verdict:
        """See that what is left is right, and that what is lost was reported.

        Nothing is in the log twice; each key is in order; each partition's log is a chain of commits,
        each of one owner at one epoch, and epochs only grow; each send that was confirmed is either in the
        log or among what the producer reported.
        """
        _, missing = self.judged(flow)
        assert flow.entries_reported == len(missing), "what was reported as lost is there"
        executed = self.executed()
        return Verdict(len(flow.confirmed), len(missing), len(executed) - len(set(executed)))

    def wait_until_all_is_committed(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until no entry waits, as the primary sees it."""

        def drained() -> bool:
            try:
                return self.snapshot().lag == 0
            except StreamworkerError:
                return False

        wait_for(drained, "there is no lag", timeout_s)
