"""The small world of ``world.py`` with workers that race for leases."""

from functools import partial
from random import Random
from typing import Any

from streamworker.core import events as ev
from streamworker.core.lease import LeaseCore
from streamworker.core.lease_events import (
    ChallengeLeases,
    LeaseRaced,
    LeasesChallenged,
    LeasesUpdated,
    RaceForLease,
    UpdateLeases,
)
from streamworker.core.lease_timing import LeaseTiming, LoadMeasure, count_of_partitions
from streamworker.testing.model_lease import ModelLeases
from tests.core.world import Runner, Worker, World


class LeaseWorker(Worker):
    """One process with the lease protocol."""

    world: "LeaseWorld"
    core: Any
    """A ``LeaseCore``."""

    def make_core(self) -> Any:
        """Make its part of the protocol."""
        world = self.world
        return LeaseCore(
            f"{self.name}.{world.random.getrandbits(40):010x}",
            partitions=len(world.server.locks),
            timing=world.lease,
            grace_period_ms=world.timing.grace_period_ms,
            retry_ms=world.timing.acquire_retry_ms,
            jitter=lambda most: world.random.randint(0, most),
            load=world.load,
        )

    @property
    def generation(self) -> int:
        """There is none of the whole group."""
        return 0

    @property
    def running(self) -> set[int]:
        """The partitions that it handles and was not told to drain."""
        return {p for p, runner in self.runners.items() if not runner.ended and not runner.draining}

    def check_drain(self, runner: Runner) -> None:
        """Only who lost a race, or leaves, drains."""
        assert self.stopping or runner.partition not in self.core.owned

    def _do(self, effect: ev.Effect) -> None:
        match effect:
            case ChallengeLeases(_, challenges):
                self._call("challenge", self._at_server(effect), LeasesChallenged(tuple(challenges), None))
            case RaceForLease(_, partition):
                self._call(("race", partition), self._at_server(effect), LeaseRaced(partition, None))
            case UpdateLeases():
                self._call("update", self._at_server(effect), LeasesUpdated(done=False))
            case ev.StartRunner(partition, owner, lock):
                self.world.starts.append((self.world.now_ms, partition, owner, lock.epoch))
                super()._do(effect)
            case _:
                super()._do(effect)

    def _at_server(self, effect: ev.Effect) -> Any:
        return lambda: self.world.leases.perform(effect, self.world.now_ms)


class LeaseWorld(World):
    """Workers that race for leases, on one clock."""

    def __init__(
        self,
        seed: int,
        *,
        partitions: int = 8,
        lease: LeaseTiming | None = None,
        load: LoadMeasure = count_of_partitions,
    ) -> None:
        super().__init__(seed, partitions=partitions)
        self.lease = lease or LeaseTiming()
        self.load = load
        self.leases = ModelLeases(self.server.post)
        self.starts: list[tuple[int, int, str, int]] = []
        """When, which partition, who, epoch: each time a partition was started."""

    def start(self, name: str = "") -> LeaseWorker:
        """Start a worker."""
        worker = LeaseWorker(self, name or f"w{len(self.workers) + 1}")
        self.workers.append(worker)
        return worker

    @property
    def nodes(self) -> list[LeaseWorker]:
        """All workers there ever were, in the order of their starts."""
        return [worker for worker in self.workers if isinstance(worker, LeaseWorker)]

    @property
    def counts(self) -> list[int]:
        """How many partitions each worker that stays handles, in the order of their starts."""
        return [len(worker.running) for worker in self.staying if isinstance(worker, LeaseWorker)]

    def story(self) -> str:
        """Say what stands in the way, for the text of a failed assertion."""
        lines = [f"grab: {self.leases.grab}", f"allocation: {self.leases.allocation}"]
        lines += [f"{n.core.owner}: alive={n.alive} stopping={n.stopping} {n.running}" for n in self.nodes]
        return "\n".join(lines)

    def is_covered(self) -> bool:
        """Whether each partition is handled by exactly one worker that stays."""
        handled = [p for w in self.staying if isinstance(w, LeaseWorker) for p in w.running]
        return sorted(handled) == list(range(len(self.server.locks)))

    def is_balanced(self) -> bool:
        """Whether, besides, no worker handles two more than another."""
        return self.is_covered() and max(self.counts) - min(self.counts) <= 1


def under_load(world: World, seed: int, *, for_ms: int, stall_ms: int) -> None:
    """Let all workers be too busy to answer, now and then, for a while.

    Every second or so, each worker stalls for up to ``stall_ms``. The same seed gives the same
    stalls whatever the protocol does.
    """
    dice = Random(seed)
    end_ms = world.now_ms + for_ms
    stalls: list[tuple[int, int, int]] = []
    for place in range(len(world.workers)):
        at_ms = world.now_ms + dice.randint(0, 1_000)
        while at_ms + stall_ms < end_ms:
            length_ms = dice.randint(0, stall_ms)
            stalls.append((at_ms, place, length_ms))
            at_ms += length_ms + dice.randint(500, 1_500)
    for at_ms, place, length_ms in stalls:
        worker = world.workers[place]
        world.after(at_ms - world.now_ms, partial(setattr, worker, "paused", True))
        world.after(at_ms + length_ms - world.now_ms, worker.wake)
    world.run_for(for_ms)
