"""A stage for failovers behind sentinels, and a judge of what they may have brought back."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamworker.errors import StreamworkerError
from tests.chaos.forked import Forge
from tests.helpers import PATIENCE_S, wait_for
from tests.rebalance.remembered import Told
from tests.rebalance.scene import Scene
from tests.sentinel.trio import Trio

ZOMBIE_MS = 8_000
"""For so long after another one was named the former primary may take writes: docs/sentinel.md."""
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
        self.failovers = 0
        """How often the primary was to be replaced."""
        self.switches: list[float] = []
        """When it was, in ms."""
        self.longest_s = 0.0
        """Most time from the beginning of a fault until another primary was named."""

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
        each of one owner at one epoch, and epochs only grow; each send that was confirmed is in the log
        or among what the producer reported.
        """
        there, missing = self.judged(flow)
        reported = flow.entries_reported
        said = f"{reported} were reported, and {len(missing)} are missing"
        assert reported >= len(missing), said
        if reported > len(missing):
            self._judge_what_came_back(flow, there, reported - len(missing), said)
        executed = self.executed()
        return Verdict(len(flow.confirmed), len(missing), len(executed) - len(set(executed)))

    def _judge_what_came_back(self, flow: Told, there: set[int], surplus: int, said: str) -> None:
        # Sentinels of a busy machine may replace a primary that nobody killed by the one before it, and what
        # was lost with that is there again.
        again = [n for n, sent in flow.confirmed.items() if n in there and flow.reported(sent)]
        switches = f"{len(self.switches)} switches, {self.failovers} wanted"
        print(f"REPORTED AS LOST AND THERE AGAIN: {said}; {switches}")
        # A send that timed out for its caller may be known to the producer as confirmed.
        assert surplus <= len(again) + len(flow.unknown), said
        fault = what_cannot_come_back(
            [flow.confirmed[n].entry_id.ms for n in again],
            [sent.entry_id.ms for sent in flow.confirmed.values()],
            self.switches,
            unwanted=len(self.switches) - self.failovers,
            longest_ms=1_000 * self.longest_s,
        )
        assert not fault, f"{said}: {fault}"

    def wait_until_all_is_committed(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until no entry waits, as the primary sees it."""

        def drained() -> bool:
            try:
                return self.snapshot().lag == 0
            except StreamworkerError:
                return False

        wait_for(drained, "there is no lag", timeout_s)


def what_cannot_come_back(
    again: Collection[float],
    confirmed: Sequence[float],
    switches: Sequence[float],
    *,
    unwanted: int,
    longest_ms: float,
) -> str:
    """Say why sends that were reported as lost cannot be there again; empty if they can.

    A switch that nobody wanted may bring back what another one before it took: at most what was written
    around that one, from the beginning of the fault until the former primary took no more writes.
    """
    if unwanted <= 0 or len(switches) < 2:
        return "there was no switch that nobody wanted"
    spans = [(at - longest_ms, at + ZOMBIE_MS) for at in switches[:-1]]
    outside = [
        at for at in again if at > switches[-1] or not any(first <= at <= last for first, last in spans)
    ]
    if outside:
        return f"{len(outside)} were written when no switch could take them and another bring them back"
    most = unwanted * max(sum(first <= at <= last for at in confirmed) for first, last in spans)
    return "" if len(again) <= most else f"{len(again)} are more than {unwanted} switches can bring back"
