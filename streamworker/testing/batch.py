"""Many schedules: on all cores of the machine, and what they came to as one row of figures."""

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from streamworker.testing.simulation import Outcome, Schedule, run

ALONE_MAX = 60
"""So few schedules are over before other processes have started."""
SHARE = 8
"""Schedules that a process takes at a time."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What many schedules of one protocol came to."""

    protocol: str
    schedules: int
    moves: int
    minimum: int
    settled: int
    """Schedules that came to rest in time."""
    settle_median_ms: int | None
    settle_longest_ms: int | None
    unowned_longest_ms: int
    jumps: int
    commands_a_second: float
    """Of virtual time and worker: what the protocol costs Redis, without reads and commits."""
    entries: int
    violations: int


def run_many(schedule: Schedule, seeds: Sequence[int], *, processes: int | None = None) -> Iterator[Outcome]:
    """Run a schedule with many seeds; the outcomes come in the order of the seeds.

    Parameters
    ----------
    schedule
        What is the same for all.
    seeds
        One for each run.
    processes
        How many to use; one for each core if None.
    """
    schedules = [replace(schedule, seed=seed) for seed in seeds]
    count = processes or os.cpu_count() or 1
    if count == 1 or len(schedules) <= ALONE_MAX:
        yield from map(run, schedules)
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_prepare) as pool:
        yield from pool.map(run, schedules, chunksize=SHARE)


def _prepare() -> None:
    """Let the collector look seldom: a world is dropped whole, and is never large."""
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)


def summarise(protocol: str, outcomes: Sequence[Outcome]) -> Summary:
    """Return the figures of many outcomes."""
    settled = sorted(outcome.settled_ms for outcome in outcomes if outcome.settled_ms is not None)
    worker_seconds = sum(outcome.virtual_ms * outcome.workers for outcome in outcomes) / 1_000
    return Summary(
        protocol,
        len(outcomes),
        sum(outcome.moves for outcome in outcomes),
        sum(outcome.minimum for outcome in outcomes),
        len(settled),
        settled[len(settled) // 2] if settled else None,
        settled[-1] if settled else None,
        max((outcome.longest_ms for outcome in outcomes), default=0),
        sum(outcome.jumps for outcome in outcomes),
        round(sum(outcome.commands for outcome in outcomes) / worker_seconds, 2) if worker_seconds else 0.0,
        sum(outcome.entries for outcome in outcomes),
        sum(len(outcome.violations) for outcome in outcomes),
    )
