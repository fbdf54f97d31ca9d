"""Reads tables of state, and removes what has expired; ``commit`` writes them with the checkpoint.

A table is read from outside of its partition also while its stream grows. A partition that follows takes its
keys over when the group is done with those before it. Until it is open, they are still there; and somebody
who read the map of the stream earlier may look for a key where it was. The locks say where to go on. A user
who may read no locks reads only a stream that has never grown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamworker.core.data.inheriting import LOCK_FIELDS, Where, counted, where_now
from streamworker.core.data.placement import Placement, leading_key
from streamworker.core.snapshot import TableView
from streamworker.core.time.lifetimes import Lifetime, Lifetimes, end_ms
from streamworker.errors import BackendError, BackendRefused, BackendUnavailable
from streamworker.records.statetables import alive
from streamworker.redisio.data.maps import follow_maps
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.scripts import EXPIRE, checked
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import ms_of, pairs_of

LOOKS_MAX = 10
"""How often a read begins anew since values have gone on meanwhile."""
OVERDUE_MS = 60_000
"""From then on a call for a value that has ended counts as overdue."""
EXPIRED_MAX = 1_000
"""Values that one call removes of each table. It takes the server about a millisecond."""


async def read_fields(backend: Backend, key: str, fields: Sequence[bytes]) -> tuple[list[bytes | None], int]:
    """Return the stored values of some keys of one table, with their expiry, and the server's ms."""
    values, time = all_answered(await backend.pipeline([("HMGET", key, *fields), ("TIME",)]))
    return values, ms_of(time)


async def read_ended(backend: Backend, index: str, upto_ms: int, most: int) -> list[bytes]:
    """Return the keys of the values that have ended, in the order of their ends."""
    found: list[bytes] = await backend.execute("ZRANGEBYSCORE", index, "-inf", upto_ms, "LIMIT", 0, most)
    return found


