"""A Redis server in the memory of this process, for tests: no other process, no port.

``fakeredis`` runs the commands and the Lua scripts. A worker reaches it through the connection pool that it
uses for a real server; only the socket is another one. So calls, scripts, deadlines and blocking reads take
the same code. tests/fundamentals and tests/testing run on this server and on a real one with equal results.
"""

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Self

from streamworker.errors import ConfigurationError
from streamworker.redisio.wire import redispy
from streamworker.redisio.wire.link import Endpoint
from streamworker.redisio.wire.sentinel import OTHER_TARGETS

if TYPE_CHECKING:
    from streamworker.testing.fake import FakeSocket, Server

SCHEME = "memory"

_servers: "dict[str, Server]" = {}
"""The servers that run, by the URL that leads to them."""


class MemoryServer:
    """A server in the memory of this process; it ends with the block, and its data with it.

    ``local_worker`` makes one for its app. Make one by hand to share it between apps, or to send before a
    worker starts. Threads of this process reach it, other processes do not; so Spark needs an
    ``EmbeddedServer``. It has no disk, no replicas and no password.

    Raises
    ------
    ConfigurationError
        If fakeredis or its Lua is not installed.

    Examples
    --------
    >>> with MemoryServer() as server:
    ...     server.url.partition(":")[0]
    'memory'
    """

    def __init__(self) -> None:
        try:
            from streamworker.testing.fake import Server
        except ImportError:
            raise ConfigurationError(
                "A server in memory needs fakeredis with Lua, and it is not installed.",
                remedy="pip install 'streamworker[testing]'; or name a real server: local_worker(app, url=).",
            ) from None
        self._server = Server()
        self.url: str = f"{SCHEME}://{secrets.token_hex(4)}"
        """Leads to it in this process: ``App("shop", redis_url=server.url)``."""

    def __enter__(self) -> Self:
        _servers[self.url] = self._server
        return self

    def __exit__(self, *_: object) -> None:
        _servers.pop(self.url, None)


def is_in_memory(url: str) -> bool:
    """Whether a URL leads to a server in memory."""
    return url.startswith(f"{SCHEME}://")


def changes_at(url: str) -> int:
    """Return how many commands may have changed the data of a server in memory, without heartbeats."""
    return _servers[url].changes


class _Target(Endpoint):
    """The server in memory that a URL names."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(f"unix:///{url.partition('://')[2]}", name)
        self.address = url

    def socket(self) -> "_MemorySocket":
        return _MemorySocket(self.address, str(self._name))


class _MemorySocket(redispy.Socket):
    """A socket to a server in memory, without bytes on a wire."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._end: FakeSocket | None = None

    @property
    def is_open(self) -> bool:
        return self._end is not None

    async def open(self) -> None:
        server = _servers.get(self._url)
        if server is None:
            raise ConnectionRefusedError("the server in memory has ended")
        self._end = server.connect(self._name)

    async def can_read(self) -> bool:
        """Return false: this server sends nothing unasked, and closes no connection."""
        return False

    async def write(self, packed: bytes) -> None:
        if self._end is None or self._url not in _servers:
            raise ConnectionResetError("the server in memory has ended")
        self._end.sendall(packed)
        # A real call always waits for the network, and other tasks run meanwhile.
        await asyncio.sleep(0)

    async def reply(self) -> Any:
        if self._end is None:
            raise ConnectionResetError("the connection was closed")
        answers = self._end.responses
        reply = await answers.get() if answers.empty() else answers.get_nowait()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def replies(self, count: int) -> list[Any]:
        found: list[Any] = []
        for _ in range(count):
            try:
                found.append(await self.reply())
            except redispy.ResponseError as error:
                found.append(error)
        return found

    async def hang_up(self) -> None:
        if self._end is not None:
            end, self._end = self._end, None
            end.hang_up()


OTHER_TARGETS[SCHEME] = _Target
