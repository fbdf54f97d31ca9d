"""Reads what an app holds in Redis: lengths and estimates of memory, no payloads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streamworker.core.data.archives import Archive
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.holdings import Archived, Holding, Holdings, Kind
from streamworker.errors import BackendError
from streamworker.redisio.data import retention
from streamworker.redisio.data.retention import Amount
from streamworker.redisio.group.archiving import archiver_keys
from streamworker.redisio.keys import GroupKeys, StreamKeys, number
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered, is_missing_key
from streamworker.redisio.wire.info import RecordCounts
from streamworker.redisio.wire.link import Argument


async def take_holdings(
    backend: Backend,
    app: str,
    streams: Mapping[str, int],
    groups: Sequence[tuple[str, str]],
    archives: Mapping[str, Archive] | None = None,
) -> Holdings:
    """Return what some streams, with their numbers of partitions, and groups hold.

    ``groups`` are pairs of a stream and a processor; ``archives`` those of streams. What the user may not ask
    for counts as nothing.
    """
    held: list[Holding] = []
    read = {stream for stream, _ in groups}
    for stream, partitions in streams.items():
        keys = GroupKeys(app, stream, stream)
        here = await retention.measure_stream(backend, keys, partitions, size=True)
        holding = _sum("stream", stream, here, str((await retention.read(backend, keys)).stream or ""))
        events = [keys.events(p) for p in range(partitions)]
        asked = [] if stream in read else await backend.pipeline([("XINFO", "GROUPS", key) for key in events])
        if asked and all(each == [] or is_missing_key(each) for each in asked):
            # No trim has noted the time of the oldest entry, so the first entries tell it.
            firsts = await backend.pipeline([("XRANGE", key, "-", "+", "COUNT", 1) for key in events])
            times = [EntryId.parse(each[0][0]).ms for each in firsts if isinstance(each, list) and each]
            holding = replace(holding, is_read=False, oldest_ms=min(times, default=None))
        if archive := (archives or {}).get(stream):
            holding = replace(holding, archived=await take_archived(backend, keys, partitions, archive))
        held.append(holding)
    for stream, group in groups:
        keys, count = GroupKeys(app, stream, group), range(streams[stream])
        here = await retention.measure_log(backend, keys, len(count), size=True)
        held.append(_sum("acked log", group, here, str((await retention.read(backend, keys)).log or "")))
        state = await retention.measure_sizes(backend, [keys.state(p) for p in count])
        dead = await retention.measure_sizes(backend, [keys.dead(p) for p in count])
        letters = await backend.pipeline([("XLEN", keys.dead(p)) for p in count])
        held.append(Holding("state", group, 0, state))
        held.append(
            Holding("dead letters", group, sum(each for each in letters if isinstance(each, int)), dead)
        )
    return Holdings(await backend.time_ms(), tuple(held), *await _memory(backend))


def _sum(kind: Kind, name: str, here: Sequence[Amount], kept: str) -> Holding:
    oldest = [each.oldest_ms for each in here if each.oldest_ms]
    return Holding(
        kind,
        name,
        sum(each.records for each in here),
        sum(each.size for each in here),
        kept,
        min(oldest) if kept and oldest else None,
    )


async def take_archived(backend: Backend, keys: StreamKeys, partitions: int, archive: Archive) -> Archived:
    """Return how far the archive of a stream is."""
    lock = archiver_keys(keys).lock
    fields = ("checkpoint", "entries", "before", "owner", "reason", "waits_since", "since")
    asked: list[Sequence[Argument]] = []
    for p in range(partitions):
        asked += [("XLEN", keys.events(p)), RecordCounts.command(keys.counts(p))]
        asked += [("HMGET", lock(p), *fields)]
    replies = all_answered(await backend.pipeline(asked))
    ends: list[EntryId] = []
    records = only = waiting = 0
    reasons: list[str] = []
    oldest: list[int] = []
    behind: list[int] = []
    for p, (length, counts, known) in enumerate(zip(*(replies[at::3] for at in range(3)), strict=True)):
        packed, (checkpoint, *told, owner, reason, since, owned) = RecordCounts.of(counts), known
        entries, before = map(number, told)
        total = length + packed.dropped + packed.extra if packed.dropped >= 0 else packed.present(length)
        ends.append(EntryId.parse(checkpoint) if checkpoint else ZERO)
        records += entries - before
        only += max(0, min(entries, total - packed.present(length)) - before)
        its_waiting = max(0, total - entries) if checkpoint else packed.present(length)
        waiting += its_waiting
        # Without a worker nobody notes it: then it is since the last archived record, at most.
        if its_waiting and (its_since := number(since) or ends[-1].ms or number(owned)):
            oldest.append(its_since)
            behind.append(ends[-1].ms or its_since)
        is_left = bool(its_waiting and not owner)
        why = (reason or b"").decode("utf-8", "replace") or ("no worker archives it" if is_left else "")
        reasons += [f"partition {p}: {why}"] if why else []
    upto_ms = min(behind, default=max(end.ms for end in ends)) if records else 0
    its = upto_ms, records, only, waiting, min(oldest, default=None)
    return Archived(archive, partitions, *its, tuple(reasons))


async def _memory(backend: Backend) -> tuple[int, int, int]:
    """Return the used memory, its limit, which all nodes of a Cluster must have, and the keys that expire."""
    try:
        infos = [await primary.info() for primary in await backend.primaries()]
    except BackendError:
        return 0, 0, 0
    limits = [info.maxmemory for info in infos]
    used, expiring = sum(info.used_memory for info in infos), sum(info.expiring for info in infos)
    return used, sum(limits) if all(limits) else 0, expiring
