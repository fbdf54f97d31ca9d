"""The keys of a store, and snapshots of them.

keyspace.lua has the strings and hashes, and knows the type of each key. The other values are objects here.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar, cast

from tests.simulator.store.lua import LUA, RUNTIME, reply_of
from tests.simulator.store.values import Hash, Other, Refused, SortedSet, Stream, Value, type_of, wrong_type

ValueType = TypeVar("ValueType", bound=Value)
WORDS_MAX = 7_000
"""How many words a call of Lua takes; more come in tables."""


class ScriptError(Exception):
    """The error reply of a script that failed."""


def _answer(flat: Any, error: type[Exception]) -> Any:
    """Return what Lua answered, or raise what it refused, or what a command of Python raised meanwhile."""
    if LUA.failure is not None:
        failure, LUA.failure = LUA.failure, None
        raise failure
    if flat[0] == b"error":
        raise error(flat[1].decode("utf-8", "replace"))
    return reply_of(flat)


class Snapshot(NamedTuple):
    """All values at one moment; a store that goes on copies each before it changes it."""

    values: Mapping[bytes, Value]
    expiry: Mapping[bytes, int]


class Keyspace:
    """Keys and their values, on a clock that the caller owns.

    ``snapshot`` copies the keys alone, and marks all values as shared. A command asks ``own`` for a
    value that it changes, which copies a shared one first. What is read of a string or a hash is a
    copy, made anew when Lua has changed it.
    """

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self.clock_us = clock_us
        self._space = LUA.new_space()
        self._values: dict[bytes, Value] = {}
        """The values of Python, and copies of those of Lua."""
        self._expiry: dict[bytes, int] = {}
        self._shared: set[bytes] = set()
        self._stale: set[bytes] = set()
        """Keys whose copies are old."""
        self._is_behind = False
        """Whether Lua may have changed more keys."""

    # -- what is stored ------------------------------------------------------------------------

    def peek(self, key: bytes) -> Value | None:
        """Return a value to read, even if it has expired."""
        if isinstance(value := self._values.get(key), Stream | SortedSet | Other):
            return value
        if self._is_behind:
            self._look()
        if key in self._stale:
            self._copy(key)
        return self._values.get(key)

    def field(self, key: bytes, name: bytes) -> bytes | None:
        """Return a field of a hash; None if the key holds none."""
        found: bytes | None = LUA.field(self._space, key, name)
        return found

    def find(self, key: bytes) -> Value | None:
        """Return a value to read."""
        return None if self.type_at(key) is None else self.peek(key)

    @property
    def values(self) -> Mapping[bytes, Value]:
        """All values to read, even those that have expired."""
        self._look()
        for key in list(self._stale):
            self._copy(key)
        return self._values

    @property
    def expiry(self) -> Mapping[bytes, int]:
        """When each key expires that does, ms."""
        return self._expiry if self.values else {}

    def _look(self) -> None:
        self._is_behind, more = False, True
        while more:
            more, _, *keys = LUA.touched(self._space)
            self._stale.update(keys)

    def _copy(self, key: bytes) -> None:
        """Copy what Lua has at a key."""
        self._stale.discard(key)
        until_ms, kind, *flat = LUA.read(self._space, key, 0)
        if kind == b"hash":
            found = Hash(zip(flat[::2], flat[1::2], strict=True))
            while flat:
                _, _, *flat = LUA.read(self._space, key, len(found))
                found.update(zip(flat[::2], flat[1::2], strict=True))
            self._values[key] = found
        elif kind == b"string":
            self._values[key] = flat[0]
        elif kind is None:
            self._values.pop(key, None)
        self._expiry.pop(key, None)
        if until_ms is not None:
            self._expiry[key] = until_ms

    def snapshot(self) -> Snapshot:
        """Return all that is stored now."""
        self._shared = set(self.values)
        return Snapshot(dict(self._values), dict(self._expiry))

    def restore(self, snapshot: Snapshot) -> None:
        """Store again what was stored then."""
        now, until = dict(self.values), dict(self._expiry)
        for key in now.keys() - snapshot.values.keys():
            self.drop(key)
        for key, value in snapshot.values.items():
            until_ms = snapshot.expiry.get(key)
            if now.get(key) is not value or until.get(key) != until_ms:
                self.put(key, value, until_ms)
        self._look()
        self._stale.clear()
        self._values, self._expiry = dict(snapshot.values), dict(snapshot.expiry)
        self._shared = set(self._values)

    def type_at(self, key: bytes) -> bytes | None:
        """Return the type of a key; None if it is not there, or has expired."""
        LUA.store, self._is_behind = self, True
        found: bytes | None = LUA.type_at(self._space, self.clock_us(), key)
        return found

    def put(self, key: bytes, value: Value, until_ms: int | None = None) -> None:
        """Store a value in place of what is there."""
        if isinstance(value, Other) and type_of(self._values.get(key)) == value.type:
            self._values[key] = value  # as often as an observer sees something
            return
        self.drop(key)
        if isinstance(value, bytes):
            LUA.put_string(self._space, key, value, until_ms)
        elif isinstance(value, Hash):
            LUA.put_hash(self._space, key, RUNTIME.table_from([*chain.from_iterable(value.items())]))
        else:
            LUA.put_other(self._space, key, type_of(value))
            self._values[key] = value

    def drop(self, key: bytes) -> bool:
        """Remove a key; return whether it was there."""
        LUA.store, self._is_behind = self, True
        return bool(LUA.drop(self._space, key))

    def now_ms(self) -> int:
        """Return the server's time."""
        return self.clock_us() // 1000

    # -- what commands of Python call ----------------------------------------------------------

    def find_as(self, key: bytes, type: type[ValueType]) -> ValueType | None:
        """Return a value of Python to read."""
        value = self._values.get(key)
        if isinstance(value, type):
            return value
        if self.type_at(key) is None:
            return None
        raise wrong_type()

    def own(self, key: bytes, value: ValueType) -> ValueType:
        """Return a value that may be changed; ``value`` is what the key holds, or a new one."""
        if self._values.get(key) is not value:
            LUA.put_other(self._space, key, type_of(value))
        elif key in self._shared:
            value = cast("ValueType", value.copy())  # type: ignore[union-attr]
        else:
            return value
        self._shared.discard(key)
        self._values[key] = value
        return value

    def dropped(self, key: bytes) -> None:
        """Lua has removed the key of a value of Python."""
        self._shared.discard(key)
        self._values.pop(key, None)

    def moved(self, key: bytes, new: bytes) -> None:
        """Lua has renamed the key of a value of Python."""
        is_shared = key in self._shared
        self._values[new] = self._values[key]
        self.dropped(key)
        self._shared.discard(new)
        if is_shared:
            self._shared.add(new)

    # -- calls ---------------------------------------------------------------------------------

    def run(self, script: Any, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """Run a compiled script; return its reply as a client of Redis gets it, or raise ScriptError."""
        LUA.store, self._is_behind = self, True
        if len(keys) + len(args) <= WORDS_MAX:
            flat = LUA.run(self._space, self.clock_us(), script, len(keys), *keys, *args)
        else:
            table = RUNTIME.table_from
            flat = LUA.run(self._space, self.clock_us(), script, -1, table(keys), table(args))
        return _answer(flat, ScriptError)

    def call(self, name: str, *words: bytes) -> Any:
        """Return the reply to a command, or raise what it refuses.

        >>> keyspace = Keyspace(lambda: 0)
        >>> keyspace.call("HSET", b"lock", b"owner", b"a.1"), keyspace.call("HGET", b"lock", b"owner")
        (1, b'a.1')
        """
        LUA.store, self._is_behind = self, True
        flat = LUA.command(self._space, self.clock_us(), name.encode(), *words)
        return _answer(flat, Refused)
