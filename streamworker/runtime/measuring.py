"""Measures the load of each partition of one group in this worker, and reports it to the keeper."""

from collections.abc import Callable, Mapping

import anyio
from structlog.stdlib import BoundLogger

from streamworker.core.data.load import Counters, LoadMeter
from streamworker.errors import BackendError
from streamworker.redisio.group.loads import read_lags
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.run.runner import PartitionRunner


async def measure(
    backend: Backend,
    keys: GroupKeys,
    runners: Callable[[], Mapping[int, PartitionRunner]],
    report: Callable[[Mapping[int, int]], None],
    every_ms: int,
    log: BoundLogger,
) -> None:
    """Measure until cancelled, a round trip each; ``report`` takes loads by partition, none at the end."""
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
                    runner.commits.epoch,
                    at_ms,
                    runner.activity.worked_ms(at_ms),
                    runner.commits.records_done,
                    lags.get(partition),
                )
                for partition, runner in runners().items()
            }
            report(meter.look(counters))
    finally:
        # Otherwise heartbeats would report the last load as the current one for as long as the worker lives.
        report({})
