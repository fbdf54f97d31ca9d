"""A partition's keyed state and its tables: what calls read and write, before it is committed and after.

Handlers use the state through ``ctx.state``. It has three layers of encoded values. *base* holds the values
of submitted commits, *group* the changes of the calls that finished since then, and a :class:`StateView` the
changes of the running call. If a call fails, its layer is dropped; if a group must be handled again, its
layer is dropped. So nothing needs to be undone.

Values are stored encoded (MessagePack), and decoded once in a call, which sees its own changes of a list or a
dict. When the call has succeeded, what it changed in place is encoded and written. A failed attempt cannot
leave half a change behind.

Tables have these layers, too, and a fourth: the changes of commits that Redis has not confirmed. A read looks
for each key in the changes of the running call, those of calls that no commit has yet, those of unconfirmed
commits, and the cache. Only the other keys are read from Redis. A read must not miss the writes of a commit
that is under way: it may reach Redis before the commit does, on another connection, and would bring the value
from before it. The cache holds only what Redis holds, and the values in it belong to one runner: after a
commit that was refused, another worker may have written.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any

import anyio
import msgspec

from streamworker.context import tables_in_call
from streamworker.core.pauses import Pauses
from streamworker.core.time.lifetimes import NO_TABLES, Lifetimes, Timed
from streamworker.declaring.specs import TableSpec
from streamworker.errors import BackendUnavailable, ConfigurationError, RecordError
from streamworker.records.codecs import short
from streamworker.records.statetables import Watched, alive, check_unchanged
from streamworker.redisio.data.state import TIMERS
from streamworker.redisio.data.statetables import read_fields
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_ms

Changes = dict[str | tuple[str, bytes], bytes | None]
"""Encoded new values; None for a key that was deleted. A key of a table is the table's name and a field."""

