"""One connection to Redis: its target, its login, and one round trip.

A round trip that does not complete closes its connection, so that a late reply is never taken for the reply
to another command.
"""

import asyncio
import os
from collections.abc import Sequence
from copy import copy
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from hiredis import pack_command
from redis.credentials import CredentialProvider
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from streamworker.core.text import in_words
from streamworker.errors import BackendError, BackendUnavailable, ConfigurationError
from streamworker.redisio.wire.attempts import ConnectAttempts, gate_of
from streamworker.redisio.wire.failures import tls_remedy, translate
from streamworker.redisio.wire.redispy import CONNECT_TIMEOUT_S, Reply, Socket, parse_url
from streamworker.urls import Credentials

IDLE_S = 0.1
"""A connection that was idle for this long may have been closed unnoticed, because the event loop was
blocked or has not handled the event yet."""

_URL_REMEDY = (
    "It is redis://user:password@host:port/db, rediss:// for TLS, or unix:///path?db=0&password=...; "
    "characters such as / # @ in a password are percent-encoded."
)
_URL_OPTIONS = frozenset({"db", "username", "password", "socket_keepalive"})
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

Argument = str | bytes | int


class Endpoint:
    """The address and login of Redis: a URL, parsed and checked without connecting.

    The ``ConfigurationError`` for an invalid URL has no part of the URL but an unsupported option's name.
    """

    credentials: Credentials | None = None
    """Where each new connection gets its user and password from, in place of the URL: tokens that expire."""
    moves = False
    """Whether a new connection may lead to another server than the last one did."""

    def __init__(self, url: str, name: str) -> None:
        try:
            given: dict[str, Any] = dict(parse_url(url))
            query = parse_qs(urlsplit(url).query)
        except ValueError:
            # urllib's message quotes the part that it could not parse, which may be the password.
            raise ConfigurationError("The URL of Redis cannot be read.", remedy=_URL_REMEDY) from None
        for option in query:
            if option not in _URL_OPTIONS and not option.startswith("ssl_"):
                raise ConfigurationError(
                    f"The URL of Redis has the option {option!r}, which streamworker does not take.",
                    remedy="Leave it out; timeouts are settings: see help(streamworker.Settings).",
                )
        for option in _FILES:
            if option in given and not os.access(str(given[option]), os.R_OK):
                raise ConfigurationError(
                    f"The file of {option} in the URL of Redis cannot be read: {given[option]}.",
                    remedy="Correct the path, or let this user read the file.",
                )
        self.is_encrypted = url.lower().startswith("rediss:")
        self.database = int(given.pop("db", 0))
        user, password = given.pop("username", ""), given.pop("password", "")
        self.login: tuple[str, ...] = (user, password) if user else (password,) if password else ()
        """Arguments of ``AUTH``, if it is needed."""
        # CLIENT SETNAME refuses other characters.
        self._name = "".join(c if "!" <= c <= "~" else "-" for c in name)
        self._options = given
        self.address = str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")
        """Host and port, or path of the socket; for messages."""
        try:
            self.socket()
        except (TypeError, ValueError, RedisError):
            raise ConfigurationError(
                "An ssl_ option in the URL of Redis is unknown or has a wrong value.", remedy=_URL_REMEDY
            ) from None
        self._gate = self._gate_at(self.address)

    def at(self, host: str, port: int) -> "Endpoint":
        """Return a target for another server with the same login and options.

        >>> Endpoint("redis://:secret@db1.example:7000", "t").at("db2.example", 7001).address
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

    def socket(self) -> Socket:
        """Return a new, unconnected socket."""
        return Socket(self._options)

    async def connect(self, socket: Socket, *, waits: bool = True) -> None:
        """Connect a socket of this target and log in, when the gate allows an attempt; see ``attempts``."""

        async def attempt() -> None:
            try:
                await socket.open()
                await self._greet(socket)
            except BaseException as error:
                await socket.hang_up()
                if isinstance(error, RedisError | OSError):
                    raise self.refusal(error) from None
                raise

        await self._gate.through(attempt, waits=waits)

    async def _greet(self, socket: Socket) -> None:
        """Log in and set the client's name in one round trip; redis-py takes one for each of three steps."""
        login = self.login if self.credentials is None else await self._asked_for(self.credentials)
        needed: list[Sequence[Argument]] = [("AUTH", *login)] if login else []
        if self.database:
            needed.append(("SELECT", self.database))
        # These two only decorate CLIENT LIST: a managed server may lack CLIENT, and a user the right.
        names = (("CLIENT", "SETNAME", self._name), ("CLIENT", "SETINFO", "LIB-NAME", "redis-py"))
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.sleep(0)
                if await socket.can_read():
                    # A server at its client limit sends an error and closes; a write would lose that error.
                    await socket.reply()
                await socket.write(pack_all([*needed, *names]))
                for _ in needed:
                    await socket.reply()
                await socket.replies(len(names))
        except TimeoutError:
            raise RedisTimeoutError(f"it did not let us in within {CONNECT_TIMEOUT_S:.0f} s") from None

    async def _asked_for(self, provider: Credentials) -> Sequence[str]:
        try:
            ask = getattr(type(provider), "get_credentials_async", None)
            if ask in (None, CredentialProvider.get_credentials_async):
                return await asyncio.to_thread(provider.get_credentials)  # it may wait for a service
            return cast(tuple[str, ...], await ask(provider))
        except Exception as error:  # noqa: BLE001 - whatever the provider raises
            raise BackendUnavailable(
                f"Redis at {self.address} cannot be reached: the credential provider failed: "
                f"{in_words(error)}.",
                remedy="Every new connection asks it again.",
            ) from None

    def gate(self, socket: Socket) -> ConnectAttempts:
        """Return the gate through which a socket was connected."""
        del socket
        return self._gate

    @property
    def unreachable(self) -> BackendUnavailable | None:
        """The error of the last attempt to connect, if it failed."""
        return self._gate.error

    def _gate_at(self, address: str) -> ConnectAttempts:
        # The options are hashed, so that the gate keeps no password.
        tls = sorted((name, value) for name, value in self._options.items() if name.startswith("ssl_"))
        return gate_of((address, self.is_encrypted, hash(repr((self.login, tls)))))

    def leads_here(self, socket: Socket) -> bool:
        """Whether a socket leads to the same server as a new one would."""
        del socket
        return True

    async def aclose(self) -> None:
        """Stop the target's background work, if it has any."""

    def refusal(self, error: BaseException) -> BackendError:
        """Return the :class:`BackendError` for an exception that ended an attempt to connect."""
        ours = translate(error, self.address)
        if isinstance(ours, BackendUnavailable):
            certified = "ssl_certfile" in self._options
            remedy = tls_remedy(ours.message, tls=self.is_encrypted, certified=certified)
            ours.remedy = remedy or ours.remedy
        return ours


