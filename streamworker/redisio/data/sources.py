"""Pipelines as sources of a stream: each partition keeps where it stands with each (``forward.lua``)."""

from collections.abc import Sequence

from streamworker.core.data.placement import Placement
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered


def source_of(pipeline: str) -> str:
    """Return the field in which a partition keeps where it stands with a pipeline."""
    return f"pipeline {pipeline}"


async def forget_source(
    backend: Backend, streams: Sequence[tuple[StreamKeys, Placement]], pipeline: str
) -> None:
    """Remove where the partitions of some streams stand with a pipeline that will not come back.

    Also with what its function names itself. The call may be repeated.
    """
    places = [keys.taken(p) for keys, placement in streams for p in placement.all]
    found = all_answered(await backend.pipeline([("HKEYS", each) for each in places]))
    source = source_of(pipeline).encode()
    for place, fields in zip(places, found, strict=True):
        if its := [each for each in fields if each == source or each.startswith(source + b"/")]:
            await backend.execute("HDEL", place, *its)
