"""Runs scripts on a store."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from tests.simulator.store.keyspace import ScriptError
from tests.simulator.store.lua import RUNTIME
from tests.simulator.store.store import Store

__all__ = ["Engine", "ScriptError"]

_compiled = cache(RUNTIME.compile)


class Engine:
    """A store, and the Lua that runs scripts on it.

    Redis also refuses scripts that set globals, and those without a right or without memory; this does not.

    >>> engine = Engine(Store(lambda: 0))
    >>> engine.run("return {redis.call('HSET', KEYS[1], 'owner', 'a.1'), ARGV[1]}", [b"lock"], [b"x"])
    [1, b'x']
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def run(self, text: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """Run a script; return its reply as a client of Redis gets it, or raise ScriptError."""
        return self.store.run(_compiled(text), keys, args)
