"""One connection to Redis: where it goes, how it gets in, and one round trip.

redis-py brings the socket, TLS, the handshake and the parser; nothing else of it is used. Its
own client retries every command as if each could be done twice, waits 59 s for a server that
hangs, and loses cancellations on Python 3.11 where it has a socket timeout. Here a connection
has no timeout of its own: whoever calls sets one deadline around the whole round trip, and a
round trip that does not end, for whatever reason, closes its connection, so that a late reply
can never be taken for the reply to something else.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from copy import copy
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from hiredis import Reader, pack_command
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from streamworker.errors import BackendError, BackendUnavailable, ConfigurationError
from streamworker.redisio.attempts import Gate, gate_of
from streamworker.redisio.failures import tls_remedy, translate

try:
    from redis._parsers.hiredis import NOT_ENOUGH_DATA
except ImportError:  # It is redis-py's own; without it each reply is waited for.
    NOT_ENOUGH_DATA = None

CONNECT_TIMEOUT_S = 2.0
"""For a socket, and as long again for being let in. Whoever needs a connection may have less time."""

IDLE_S = 0.1
"""A connection that was not used for this long may have been closed without our having noticed: the
event loop was blocked, or has not come round yet."""

_URL_REMEDY = (
    "It is redis://user:password@host:port/db, rediss:// for TLS, or unix:///path?db=0&password=...; "
    "characters such as / # @ in a password are percent-encoded."
)
_URL_OPTIONS = frozenset({"db", "username", "password", "socket_keepalive"})
_LOGIN = ("username", "password")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

Argument = str | bytes | int
Reply = Any


class Target:
    """Where Redis is and how to get in: a URL, read and checked without connecting.

    Parameters
    ----------
    url
        ``redis://``, ``rediss://`` or ``unix://``. Options for TLS begin with ``ssl_``.
    name
        Shown in ``CLIENT LIST``.

    Raises
    ------
    ConfigurationError
        For a URL that cannot be read, or with an option that is not ours to pass on. The text
        holds no part of the URL but the option's name.
    """

    def __init__(self, url: str, name: str) -> None:
        try:
            given = dict(parse_url(url))
            query = parse_qs(urlsplit(url).query)
        except ValueError:
            # urllib quotes the part that it did not understand, which may be the password.
            raise ConfigurationError("The URL of Redis cannot be read.", remedy=_URL_REMEDY) from None
        for option in query:
            if option not in _URL_OPTIONS and not option.startswith("ssl_"):
                raise ConfigurationError(
                    f"The URL of Redis has the option {option!r}, which streamworker does not take.",
                    remedy="Leave it out; timeouts and connections are settings, see docs/settings.md.",
                )
        for option in _FILES:
            if option in given and not os.access(str(given[option]), os.R_OK):
                raise ConfigurationError(
                    f"The file of {option} in the URL of Redis cannot be read: {given[option]}.",
                    remedy="Correct the path, or let this user read the file.",
                )
        made = given.pop("connection_class", Connection)
        made = _UnixConnection if made is UnixDomainSocketConnection else made
        self._make = cast(type[AbstractConnection], made)
        self._options: dict[str, Any] = {
            **given,
            "client_name": _safe_client_name(name),
            "socket_timeout": None,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "redis_connect_func": _greet,
            "retry": Retry(NoBackoff(), 0),
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
            "protocol": 2,
        }
        self.address = str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")
        """Host and port, or path of the socket; for messages."""
        try:
            self.connection()
        except (TypeError, ValueError, RedisError):
            raise ConfigurationError(
                "An ssl_ option in the URL of Redis is unknown or has a wrong value.", remedy=_URL_REMEDY
            ) from None
        self._gate = self._gate_at(self.address)

    def at(self, host: str, port: int) -> "Target":
        """Return another server that is got into in the same way.

        Examples
        --------
        >>> Target("redis://:secret@db1.example:7000", "t").at("db2.example", 7001).address
        'db2.example:7001'
        """
        other = copy(self)
        other._options = {**self._options, "host": host, "port": port}  # noqa: SLF001 - of our own kind
        other.address = f"{host}:{port}"
        other._gate = other._gate_at(other.address)  # noqa: SLF001
        return other

    @property
    def host(self) -> str:
        """The host; empty for a unix socket."""
        return "" if "path" in self._options else str(self._options.get("host", "localhost"))

    @property
    def database(self) -> int:
        """The number of the database that the URL names."""
        return int(self._options.get("db") or 0)

    @property
    def is_encrypted(self) -> bool:
        """Whether it is spoken to by TLS."""
        return issubclass(self._make, SSLConnection)

    def connection(self) -> AbstractConnection:
        """Return a new connection that is not connected yet."""
        return self._make(**self._options)

    async def connect(self, connection: AbstractConnection, *, waits: bool = True) -> None:
        """Connect a connection of this target, when there may be an attempt.

        Parameters
        ----------
        waits
            As for :meth:`Gate.through`.

        Raises
        ------
        BackendError
            If it could not connect, or was not let in.
        """
        await self._through(self._gate, connection, waits=waits)

    async def _through(self, gate: Gate, connection: AbstractConnection, *, waits: bool) -> None:
        async def attempt() -> None:
            try:
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
            except (RedisError, OSError) as error:
                raise self.refusal(error) from None

        await gate.through(attempt, waits=waits)

    def gate(self, connection: AbstractConnection) -> Gate:
        """Return the gate through which a connection was made."""
        del connection
        return self._gate

    @property
    def unreachable(self) -> BackendUnavailable | None:
        """Why no connection can be made, if the last attempt failed."""
        return self._gate.error

    def _gate_at(self, address: str) -> Gate:
        # Hashed, so that it keeps no password.
        names = [name for name in sorted(self._options) if name in _LOGIN or name.startswith("ssl_")]
        way = hash(repr([(name, self._options[name]) for name in names]))
        return gate_of((address, self.is_encrypted, way))

    def leads_here(self, connection: AbstractConnection) -> bool:
        """Whether a connection still leads to where a new one would."""
        del connection
        return True

    @property
    def moves(self) -> bool:
        """Whether a new connection may lead to another server than the last one."""
        return False

    async def aclose(self) -> None:
        """End what runs beside the connections, if anything does."""

    def refusal(self, error: BaseException) -> BackendError:
        """Return the error of ours for one that ended an attempt to connect."""
        ours = translate(error, self.address)
        if isinstance(ours, BackendUnavailable):
            certified = "ssl_certfile" in self._options
            tls = self.is_encrypted
            ours.remedy = tls_remedy(ours.message, tls=tls, certified=certified) or ours.remedy
        return ours


class _UnixConnection(UnixDomainSocketConnection):
    """redis-py greets twice by a unix socket, the first time here."""

    async def on_connect(self) -> None:
        pass


async def _greet(connection: AbstractConnection) -> None:
    """Log in and say who we are, in one round trip: redis-py takes one for each of three steps.

    Raises
    ------
    RedisError
        If the server does not let us in, or takes too long to do so.
    """
    connection._parser.on_connect(connection)  # type: ignore[no-untyped-call]  # noqa: SLF001 - as redis-py does
    password = connection.password or ""
    needed: list[Sequence[Argument]] = []
    if connection.username:
        needed.append(("AUTH", connection.username, password))
    elif password:
        needed.append(("AUTH", password))
    needed.append(("CLIENT", "SETNAME", str(connection.client_name)))
    if connection.db:
        needed.append(("SELECT", connection.db))
    library = ("CLIENT", "SETINFO", "LIB-NAME", "redis-py")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.sleep(0)
            if await connection.can_read():
                # A server without room says so and hangs up; to write to it would lose what it said.
                await connection.read_response()
            await write(connection, pack_all([*needed, library]))
            for _ in needed:
                await connection.read_response()
            with contextlib.suppress(ResponseError):  # An older server, or a user without that right.
                await connection.read_response()
            return
    await hang_up(connection)
    raise RedisTimeoutError(f"it did not let us in within {CONNECT_TIMEOUT_S:.0f} s")


async def write(connection: AbstractConnection, packed: bytes) -> None:
    """Send packed commands.

    Raises
    ------
    RedisError
        If the other end has hung up. uvloop says so by a ``RuntimeError`` of its own where it has noticed
        already, asyncio by an ``OSError``.
    """
    try:
        await connection.send_packed_command(packed, check_health=False)
    except RuntimeError as error:
        raise RedisConnectionError(f"the other end hung up: {error}") from error


async def hang_up(connection: AbstractConnection) -> None:
    """Close a connection's socket without waiting for the other end.

    To close TLS is to say farewell, and to wait up to 30 s for the answer: that of a server that hangs.
    """
    writer = connection._writer  # noqa: SLF001 - redis-py's disconnect knows no other way
    if writer is not None:
        writer.transport.abort()
    await connection.disconnect(nowait=True)


def _safe_client_name(name: str) -> str:
    """Return the name with what CLIENT SETNAME does not take replaced."""
    return "".join(c if "!" <= c <= "~" else "-" for c in name)


class Link:
    """One connection, used by one caller at a time; connects when it is used.

    Errors of the network raise :class:`BackendError` and close it; error replies are returned.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection = target.connection()
        self.client_id: int | None = None
        """Its number at the server, if that was asked for."""
        self.run_id: str | None = None
        self.used_s = 0.0
        """When it was used last, by the event loop's clock."""

    @property
    def connected(self) -> bool:
        """Whether there is a socket; the server may have closed its end."""
        return bool(self._connection.is_connected)

    async def ready(self, *, waits: bool = True) -> None:
        """Connect, unless it is connected to a server that is still there.

        Parameters
        ----------
        waits
            As for :meth:`Gate.through`.

        Raises
        ------
        BackendError
            If it cannot connect, or is not let in.
        """
        try:
            if self.connected:
                if asyncio.get_running_loop().time() - self.used_s > IDLE_S:
                    for _ in range(2):  # One turn of the loop to look, one to take in what is seen.
                        await asyncio.sleep(0)
                if self._target.leads_here(self._connection):
                    # Anything there to read means that the server closed it, or said something that
                    # nobody asked for: either way it is not to be used.
                    if not await self._connection.can_read():
                        return
                    self._target.gate(self._connection).doubt()
                await self.close()
        except (RedisError, OSError) as error:
            raise self._target.refusal(error) from None
        self.client_id = self.run_id = None
        await self._target.connect(self._connection, waits=waits)

    async def roundtrip(self, packed: bytes, replies: int) -> list[Reply]:
        """Send packed commands and return as many replies; error replies are among them."""
        connection = self._connection
        answers: list[Reply] = []
        try:
            await write(connection, packed)
            while len(answers) < replies:
                try:
                    answers.append(await connection.read_response())
                except ResponseError as error:
                    answers.append(error)
                answers += self._arrived(replies - len(answers))
            demoted = next((each for each in answers if isinstance(each, ReadOnlyError)), None)
        except (RedisError, OSError) as error:
            self._target.gate(connection).doubt()
            await self.close()
            raise translate(error, self._target.address) from None
        except BaseException:
            await self.close()
            raise
        self.used_s = asyncio.get_running_loop().time()
        if demoted is not None:
            # Whatever has the address now, or whoever is the primary now, a new connection finds.
            await self.close()
            if self._target.moves:
                raise BackendUnavailable(
                    f"Redis at {self._target.address} has become a replica.",
                    remedy="The next call goes to the new primary.",
                )
        return answers

    def _arrived(self, count: int) -> list[Reply]:
        """Return replies that came along with the one before, as redis-py's parser makes them.

        A pipeline of commits has hundreds, and to wait for each took four times as long as to take it.
        """
        reader = getattr(getattr(self._connection, "_parser", None), "_reader", None)
        if NOT_ENOUGH_DATA is None or not isinstance(reader, Reader):
            return []
        found: list[Reply] = []
        while len(found) < count and (reply := reader.gets()) is not NOT_ENOUGH_DATA:
            # Loading, or about to end: the server takes nothing on this connection.
            first = reply[0] if isinstance(reply, list) and reply else reply
            if isinstance(first, RedisConnectionError):
                raise first
            found.append(reply)
        return found

    async def close(self) -> None:
        """Close the socket without waiting for the other end."""
        await hang_up(self._connection)


def pack(arguments: Sequence[Argument]) -> bytes:
    """Return a command in Redis' protocol."""
    # Its stub says that a command has one word.
    return cast(bytes, pack_command(tuple(arguments)))  # type: ignore[arg-type]


def pack_all(commands: Sequence[Sequence[Argument]]) -> bytes:
    """Return some commands, one behind the other."""
    return b"".join([pack(command) for command in commands])


def answer_of(reply: Reply, address: str) -> Reply:
    """Return a reply, or raise it if it is an error reply."""
    if isinstance(reply, Exception):
        raise reply if isinstance(reply, BackendError) else translate(reply, address)
    return reply


def answers_of(replies: Sequence[Reply], address: str) -> list[Reply | BackendError]:
    """Return replies with the errors among them as ours."""
    return [translate(reply, address) if isinstance(reply, Exception) else reply for reply in replies]
