"""The Lua of this process, in which strings and hashes are kept and scripts run: Lua 5.1, as in Redis."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lupa import lua51

from tests.simulator.store.values import Refused, argument, integer

SHAPES = {
    **dict.fromkeys(("XADD", "XDEL", "XLEN", "XTRIM", "ZADD", "ZREM", "ZSCORE"), "one"),
    **dict.fromkeys(("XGROUP", "XSETID"), "status"),
    **dict.fromkeys(("XPENDING", "ZRANGE", "ZRANGEBYSCORE"), "many"),
    "XINFO": "info",
    "XRANGE": "entries",
}
"""The commands of Python, and how bridge.lua makes their answers."""
SINGLE = frozenset({"one", "status"})
SOURCES = "keyspace.lua", "bridge.lua"
RUNTIME = lua51.LuaRuntime(encoding=None, source_encoding="utf-8", unpack_returned_tuples=True)


def read(name: str) -> str:
    """Return the text of a file of Lua beside this one."""
    return Path(__file__).with_name(name).read_text("utf-8")


class Lua:
    """The functions of keyspace.lua and bridge.lua, and what they call.

    A call from Lua is for the store that is at work: ``store``.
    """

    def __init__(self, keyspace: str, bridge: str) -> None:
        self.store: Any = None
        self.failure: Exception | None = None
        """What went wrong in the store itself, and not in a script: a script cannot catch it."""
        table = RUNTIME.table_from
        commands, enter, python = RUNTIME.compile(keyspace)(_lacks, _drop, _move, _sum)
        self.new_space = python.new_space
        self.touched = python.touched
        self.type_at = python.type_at
        self.read = python.read
        self.field = python.field
        self.drop = python.drop
        self.put_string = python.put_string
        self.put_hash = python.put_hash
        self.put_other = python.put_other
        self.run, self.command = RUNTIME.compile(bridge)(
            commands,
            enter,
            table({name.encode(): _command(name) for name in SHAPES}),
            table({name.encode(): shape.encode() for name, shape in SHAPES.items()}),
            _lacks,
            _sha1hex,
            _decode,
            LIST,
        )


LIST = object()
"""In a reply that bridge.lua has made flat: what follows is the length of an array, and its values."""


def reply_of(flat: tuple[Any, ...]) -> Any:
    """Return a reply as Redis sends it, of the values that bridge.lua returns; numbers are cut."""
    kind = flat[0]
    if kind == b"many":
        return [each if type(each) is bytes else _value(each) for each in flat[2:]]
    if kind == b"one":
        return _value(flat[1])
    values = iter(flat[1:])
    if kind == b"table":  # It is too much for the stack of Lua.
        values = (flat[1][index] for index in range(1, len(flat[1]) + 1))
    return _nested(next(values), values)


def _nested(first: Any, values: Iterator[Any]) -> Any:
    if first is not LIST:
        return _value(first)
    return [_nested(next(values), values) for _ in range(next(values))]


def _value(value: Any) -> Any:
    if type(value) is bytes or value is None:
        return value
    if isinstance(value, bool):
        return 1 if value else None
    return int(value)


def _sum(stored: bytes | None, by: bytes) -> Any:
    """Return the sum of two whole numbers of 64 bits."""
    try:
        step = integer(by)
        total = step if stored is None else integer(stored, "ERR hash value is not an integer") + step
        if not -(2**63) <= total < 2**63:
            raise Refused("ERR increment or decrement would overflow")
    except Refused as refusal:
        return None, str(refusal).encode()
    return b"%d" % total


def _sha1hex(raw: bytes) -> bytes:
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest().encode()


def _decode(raw: bytes) -> Any:
    return _table(json.loads(raw))


def _table(value: Any) -> Any:
    """Return what JSON holds as cjson makes it, but for null."""
    if isinstance(value, dict):
        return RUNTIME.table_from(
            {name.encode(): _table(each) for name, each in value.items() if each is not None}
        )
    if isinstance(value, list):
        return RUNTIME.table_from([_table(each) for each in value])
    return value.encode() if isinstance(value, str) else value


def _drop(key: bytes) -> None:
    LUA.store.dropped(key)


def _move(key: bytes, new: bytes) -> None:
    LUA.store.moved(key, new)


def _command(name: str) -> Callable[..., Any]:
    """Return a command as Lua calls it: its values, first their number if the shape needs that."""
    method, counts = f"do_{name.lower()}", SHAPES[name] not in SINGLE

    def called(*words: object) -> Any:
        try:
            run = getattr(LUA.store, method)
            found = run(*[word if type(word) is bytes else argument(word) for word in words])
        except Refused as refusal:
            return None, str(refusal).encode()
        except Exception as failure:
            LUA.failure = failure
            raise
        return (len(found), *found) if counts else found

    return called


def _lacks(name: bytes) -> None:
    LUA.failure = NotImplementedError(f"The store lacks the command {name.decode()}.")
    raise LUA.failure


LUA = Lua(*map(read, SOURCES))
