"""Measures what the partitions of one group ask of this worker, and tells the keeper."""

from collections.abc import Callable, Mapping

import anyio
from structlog.stdlib import BoundLogger

from streamworker.core.load import Counters, LoadMeter
from streamworker.errors import BackendError
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.loads import read_lags
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.runner import PartitionRunner


async def measure(
    backend: Backend,
    keys: GroupKeys,
    runners: Callable[[], Mapping[int, PartitionRunner]],
    report: Callable[[Mapping[int, int]], None],
    every_ms: int,
    log: BoundLogger,
) -> None:
    """Look at the runners' counters until cancelled; costs one round trip a look, and records nothing.

    Parameters
    ----------
    backend, keys
        Where the backlogs are read.
    runners
        Returns the partitions that are at work now.
    report
        Takes the loads by partition; none in the end.
    every_ms
        Pause between two looks.
    log
        For a look that failed.
    """
    meter = LoadMeter()
    try:
        while True:
            await anyio.sleep(every_ms / 1000)
            try:
                lags = await read_lags(backend, keys, tuple(runners()))
            except BackendError as error:
                log.warning("lags_unread", error=str(error))
                continue
            at_ms = monotonic_ms()
            counters = {
                partition: Counters(
                    runner.epoch, at_ms, runner.worked_ms(at_ms), runner.records_done, lags.get(partition)
                )
                for partition, runner in runners().items()
            }
            report(meter.look(counters))
    finally:
        # Heartbeats would carry the last load for as long as the worker lives, and show it as today's.
        report({})
