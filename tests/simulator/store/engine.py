"""Runs scripts on a store, in Lua 5.1 as Redis does."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lupa import lua51

from tests.simulator.store.store import Store
from tests.simulator.store.values import Refused, argument

BRIDGE = Path(__file__).with_name("bridge.lua")
STATUS = frozenset({"RENAME", "SET", "TYPE", "XGROUP"})
"""Commands that answer a status, or a number."""
SHAPES = {
    **dict.fromkeys(STATUS, "status"),
    **dict.fromkeys(("HGETALL", "HMGET", "TIME", "XPENDING", "ZRANGE", "ZRANGEBYSCORE"), "many"),
    "XINFO": "info",
    "XRANGE": "entries",
}
"""How bridge.lua makes the answer of each command; those that are not listed answer one value."""


class ScriptError(Exception):
    """The error reply of a script that failed."""


class Engine:
    """A store, and the Lua that runs scripts on it.

    Redis also refuses scripts that set globals, and those without a right or without memory; this does not.

    >>> engine = Engine(Store(lambda: 0))
    >>> engine.run("return {redis.call('HSET', KEYS[1], 'owner', 'a.1'), ARGV[1]}", [b"lock"], [b"x"])
    [1, b'x']
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._failure: Exception | None = None
        """What went wrong in the store itself, and not in a script: a script cannot catch it."""
        self._lua = lua51.LuaRuntime(encoding=None, source_encoding="utf-8", unpack_returned_tuples=True)
        names = [name.removeprefix("do_").upper() for name in dir(store) if name.startswith("do_")]
        self._run = self._lua.compile(BRIDGE.read_text("utf-8"))(
            self._lua.table_from({name.encode(): self._command(name) for name in names}),
            self._lua.table_from({name.encode(): shape.encode() for name, shape in SHAPES.items()}),
            self._lacks,
            _sha1hex,
            self._decode,
        )
        self._compiled: dict[str, Any] = {}

    def run(self, text: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """Run a script; return its reply as a client of Redis gets it, or raise ScriptError."""
        if (script := self._compiled.get(text)) is None:
            script = self._compiled[text] = self._lua.compile(text)
        table = self._lua.table_from
        if isinstance(self.store.types, dict):
            present = self.store.types.items()
            self.store.types = table({key: kind for key, kind in present if kind is not None})
        kind, *found = self._run(script, table(keys), table(args), self.store.types)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if kind == b"error":
            raise ScriptError(found[0].decode("utf-8", "replace"))
        return [self._reply(value) for value in found] if kind == b"many" else self._reply(found[0])

    def _command(self, name: str) -> Callable[..., Any]:
        """Return a command as Lua calls it: its values, first their number if the shape needs that."""
        run = getattr(Store, f"do_{name.lower()}")
        counts = SHAPES.get(name, "status") != "status"

        def called(*words: object) -> Any:
            try:
                found = run(self.store, *[word if type(word) is bytes else argument(word) for word in words])
            except Refused as refusal:
                return None, str(refusal).encode()
            except Exception as failure:
                self._failure = failure
                raise
            return (len(found), *found) if counts else found

        return called

    def _lacks(self, name: bytes) -> None:
        self._failure = NotImplementedError(f"The store lacks the command {name.decode()}.")
        raise self._failure

    def _decode(self, raw: bytes) -> Any:
        return self._table(json.loads(raw))

    def _table(self, value: Any) -> Any:
        """Return what JSON holds as cjson makes it, but for null."""
        if isinstance(value, dict):
            return self._lua.table_from(
                {name.encode(): self._table(each) for name, each in value.items() if each is not None}
            )
        if isinstance(value, list):
            return self._lua.table_from([self._table(each) for each in value])
        return value.encode() if isinstance(value, str) else value

    def _reply(self, value: Any) -> Any:
        """Return a value of Lua as Redis sends it: numbers are cut, false is nothing, arrays end at nil."""
        if isinstance(value, bytes) or value is None:
            return value
        if isinstance(value, bool):
            return 1 if value else None
        if isinstance(value, int | float):
            return int(value)
        if (status := value[b"ok"]) is not None:
            return status
        found: list[Any] = []
        while (each := value[len(found) + 1]) is not None:
            found.append(self._reply(each))
        return found


def _sha1hex(raw: bytes) -> bytes:
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest().encode()
