"""Run many schedules on all CPU cores, and sum their outcomes up."""

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from tests.simulator.simulation import Outcome, Schedule, run

ALONE_MAX = 60
"""Up to this number one process is faster, since other processes take time to start."""
SHARE = 8
"""Schedules that a process gets at a time."""


def run_many(schedule: Schedule, seeds: Sequence[int]) -> Iterator[Outcome]:
    """Run a schedule with many seeds, on all CPU cores; outcomes have the order of seeds."""
    schedules = [replace(schedule, seed=seed) for seed in seeds]
    count = os.cpu_count() or 1
    if count == 1 or len(schedules) <= ALONE_MAX:
        yield from map(run, schedules)
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_prepare) as pool:
        yield from pool.map(run, schedules, chunksize=SHARE)


def _prepare() -> None:
    """Let the garbage collector run rarely: a world is small, and freed as a whole."""
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return the figures of many schedules of one protocol, by their names for people."""
    settled = sorted(outcome.settled_ms for outcome in outcomes if outcome.settled_ms is not None)
    return {
        "schedules": len(outcomes),
        "partitions that moved": sum(outcome.moves for outcome in outcomes),
        "schedules that came to rest": len(settled),
        "time to balance after the faults, median, ms": settled[len(settled) // 2] if settled else None,
        "time to balance after the faults, longest, ms": settled[-1] if settled else None,
        "jumps without cause": sum(outcome.jumps for outcome in outcomes),
        "records that were handled": sum(outcome.records for outcome in outcomes),
        "violations": sum(len(outcome.violations) for outcome in outcomes),
    }