@dataclass(frozen=True)
class TableReads:
    """Reads one table."""

    backend: Backend
    keys: GroupKeys
    """Those of the processor that writes it."""
    table: str
    lifetime: Lifetime
    leading: int
    """How many of the parts of its keys are the stream's key; 0 if the whole key is."""
    placement: Placement

    async def follow(self) -> None:
        """Read which partitions the stream has now."""
        await follow_maps(self.backend, [(self.keys, self.placement)])

    async def get(self, fields: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Return the values of some keys, None for one that is not there, at the moment of each partition."""
        found: dict[bytes, bytes | None] = {}
        left = [field for field in fields if leading_key(field, self.leading) is not None]
        for _ in self._looks():
            by_partition: dict[int, list[bytes]] = {}
            for field in left:
                by_partition.setdefault(self.placement.partition_of(self._routed(field)), []).append(field)
            for partition, its in by_partition.items():
                found |= await self._get(partition, its)
            if not (left := [field for field in left if field not in found]):
                break
        return found

    async def _get(
        self, partition: int, fields: Sequence[bytes], *, is_parent: bool = False
    ) -> dict[bytes, bytes | None]:
        """Return the values that are there or before; those that have gone on are left out."""
        key = self.keys.table(partition, self.table)
        where, stored, now_ms = await self._ask(partition, is_parent, ("HMGET", key, *fields))
        if where is Where.HERE:
            return {field: alive(value, now_ms) for field, value in zip(fields, stored, strict=True)}
        found: dict[bytes, bytes | None] = {}
        for parent in self.placement.parents_of(partition) if where is Where.BEFORE else ():
            if its := [field for field in fields if parent in self.placement.path_of(self._routed(field))]:
                found |= await self._get(parent, its, is_parent=True)
        return found

    async def scan(self, partition: int) -> dict[bytes, bytes]:
        """Return the values of all keys that a partition has, or had before the stream grew."""
        found = None
        for _ in self._looks():
            if (found := await self._scan(partition)) is not None:
                break
        return found or {}

    async def _scan(self, partition: int, *, is_parent: bool = False) -> dict[bytes, bytes] | None:
        key = self.keys.table(partition, self.table)
        where, flat, now_ms = await self._ask(partition, is_parent, ("HGETALL", key))
        if where is Where.HERE:
            values = pairs_of(flat)
            return {
                field: body for field, value in values.items() if (body := alive(value, now_ms)) is not None
            }
        if where is Where.AFTER and is_parent:
            return None
        found: dict[bytes, bytes] = {}
        beside = self.placement.parents_of if where is Where.BEFORE else self.placement.children_of
        for other in beside(partition):
            its = await self._scan(other, is_parent=where is Where.BEFORE)
            if its is None:
                return None
            found |= its
        return {f: body for f, body in found.items() if partition in self.placement.path_of(self._routed(f))}

    async def count(self, partitions: Iterable[int]) -> int:
        """Return how many values some partitions have, without those that have expired."""
        asked = list(partitions)
        replies = await self.backend.pipeline([("HMGET", self.keys.lock(p), *LOCK_FIELDS) for p in asked])
        here = [p for p, lock in zip(asked, replies, strict=True) if self._where(lock, False) is Where.HERE]
        its = {self.table: self.lifetime}
        counted = await count_values(self.backend, self.keys, its, here) if here else {}
        return sum(counted.values()) + sum([len(await self.scan(p)) for p in asked if p not in counted])

    def _looks(self) -> Iterator[int]:
        yield from range(LOOKS_MAX)
        raise BackendUnavailable(
            f"Table {self.table!r} cannot be read: a failure has lost values that have moved.",
            remedy=f"Look at what its partitions wait for: `streamworker status`. Group: {self.keys.group}.",
        )

    def _routed(self, field: bytes) -> bytes:
        return leading_key(field, self.leading) or b""

    async def _ask(
        self, partition: int, is_parent: bool, command: Sequence[str | bytes]
    ) -> tuple[Where, Any, int]:
        """Ask a partition for values; return where they are, the reply, and the server's ms."""
        look = ("HMGET", self.keys.lock(partition), *LOCK_FIELDS)
        # A partition may be opened between two commands, and values of a parent may be removed.
        asked = [command, look] if is_parent else [look, command]
        replies = await self.backend.pipeline([*asked, ("TIME",)])
        lock = replies.pop(int(is_parent))
        reply, time = all_answered(replies)
        where = self._where(lock, is_parent)
        if where is Where.AFTER and partition >= self.placement.base:
            await self.follow()
            if partition >= self.placement.base:
                where = Where.HERE  # A failure has lost the map; what follows is empty.
        return where, reply, ms_of(time)

    def _where(self, lock: Any, is_parent: bool) -> Where:
        if isinstance(lock, BackendRefused) and not self.placement.base:
            return Where.HERE  # This user may read the table alone.
        (fields,) = all_answered([lock])
        return where_now(fields, is_parent=is_parent)


async def count_values(
    backend: Backend, keys: StreamKeys, table: Lifetimes, partitions: Iterable[int]
) -> dict[int, int]:
    """Return how many values one table has in each partition, without those that have expired."""
    names = {p: keys.tables(p, table) for p in partitions}
    (its,) = table.values()
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
    return {p: found[2 * n] - (0 if its.is_called else found[2 * n + 1]) for n, p in enumerate(names)}


async def holders(backend: Backend, keys: GroupKeys, placement: Placement) -> Mapping[int, bool]:
    """Return by partition whether values of tables count there."""
    if not placement.base:
        return dict.fromkeys(placement.all, True)
    locks = all_answered(
        await backend.pipeline([("HMGET", keys.lock(p), "from", "done") for p in placement.all])
    )
    waits = {p for p, (parents, _) in enumerate(locks) if parents}
    return counted(placement, waits, {p for p, (_, done) in enumerate(locks) if done})


async def view_table(
    backend: Backend, keys: StreamKeys, table: Lifetimes, partitions: Mapping[int, bool]
) -> TableView:
    """Count one table's keys in some partitions, or only estimate what they need.

    ``MEMORY USAGE`` estimates memory from a few values of each.
    """
    ((table_name, lifetime),) = table.items()
    counted_in = [p for p, is_counted in partitions.items() if is_counted]
    found = await count_values(backend, keys, table, counted_in)
    names = [name for partition in partitions for name in keys.tables(partition, table)]
    sizes = await backend.pipeline([("MEMORY", "USAGE", name) for name in names])
    is_known = not any(isinstance(size, BackendError) for size in sizes)
    size = sum(size or 0 for size in sizes) if is_known else None
    view = TableView(table_name, sum(found.values()), size)
    return await _with_due(backend, keys, view, lifetime, counted_in) if lifetime.is_called else view


async def _with_due(
    backend: Backend, keys: StreamKeys, view: TableView, lifetime: Lifetime, partitions: Sequence[int]
) -> TableView:
    if not partitions:
        return view
    indices = [keys.due(p, view.name) for p in partitions]
    now_ms = ms_of(all_answered(await backend.pipeline([("EXISTS", indices[0]), ("TIME",)]))[1])
    asked: list[tuple[str | int, ...]] = [
        command
        for index in indices
        for command in (
            ("ZCARD", index),
            ("ZRANGE", index, 0, 0, "WITHSCORES"),
            ("ZCOUNT", index, "-inf", now_ms - OVERDUE_MS),
        )
    ]
    found = all_answered(await backend.pipeline(asked))
    first = [end_ms(its[1]) for its in found[1::3] if its]
    overdue = 0 if lifetime.is_event_time else sum(found[2::3])
    view = replace(view, due=sum(found[::3]), next_ms=min(first, default=None), overdue=overdue)
    return replace(view, is_of_windows=lifetime.is_event_time)


async def read_due(
    backend: Backend, keys: StreamKeys, table: str, partition: int, most: int
) -> list[tuple[int, bytes, bytes | None]]:
    """Return the ends, keys and values of those values of a partition that end first."""
    asked = ("ZRANGE", keys.due(partition, table), 0, most - 1, "WITHSCORES")
    (found,) = all_answered(await backend.pipeline([asked]))
    if not found:
        return []
    values, _ = await read_fields(backend, keys.table(partition, table), found[::2])
    return [
        (end_ms(score), field, None if value is None else value.partition(b" ")[2])
        for field, score, value in zip(found[::2], found[1::2], values, strict=True)
    ]


async def expire_many(
    backend: Backend, keys: GroupKeys, tables: Lifetimes, owners: Mapping[int, tuple[str, int]]
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