class Link:
    """One connection, used by one caller at a time; its first use connects.

    Network errors raise :class:`BackendError` and close the connection; error replies are returned.
    """

    def __init__(self, target: Endpoint) -> None:
        self._target = target
        self._socket = target.socket()
        self.client_id: int | None = None
        """The client id of the connection, if it was requested."""
        self.run_id: str | None = None
        self.used_s = 0.0
        """Time of the last use, by the event loop's clock."""

    async def ready(self, *, waits: bool = True) -> None:
        """Connect, unless the link has a working connection."""
        try:
            if self._socket.is_open:
                if asyncio.get_running_loop().time() - self.used_s > IDLE_S:
                    for _ in range(2):  # The loop polls in one turn and handles events in the next.
                        await asyncio.sleep(0)
                if self._target.leads_here(self._socket):
                    # If there is something to read, the server has closed the connection or sent an
                    # unsolicited reply; in both cases the connection must not be used.
                    if not await self._socket.can_read():
                        return
                    self._target.gate(self._socket).doubt()
                await self.close()
        except (RedisError, OSError) as error:
            raise self._target.refusal(error) from None
        self.client_id = self.run_id = None
        await self._target.connect(self._socket, waits=waits)

    async def roundtrip(self, packed: bytes, replies: int) -> list[Reply]:
        """Send packed commands and return their replies, error replies included."""
        try:
            await self._socket.write(packed)
            answers = await self._socket.replies(replies)
            demoted = next((each for each in answers if isinstance(each, ReadOnlyError)), None)
        except (RedisError, OSError) as error:
            self._target.gate(self._socket).doubt()
            await self.close()
            raise translate(error, self._target.address) from None
        except BaseException:
            await self.close()
            raise
        self.used_s = asyncio.get_running_loop().time()
        if demoted is not None:
            # A new connection finds the server that has the address now, or the new primary.
            await self.close()
            if self._target.moves:
                raise BackendUnavailable(
                    f"Redis at {self._target.address} has become a replica.",
                    remedy="The next call goes to the new primary.",
                )
        return answers

    async def close(self) -> None:
        """Close the socket without waiting for the other end."""
        await self._socket.hang_up()


async def ask(target: Endpoint, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
    """Make one round trip on a connection of its own; fail at once while the target cannot be reached."""
    link = Link(target)
    try:
        await link.ready(waits=False)
        return await link.roundtrip(pack_all(commands), len(commands))
    finally:
        await link.close()


def pack(arguments: Sequence[Argument]) -> bytes:
    """Return a command in Redis' protocol."""
    # The stub of pack_command allows only one word.
    try:
        return cast(bytes, pack_command(tuple(arguments)))  # type: ignore[arg-type]
    except UnicodeEncodeError:  # Text of others. Keys and records are checked where they are made.
        escaped = [a.encode("utf-8", "backslashreplace") if isinstance(a, str) else a for a in arguments]
        return cast(bytes, pack_command(tuple(escaped)))  # type: ignore[arg-type]


def pack_all(commands: Sequence[Sequence[Argument]]) -> bytes:
    """Return several commands in Redis' protocol, concatenated."""
    return b"".join([pack(command) for command in commands])


def answers_of(replies: Sequence[Reply], address: str) -> list[Reply | BackendError]:
    """Return replies, with errors translated to :class:`BackendError`."""
    return [translate(reply, address) if isinstance(reply, Exception) else reply for reply in replies]
