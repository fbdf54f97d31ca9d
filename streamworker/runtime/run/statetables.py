"""The tables of one partition: what its calls read and write, before it is committed and after.

A read looks for each key in four places: the changes of the running call, those of calls that no commit has
yet, those of commits that Redis has not confirmed, and the cache. Only the other keys are read from Redis. A
read must not miss the writes of a commit that is under way: it may reach Redis before the commit does, on
another connection, and would bring the value from before it.

The cache holds only what Redis holds, and the values in it belong to one runner: after a commit that was
refused, another worker may have written.
"""

import random
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from itertools import count

import anyio

from streamworker.context import tables_in_call
from streamworker.core.pauses import Pauses
from streamworker.declaring.specs import TableSpec
from streamworker.errors import BackendUnavailable
from streamworker.records.statetables import alive
from streamworker.redisio.data.statetables import read_fields
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.run.state import Changes, PartitionState, StateView

ITEM_BYTES = 300
"""What Python needs for one value of the cache beside its bytes."""

_numbers = count()


class TableCache:
    """Values of one processor's tables in this worker, of so many bytes; the longest unused leaves first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._values: OrderedDict[tuple[int, str, bytes], bytes] = OrderedDict()

    def get(self, key: tuple[int, str, bytes]) -> bytes | None:
        """Return a value."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: tuple[int, str, bytes], value: bytes | None) -> None:
        """Keep a value; None drops it."""
        old = self._values.pop(key, None)
        if old is not None:
            self._bytes -= len(key[2]) + len(old) + ITEM_BYTES
        if value is None:
            return
        self._values[key] = value
        self._bytes += len(key[2]) + len(value) + ITEM_BYTES
        while self._bytes > self._bytes_max:
            (_, _, field), dropped = self._values.popitem(last=False)
            self._bytes -= len(field) + len(dropped) + ITEM_BYTES


class StateWithTables(PartitionState):
    """The state of one partition of a processor with tables, and those tables."""

    def __init__(
        self,
        stored: Mapping[str, bytes],
        specs: Sequence[TableSpec],
        partition: int,
        backend: Backend,
        keys: StreamKeys,
        cache: TableCache,
        rng: random.Random,
    ) -> None:
        super().__init__(stored)
        self.specs = specs
        self.ttls = {spec.name: spec.ttl_ms for spec in specs}
        self.partition = partition
        self._backend = backend
        self._keys = keys
        self._cache = cache
        self._rng = rng
        self._number = next(_numbers)
        """Tells this runner's values in the cache from those of others."""
        self._unconfirmed: list[Changes] = []
        """The changes of the commits that are not confirmed, the oldest first."""
        self._clock_ms = 0
        """The server's clock minus this process's, as the last answer told."""
        self._commits = 0
        """How many commits were confirmed."""

    def view(self) -> StateView:
        """Return a new layer for one call, and let the tables show it in this task."""
        view = super().view()
        tables_in_call.set(_TablesOfView(self, view))
        return view

    def seal(self) -> Changes:
        """Return all changes since the last call, for a commit."""
        # This is first, so that a read always finds each value.
        self._unconfirmed.append(self._group)
        return super().seal()

    def confirmed(self, at_ms: int) -> None:
        """Note that Redis has the oldest commit that was not confirmed, since ``at_ms`` if that is known."""
        self._commits += 1
        number, put = self._number, self._cache.put
        heads = {table: b"%d " % (at_ms + ttl_ms) if ttl_ms else b" " for table, ttl_ms in self.ttls.items()}
        for key, value in self._unconfirmed.pop(0).items():
            if not isinstance(key, str):
                table, field = key
                put((number, table, field), heads[table] + value if value is not None and at_ms else None)
        if at_ms:
            self._clock_ms = at_ms - monotonic_ms()

    async def read(self, table: str, fields: Sequence[bytes], changes: Changes) -> list[bytes | None]:
        """Return the values of some keys, under the changes of a call; wait while Redis does not answer."""
        layers = [layer for layer in (changes, self._group, *reversed(self._unconfirmed)) if layer]
        now_ms = monotonic_ms() + self._clock_ms
        found: dict[bytes, bytes | None] = {}
        missing: list[bytes] = []
        number, cached = self._number, self._cache.get
        for field in fields:
            for layer in layers:
                if (table, field) in layer:
                    found[field] = layer[table, field]
                    break
            else:
                if (kept := cached((number, table, field))) is None:
                    missing.append(field)
                else:
                    found[field] = alive(kept, now_ms)
        if missing:
            commits = self._commits
            stored, at_ms = await self._ask(table, missing)
            self._clock_ms = at_ms - monotonic_ms()
            for field, value in zip(missing, stored, strict=True):
                found[field] = alive(value, at_ms)
                # A task that its call left behind may read what a later call has written meanwhile.
                if value is not None and commits == self._commits:
                    self._cache.put((self._number, table, field), value)
        return [found[field] for field in fields]

    async def _ask(self, table: str, fields: Sequence[bytes]) -> tuple[list[bytes | None], int]:
        pauses = Pauses(self._rng.random)
        while True:
            try:
                return await read_fields(self._backend, self._keys.table(self.partition, table), fields)
            except BackendUnavailable:
                await anyio.sleep(pauses.next_ms() / 1000)


class _TablesOfView:
    def __init__(self, state: StateWithTables, view: StateView) -> None:
        self.partition = state.partition
        self.specs: Collection[object] = state.specs
        self._state = state
        self._view = view
        self.watched = view.watched

    async def read(self, table: str, fields: Sequence[bytes]) -> list[bytes | None]:
        return await self._state.read(table, fields, self._view.changes)

    def write(self, table: str, changes: Mapping[bytes, bytes | None]) -> None:
        self._view.write({(table, field): value for field, value in changes.items()})
