"""The keys of a store, their expiry and snapshots, and the commands of keys and strings."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from tests.simulator.store.values import Refused, Value, integer, type_of, wrong_type

ValueType = TypeVar("ValueType", bound=Value)
ASK = b""
"""In place of the type of a key that may have expired."""


class Snapshot(NamedTuple):
    """All values at one moment; a store that goes on copies each before it changes it."""

    values: Mapping[bytes, Value]
    expiry: Mapping[bytes, int]


class Keyspace:
    """Keys and their values, on a clock that the caller owns.

    ``snapshot`` copies the keys alone, and marks all values as shared. A command asks ``own`` for a
    value that it changes, which copies a shared one first.
    """

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self.clock_us = clock_us
        self.values: dict[bytes, Value] = {}
        self.expiry: dict[bytes, int] = {}
        """When each key expires that does, ms."""
        self._shared: set[bytes] = set()
        self.types: Any = {}
        """What ``TYPE`` answers for each key that is there; ``ASK`` for those that expire.

        It is a dict, or a table of Lua that an engine has made of it.
        """

    def snapshot(self) -> Snapshot:
        """Return all that is stored now."""
        self._shared = set(self.values)
        return Snapshot(dict(self.values), dict(self.expiry))

    def restore(self, snapshot: Snapshot) -> None:
        """Store again what was stored then."""
        self.values, self.expiry = dict(snapshot.values), dict(snapshot.expiry)
        self._shared = set(self.values)
        self.types = {key: ASK if key in self.expiry else type_of(each) for key, each in self.values.items()}

    def find(self, key: bytes) -> Value | None:
        """Return a value to read."""
        if key in self.expiry and self.expiry[key] <= self.now_ms():
            self.drop(key)
        return self.values.get(key)

    def find_as(self, key: bytes, type: type[ValueType]) -> ValueType | None:
        """Return a value of a type to read."""
        value = self.find(key)
        if value is None or isinstance(value, type):
            return value
        raise wrong_type()

    def own(self, key: bytes, value: ValueType) -> ValueType:
        """Return a value that may be changed; ``value`` is what the key holds, or a new one."""
        if key in self._shared:
            self._shared.discard(key)
            value = cast("ValueType", value if isinstance(value, bytes) else value.copy())
        elif key not in self.values:
            self.types[key] = type_of(value)
        self.values[key] = value
        return value

    def put(self, key: bytes, value: Value) -> None:
        """Store a value in place of what is there."""
        self._shared.discard(key)
        self.values[key] = value
        self.types[key] = ASK if key in self.expiry else type_of(value)

    def drop(self, key: bytes) -> bool:
        """Remove a key; return whether it was there."""
        self._shared.discard(key)
        self.expiry.pop(key, None)
        self.types[key] = None
        return self.values.pop(key, None) is not None

    def now_ms(self) -> int:
        """Return the server's time."""
        return self.clock_us() // 1000

    def do_time(self) -> tuple[bytes, bytes]:
        now_us = self.clock_us()
        return b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)

    def do_type(self, key: bytes) -> bytes:
        return type_of(self.find(key))

    def do_exists(self, *keys: bytes) -> int:
        return sum(self.find(key) is not None for key in keys)

    def do_unlink(self, *keys: bytes) -> int:
        return sum(self.find(key) is not None and self.drop(key) for key in keys)

    def do_rename(self, key: bytes, new: bytes) -> bytes:
        value = self.find(key)
        if value is None:
            raise Refused("ERR no such key")
        until, is_shared = self.expiry.get(key), key in self._shared
        self.drop(key)
        self.drop(new)
        self.values[new] = value
        self.types[new] = type_of(value) if until is None else ASK
        if is_shared:
            self._shared.add(new)
        if until is not None:
            self.expiry[new] = until
        return b"OK"

    def do_memory(self, what: bytes, key: bytes) -> int | None:
        """Take each value for a small one."""
        assert what == b"USAGE"
        return None if self.find(key) is None else 64

    def do_get(self, key: bytes) -> bytes | None:
        return self.find_as(key, bytes)

    def do_getrange(self, key: bytes, start: bytes, end: bytes) -> bytes:
        assert integer(start) >= 0
        assert integer(end) >= 0
        return (self.find_as(key, bytes) or b"")[integer(start) : integer(end) + 1]

    def do_set(self, key: bytes, value: bytes, *how: bytes) -> bytes:
        until = None
        if how[:1] == (b"PX",):
            until = self.now_ms() + integer(how[1])
        elif how == (b"KEEPTTL",):
            self.find(key)  # which forgets a key that has expired
            until = self.expiry.get(key)
        else:
            assert not how
        self.drop(key)
        if until is not None:
            self.expiry[key] = until
        self.put(key, value)
        return b"OK"
