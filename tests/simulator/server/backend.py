"""redisio's backend on a store in memory: each call is answered at once, so that no coroutine ever waits."""

from collections.abc import Callable, Sequence
from typing import Any

from streamworker.errors import BackendError, BackendRefused, BackendUnavailable
from streamworker.redisio.scripts import Call, Script
from streamworker.redisio.wire.durability import MEMORY, Durability
from streamworker.redisio.wire.info import ms_of
from streamworker.redisio.wire.link import Argument
from tests.simulator.store.engine import Engine, ScriptError
from tests.simulator.store.store import Store
from tests.simulator.store.values import Refused, Stream, parse_id

ENGINE = Engine(Store(lambda: 0))
"""One Lua for all servers of a process: to compile the scripts takes as long as some schedules."""


def _encoded(words: Sequence[Any]) -> list[bytes]:
    """Return arguments as they go over the wire."""
    return [
        word if (kind := type(word)) is bytes else word.encode() if kind is str else b"%d" % word
        for word in words
    ]


class StoreBackend:
    """What redisio calls of a ``Backend``, on a store.

    ``lost`` returns whether the next call of a pipeline, or its reply, is lost.
    """

    tells_connections = True

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self.store = Store(clock_us)
        self.connections: set[int] = set()
        self.lost: Callable[[], bool] = lambda: False

    async def run(self, script: Script, call: Call) -> Any:
        """Run a script once."""
        (reply,) = await self.run_many(script, [call])
        return _raised(reply)

    async def run_many(
        self, script: Script, calls: Sequence[Call], *, durability: Durability = MEMORY
    ) -> list[Any]:
        """Run a script some times."""
        del durability
        return [self._lossy(script, keys, args) for keys, args in calls]

    def _lossy(self, script: Script, keys: Sequence[Argument], args: Sequence[Argument]) -> Any:
        if self.lost():
            return BackendUnavailable("The request was lost.", remedy="Try again.")
        reply = self.evaluate(script, _encoded(keys), _encoded(args))
        return BackendUnavailable("The reply was lost.", remedy="Try again.") if self.lost() else reply

    def evaluate(self, script: Script, keys: list[bytes], args: list[bytes]) -> Any:
        """Run a script; return its reply or the error."""
        ENGINE.store = self.store
        try:
            return ENGINE.run(script.text, keys, args)
        except ScriptError as error:
            return BackendRefused(f"{script.name}: {error}", remedy="Look at the script.")

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Return the replies to some commands, or their errors."""
        return [self.command(*words) for words in commands]

    async def execute(self, *words: Argument, near: str = "", block_ms: int = 0) -> Any:
        """Return the reply to a command."""
        del near, block_ms
        return _raised(self.command(*words))

    async def time_ms(self, near: str = "") -> int:
        """Return the time."""
        del near
        return ms_of(self.store.call("TIME"))

    def command(self, name: Argument, *words: Argument) -> Any:
        """Return the reply to a command, or its error."""
        args = _encoded(words)
        try:
            match name:
                case "CLIENT":
                    return self._client_list(args[2:])
                case "XREAD":
                    keys = args[args.index(b"STREAMS") + 1 :]
                    half = len(keys) // 2
                    pairs = zip(keys[:half], keys[half:], strict=True)
                    found = [(key, self.entries_after(key, at)) for key, at in pairs]
                    return [pair for pair in found if pair[1]] or None
                case "XRANGE":
                    return _entries(self.store.do_xrange(*args))
                case _:
                    return self.store.call(str(name), *args)
        except Refused as refusal:
            return BackendRefused(str(refusal), remedy="Look at the key.")

    def entries_after(
        self, key: bytes, after: bytes, count: int = 2**63
    ) -> Sequence[tuple[bytes, Sequence[bytes]]]:
        """Return the entries of a stream after an id, as ``XREAD`` does."""
        stream = self.store.find_as(key, Stream)
        return () if stream is None else stream.after(parse_id(after), count)

    def _client_list(self, ids: Sequence[bytes]) -> bytes:
        if not self.tells_connections:
            raise Refused("NOPERM This user has no permissions to run the 'client|list' command")
        return b"".join(b"id=%d addr=\n" % each for each in map(int, ids) if each in self.connections)


def _raised(reply: Any) -> Any:
    if isinstance(reply, BackendError):
        raise reply
    return reply


def _entries(flat: Sequence[Any]) -> list[tuple[bytes, Sequence[bytes]]]:
    found, at = list[tuple[bytes, Sequence[bytes]]](), 0
    while at < len(flat):
        past = at + 2 + flat[at + 1]
        found.append((flat[at], flat[at + 2 : past]))
        at = past
    return found
