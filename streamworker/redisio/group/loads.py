"""The loads of partitions: the lags that are read to measure them, and the measured loads."""

import re
from collections.abc import Mapping, Sequence

from streamworker.core.protocols.membership.events import LoadsRead
from streamworker.errors import BackendRefused
from streamworker.redisio.group.archiving import archiver_keys
from streamworker.redisio.keys import GroupKeys, number
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import is_wrong_type
from streamworker.redisio.wire.info import RecordCounts, pairs_of

_LOADS = re.compile(rb"-|\d{1,9}:\d{1,9}(?:,\d{1,9}:\d{1,9})*")


def loads_text(loads: Mapping[int, int] | None) -> str:
    """Return loads in the form of a heartbeat; an empty text if nothing was measured.

    >>> loads_text({3: 300, 0: 120}), loads_text({}), loads_text(None)
    ('0:120,3:300', '-', '')
    """
    if loads is None:
        return ""
    return ",".join(f"{partition}:{load}" for partition, load in sorted(loads.items())) or "-"


async def read_loads(backend: Backend, keys: GroupKeys) -> LoadsRead:
    """Read the last loads that all members measured of their partitions.

    A value that cannot be parsed counts as not measured. If the key is not a hash, no load counts as
    measured; heartbeats report that key.
    """
    flat: Sequence[bytes] = ()
    try:
        flat = await backend.execute("HGETALL", keys.loads)
    except BackendRefused as error:
        if not is_wrong_type(error):
            raise
    loads: dict[str, dict[int, int]] = {}
    for member, value in pairs_of(flat).items():
        if _LOADS.fullmatch(value):
            pairs = (each.split(b":") for each in value.split(b",") if each != b"-")
            loads[member.decode("utf-8", "replace")] = {int(p): int(load) for p, load in pairs}
    return LoadsRead(loads, await backend.time_ms(near=keys.loads))


async def read_lags(backend: Backend, keys: GroupKeys, partitions: Sequence[int]) -> dict[int, int]:
    """Return the lags of some partitions; one whose keys cannot be read is missing."""
    asked = [
        each
        for p in partitions
        for each in (
            ("XLEN", keys.events(p)),
            RecordCounts.command(keys.counts(p)),
            ("HGET", keys.lock(p), "entries"),
            ("HGET", archiver_keys(keys).lock(p), "entries"),
        )
    ]
    replies = await backend.pipeline(asked)
    return {
        p: RecordCounts.of(counts).lag(
            length, number(entries), number(archived) if isinstance(archived, bytes) else 0
        )
        for p, length, counts, entries, archived in zip(
            partitions, *(replies[at::4] for at in range(4)), strict=True
        )
        if isinstance(length, int) and isinstance(entries, bytes)
    }
