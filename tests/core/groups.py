"""Groups in the simulator's world, for tests of what a protocol promises."""

from collections.abc import Callable

from tests.simulator.simulation import story
from tests.simulator.worker import SimWorker
from tests.simulator.world import World


def until(world: World, condition: Callable[[], bool], what: str, within_ms: int) -> int:
    """Let time pass until something is true; return how long it took."""
    took_ms = world.clock.run_until(condition, within_ms, step_ms=10)
    assert took_ms is not None, f"not within {within_ms} ms: {what}\n{story(world)}"
    return took_ms


def is_agreed(world: World) -> bool:
    """Whether each partition is handled where the document says, and by nobody else."""
    return world.is_settled and world.is_agreed


def settled(seed: int, *, workers: int, partitions: int = 8) -> World:
    """Return a world in which some workers have shared the partitions by ``membership``, and work."""
    world = World(seed, partitions=partitions)
    for _ in range(workers):
        world.start()
    until(world, lambda: is_agreed(world), "the group has settled", 10_000)
    world.clock.run_for(2_000)
    return world


def running(worker: SimWorker) -> set[int]:
    """Return the partitions that a worker handles and was not told to drain."""
    return {p for p, runner in worker.runners.items() if not runner.ended and not runner.draining}


def check(world: World) -> None:
    """Judge what happened as an observer saw it: chains, epochs, owners, answers, order."""
    assert world.checker.violations == [], story(world)
