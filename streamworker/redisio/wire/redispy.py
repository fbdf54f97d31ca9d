"""A socket to a server, made by redis-py: the only module that uses redis-py's connection.

It takes redis-py's URLs, TCP, TLS, unix sockets and parser, and nothing else of it. redis-py's own client
retries every command as if all were safe to repeat, waits 59 s for a hanging server, and loses cancellations
on Python 3.11 if it has a socket timeout. Here a socket has no timeout of its own once it is connected: the
caller sets one for the whole round trip. redis-py knows no user, database or name, so it sends nothing.

``_reader``, ``_writer`` and the parser's ``_reader`` are private to redis-py, so ``pyproject.toml`` allows
only versions that were tried. tests/redisio/test_redispy.py fails without any of them. See
docs/decisions/0039.
"""

from typing import Any, cast

from hiredis import Reader
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

__all__ = ["ResponseError", "Socket", "parse_url"]

RECEIVED_BYTES_MAX = 64 * 1024
"""Bytes that the parser takes in one step."""

CONNECT_TIMEOUT_S = 2.0
"""Timeout for the socket, and again for the login. The caller's own timeout may be shorter."""

Reply = Any


class Socket:
    """One connection, which its owner opens, logs in and closes; errors are redis-py's, or ``OSError``.

    Its options are what :func:`parse_url` has found, without what the login needs. An unknown or wrong one
    raises ``TypeError``, ``ValueError`` or ``RedisError``.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        make = cast(type[AbstractConnection], options.get("connection_class", Connection))
        self._connection = make(
            **{name: value for name, value in options.items() if name != "connection_class"},
            socket_timeout=None,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            driver_info=None,
        )
        self._nothing: object = None
        """What the parser returns if it has no whole reply."""

    @property
    def host_port(self) -> tuple[str, int]:
        """Host and port; not for a unix socket."""
        return self._connection.host, self._connection.port  # type: ignore[attr-defined]

    @host_port.setter
    def host_port(self, host_port: tuple[str, int]) -> None:
        self._connection.host, self._connection.port = host_port  # type: ignore[attr-defined]

    @property
    def is_open(self) -> bool:
        """Whether it is connected; the server may have closed the other end."""
        return bool(self._connection.is_connected)

    async def open(self) -> None:
        """Connect, without a login."""
        await self._connection.connect()  # type: ignore[no-untyped-call]
        self._nothing = self._parser.gets()

    async def can_read(self) -> bool:
        """Whether there is something to read, or the server has closed the connection."""
        return bool(await self._connection.can_read())

    async def write(self, packed: bytes) -> None:
        """Send packed commands.

        Whether the connection was lost is checked first: once the event loop has noticed the loss, a write
        raises other errors, which are ``RuntimeError`` in uvloop, and ``AttributeError`` or ``TypeError`` in
        asyncio from Python 3.12 on.
        """
        # redis-py's own way connects again, without a login; and if it is cancelled, it closes in good order.
        writer = self._connection._writer  # noqa: SLF001
        if writer is None or writer.transport.is_closing():
            raise RedisConnectionError("the other end hung up")
        writer.write(packed)
        await writer.drain()

    async def reply(self) -> Reply:
        """Return the next reply; raise it if it is an error reply."""
        (reply,) = await self.replies(1)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def replies(self, count: int) -> list[Reply]:
        """Return the next replies, error replies included.

        The parser has already most of the hundreds of replies to a pipeline of commits; awaiting each took
        four times as long, and redis-py's own way to a single one is a quarter of a round trip.
        """
        found: list[Reply] = []
        parser, stream = self._parser, self._connection._reader  # noqa: SLF001
        while True:
            while (reply := parser.gets()) is not self._nothing:
                # The server is loading or shutting down, and accepts no commands on this connection.
                first = reply[0] if isinstance(reply, list) and reply else reply
                if isinstance(first, RedisConnectionError):
                    raise first
                found.append(reply)
                if len(found) == count:
                    return found
            if stream is None or not (received := await stream.read(RECEIVED_BYTES_MAX)):
                raise RedisConnectionError("the other end hung up")
            parser.feed(received)

    @property
    def _parser(self) -> Reader:
        return cast(Reader, self._connection._parser._reader)  # type: ignore[attr-defined]  # noqa: SLF001

    async def hang_up(self) -> None:
        """Close the socket without waiting for the other end.

        An orderly close of TLS waits up to 30 s for the other end, for instance for a hanging server.
        """
        writer = self._connection._writer  # noqa: SLF001 - redis-py's disconnect knows no other way
        if writer is not None:
            writer.transport.abort()
        await self._connection.disconnect(nowait=True)
