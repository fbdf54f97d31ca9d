"""The connection to Redis: calls with a deadline, scripts, one blocked read at a time.

Nothing is retried here: a call that got no answer raises :class:`BackendUnavailable`, and whoever
knows that it may be done twice does it again, for instance with :func:`retrying`.

All calls go through :meth:`Backend.node_for`, the one place that knows of a single server.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from streamworker.errors import BackendError, BackendRefused, BackendUnavailable, ConfigurationError
from streamworker.redisio.failures import no_answer
from streamworker.redisio.link import (
    Argument,
    Link,
    Node,
    Target,
    answer_of,
    answers_of,
    pack,
    pack_all,
)
from streamworker.redisio.scripts import Script

T = TypeVar("T")

CONNECTIONS = 8
"""Most connections of one backend. Calls are short, so that a few serve a whole worker."""

BLOCK_MARGIN_MS = 1_000
"""A blocked read that has not ended this long after its time has lost its server."""

UNBLOCK_PAUSE_S = 0.005
VERSION_MIN = (7, 0)

ScriptCall = tuple[Sequence[str], Sequence[Argument]]
"""Keys and arguments of one run of a script."""


class Backend:
    """Redis, from one event loop. Make it with :meth:`open`; it connects when it is used.

    Examples
    --------
    >>> async def ping() -> bytes:
    ...     async with Backend.open("redis://localhost:6379/0", name="example") as backend:
    ...         return await backend.execute("PING")
    """

    def __init__(self, node: Node, call_timeout_ms: float) -> None:
        self._node = node
        self._call_timeout_ms = call_timeout_ms

    @classmethod
    def open(
        cls, url: str, *, name: str, call_timeout_ms: float = 2_500, connections: int = CONNECTIONS
    ) -> Self:
        """Make a backend; connects to nothing.

        Parameters
        ----------
        url
            ``redis://``, ``rediss://`` or ``unix://``; never shown.
        name
            Shown in ``CLIENT LIST``.
        call_timeout_ms
            Deadline of each call, with everything in it: waiting for a connection, connecting,
            sending, the answer.
        connections
            The most connections at a time. Those of :meth:`blocking` are not among them.

        Raises
        ------
        ConfigurationError
            If the URL cannot be read.
        """
        return cls(Node(Target(url, name), connections), call_timeout_ms)

    @property
    def address(self) -> str:
        """Host and port, or path of the socket; never a user or password."""
        return self._node.address

    def node_for(self, key: str) -> Node:
        """Return the node that has a key. Every call asks here first."""
        del key  # One server has all of them.
        return self._node

    async def execute(self, *args: Argument, timeout_ms: float | None = None) -> Any:
        """Run one command.

        Raises
        ------
        BackendError
            ``BackendUnavailable`` if there was no answer: it may or may not have been done.
        """
        node = self.node_for(_key_of(args))
        (reply,) = await node.call(pack(args), 1, timeout_ms or self._call_timeout_ms)
        (answer,) = _named([args], answers_of([reply], node.address))
        if isinstance(answer, BackendError):
            raise answer
        return answer

    async def pipeline(
        self, commands: Sequence[Sequence[Argument]], *, timeout_ms: float | None = None
    ) -> list[Any]:
        """Run some commands in one round trip, each for itself.

        Returns
        -------
        list
            A reply for each command; the error for one that was refused.

        Raises
        ------
        BackendUnavailable
            If any answer is missing.
        """
        if not commands:
            return []
        node = self.node_for(_key_of(commands[0]))
        timeout_ms = timeout_ms or self._call_timeout_ms
        replies = await node.call(pack_all(commands), len(commands), timeout_ms)
        return _named(commands, answers_of(replies, node.address))

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Argument],
        timeout_ms: float | None = None,
    ) -> Any:
        """Run a script.

        Raises
        ------
        BackendError
            As :meth:`execute`.
        """
        (reply,) = await self.run_many(script, [(keys, args)], timeout_ms)
        if isinstance(reply, BackendError):
            raise reply
        return reply

    async def run_many(
        self, script: Script, calls: Sequence[ScriptCall], timeout_ms: float | None = None
    ) -> list[Any]:
        """Run a script several times in one round trip, each for itself, in this order.

        Returns
        -------
        list
            A reply for each call; the error for one that was refused.

        Raises
        ------
        BackendUnavailable
            If any answer is missing.
        """
        if not calls:
            return []
        node = self.node_for(calls[0][0][0])
        sha, text = script.sha, script.text
        packed = [(sha, text, pack(("EVALSHA", sha, len(keys), *keys, *args))) for keys, args in calls]
        return answers_of(await node.call_scripts(packed, timeout_ms or self._call_timeout_ms), node.address)

    def blocking(self) -> "BlockingConnection":
        """Return a connection of its own for a read that waits at the server."""
        return BlockingConnection(self)

    async def identity(self) -> tuple[int, str]:
        """Return this connection's client id and the server's run id, by which peers find it.

        Meant for a backend with one connection, or with one call at a time. Asked of the server
        once a connection; ``0`` and ``""`` where it does not tell.
        """
        return await self._node.identity(self._call_timeout_ms)

    async def info(self) -> "ServerInfo":
        """Return what the server says about itself.

        Raises
        ------
        BackendRefused
            If this user may not ask.
        """
        return read_info(await self.execute("INFO"))

    async def time_ms(self) -> int:
        """Return the server's clock in ms, the one that all compared times come from."""
        seconds, micros = await self.execute("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def aclose(self) -> None:
        """Close the connections; calls after this raise."""
        await self._node.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class BlockingConnection:
    """A connection for reads that wait at the server; for one task at a time.

    It comes back by itself: after an error the next call connects anew.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._node = backend.node_for("")
        self._link = Link(self._node.target)
        self._under_way = 0
        """Which call is under way; 0 for none."""
        self._calls = 0
        self._cut = 0
        """The last call that was ended by closing its connection."""

    async def execute(self, *args: Argument, block_ms: int) -> Any:
        """Run one command that may block at the server for ``block_ms``.

        Returns
        -------
        Any
            The reply; None when nothing came, or when :meth:`unblock` ended it.

        Raises
        ------
        BackendUnavailable
            If there was no answer a second after the server should have given one.
        """
        deadline_ms = block_ms + BLOCK_MARGIN_MS
        link = self._link
        self._calls += 1
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await link.ready()
                if link.client_id is None:
                    (number,) = await link.roundtrip(pack(("CLIENT", "ID")), 1)
                    link.client_id = number if isinstance(number, int) else 0
                self._under_way = self._calls
                (reply,) = await link.roundtrip(pack(args), 1)
        except TimeoutError:
            await link.close()
            raise no_answer(self._node.address, deadline_ms) from None
        except BackendUnavailable:
            if self._cut == self._calls:
                return None
            raise
        finally:
            self._under_way = 0
        try:
            return answer_of(reply, self._node.address)
        except BackendUnavailable:
            # UNBLOCKED: the server became a replica; whatever has the address now is to be found.
            await link.close()
            raise

    async def unblock(self) -> None:
        """Wake the call that is under way, if there is one: it returns None at once.

        Does nothing if no call blocks; the next one is not affected.

        Raises
        ------
        BackendError
            If Redis gave no answer. The call under way finds out for itself.
        """
        woken = self._under_way
        while woken and self._under_way == woken:
            try:
                # It may overtake the read on its way to the server, and then wakes nobody.
                if await self._unblock_at_server():
                    return
            except BackendRefused:
                # Not allowed to this user. Cutting the connection costs a new one, but wakes too.
                self._cut = woken
                await self._link.close()
                return
            await asyncio.sleep(UNBLOCK_PAUSE_S)

    async def _unblock_at_server(self) -> bool:
        if not self._link.client_id:
            raise BackendRefused("This user may not ask for CLIENT ID.")
        return bool(await self._backend.execute("CLIENT", "UNBLOCK", self._link.client_id))

    async def aclose(self) -> None:
        """Close the connection."""
        await self._link.close()


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says about itself; None for what it does not tell."""

    version: str
    """Of Redis or of Valkey: Valkey calls itself Redis 7.2.4 besides."""
    is_valkey: bool
    run_id: str
    """New with each start of the server."""
    maxmemory_policy: str | None
    used_memory: int
    maxmemory: int
    """Bytes; 0 for no limit."""
    aof_enabled: bool
    rdb_last_save_ms: int
    role: str
    """``master`` or ``slave``."""
    replicas: int
    """That are connected."""

    @property
    def name(self) -> str:
        """``Valkey 9.1.2``."""
        return f"{'Valkey' if self.is_valkey else 'Redis'} {self.version}"


def read_info(text: bytes) -> ServerInfo:
    """Read the reply to ``INFO``."""
    values: dict[str, str] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values[name] = value
    valkey = values.get("valkey_version")
    return ServerInfo(
        version=valkey or values.get("redis_version", "0.0.0"),
        is_valkey=valkey is not None,
        run_id=values.get("run_id", ""),
        maxmemory_policy=values.get("maxmemory_policy"),
        used_memory=int(values.get("used_memory", 0)),
        maxmemory=int(values.get("maxmemory", 0)),
        aof_enabled=values.get("aof_enabled") == "1",
        rdb_last_save_ms=1000 * int(values.get("rdb_last_save_time", 0)),
        role=values.get("role", ""),
        replicas=int(values.get("connected_slaves", 0)),
    )


def check_server(info: ServerInfo) -> None:
    """Refuse a server that would lose data or lacks what is needed.

    Raises
    ------
    ConfigurationError
        For a version below 7.0, or a policy that evicts: streams and locks have no expiry,
        and an evicting server drops them when memory is full.
    """
    numbers = re.match(r"(\d+)\.(\d+)", info.version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < VERSION_MIN:
        raise ConfigurationError(
            f"The server is {info.name}.", remedy="Redis 7.0 or Valkey 8.0, or later, is needed."
        )
    policy = info.maxmemory_policy
    if policy is not None and policy.startswith(("allkeys-", "volatile-")):
        raise ConfigurationError(
            f"The server's maxmemory-policy is {policy}: it drops keys when memory is full, and streams, "
            "locks and checkpoints with them.",
            remedy="Set maxmemory-policy noeviction.",
        )


async def retrying(
    call: Callable[[], Awaitable[T]],
    *,
    rng: random.Random,
    tries: int = 5,
    pause_ms: float = 50,
    pause_max_ms: float = 1_000,
) -> T:
    """Make a call again while it gets no answer. Only for calls that may be done twice.

    Reads may; so may register, acquire, release, mark, commit, trim, and an append with its
    number. Pauses double, and each is shortened at random by up to a half, so that many workers
    do not come back in step.

    Raises
    ------
    BackendUnavailable
        The last one, when all tries got no answer.
    BackendRefused
        At once.
    """
    for left in reversed(range(tries)):
        try:
            return await call()
        except BackendUnavailable:
            if not left:
                raise
        await asyncio.sleep(pause_ms * (1 - rng.random() / 2) / 1000)
        pause_ms = min(2 * pause_ms, pause_max_ms)
    raise ConfigurationError(f"retrying() was asked for {tries} tries.", remedy="Ask for one at least.")


def _named(commands: Sequence[Sequence[Argument]], answers: Sequence[Any]) -> list[Any]:
    """Return the answers; where a key holds another type, which the server does not name, we do."""
    return [
        BackendRefused(f"{answer.message.rstrip('.')}: {_key_of(command)}.", remedy=answer.remedy)
        if isinstance(answer, BackendRefused) and "WRONGTYPE" in answer.message
        else answer
        for command, answer in zip(commands, answers, strict=True)
    ]


def _key_of(args: Sequence[Argument]) -> str:
    return str(args[1]) if len(args) > 1 else ""
