"""Run many schedules on all CPU cores, and summarise their outcomes."""

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from tests.simulator.simulation import Outcome, Schedule, run

ALONE_MAX = 60
"""Up to this number one process is faster, since other processes take time to start."""
SHARE = 8
"""Schedules that a process gets at a time."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of many schedules of one protocol."""

    protocol: str
    schedules: int
    moves: int
    minimum: int
    settled: int
    """Schedules that settled in time."""
    settle_median_ms: int | None
    settle_longest_ms: int | None
    unowned_longest_ms: int
    jumps: int
    commands_a_second: float
    """Commands per virtual second and worker, without reads and commits: the protocol's cost at Redis."""
    records: int
    violations: int


def run_many(schedule: Schedule, seeds: Sequence[int], *, processes: int | None = None) -> Iterator[Outcome]:
    """Run a schedule with many seeds, on all CPU cores by default; outcomes have the order of seeds."""
    schedules = [replace(schedule, seed=seed) for seed in seeds]
    count = processes or os.cpu_count() or 1
    if count == 1 or len(schedules) <= ALONE_MAX:
        yield from map(run, schedules)
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_prepare) as pool:
        yield from pool.map(run, schedules, chunksize=SHARE)


def _prepare() -> None:
    """Let the garbage collector run rarely: a world is small, and freed as a whole."""
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)


def summarise(protocol: str, outcomes: Sequence[Outcome]) -> Summary:
    """Summarise outcomes."""
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
        sum(outcome.records for outcome in outcomes),
        sum(len(outcome.violations) for outcome in outcomes),
    )
