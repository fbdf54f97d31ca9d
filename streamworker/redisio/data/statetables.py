"""Reads tables of state, and removes what has expired; ``commit`` writes them with the checkpoint."""

from collections.abc import Iterable, Mapping, Sequence

from streamworker.core.snapshot import TableView
from streamworker.errors import BackendError
from streamworker.records.statetables import alive
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.scripts import EXPIRE, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import ms_of, pairs_of

EXPIRED_MAX = 1_000
"""Values that one call removes of each table. It takes the server about a millisecond."""


async def read_fields(backend: Backend, key: str, fields: Sequence[bytes]) -> tuple[list[bytes | None], int]:
    """Return the stored values of some keys of one table, with their expiry, and the server's ms."""
    values, time = all_answered(await backend.pipeline([("HMGET", key, *fields), ("TIME",)]))
    return values, ms_of(time)


async def read_table(backend: Backend, keys: StreamKeys, table: str, partition: int) -> dict[bytes, bytes]:
    """Return all values of a table in one partition at one moment, without their expiry."""
    asked = [("HGETALL", keys.table(partition, table)), ("TIME",)]
    found, time = all_answered(await backend.pipeline(asked))
    values, now_ms = pairs_of(found), ms_of(time)
    return {field: body for field, stored in values.items() if (body := alive(stored, now_ms)) is not None}


async def count_values(
    backend: Backend, keys: StreamKeys, table: str, partitions: Iterable[int]
) -> dict[int, int]:
    """Return how many values a table has in each partition, without those that have expired."""
    names = {p: keys.tables(p, [table]) for p in partitions}
    # TIME follows a command with a key, so that on a Cluster it goes to the same node.
    asked: list[tuple[str, ...]] = [
        command for key, _ in names.values() for command in (("HLEN", key), ("TIME",))
    ]
    times = all_answered((await backend.pipeline(asked))[1::2])
    asked = [
        command
        for (key, index), time in zip(names.values(), times, strict=True)
        for command in (("HLEN", key), ("ZCOUNT", index, "-inf", str(ms_of(time))))
    ]
    found = all_answered(await backend.pipeline(asked))
    return {p: found[2 * n] - found[2 * n + 1] for n, p in enumerate(names)}


async def view_table(backend: Backend, keys: StreamKeys, table: str, partitions: int) -> TableView:
    """Count a table's keys; ``MEMORY USAGE`` estimates its memory from a few values of each partition."""
    found = await count_values(backend, keys, table, range(partitions))
    names = [name for partition in found for name in keys.tables(partition, [table])]
    sizes = await backend.pipeline([("MEMORY", "USAGE", name) for name in names])
    is_known = not any(isinstance(size, BackendError) for size in sizes)
    return TableView(table, sum(found.values()), sum(size or 0 for size in sizes) if is_known else None)


async def expire_many(
    backend: Backend, keys: GroupKeys, tables: Sequence[str], owners: Mapping[int, tuple[str, int]]
) -> None:
    """Remove what has expired in some partitions, given the owner and epoch of each. It may be repeated.

    It calls again while a partition has more. A partition that has another owner by now is left to it.
    """
    left = dict(owners)
    while left:
        calls = [
            EXPIRE.at(keys, p, tables=keys.tables(p, tables), owner=owner, epoch=epoch, most=EXPIRED_MAX)
            for p, (owner, epoch) in left.items()
        ]
        replies = all_answered(await backend.run_many(EXPIRE, calls))
        removed = {p: checked(reply) for p, reply in zip(left, replies, strict=True)}
        left = {p: left[p] for p, (code, *n) in removed.items() if code == b"OK" and n[0] >= EXPIRED_MAX}
