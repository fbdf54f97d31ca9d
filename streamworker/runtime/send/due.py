"""Sends the scheduled records of the partitions that a worker owns when they are due."""

from collections.abc import Callable, Collection, Sequence

import anyio
from structlog.stdlib import BoundLogger

from streamworker.declaring.specs import StreamSpec
from streamworker.errors import BackendError
from streamworker.redisio.data import later
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import Durability
from streamworker.runtime.telling import warn

LOOK_S = 2.0
"""How often a worker looks for a first scheduled record: a stream that has none costs one command then."""
LATE_S = 0.5
"""How late a record may be sent that was scheduled after the last look, and for less than this time."""
FULL_S = 0.5
"""Pause while a partition has no room."""


async def send_due(
    backend: Backend,
    spec: StreamSpec,
    owned: Callable[[], Collection[int]],
    durability: Durability,
    log: BoundLogger,
) -> None:
    """Send what is due in the partitions that this worker owns now, and so on for ever.

    Owners in several groups do this for one partition; a script sends each record once. What waits in sealed
    partitions of a stream that has grown goes to those that follow, whose owners then send it.
    """
    keys = StreamKeys(spec.app, spec.name)
    while True:
        pause_s = LOOK_S
        try:
            partitions = tuple(owned())
            older = _sealed(spec, partitions)
            if await later.any_waits(backend, keys, [*partitions, *older]):
                for partition in older:
                    await _hand_on(backend, spec, partition, durability, log)
                moved = await later.move_due(
                    backend, keys, partitions, limit=spec.records_max, window_ms=spec.id_window_ms
                )
                due_s = [each.next_ms / 1000 for each in moved.values() if each.next_ms is not None]
                pause_s = min([LATE_S, *due_s])
                if any(each.is_full for each in moved.values()):
                    pause_s = FULL_S
                if sent := sum(each.records for each in moved.values()):
                    log.debug("scheduled_sent", records=sent)
        except BackendError as error:
            warn(log, "scheduled_not_sent", error)
        await anyio.sleep(pause_s)


def _sealed(spec: StreamSpec, owned: Collection[int]) -> Sequence[int]:
    """Return the sealed partitions among those that a worker owns, and those that they follow."""
    placement = spec.placement
    if not placement.base:
        return ()
    older = {each for partition in owned for each in (partition, *placement.ancestors_of(partition))}
    return sorted(older.difference(placement.active))


async def _hand_on(
    backend: Backend, spec: StreamSpec, partition: int, durability: Durability, log: BoundLogger
) -> None:
    keys = StreamKeys(spec.app, spec.name)
    try:
        await later.hand_on(backend, keys, partition, spec.placement.partition_of, durability)
    except BackendError as error:  # The other partitions go on.
        warn(log, "scheduled_not_sent", error)
