"""What partitions ask of their owners: what is read to measure it, and what was measured."""

import re
from collections.abc import Mapping, Sequence

from streamworker.errors import BackendError, BackendRefused
from streamworker.redisio.client import Backend
from streamworker.redisio.failures import is_wrong_type
from streamworker.redisio.keys import GroupKeys

_LOADS = re.compile(rb"-|\d{1,9}:\d{1,9}(?:,\d{1,9}:\d{1,9})*")


def loads_text(loads: Mapping[int, int] | None) -> str:
    """Return loads as a heartbeat carries them; an empty text where nothing was measured.

    Examples
    --------
    >>> loads_text({3: 300, 0: 120}), loads_text({}), loads_text(None)
    ('0:120,3:300', '-', '')
    """
    if loads is None:
        return ""
    return ",".join(f"{partition}:{load}" for partition, load in sorted(loads.items())) or "-"


async def read_loads(backend: Backend, keys: GroupKeys) -> tuple[dict[str, dict[int, int]], int]:
    """Return what all members measured last of their partitions, and the server's clock.

    A value that is not ours to read counts as never measured, and so does all where the key is no hash:
    heartbeats say that.

    Raises
    ------
    BackendError
        Without an answer, or the right to read it.
    """
    flat: Sequence[bytes] = ()
    try:
        flat = await backend.execute("HGETALL", keys.loads)
    except BackendRefused as error:
        if not is_wrong_type(error):
            raise
    loads: dict[str, dict[int, int]] = {}
    for member, value in zip(flat[::2], flat[1::2], strict=True):
        if _LOADS.fullmatch(value):
            pairs = (each.split(b":") for each in value.split(b",") if each != b"-")
            loads[member.decode("utf-8", "replace")] = {int(p): int(load) for p, load in pairs}
    return loads, await backend.time_ms(near=keys.loads)


async def read_lags(backend: Backend, keys: GroupKeys, partitions: Sequence[int]) -> dict[int, int]:
    """Return how many entries wait in some partitions, in one round trip.

    A partition is missing where the server does not know, which is after an XDEL.

    Raises
    ------
    BackendUnavailable
        Without an answer.
    """
    if not partitions:
        return {}
    replies = await backend.pipeline([("XINFO", "GROUPS", keys.events(p)) for p in partitions])
    lags: dict[int, int] = {}
    for partition, groups in zip(partitions, replies, strict=True):
        for flat in () if isinstance(groups, BackendError) else groups:
            group = dict(zip(flat[::2], flat[1::2], strict=True))
            if group[b"name"] == keys.group.encode() and group[b"lag"] is not None:
                lags[partition] = group[b"lag"]
    return lags
