"""What fakeredis lacks for a worker. It is imported only where a server in memory is made.

It overrides four methods and a function of fakeredis that are private to it, and the clock of four of its
modules.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import hiredis
import lupa  # noqa: F401 - without it fakeredis can be imported, and runs no scripts
from fakeredis import FakeServer, _helpers
from fakeredis._socket import _base
from fakeredis.aioredis import AsyncFakeSocket
from fakeredis.commands_mixins import scripting_mixin, server_mixin
from fakeredis.model import _stream

from streamworker.redisio.scripts import HEARTBEAT
from streamworker.runtime.clock import CLOCK

# The module ``time`` for fakeredis, which has no clock of its own. A virtual clock sets ``wall_s`` later.
_TIME = SimpleNamespace(**{**vars(time), "time": lambda: CLOCK.wall_s()})  # noqa: PLW0108
for _module in (_stream, _helpers, _base, server_mixin):
    _module.time = _TIME  # type: ignore[attr-defined]

# fakeredis looks through all globals at each call of a script. Redis allows a script none, and the tests on a
# real server show that ours set none.
scripting_mixin._check_for_lua_globals = lambda *_: None  # noqa: SLF001

VERSION = (7, 0)
"""Redis 7.0, the oldest that streamworker works with."""
READS = frozenset(
    b"CLIENT EXISTS GET HELLO HGET HGETALL HLEN HMGET INFO TIME".split()
    + b"XINFO XLEN XRANGE XREAD XREVRANGE ZCOUNT".split()
)
"""The commands of an idle worker and of who looks at it."""


class Server(FakeServer):
    """A server and its data."""

    def __init__(self) -> None:
        super().__init__(version=VERSION, server_type="redis")
        self.changes = 0
        """How many commands may have changed data, without heartbeats."""

    def connect(self, name: str) -> "FakeSocket":
        """Return a new connection of the running event loop, with its name in ``CLIENT LIST``."""
        return FakeSocket(self, 0, client_class=object, client_info={"name": name})


class _Runtime:
    """Lua for fakeredis, which by itself compiles a script and collects garbage at each call."""

    def __init__(self, lua: Any) -> None:
        self._lua = lua
        self._compiled: dict[bytes | str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lua, name)

    def execute(self, script: bytes | str) -> Any:
        """Run a script; it is compiled once."""
        if script == "collectgarbage()":
            return None  # Lua does so when it has to.
        if script not in self._compiled:
            self._compiled[script] = self._lua.compile(script)
        return self._compiled[script]()


class FakeSocket(AsyncFakeSocket):
    """A client's end at the server, with what fakeredis lacks."""

    _reading: asyncio.Task[None] | None = None
    """The blocking read that waits for entries."""

    def _parse_commands(self) -> Generator[None, bytes, None]:
        """Run the commands that are sent here; fakeredis copies what is left of them at each field."""
        reader = hiredis.Reader()
        while True:
            reader.feed((yield))
            while not self._paused and (fields := reader.gets()) is not False:
                self._process_command(fields)

    def _process_command(self, fields: list[bytes]) -> None:
        """Answer ``INFO``, which fakeredis does not know, and count what may change data."""
        if fields[0].upper() not in READS and fields[1:2] != [HEARTBEAT.sha.encode()]:
            self._server.changes += 1  # type: ignore[attr-defined]
        if fields[0].upper() != b"INFO":
            super()._process_command(fields)
            return
        told = {
            "redis_version": ".".join(map(str, (*VERSION, 0))),
            "run_id": f"{id(self._server):x}",
            "role": "master",
            "maxmemory_policy": "noeviction",
            "blocked_clients": sum(each._blocked for each in self._server.sockets),  # noqa: SLF001
        }
        self.put_response("".join(f"{name}:{value}\r\n" for name, value in told.items()).encode())

    def _get_server_runtime(self, server: Any) -> Any:
        runtime = super()._get_server_runtime(server)
        if not isinstance(runtime, _Runtime):
            server._lua_runtime = runtime = _Runtime(runtime)  # noqa: SLF001
        return runtime

    async def _async_blocking(
        self, timeout: Any, func: Any, event: asyncio.Event, callback: Callable[[], None], *args: Any
    ) -> None:
        """Wait for entries, in a task of its own that is known here."""
        self._reading = asyncio.current_task()

        def changed() -> None:
            """Wake the reader; only from another thread through a socket of its event loop."""
            if threading.get_ident() == self._loop_thread_ident:
                event.set()
            else:
                callback()

        self._db.remove_change_callback(callback)
        self._db.add_change_callback(changed)
        await super()._async_blocking(timeout, func, event, changed, *args)

    def hang_up(self) -> None:
        """Close the socket, after the read that waits: fakeredis would let it wait, and fail at its end."""
        if self._reading is None or self._reading.done():
            self.close()
        else:
            self._reading.add_done_callback(lambda _: self.close())
            self._reading.cancel()
