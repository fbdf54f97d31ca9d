"""The connection to Redis: calls with a deadline, scripts, and blocking reads.

This module retries nothing: a call without an answer raises :class:`BackendUnavailable`. A caller that
knows that the call is safe to repeat retries it, for instance with :func:`retrying`.

A backend has the same calls for one server and for the nodes of a Cluster. Code outside of this package
never asks which one it uses: where the two differ, both have a method, and each answers it in its way.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from streamworker.core.pauses import Pauses
from streamworker.errors import BackendError, BackendRefused, BackendUnavailable
from streamworker.redisio.scripts import Call, Script
from streamworker.redisio.wire.cluster import Cluster
from streamworker.redisio.wire.durability import MEMORY, Durability
from streamworker.redisio.wire.failures import all_answered, is_wrong_type, no_answer
from streamworker.redisio.wire.info import ServerInfo, ms_of, read_info
from streamworker.redisio.wire.link import Argument, Link, pack
from streamworker.redisio.wire.node import Node
from streamworker.redisio.wire.sentinel import target_for
from streamworker.redisio.wire.topology import Topology, seeds_of
from streamworker.urls import CLUSTER, Credentials, kind_of, refuse_plaintext

__all__ = ["Backend", "BlockingConnection", "retrying"]

T = TypeVar("T")

Server = Node | Cluster
"""Both return errors among their replies as :meth:`Backend.pipeline` says."""

CONNECTIONS = 8
"""Maximum connections of one backend. Calls are short, so a few connections serve a whole worker."""

BLOCK_MARGIN_MS = 1_000
"""A blocking read that has not ended this long after its block time has lost its server."""

UNBLOCK_PAUSE_S = 0.005

_NO_KEY = frozenset(
    {"ACL", "AUTH", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "ECHO", "FLUSHALL", "INFO", "PING"}
    | {"ROLE", "SCAN", "SCRIPT", "SELECT", "TIME", "WAIT", "WAITAOF"}
)
_SECOND = frozenset({"MEMORY", "OBJECT", "XGROUP", "XINFO"})
"""Commands whose first argument is a subcommand and whose second argument is a key."""


def key_of(args: Sequence[Argument]) -> str:
    """Return the key by which a command is routed; empty if the command has none.

    >>> key_of(("XLEN", "a")), key_of(("TIME",)), key_of(("XINFO", "STREAM", "b"))
    ('a', '', 'b')
    >>> key_of(("XREAD", "COUNT", 7, "STREAMS", "c", "0-0"))
    'c'
    """
    name = str(args[0]).upper()
    if name in _NO_KEY or len(args) < 2:
        return ""
    if name in ("XREAD", "XREADGROUP"):
        return str(args[list(args).index("STREAMS") + 1])
    if name in ("EVAL", "EVALSHA"):
        return str(args[3]) if int(args[2]) else ""
    return str(args[2] if name in _SECOND else args[1])


class Backend:
    """A client of Redis for one event loop; :meth:`open` makes it, and its first call connects.

    >>> async def ping() -> bytes:
    ...     async with Backend.open("redis://localhost:6379/0", name="example") as backend:
    ...         return await backend.execute("PING")
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        """Also answers where keys are: ``by_slot``, ``address_of`` and others, in its way."""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        name: str,
        call_timeout_ms: float = 2_500,
        connections: int = CONNECTIONS,
        allow_plaintext: bool = False,
        credentials: Credentials | None = None,
    ) -> Self:
        """Make a backend without connecting; ``name`` is its name in ``CLIENT LIST``.

        The URL begins with ``redis://``, ``rediss://`` or ``unix://``. With ``+cluster`` after ``redis`` or
        ``rediss`` it has the addresses of some nodes of a Cluster, with ``+sentinel`` those of sentinels. It
        is never shown. ``redis://`` may connect to another machine only with ``allow_plaintext``.

        The timeout of a call includes waiting for a connection, connecting, sending and receiving. There
        are at most ``connections`` to each node, without those of :meth:`blocking`. Each new one asks
        ``credentials`` for user and password, if they are given.
        """
        if not allow_plaintext:
            refuse_plaintext(url, "The URL of Redis")
        if kind_of(url) == CLUSTER:
            return cls(Cluster(Topology(seeds_of(url, name, credentials)), connections, call_timeout_ms))
        target = target_for(url, name, allow_plaintext=allow_plaintext)
        target.credentials = credentials
        return cls(Node(target, connections, call_timeout_ms))

    async def primaries(self) -> "list[Backend]":
        """Return a backend for each server that holds keys; closing this backend closes them."""
        return [Backend(node) for node in await self.server.primaries()]

    def apart(self, connections: int, on_restart: Callable[[], None] | None = None) -> "Backend":
        """Return a backend for the same server or Cluster with its own connections.

        Close it first: both share the Cluster's slot map. ``on_restart`` is called before the first call to a
        server that has restarted, or has taken over the address. All calls that began before then fail.
        """
        return Backend(self.server.apart(connections, on_restart))

    async def execute(self, *args: Argument, near: str = "") -> Any:
        """Run one command; ``BackendUnavailable`` means that it may or may not have been executed.

        On a Cluster a command without a key runs on the node that has the key ``near``.
        """
        (answer,) = all_answered(await self._commands([args], near))
        return answer

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Run independent commands in one round trip; on a Cluster in one round trip to each node.

        The result has a reply for each command, or the :class:`BackendError` if Redis refused it. Without an
        answer this raises; on a Cluster it raises if no node answered, and otherwise the reply is
        :class:`BackendUnavailable`. There a command without a key goes to the node of the command before it,
        and those without one at the beginning go to the node of the first command with a key.
        """
        return await self._commands(commands) if commands else []

    async def _commands(self, commands: Sequence[Sequence[Argument]], near: str = "") -> list[Any]:
        keys = [key_of(command) for command in commands]
        answers = await self.server.exchange(keys, [pack(command) for command in commands], near=near)
        # The server does not name the key that has the wrong type.
        return [
            BackendRefused(f"{answer.message.rstrip('.')}: {key}.", remedy=answer.remedy)
            if isinstance(answer, BackendRefused) and is_wrong_type(answer)
            else answer
            for key, answer in zip(keys, answers, strict=True)
        ]

    async def run(self, script: Script, call: Call) -> Any:
        """Run a script; see :meth:`execute`."""
        (reply,) = all_answered(await self.run_many(script, [call]))
        return reply

    async def run_many(
        self, script: Script, calls: Sequence[Call], *, durability: Durability = MEMORY
    ) -> list[Any]:
        """Run independent calls of a script in one round trip, in this order.

        On a Cluster there is one round trip to each node, and the order holds within each slot. The replies
        are as those of :meth:`pipeline`. A call that is less durable than ``durability`` requires has its
        reply in an ``Undurable``.
        """
        if not calls:
            return []
        packed = [pack(("EVALSHA", script.sha, len(keys), *keys, *args)) for keys, args in calls]
        return await self.server.exchange([keys[0] for keys, _ in calls], packed, script, durability)

    def blocking(self, key: str = "") -> "BlockingConnection":
        """Return a dedicated connection for blocking reads at the server that has a key."""
        return BlockingConnection(self.server, key)

    async def identity(self, near: str = "") -> tuple[int, str]:
        """Return this connection's client id and the server's run id, by which peers look it up.

        Use it on a backend with one connection, or with one call at a time. The values are ``0`` and ``""``
        if this user may not ask. On a Cluster they are those at the node that has the key ``near``.
        """
        node = await self.server.node_of(near)
        try:
            return await node.identity()
        except BackendUnavailable:
            self.server.failed(node)
            raise

    async def info(self, near: str = "") -> ServerInfo:
        """Return the server's reply to ``INFO``; ``BackendRefused`` if this user may not ask."""
        return read_info(await self.execute("INFO", near=near), has_all_keys=self.server.has_all_keys)

    async def time_ms(self, near: str = "") -> int:
        """Return the server's clock in ms; all compared times come from this clock.

        Each node of a Cluster has its own clock, so compare only times from the node of the same ``near``.
        """
        return ms_of(await self.execute("TIME", near=near))

    async def aclose(self) -> None:
        """Close the connections; later calls raise."""
        await self.server.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class BlockingConnection:
    """A connection for blocking reads, for one task at a time; after an error the next call reconnects."""

    def __init__(self, server: Server, key: str) -> None:
        self._server = server
        self._key = key
        self._roundtrip_ms = 0.0
        """Duration of a round trip at connect time; it extends the deadline of reads on a slow network."""
        self._node: Node | None = None
        self._link: Link | None = None
        self._under_way = 0
        """Number of the call in progress; 0 for none."""
        self._calls = 0
        self._cut = 0
        """Number of the last call that was ended by closing its connection."""

    async def execute(self, *args: Argument, block_ms: int) -> Any:
        """Run one command that may block at the server for ``block_ms``.

        It returns None if nothing came in time, or if :meth:`unblock` ended the call. It raises
        ``BackendUnavailable`` without an answer within ``block_ms``, a second and the duration of a round
        trip; or if the keys have moved to another node, which the next call finds. Connecting has its own
        timeout.
        """
        node = await self._server.node_of(self._key)  # The key may have moved since the last call.
        if self._link is None or node is not self._node:
            await self.aclose()
            self._node, self._link = node, Link(node.target)
        link = self._link
        self._calls += 1
        deadline_ms = self._server.call_timeout_ms
        try:
            await link.ready(waits=node.waits)
            if link.client_id is None:
                async with asyncio.timeout(deadline_ms / 1000):
                    began_s = asyncio.get_running_loop().time()
                    (number,) = await link.roundtrip(pack(("CLIENT", "ID")), 1)
                    self._roundtrip_ms = 1_000 * (link.used_s - began_s)
                link.client_id = number if isinstance(number, int) else 0
            deadline_ms = block_ms + BLOCK_MARGIN_MS + self._roundtrip_ms
            async with asyncio.timeout(deadline_ms / 1000):
                self._under_way = self._calls
                (reply,) = await link.roundtrip(pack(args), 1)
        except TimeoutError:
            await link.close()
            self._server.failed(node)
            raise no_answer(node.address, deadline_ms) from None
        except BackendUnavailable:
            if self._cut == self._calls:
                return None
            self._server.failed(node)
            raise
        finally:
            self._under_way = 0
        answer = self._server.noted(reply, node)
        if isinstance(answer, BackendUnavailable):
            # UNBLOCKED: the server became a replica. A new connection finds the current server.
            await link.close()
        if isinstance(answer, BackendError):
            raise answer
        return answer

    async def unblock(self) -> None:
        """Wake the call in progress, if there is one: it returns None at once. Later calls are not affected.

        If this raises because there is no answer, the call in progress detects the failure itself.
        """
        woken = self._under_way
        while woken and self._under_way == woken:
            try:
                # CLIENT UNBLOCK may reach the server before the read, and then has no effect.
                if await self._unblock_at_server():
                    return
            except BackendRefused:
                # This user may not use CLIENT UNBLOCK. Closing the connection ends the read, too, and
                # costs a reconnect.
                self._cut = woken
                await self.aclose()
                return
            await asyncio.sleep(UNBLOCK_PAUSE_S)

    async def _unblock_at_server(self) -> bool:
        assert self._node is not None
        assert self._link is not None
        if not self._link.client_id:
            raise BackendRefused("This user may not ask for CLIENT ID.")
        packed = pack(("CLIENT", "UNBLOCK", self._link.client_id))
        (reply,) = all_answered(await self._node.exchange([""], [packed]))
        return bool(reply)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._link is not None:
            await self._link.close()


async def retrying(
    call: Callable[[], Awaitable[T]], *, rng: random.Random, tries: int = 5, pause_max_ms: int = 1_000
) -> T:
    """Repeat a call while it gets no answer; raise the last error, or a refusal at once.

    This is only for calls that are safe to repeat: reads, register, acquire, release, mark, commit, trim,
    and an append with its number. ``core.pauses`` defines the backoff.
    """
    pauses = Pauses(rng.random, max_ms=pause_max_ms)
    for _ in range(tries - 1):
        with suppress(BackendUnavailable):
            return await call()
        await asyncio.sleep(pauses.next_ms() / 1000)
    return await call()
