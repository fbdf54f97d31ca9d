"""A stage for failovers behind sentinels, and a judge of what they leave."""

from dataclasses import dataclass
from pathlib import Path

from tests.chaos.forked import Forge
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

    @property
    def environ(self) -> dict[str, str]:
        durability = {"": self.durability, "_REPLICAS": str(REPLICAS)}
        return super().environ | {f"STREAMWORKER_DURABILITY{name}": each for name, each in durability.items()}

    def reports(self, event: str) -> list[str]:
        return [line for worker in self.workers for line in worker.log().splitlines() if event in line]

    # -- looking -------------------------------------------------------------------------------

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