ITEM_BYTES = 300
"""What Python needs for one value of the cache beside its bytes."""

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_IN_PLACE = (list, dict)
"""The types of values that can be changed in place."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_numbers = count()


class PartitionState:
    """The state of one partition, as its runner sees it."""

    __slots__ = ("_base", "_group")
    lifetimes: Lifetimes = NO_TABLES
    """How the values of each table end; there are no tables here."""

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        self._base = dict(stored)
        self._group: Changes = {}

    def view(self) -> "StateView":
        """Return a new layer for one call of a handler."""
        return StateView(self)

    def keep(self, changes: Changes) -> None:
        """Add the changes of a successful call to the group."""
        self._group.update(changes)

    def drop_group(self) -> None:
        """Drop the changes since the last :meth:`seal`."""
        self._group = {}

    def seal(self) -> Changes:
        """Return all changes since the last call, for a commit, and merge them into the base."""
        changes = self._group
        for key, value in changes.items():
            if not isinstance(key, str):
                continue
            if value is None:
                self._base.pop(key, None)
            else:
                self._base[key] = value
        # This is last, so that a handler in a thread always finds each value in one of the two layers.
        self._group = {}
        return changes

    def confirmed(self, at_ms: int) -> None:
        """Note that Redis has the oldest commit that was not confirmed; only tables use that."""

    def get(self, key: str) -> bytes | None:
        """Return the encoded value of a key."""
        if key in self._group:
            return self._group[key]
        return self._base.get(key)

    def keys(self) -> set[str]:
        """Return all keys that have a value."""
        return changed(self._base.keys(), self._group)


def changed(keys: Iterable[str], changes: Changes) -> set[str]:
    """Return the keys of the state that have a value after some changes."""
    kept = {key for key in keys if changes.get(key, b"") is not None}
    return kept | {key for key, value in changes.items() if isinstance(key, str) and value is not None}


class StateView(MutableMapping[str, Any]):
    """The state of one partition during one call of a handler.

    Values: None, bool, int, float, str, bytes, datetime with a zone, and lists and dicts of these. To assign
    another value, which would come back as another type, or to a key that is not text, raises RecordError.
    """

    __slots__ = ("_below", "_closed", "_live", "changes", "watched")

    def __init__(self, below: PartitionState) -> None:
        self._below = below
        self._closed = False
        self._live: dict[str, Any] = {}
        """The lists and dicts that the call has, by their keys."""
        self.changes: Changes = {}
        self.watched: list[Watched] = []
        """What the call has of tables."""

    def settled(self) -> Changes:
        """Return the changes of a call that has succeeded, also those in place.

        Raise RecordError or ProcessingError for one that cannot be kept, which fails the call.
        """
        for key, value in self._live.items():
            encoded = _encoded(key, value)
            if encoded != self._stored(key):
                self.changes[key] = encoded
        if self.watched:
            check_unchanged(self.watched)
        return self.changes

    def close(self) -> None:
        """Refuse all later changes: the call is over."""
        self._closed = True

    def write(self, changes: Changes) -> None:
        """Add changes of tables; RecordError if the call is over."""
        self._check_open("A table")
        self.changes.update(changes)

    def __getitem__(self, key: str) -> Any:
        if key in self._live:
            return self._live[key]
        if (stored := self._stored(key)) is None:
            raise KeyError(key)
        value = _decode(stored)
        if type(value) in _IN_PLACE:
            self._live[key] = value
        return value

    def _stored(self, key: str) -> bytes | None:
        return self.changes[key] if key in self.changes else self._below.get(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._check_open()
        if not isinstance(key, str):
            raise RecordError(
                f"A key of ctx.state is {key!r}, of type {type(key).__name__}.",
                remedy="Use text as keys of the state.",
            )
        self.changes[key] = _encoded(key, value)
        self._live.pop(key, None)
        if type(value) in _IN_PLACE:
            self._live[key] = value

    def __delitem__(self, key: str) -> None:
        self._check_open()
        if key not in self:
            raise KeyError(key)
        self._live.pop(key, None)
        self.changes[key] = None

    def __contains__(self, key: object) -> bool:
        if key in self.changes:
            return self.changes[key] is not None
        return isinstance(key, str) and self._below.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        # How far event time has come is not the user's.
        names = changed(self._below.keys(), self.changes)
        return iter(sorted(name for name in names if not name.startswith(TIMERS)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _check_open(self, what: str = "ctx.state") -> None:
        if self._closed:
            raise RecordError(
                f"{what} was changed after the call was over.",
                remedy="Change it before the function returns, while it has a record in hand.",
            )

    def __repr__(self) -> str:
        return f"StateView({dict(self)!r})"


def _encoded(key: str, value: Any) -> bytes:
    try:
        if (strange := _strange(value)) is not None:
            raise TypeError("it would come back as another type")
        key.encode()
        return _encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(
            f"ctx.state[{key!r}] cannot hold {short(value if strange is None else strange)}: {error}.",
            remedy="Store plain values: numbers, UTF-8 text, bytes, datetimes with a zone, lists, dicts; "
            "a table holds others.",
        ) from error


def _strange(value: Any) -> Any:
    """Return the first part of a value whose type MessagePack does not give back; None if there is none."""
    kind = type(value)
    if kind not in _IN_PLACE:
        is_plain = kind in _PLAIN or (kind is datetime and value.tzinfo is not None)
        return None if is_plain else value
    parts = value if kind is list else [*value, *value.values()]
    if _PLAIN.issuperset(map(type, parts)):
        return None
    return next((found for part in parts if (found := _strange(part)) is not None), None)


class NoState(PartitionState):
    """The state for handlers whose calls overlap: each use raises an error.

    Two concurrent calls could change one value, and the commit of the earlier record would include the
    later record's change, or lose it. The stored state is not changed.
    """

    __slots__ = ("_reason", "was_used")

    def __init__(self, processor: str, concurrency: int) -> None:
        super().__init__({})
        self.was_used = False
        """Whether a handler has used the state: then it fails for every record."""
        self._reason = f"Processor {processor!r} uses ctx.state, and has concurrency={concurrency}."

    def view(self) -> StateView:
        """Return a layer that refuses each use."""
        return _NoStateView(self)

    def get(self, key: str) -> bytes | None:  # noqa: ARG002 - as the state that can be used
        """Refuse to return a value."""
        self.was_used = True
        raise ConfigurationError(
            self._reason, remedy="Leave concurrency out, or keep the state in another system, by key."
        )

    def keys(self) -> set[str]:
        """Refuse to return keys."""
        self.get("")
        return set()


class _NoStateView(StateView):
    __slots__ = ()

    def _check_open(self, what: str = "ctx.state") -> None:  # noqa: ARG002
        self._below.get("")


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


class FirstEnd:
    """When the values of a table end in one partition, as far as its owner knows.

    The index in Redis tells; commits that are confirmed after a look may have brought an earlier end.
    """

    def __init__(self) -> None:
        self.first_ms: int | None = 0
        """No value ends before; None if none ends. It is 0 before the first look."""
        self.lowered: Callable[[], None] = lambda: None
        """Called when an earlier end was committed than any before."""

    def may_be(self, ends_ms: int | None) -> None:
        """Note that a value ends then."""
        if ends_ms is not None and (self.first_ms is None or ends_ms < self.first_ms):
            self.first_ms = ends_ms
            self.lowered()


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
        self.lifetimes = {spec.name: spec.lifetime for spec in specs}
        self.ends = {name: FirstEnd() for name, its in self.lifetimes.items() if its.is_called}
        """What is known of the ends at which functions are called."""
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
        self.landed: Callable[[], None] = lambda: None
        """Called when one is."""

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
        ends_ms = {name: at_ms + its.ttl_ms if its.ttl_ms else None for name, its in self.lifetimes.items()}
        told = {name: b"" if ms is None or name in self.ends else b"%d" % ms for name, ms in ends_ms.items()}
        for key, value in self._unconfirmed.pop(0).items():
            if isinstance(key, str):
                continue
            table, field = key
            head, ends = told[table], self.ends.get(table)
            if type(value) is Timed and ends is None:
                head = b"%d" % value.until_ms
            put((number, table, field), b"%s %s" % (head, value) if value is not None and at_ms else None)
            if ends is not None and value is not None:
                # A commit that was done before its answer was lost has an unknown time.
                ends.may_be(value.until_ms if type(value) is Timed else ends_ms[table] if at_ms else 0)
        if at_ms:
            self._clock_ms = at_ms - monotonic_ms()
        self.landed()

    def changed_in(self, table: str) -> set[bytes]:
        """Return the keys of a table that have changed since the last confirmed commit."""
        layers = (self._group, *self._unconfirmed)
        return {key[1] for layer in layers for key in layer if not isinstance(key, str) and key[0] == table}

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
